"""Scales of a simulation, from a few graphs for tests to the official sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tpugraphs_polynormer.catalog import COLLECTIONS, QUANTILES
from tpugraphs_polynormer.simulator.draw import Size
from tpugraphs_polynormer.simulator.search import SEARCHES

Counts = tuple[int, int, int]  # of train, valid and test


@dataclass(frozen=True)
class Scale:
    """The numbers of graphs, kernels and candidates of a simulation, and the sizes of its programs."""

    layout_graphs: dict[str, Counts]  # by collection id
    tile_kernels: Counts
    layout_candidates: dict[str, tuple[int, ...]]  # by collection id: the quantiles of what is drawn, see `draw_count`
    test_candidates: int
    tile_candidates: tuple[int, int]
    size: Size
    kernel_size: Size  # of the programs that tile kernels are cut from
    kernel_nodes: int


def _same_graphs(xla: Counts, nlp: Counts) -> dict[str, Counts]:
    return {f"layout:{source}:{search}": counts
            for source, counts in (("xla", xla), ("nlp", nlp)) for search in SEARCHES}  # fmt: skip


_BATCHES = (8, 12, 16, 20, 24, 32, 48, 64)
_LAYOUTS = tuple(each.id for each in COLLECTIONS.values() if each.kind == "layout")

_TINY = Size(
    blocks=(1, 2),
    layers=(1, 2),
    width=(2, 8),
    batch=_BATCHES[:6],
    image=(16, 24, 32),
    sequence=(32, 50, 64),
    volume=(8, 16, 32),
)
_DEMO = Size(
    blocks=(2, 6),
    layers=(1, 3),
    width=(2, 24),
    batch=_BATCHES,
    image=(32, 48, 64, 96, 128, 224),
    sequence=(32, 50, 64, 100, 128),
    volume=(16, 32, 48, 64, 96, 128),
)
_SMALL = replace(_DEMO, blocks=(3, 8), layers=(1, 4), sequence=(32, 50, 64, 77, 100, 128))
_FULL = Size(
    blocks=(60, 270),
    layers=(3, 40),
    width=(4, 64),
    batch=(*_BATCHES, 96, 128, 256),
    image=(64, 96, 128, 160, 192, 224),
    sequence=(64, 77, 100, 128, 196, 256, 384, 512),
    volume=(32, 48, 64, 96, 128),
)

SCALES: dict[str, Scale] = {
    "tiny": Scale(
        layout_graphs=_same_graphs((6, 4, 4), (5, 3, 3)),
        tile_kernels=(20, 6, 6),
        layout_candidates=dict.fromkeys(_LAYOUTS, (100, 400)),
        test_candidates=100,
        tile_candidates=(8, 100),
        size=_TINY,
        kernel_size=_TINY,
        kernel_nodes=40,
    ),
    "demo": Scale(
        layout_graphs=_same_graphs((64, 8, 8), (40, 8, 8)),
        tile_kernels=(300, 60, 60),
        layout_candidates=dict.fromkeys(_LAYOUTS, (200, 500)),
        test_candidates=300,
        tile_candidates=(20, 200),
        size=_DEMO,
        kernel_size=_DEMO,
        kernel_nodes=60,
    ),
    "small": Scale(
        layout_graphs=_same_graphs((36, 8, 8), (32, 8, 8)),
        tile_kernels=(300, 60, 60),
        layout_candidates=dict.fromkeys(_LAYOUTS, (1000, 3000)),
        test_candidates=1000,
        tile_candidates=(20, 400),
        size=_SMALL,
        kernel_size=_SMALL,
        kernel_nodes=60,
    ),
    "full": Scale(
        layout_graphs={name: COLLECTIONS[name].num_graphs for name in _LAYOUTS},
        tile_kernels=COLLECTIONS["tile:xla"].num_graphs,
        layout_candidates={name: COLLECTIONS[name].num_candidates for name in _LAYOUTS},
        test_candidates=1000,
        tile_candidates=(20, 9_900),
        size=_FULL,
        kernel_size=_SMALL,
        kernel_nodes=90,
    ),
}


def draw_count(rng: np.random.Generator, values: tuple[int, ...]) -> int:
    """A number whose logarithm is distributed by the given quantiles: (least, most), or one value per QUANTILES."""
    levels = (0.0, 1.0) if len(values) == 2 else QUANTILES
    return round(float(np.exp(np.interp(rng.random(), levels, np.log(values)))))

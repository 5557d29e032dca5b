"""Writes simulated TpuGraphs collections as the official tree of archives, and the hidden runtimes beside it."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from tpugraphs_polynormer.catalog import COLLECTIONS, NUM_LAYOUT_FEATURES, SPLITS
from tpugraphs_polynormer.data.npz import Blocks, write_archive, write_npz
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.hlo.candidates import gather_layouts
from tpugraphs_polynormer.hlo.choices import Choices, enumerate_choices
from tpugraphs_polynormer.hlo.features import ModuleArrays, featurize_module
from tpugraphs_polynormer.hlo.module import Module
from tpugraphs_polynormer.simulation.candidates import SEARCHES, draw_search_blocks
from tpugraphs_polynormer.simulation.costs import LayoutCosts, measure
from tpugraphs_polynormer.simulation.kernels import cut_kernel, draw_tiles
from tpugraphs_polynormer.simulation.programs import SOURCES, Size, draw_program
from tpugraphs_polynormer.simulation.tile_costs import TileCosts

log = logging.getLogger(__name__)

_FLOAT_BLOCK_VALUES = 4 << 20  # float32 values of node_config_feat made at a time
_SPLIT_STRIDE = 100_000  # between the numbers of the first graphs of two splits
Counts = tuple[int, int, int]  # of train, valid and test


@dataclass(frozen=True)
class Scale:
    """How much to simulate: graphs and kernels per split, candidates (low, high) per graph, and their sizes."""

    layout_graphs: dict[str, Counts]  # by collection id
    tile_kernels: Counts
    layout_candidates: dict[str, tuple[int, int]]  # by source
    test_candidates: int
    tile_candidates: tuple[int, int]
    size: Size
    kernel_nodes: int


def _same_graphs(xla: Counts, nlp: Counts) -> dict[str, Counts]:
    return {f"layout:{source}:{search}": counts
            for source, counts in (("xla", xla), ("nlp", nlp)) for search in SEARCHES}  # fmt: skip


_BATCHES = (8, 12, 16, 20, 24, 32, 48, 64)

SCALES: dict[str, Scale] = {
    "tiny": Scale(
        layout_graphs=_same_graphs((6, 4, 4), (5, 3, 3)),
        tile_kernels=(20, 6, 6),
        layout_candidates={"xla": (100, 400), "nlp": (100, 400)},
        test_candidates=100,
        tile_candidates=(8, 100),
        size=Size(
            blocks=(1, 2), layers=(1, 2), width=(2, 8), batch=_BATCHES[:6], image=(16, 24, 32), sequence=(32, 50, 64)
        ),
        kernel_nodes=40,
    ),
    "demo": Scale(
        layout_graphs=_same_graphs((64, 8, 8), (40, 8, 8)),
        tile_kernels=(300, 60, 60),
        layout_candidates={"xla": (200, 500), "nlp": (200, 500)},
        test_candidates=300,
        tile_candidates=(20, 200),
        size=Size(
            blocks=(2, 6), layers=(1, 3), width=(2, 24), batch=_BATCHES, image=(32, 48, 64), sequence=(32, 50, 64, 100)
        ),
        kernel_nodes=60,
    ),
    "small": Scale(
        layout_graphs=_same_graphs((36, 8, 8), (32, 8, 8)),
        tile_kernels=(300, 60, 60),
        layout_candidates={"xla": (1000, 3000), "nlp": (1000, 3000)},
        test_candidates=1000,
        tile_candidates=(20, 400),
        size=Size(
            blocks=(3, 8),
            layers=(1, 4),
            width=(2, 24),
            batch=_BATCHES,
            image=(32, 48, 64),
            sequence=(32, 50, 64, 77, 100, 128),
        ),
        kernel_nodes=60,
    ),
    "full": Scale(
        layout_graphs={each.id: each.num_graphs for each in COLLECTIONS.values() if each.kind == "layout"},
        tile_kernels=COLLECTIONS["tile:xla"].num_graphs,
        layout_candidates={"xla": (1_159, 100_040), "nlp": (11_000, 100_040)},
        test_candidates=1000,
        tile_candidates=(20, 9_900),
        size=Size(
            blocks=(16, 140),
            layers=(2, 30),
            width=(4, 64),
            batch=(*_BATCHES, 96, 128, 256),
            image=(64, 96, 128, 160, 192, 224),
            sequence=(64, 77, 100, 128, 196, 256, 384, 512),
        ),
        kernel_nodes=90,
    ),
}


def simulate(out: Path, scale: str, seed: int) -> dict:
    """Writes all five collections below `out`/npz and the test split's runtimes below `out`/truth.

    Files that exist are written again: the same seed gives the same bytes. Returns, per collection id, how many graphs
    and candidates were written.
    """
    if scale not in SCALES:
        raise UserError(f"unknown scale {scale!r}; choose from {', '.join(SCALES)}")
    plan, out = SCALES[scale], Path(out)
    summary = {each: {"graphs": 0, "candidates": 0} for each in COLLECTIONS}
    total = sum(sum(each) for each in plan.layout_graphs.values()) + sum(plan.tile_kernels)
    with tqdm(total=total, desc=f"simulate {scale}", unit="graph", disable=not sys.stderr.isatty()) as progress:
        for collection, candidates in _write_all(out, plan, seed):
            summary[collection]["graphs"] += 1
            summary[collection]["candidates"] += candidates
            progress.update()
    log.info("simulated %s graphs at scale %s into %s", total, scale, out)
    return summary


def _write_all(out: Path, plan: Scale, seed: int) -> Iterator[tuple[str, int]]:
    """Yields (collection id, candidates) after each file."""
    for collection in COLLECTIONS.values():
        counts = plan.tile_kernels if collection.kind == "tile" else plan.layout_graphs[collection.id]
        first = 0
        for split, count in zip(SPLITS, counts, strict=True):
            for number in range(first, first + count):
                folder = Path(collection.folder) / split
                if collection.kind == "tile":
                    yield collection.id, simulate_kernel(out, folder, plan, seed, number)
                else:
                    yield collection.id, simulate_graph(out, folder, plan, seed, number)
            # Splits start at fixed numbers, so that collections of different sizes share their valid and test graphs.
            first += max(count, _SPLIT_STRIDE)


def simulate_graph(
    out: Path, folder: Path, plan: Scale, seed: int, number: int, num_candidates: int | None = None
) -> int:
    """Writes one layout archive into `out`/npz/`folder` (source/search/split end it); returns its candidate count.

    The program depends on seed, source and number alone: random and default search share their programs. Candidates
    are drawn twice, block by block, once to price and once to write them: they never exist as a whole.
    """
    _, source, search, split = folder.parts
    family = SOURCES[source][number % len(SOURCES[source])]
    program_seed = [seed, sorted(SOURCES).index(source), number]
    module = draw_program(family, plan.size, np.random.default_rng(program_seed))
    arrays, choices = featurize_module(module), enumerate_choices(module)
    rng = np.random.default_rng([*program_seed, 1 + SEARCHES.index(search)])
    if num_candidates is None:
        num_candidates = _num_candidates(plan, source, split, rng)
    draw = {"search": search, "seed": int(rng.integers(1 << 62))}
    settings = [
        choices.table[start : start + count] for start, count in zip(choices.starts, choices.counts, strict=True)
    ]
    costs = LayoutCosts(arrays.node_feat, arrays.node_opcode, arrays.edge_index, choices.node_ids, settings)
    seconds = [costs.seconds(block) for block in draw_search_blocks(choices, num_candidates, **draw)]
    shape = (num_candidates, len(settings), NUM_LAYOUT_FEATURES)
    blocks = _layout_blocks(choices, draw_search_blocks(choices, num_candidates, **draw))
    contents = {
        "node_config_feat": Blocks(shape, np.float32, blocks),
        "node_config_ids": choices.node_ids,
        "node_splits": arrays.node_splits[None],
    }
    measured = {"config_runtime": measure(np.concatenate(seconds), rng)}
    _write(out, folder, _graph_name(module, split, number), arrays, contents, measured)
    return num_candidates


def _layout_blocks(choices: Choices, index_blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Choice numbers to float32 [b, nc, 18], a few megabytes at a time."""
    rows = max(1, _FLOAT_BLOCK_VALUES // (len(choices.node_ids) * NUM_LAYOUT_FEATURES))
    for indices in index_blocks:
        for start in range(0, len(indices), rows):
            yield gather_layouts(choices, indices[start : start + rows]).astype(np.float32)


def _num_candidates(plan: Scale, source: str, split: str, rng: np.random.Generator) -> int:
    if split == "test":
        return plan.test_candidates + int(rng.integers(2))
    low, high = plan.layout_candidates[source]
    return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))


def simulate_kernel(out: Path, folder: Path, plan: Scale, seed: int, number: int) -> int:
    """Writes one tile archive into `out`/npz/`folder`; returns its candidate count."""
    rng = np.random.default_rng([seed, len(SOURCES), number])
    families = [family for each in SOURCES.values() for family in each]
    split = folder.parts[-1]
    while True:
        module = draw_program(families[number % len(families)], plan.size, rng)
        kernel = cut_kernel(module, rng, plan.kernel_nodes)
        arrays = featurize_module(kernel)
        costs = TileCosts(arrays.node_feat, arrays.node_opcode, arrays.edge_index)
        low, high = plan.tile_candidates
        wanted = round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))
        features = draw_tiles(costs, rng, wanted)
        if len(features) > 1:
            break
    runtimes = measure(costs.seconds(features), rng)
    normalizers = np.full_like(runtimes, runtimes[0])
    shuffled = rng.permutation(len(features))
    measured = {"config_runtime": runtimes[shuffled], "config_runtime_normalizers": normalizers}
    _write(out, folder, _graph_name(kernel, split, number), arrays, {"config_feat": features[shuffled]}, measured)
    return len(features)


def _graph_name(module: Module, split: str, number: int) -> str:
    """A readable unique name; test graphs are named by a hash alone, as the official ones are."""
    digest = hashlib.md5(f"{module.name}.{number}".encode(), usedforsecurity=False).hexdigest()
    return digest if split == "test" else f"{module.name}_{digest[:8]}"


def _write(
    out: Path,
    folder: Path,
    name: str,
    arrays: ModuleArrays,
    contents: dict[str, np.ndarray | Blocks],
    measured: dict[str, np.ndarray],
) -> None:
    """Writes an archive; in the test split runtimes are hidden (0, normalizers 1) and kept in a file of their own."""
    shown = measured
    if folder.parts[-1] == "test":
        write_npz(out / "truth" / folder / f"{name}.npz", measured)
        shown = {key: np.full_like(each, int(key.endswith("normalizers"))) for key, each in measured.items()}
    graph = {"node_feat": arrays.node_feat, "node_opcode": arrays.node_opcode, "edge_index": arrays.edge_index}
    write_archive(out / "npz" / folder / f"{name}.npz", {**graph, **contents, **shown})

"""Small simulated collections of layouts and tiles, which the cost model can read, preprocessed once per session."""

import functools
from dataclasses import replace
from pathlib import Path

from tests.ranking_data import scratch_folder
from tests.small_datasets import LAYOUT, TILE, preprocess_here
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.simulator.scales import SCALES
from tpugraphs_polynormer.simulator.write import simulate_graph, simulate_kernel


@functools.cache
def simulated_datasets() -> Path:
    """The folder of both collections, with npz/ beside it in `tree`."""
    root = scratch_folder()
    plan = replace(SCALES["tiny"], tile_candidates=(8, 20))
    for split, members in {"train": range(4), "valid": range(100, 102)}.items():
        for number in members:
            simulate_graph(root / "tree", Path("layout/xla/random") / split, plan, 0, number, 20 + number % 7)
            simulate_kernel(root / "tree", Path("tile/xla") / split, plan, 0, number)
    preprocess_here(root / "tree", root / "data", LAYOUT, TILE)
    return root / "data"


def simulated_archive(name: str, split: str, graph: str) -> Path:
    """The archive of a graph."""
    return simulated_datasets().parent / "tree/npz" / name.replace(":", "/") / split / f"{graph}.npz"


@functools.cache
def simulated(name: str = LAYOUT) -> RankingDataset:
    """One of the two, opened."""
    return RankingDataset(simulated_datasets() / name.replace(":", "/"))

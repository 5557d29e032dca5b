"""Two small simulated layout collections, preprocessed once per test session."""

import functools
from dataclasses import replace
from pathlib import Path

from tests.ranking_data import scratch_folder
from tests.small_datasets import LAYOUT, preprocess_here
from tpugraphs_polynormer.catalog import find_collection
from tpugraphs_polynormer.simulator.scales import SCALES
from tpugraphs_polynormer.simulator.write import simulate_graph

OTHER = "layout:nlp:random"
SEVERAL = (OTHER, LAYOUT)
SETTING = f"data.collections=[{', '.join(SEVERAL)}]"
_GRAPHS = {LAYOUT: {"train": 3, "valid": 1, "test": 1}, OTHER: {"train": 2, "valid": 2, "test": 1}}


@functools.cache
def simulated_collections() -> Path:
    """The folder with `tree` (npz/ and truth/) and `data` (the datasets of both)."""
    root = scratch_folder()
    plan = replace(SCALES["tiny"], test_candidates=20)
    first = {"train": 0, "valid": 100_000, "test": 200_000}
    for name, splits in _GRAPHS.items():
        for split, count in splits.items():
            for number in range(first[split], first[split] + count):
                # Other programs in the second collection: numbers 50 further on.
                numbered = number + 50 * (name == OTHER)
                simulate_graph(root / "tree", Path(find_collection(name).folder) / split, plan, 0, numbered, 24)
    preprocess_here(root / "tree", root / "data", *_GRAPHS)
    return root

"""The costs that are ranked, and the costs that training uses."""

import numpy as np
import pytest

from tests.small_datasets import LAYOUT, TILE, preprocess_here, small_graphs, write_small_tree
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.datasets.targets import read_costs, to_training_costs


@pytest.fixture(scope="module")
def collections(tmp_path_factory) -> dict[str, RankingDataset]:
    root = tmp_path_factory.mktemp("targets")
    found = preprocess_here(write_small_tree(root / "in"), root / "out", LAYOUT, TILE)
    return {each.manifest.collection: each for each in found}


def test_hidden_runtimes_cost_nothing(collections):
    assert not read_costs(collections[LAYOUT].split("test"), 0).any()


def test_the_costs_of_layouts_are_their_runtimes(collections):
    arrays = small_graphs()[LAYOUT]["valid"]["valid0"]
    costs = read_costs(collections[LAYOUT].split("valid"), 0)
    assert costs.dtype == np.int64
    assert np.array_equal(costs, arrays["config_runtime"])
    assert to_training_costs(costs) is costs


def test_the_costs_of_tiles_are_ratios_and_training_keeps_their_order(collections):
    arrays = small_graphs()[TILE]["valid"]["held"]
    ratios = arrays["config_runtime"] / arrays["config_runtime_normalizers"]
    costs = read_costs(collections[TILE].split("valid"), 0)
    assert np.array_equal(costs, ratios)
    chosen = np.array([3, 0])
    assert np.array_equal(read_costs(collections[TILE].split("valid"), 0, chosen), ratios[chosen])
    assert to_training_costs(costs).dtype == np.int64
    assert np.array_equal(to_training_costs(costs), np.rint(ratios * 2.0**40))
    assert np.array_equal(np.argsort(to_training_costs(costs)), np.argsort(ratios))


def test_a_huge_ratio_does_not_overflow():
    assert to_training_costs(np.array([1.0, 2.0**63])).tolist() == [2**40, 2**62]

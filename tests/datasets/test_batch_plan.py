"""Packed batches: which graphs share a batch, on sizes computed by hand; sizes drawn from the official quantiles."""

import numpy as np
import pytest

from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.config.schema import RankingDataConfig
from tpugraphs_polynormer.datasets.batch_plan import (
    BATCH_SIZES,
    BatchPlan,
    batch_limits,
    describe_batches,
    draw_official_sizes,
)

# nodes, edges, config nodes, config edges, config values of five graphs.
SIZES = np.array([[10, 12, 2, 1, 3], [4, 5, 1, 0, 2], [6, 7, 2, 2, 2], [3, 3, 1, 0, 1], [9, 9, 2, 1, 4]])


def make_plan(most: int = 3, batch_nodes: int = 12, order=lambda epoch: np.arange(5)) -> BatchPlan:
    config = RankingDataConfig(graphs_per_batch=most, batch_nodes=batch_nodes)
    return BatchPlan(SIZES, order, limits=batch_limits(SIZES, config), most=most)


def test_limits_by_hand():
    config = RankingDataConfig(graphs_per_batch=3, batch_nodes=12)
    ratio = 12 * 1.1 / 32  # of a batch's nodes over all nodes, with slack
    expected = [12, max(12, np.ceil(ratio * 36)), max(2, np.ceil(ratio * 8)), max(2, np.ceil(ratio * 4)), 3 * 4]
    assert batch_limits(SIZES, config) == dict(zip(BATCH_SIZES, expected, strict=True))
    assert list(batch_limits(SIZES, RankingDataConfig(graphs_per_batch=2)).values()) == [20, 24, 4, 4, 8]
    assert batch_limits(SIZES, RankingDataConfig(graphs_per_batch=2, batch_nodes=1))["nodes"] == 10, "the largest fits"


def test_graphs_fill_a_batch_until_one_does_not_fit():
    plan = make_plan()
    assert plan.positions(0).tolist() == [0, -1, -1]  # 10 + 4 nodes are too many
    assert plan.positions(1).tolist() == [1, 2, -1]
    assert plan.positions(2).tolist() == [3, 4, -1]
    assert plan.positions(3).tolist() == [5, -1, -1]  # the next epoch
    assert plan.padding_share() == pytest.approx(1 - 32 / 36)


def test_batches_are_described():
    packed = describe_batches(SIZES, RankingDataConfig(graphs_per_batch=1, batch_nodes=12))
    assert packed.graphs_per_batch == pytest.approx(1) and packed.padding_share == pytest.approx(1 - 32 / 50)
    plain = describe_batches(SIZES, RankingDataConfig(graphs_per_batch=2))
    assert plain.padding_share == pytest.approx(1 - 2 * 6.4 / 20) and "2.0 graphs on average, 36 % padding" in str(
        plain
    )


def test_a_batch_has_at_most_so_many_graphs():
    plan = make_plan(most=1, batch_nodes=1000)
    assert [plan.positions(batch).tolist() for batch in range(5)] == [[0], [1], [2], [3], [4]]


def test_a_batch_does_not_depend_on_those_that_were_asked_for_before():
    def shuffled(epoch: int) -> np.ndarray:
        return np.random.default_rng(epoch).permutation(5)

    asked = [17, 3, 40, 0, 17, 5, 39]
    plan = make_plan(order=shuffled)
    found = {batch: plan.positions(batch).tolist() for batch in asked}
    assert found == {batch: make_plan(order=shuffled).positions(batch).tolist() for batch in asked}


def test_each_epoch_has_each_graph_once():
    plan = make_plan(order=lambda epoch: np.random.default_rng(epoch).permutation(5))
    positions = np.concatenate([plan.positions(batch) for batch in range(60)])
    positions = positions[positions >= 0]
    assert positions.tolist() == list(range(len(positions))), "no position is left out or repeated"


@pytest.mark.parametrize("name", COLLECTIONS)
def test_official_sizes_end_with_the_largest_graph(name):
    sizes = draw_official_sizes(COLLECTIONS[name])
    assert (sizes[-1] == sizes.max(axis=0)).all() and sizes[-1, 0] == COLLECTIONS[name].num_nodes[-1]
    middle = COLLECTIONS[name].num_nodes[len(COLLECTIONS[name].num_nodes) // 2]
    assert np.median(sizes[:, 0]) == pytest.approx(middle, rel=0.02)

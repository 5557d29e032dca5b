"""Random partitions: every node is in one part, and subgraphs are induced."""

from __future__ import annotations

import numpy as np
import pytest

from tests.node_data import make_dataset
from tpugraphs_polynormer.layers.edge_index import build_edge_index
from tpugraphs_polynormer.nodes.partitions import iterate_subgraphs, partition_nodes


@pytest.mark.parametrize("batch_size", [1, 7, 20, 60, 100])
def test_each_node_is_in_one_batch(batch_size: int) -> None:
    batches = partition_nodes(60, batch_size, (3, 0))
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(60))
    assert {len(batch) for batch in batches[:-1]} <= {batch_size}
    assert len(batches) == -(-60 // batch_size)


def test_partitions_depend_on_the_seed_only() -> None:
    first, again, other = (partition_nodes(60, 20, seed) for seed in ((3, 0), (3, 0), (3, 1)))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("batch_size", [7, 20, 60])
def test_subgraphs_hold_all_edges_among_their_nodes(batch_size: int) -> None:
    dataset = make_dataset()
    adjacency = np.zeros([60, 60], int)
    adjacency[dataset.edges[:, 0], dataset.edges[:, 1]] = 1
    edges = build_edge_index(dataset.edges[:, 0], dataset.edges[:, 1], 60)
    for sub in iterate_subgraphs(edges, partition_nodes(60, batch_size, (0,))):
        found = np.zeros([len(sub.nodes)] * 2, int)
        np.add.at(found, (sub.edges.source, sub.edges.target), 1)
        np.testing.assert_array_equal(found, adjacency[np.ix_(sub.nodes, sub.nodes)])
        assert np.all(np.diff(sub.edges.target) >= 0)
        assert np.all(np.diff(sub.edges.source[sub.edges.source_order]) >= 0)

"""Random partitions of a graph into induced subgraphs: the mini-batches of large benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.layers.edge_index import EdgeIndex, build_edge_index


@dataclass(frozen=True)
class Subgraph:
    """An induced subgraph: its nodes in ascending order, and the edges between them with renumbered nodes."""

    nodes: np.ndarray  # int64 [num_sub_nodes]
    edges: EdgeIndex


def partition_nodes(num_nodes: int, batch_size: int, seed: tuple[int, ...]) -> list[np.ndarray]:
    """A random partition of the nodes into batches of `batch_size` (the last may be smaller), each ascending."""
    order = np.random.default_rng(seed).permutation(num_nodes)
    return [np.sort(order[first : first + batch_size]) for first in range(0, num_nodes, batch_size)]


def iterate_subgraphs(edges: EdgeIndex, batches: list[np.ndarray]) -> Iterator[Subgraph]:
    """The induced subgraph of each batch; one pass over all batches reads every edge once."""
    num_nodes = len(edges.target_offsets) - 1
    batch_of, position = np.empty(num_nodes, np.int32), np.empty(num_nodes, np.int32)
    for number, nodes in enumerate(batches):
        batch_of[nodes], position[nodes] = number, np.arange(len(nodes), dtype=np.int32)
    for number, nodes in enumerate(batches):
        positions, counts = _incoming(edges.target_offsets, nodes)
        sources = edges.source[positions]
        inside = batch_of[sources] == number
        targets = np.repeat(np.arange(len(nodes), dtype=np.int32), counts)[inside]
        yield Subgraph(nodes, build_edge_index(position[sources[inside]], targets, len(nodes)))


def _incoming(splits: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the incoming edges of `nodes` in the list sorted by target, and the number per node."""
    starts = splits[nodes].astype(np.int64)
    counts = splits[nodes + 1] - starts
    before = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(starts - before, counts), counts

"""Small random graphs for tests."""

from __future__ import annotations

import numpy as np

from tpugraphs_polynormer.layers.edge_index import EdgeIndex, build_undirected_edge_index, pad_edge_index


def random_pairs(num_nodes: int, num_pairs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random edges in one direction."""
    pairs = np.random.default_rng(seed).integers(0, num_nodes, [2, num_pairs])
    return pairs[0], pairs[1]


def random_edges(num_nodes: int, num_pairs: int, seed: int = 0) -> EdgeIndex:
    """The edge index of a random undirected graph with self-loops."""
    return build_undirected_edge_index(*random_pairs(num_nodes, num_pairs, seed), num_nodes)


def random_states(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def merge(*graphs: EdgeIndex) -> EdgeIndex:
    """The edge index of a batch of graphs: node ids are shifted, and no edges join graphs."""
    shifts = np.cumsum([0] + [graph.num_nodes for graph in graphs])
    source = np.concatenate([graph.source + shift for graph, shift in zip(graphs, shifts, strict=False)])
    target = np.concatenate([graph.target + shift for graph, shift in zip(graphs, shifts, strict=False)])
    return build_undirected_edge_index(source, target, int(shifts[-1]))


def padded(states: np.ndarray, edges: EdgeIndex, num_padding_nodes: int = 4, num_padding_edges: int = 7):
    """States, edges and node mask with padding at the end; the states of padding nodes are large numbers."""
    num_nodes = len(states) + num_padding_nodes
    junk = np.full([num_padding_nodes, *states.shape[1:]], 37.0, np.float32)
    edges = pad_edge_index(edges, num_nodes=num_nodes, num_edges=len(edges.source) + num_padding_edges)
    return np.concatenate([states, junk]), edges, np.arange(num_nodes) < len(states)

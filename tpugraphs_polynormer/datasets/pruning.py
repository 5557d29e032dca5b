"""Prunes large graphs to the neighbourhood of their config nodes."""

from __future__ import annotations

import numpy as np

from tpugraphs_polynormer.archives.npz import LayoutArchive, ProgramGraph


def keep_neighbourhood(archive: ProgramGraph, max_nodes: int, num_hops: int) -> np.ndarray:
    """The ascending positions of the nodes to keep of a graph with more than `max_nodes` (0: keep all).

    These are the nodes within h hops of a config node; h is the largest number up to `num_hops` for which there are at
    most `max_nodes` of them. The config nodes are always kept.
    """
    num_nodes = len(archive.node_feat)
    if (
        not max_nodes
        or num_nodes <= max_nodes
        or not isinstance(archive, LayoutArchive)
        or not archive.node_config_ids.size
    ):
        return np.arange(num_nodes)
    hops = count_hops(archive.edge_index, archive.node_config_ids, num_nodes, num_hops)
    reached = np.cumsum(np.bincount(hops, minlength=num_hops + 2)[: num_hops + 1])
    fitting = np.flatnonzero(reached <= max_nodes)
    return np.flatnonzero(hops <= (fitting[-1] if len(fitting) else 0))


def count_hops(edge_index: np.ndarray, starts: np.ndarray, num_nodes: int, most: int) -> np.ndarray:
    """int64 [num_nodes]: distance to the nearest start, with edges in both directions; most + 1 if it is farther."""
    hops = np.full(num_nodes, most + 1, np.int64)
    hops[starts] = 0
    both = np.concatenate([edge_index, edge_index[:, ::-1]])
    for hop in range(1, most + 1):
        reached = both[hops[both[:, 0]] == hop - 1, 1]
        reached = reached[hops[reached] > hop]
        if not len(reached):
            break
        hops[reached] = hop
    return hops

"""Which graphs share a training batch, and the static sizes that every batch fits into; without TensorFlow.

Without `data.batch_nodes` a batch has `graphs_per_batch` graphs, and its static size is that many times the largest
graph: mostly padding, because the median program has a quarter of the nodes of the largest. With it, a batch is filled
with the next graphs until one does not fit, so that one static size, compiled once, holds one large graph or several
small ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.catalog import LARGEST_CONFIG_NODES, QUANTILES, Collection
from tpugraphs_polynormer.config.schema import RankingDataConfig
from tpugraphs_polynormer.datasets.manifest import GraphEntry
from tpugraphs_polynormer.datasets.statistics import SIZE_NAMES

BATCH_SIZES = SIZE_NAMES[:-1]  # what adds up over the graphs of a batch: all but the candidates
_SLACK = 1.1  # of edges and config nodes for each node of a full batch, over their mean
NO_GRAPH = -1  # the position of a graph that is missing from a batch
# Of real archives: 7 % of an average graph's nodes or fewer are config nodes, fewer than 2 edges join each of them, and
# they take up to 62 values.
_CONFIG_NODE_SHARE, _CONFIG_EDGES, _CONFIG_VALUES = 0.07, 2, 128
_NUM_DRAWN = 1000


def measure_graphs(graphs: Sequence[GraphEntry]) -> np.ndarray:
    """[graphs, 5]: the BATCH_SIZES of each graph."""
    return np.array([graph.sizes[: len(BATCH_SIZES)] for graph in graphs], np.int64).reshape(-1, len(BATCH_SIZES))


def draw_official_sizes(collection: Collection, seed: int = 0) -> np.ndarray:
    """[1000, 5]: BATCH_SIZES of graphs spread over the official quantiles; the last is the largest in every size."""
    spread = (np.arange(_NUM_DRAWN - 1) + 0.5) / (_NUM_DRAWN - 1)
    level = np.append(np.random.default_rng(seed).permutation(spread), 1.0)
    quantiles = np.linspace(0, 1, len(collection.num_nodes)) if collection.kind == "tile" else QUANTILES
    nodes, edges = (np.interp(level, quantiles, each) for each in (collection.num_nodes, collection.num_edges))
    if collection.kind == "tile":
        three = np.full(_NUM_DRAWN, 3)
        values = np.full(_NUM_DRAWN, _CONFIG_VALUES)
        return np.stack([nodes, edges, three, 0 * three, values], axis=1).astype(np.int64)
    config_nodes = np.minimum(np.ceil(_CONFIG_NODE_SHARE * nodes), LARGEST_CONFIG_NODES)
    config_nodes[-1] = min(LARGEST_CONFIG_NODES, nodes[-1])
    values = np.full(_NUM_DRAWN, _CONFIG_VALUES)
    return np.stack([nodes, edges, config_nodes, _CONFIG_EDGES * config_nodes, values], axis=1).astype(np.int64)


def batch_limits(sizes: np.ndarray, config: RankingDataConfig) -> dict[str, int]:
    """{size name: what the graphs of a batch have together at most}, given the sizes [graphs, 5] of all graphs."""
    largest = dict(zip(BATCH_SIZES, sizes.max(axis=0, initial=0).tolist(), strict=True))
    limits = {name: config.graphs_per_batch * value for name, value in largest.items()}
    if not config.batch_nodes:
        return limits
    totals = dict(zip(BATCH_SIZES, sizes.sum(axis=0).tolist(), strict=True))
    for name in ("nodes", "edges", "config_nodes", "config_edges"):
        slack = 1.0 if name == "nodes" else _SLACK
        usual = math.ceil(slack * config.batch_nodes * totals[name] / max(totals["nodes"], 1))
        limits[name] = min(limits[name], max(largest[name], usual))
    return limits


class BatchPlan:
    """The graphs of every batch of an endless sequence; batches end with an epoch, so that each epoch has each graph.

    Args:
      sizes: [graphs, 5], of the graphs by number.
      epoch_order: epoch -> the numbers of its graphs, in order.
      limits: see `batch_limits`. most: graphs in a batch at most.
    """

    def __init__(
        self, sizes: np.ndarray, epoch_order: Callable[[int], np.ndarray], *, limits: Mapping[str, int], most: int
    ) -> None:
        self._sizes, self._epoch_order = sizes, epoch_order
        self._limits = np.array([limits[name] for name in BATCH_SIZES])
        self._most = most
        self._starts = [0]  # the first batch of each epoch whose predecessors were planned
        self._epoch, self._batches = -1, np.zeros((0, most), np.int64)

    def positions(self, batch: int) -> np.ndarray:
        """[most]: positions in the endless sequence of graphs, NO_GRAPH behind the last one."""
        if batch < self._starts[-1]:
            epoch = int(np.searchsorted(self._starts, batch, side="right")) - 1
            self._plan(epoch)
        while batch >= self._starts[-1]:
            self._plan(len(self._starts) - 1)
            self._starts.append(self._starts[-1] + len(self._batches))
        return self._batches[batch - self._starts[self._epoch]]

    def _plan(self, epoch: int) -> None:
        """Fills the batches of an epoch, in the order of its graphs."""
        if epoch == self._epoch:
            return
        order = self._epoch_order(epoch)
        batches: list[list[int]] = []
        room = np.zeros_like(self._limits)
        for position, size in enumerate(self._sizes[order], start=epoch * len(order)):
            if not batches or len(batches[-1]) == self._most or (size > room).any():
                batches.append([])
                room = self._limits.copy()
            batches[-1].append(position)
            room -= size
        self._epoch = epoch
        self._batches = np.array([each + [NO_GRAPH] * (self._most - len(each)) for each in batches], np.int64)

    def padding_share(self) -> float:
        """The share of a batch's nodes that are padding, the mean over the first epoch."""
        self.positions(0)
        self._plan(0)
        order = self._epoch_order(0)
        return 1 - self._sizes[order, 0].sum() / (len(self._batches) * self._limits[0])


@dataclass(frozen=True)
class BatchSizes:
    """The sizes of a config's training batches."""

    limits: dict[str, int]  # BATCH_SIZES -> what the graphs of a batch have together at most
    padding_share: float  # of a batch's nodes, the mean over an epoch, with static shapes
    graphs_per_batch: float  # the mean over an epoch

    def __str__(self) -> str:
        shape = f"{self.graphs_per_batch:.1f} graphs on average, {100 * self.padding_share:.0f} % padding"
        return f"{', '.join(f'{value:,} {name}' for name, value in self.limits.items())}; {shape}"


def describe_batches(sizes: np.ndarray, config: RankingDataConfig, seed: int = 0) -> BatchSizes:
    """The batches of graphs with these sizes [graphs, 5]."""
    limits, most = batch_limits(sizes, config), config.graphs_per_batch
    usual = float(sizes[:, 0].mean())
    if not config.batch_nodes:
        return BatchSizes(limits, 1 - most * usual / max(limits["nodes"], 1), most)
    order = np.random.default_rng(seed).permutation(len(sizes))
    share = float(BatchPlan(sizes, lambda epoch: order, limits=limits, most=most).padding_share())
    return BatchSizes(limits, share, (1 - share) * limits["nodes"] / usual)

"""The graphs and candidates of each training step, a function of (seed, step); without TensorFlow."""

from __future__ import annotations

import numpy as np

from tpugraphs_polynormer.config.schema import RankingDataConfig
from tpugraphs_polynormer.datasets.batch_plan import NO_GRAPH, BatchPlan, batch_limits, measure_graphs
from tpugraphs_polynormer.datasets.manifest import DatasetError
from tpugraphs_polynormer.datasets.physics import blank_physics
from tpugraphs_polynormer.datasets.reader import RankingSplit
from tpugraphs_polynormer.datasets.records import serialize_nothing
from tpugraphs_polynormer.datasets.targets import read_costs, to_training_costs


class CandidateSampler:
    """The graph and the candidates at each position of an endless sequence; the same seed gives the same sequence.

    Args:
      split, config, seed: of the training data.
      physics: whether each draw has what the cost model knows of its candidates.
    """

    def __init__(self, split: RankingSplit, config: RankingDataConfig, seed: int, *, physics: bool = False) -> None:
        self._split, self._config, self._seed, self._physics = split, config, seed, physics
        self._chosen: dict[int, np.ndarray] = {}  # with max_candidates, by graph
        # A graph with one distinct candidate has nothing to rank.
        self._graphs = np.array([i for i, entry in enumerate(split.graphs) if entry.num_candidates > 1])
        if not len(self._graphs):
            raise DatasetError("the train split has no graph with two different candidates: nothing can be learned")

    def epoch_order(self, epoch: int) -> np.ndarray:
        """[num_graphs]: the numbers of the graphs of an epoch, shuffled."""
        order = np.random.default_rng((self._seed, 0, epoch)).permutation(len(self._graphs))
        return self._graphs[order]

    def graph_at(self, position: int) -> int:
        """The number of the graph at a position of the endless sequence of epochs."""
        epoch, index = divmod(position, len(self._graphs))
        return int(self.epoch_order(epoch)[index])

    def plan_batches(self) -> BatchPlan:
        """The graphs of each batch, with `batch_nodes`."""
        sizes = measure_graphs(self._split.graphs)
        limits, most = batch_limits(sizes[self._graphs], self._config), self._config.graphs_per_batch
        return BatchPlan(sizes, self.epoch_order, limits=limits, most=most)

    def candidates_at(self, position: int, number: int) -> np.ndarray:
        """Up to k distinct candidates of a graph, [<= k] in random order."""
        allowed = self._allowed(number)
        if allowed is None:
            return self._draw(position, self._split.graphs[number].num_candidates)
        return allowed[self._draw(position, len(allowed))]

    def _allowed(self, number: int) -> np.ndarray | None:
        """The candidates of a graph that training may draw, sorted; None for all of them."""
        total, most = self._split.graphs[number].num_candidates, self._config.max_candidates
        if not most or total <= most:
            return None
        if number not in self._chosen:
            self._chosen[number] = choose_few(total, most, seed=self._seed, number=number)
        return self._chosen[number]

    def _draw(self, position: int, total: int) -> np.ndarray:
        random = np.random.default_rng((self._seed, 1, position))
        count = min(self._config.candidates_per_graph, total)
        if self._config.sampling == "uniform" or count == total:
            return random.choice(total, count, replace=False)
        # Training candidates are stored fastest first (encoding.collapse_duplicates).
        num_fast = max(1, int(total * self._config.fast_quantile))
        fast = random.choice(num_fast, min(num_fast, round(count * self._config.fast_share)), replace=False)
        others = np.setdiff1d(random.choice(total, count, replace=False), fast)
        return random.permutation(np.concatenate([fast, random.permutation(others)])[:count])

    def draw(self, position: int) -> tuple[bytes | np.ndarray, ...]:
        """The record and the `fetch_candidates` of the graph at a position, which may be NO_GRAPH."""
        width = self._config.candidates_per_graph
        if position == NO_GRAPH:
            nothing = np.zeros([0, width], np.int32), np.zeros(width, np.int64), np.zeros(width, bool)
            physics = blank_physics(self._split.kind, 0, width).flat if self._physics else ()
            return serialize_nothing(self._split.kind), *nothing, *physics
        number = self.graph_at(position)
        candidates = self.candidates_at(position, number)
        fetched = fetch_candidates(self._split, number, candidates, width, physics=self._physics)
        return self._split.read_record(number), *fetched


def choose_few(total: int, most: int, *, seed: int, number: int) -> np.ndarray:
    """[most], sorted: which of a train graph's `total` candidates a run with `data.max_candidates` learns from.

    Args:
      seed: of the run. number: of the graph in the train split.
    """
    return np.sort(np.random.default_rng((seed, 2, number)).choice(total, most, replace=False))


def fetch_candidates(
    split: RankingSplit, number: int, candidates: np.ndarray, width: int, *, physics: bool = False
) -> tuple[np.ndarray, ...]:
    """(codes [config nodes, width], costs [width], mask [width]) of the candidates; padding is candidate 0, masked.

    With `physics`, the arrays of `Physics.flat` follow.
    """
    mask = np.arange(width) < len(candidates)
    padded = np.zeros(width, np.int64)
    padded[: len(candidates)] = candidates
    codes = split.read_codes(number, padded)
    known = split.physics(number).describe(codes).flat if physics else ()
    return codes.T.astype(np.int32), to_training_costs(read_costs(split, number, padded)), mask, *known

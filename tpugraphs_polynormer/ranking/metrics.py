"""Ranking metrics in numpy: of one graph, means over a collection, and means over collections.

A candidate with a higher score is predicted to be faster. Costs are int64 nanoseconds (layout), or runtimes divided by
their normalizers in float64 (tile): equal ratios of integers give equal quotients, and the order is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from tpugraphs_polynormer.archives.npz import relative_costs
from tpugraphs_polynormer.catalog import TILE_TOP, TYPICAL_NOISE
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.ranking.random_baseline import expected_contest_score, expected_slowdown


class MetricError(UserError):
    """Scores or runtimes cannot be evaluated; the message names the graph."""


@dataclass(frozen=True)
class GraphMetrics:
    """The metrics of one graph's ranking.

    If all scores are equal, every metric has its mean over random orders: `opa` 0.5 and `tau` 0 (NaN if all true
    runtimes are equal too), the contest score of a layout graph 0, and for slowdowns and the contest score of a tile
    graph the exact expectation (`random_baseline.py`). Ties between some scores count as in the official metrics.
    """

    collection: str
    graph: str
    num_candidates: int
    opa: float  # see `pair_accuracy`; NaN if all true runtimes are equal
    tau: float  # see `kendall_tau`; NaN if all true runtimes are equal
    tau_beyond_noise: float  # see `tau_beyond_noise`; NaN if no pair differs by more than the noise
    slowdown_1: float  # see `slowdown`
    slowdown_5: float
    slowdown_10: float
    slowdown_100: float
    contest_score: float  # see `tile_contest_score` and `layout_contest_score`


SLOWDOWN_KS = (1, 5, 10, 100)
METRICS = ("opa", "tau", "tau_beyond_noise", "slowdown_1", "slowdown_5", "slowdown_10", "slowdown_100", "contest_score")


def graph_metrics(
    kind: str,
    runtimes: np.ndarray,
    scores: np.ndarray,
    normalizers: np.ndarray | None = None,
    *,
    noise: float = TYPICAL_NOISE,
    collection: str = "",
    graph: str = "",
) -> GraphMetrics:
    """All metrics of one graph.

    Args:
      kind: "tile" or "layout".
      runtimes: [candidates], positive.
      scores: [candidates], finite; higher is predicted faster.
      normalizers: [candidates], the runtimes of the default tile (tile only).
      noise: pairs with a larger relative difference of runtimes count in `tau_beyond_noise` (archives/noise.py).
      collection, graph: names for the result and for errors.
    """
    truth = true_costs(runtimes, normalizers, graph=graph)
    ranking = rank_candidates(scores, graph=graph)
    if len(ranking) != len(truth):
        raise MetricError(f"graph {graph!r}: {len(ranking)} scores for {len(truth)} runtimes; expected one for each")
    pairs = _count_pairs(truth, _predicted_costs(scores))
    if pairs.scored_apart:
        opa, tau = pairs.accuracy, pairs.tau
        slowdowns = {f"slowdown_{k}": slowdown(truth, ranking, k) for k in SLOWDOWN_KS}
        contest_score = {"tile": tile_contest_score, "layout": layout_contest_score}[kind](truth, ranking)
    else:
        opa, tau = (0.5, 0.0) if pairs.comparable else (math.nan, math.nan)
        slowdowns = {f"slowdown_{k}": expected_slowdown(truth, k) for k in SLOWDOWN_KS}
        contest_score = expected_contest_score(kind, truth)
    return GraphMetrics(
        collection=collection,
        graph=graph,
        num_candidates=len(truth),
        opa=opa,
        tau=tau,
        tau_beyond_noise=tau_beyond_noise(truth, scores, noise),
        **slowdowns,
        contest_score=contest_score,
    )


def true_costs(runtimes: np.ndarray, normalizers: np.ndarray | None = None, *, graph: str = "") -> np.ndarray:
    """[candidates]: the costs, which are int64 runtimes or float64 runtimes over normalizers.

    MetricError if runtimes are hidden (0), as in the official test split.
    """
    runtimes = np.asarray(runtimes)
    if runtimes.ndim != 1 or not len(runtimes):
        raise MetricError(f"graph {graph!r}: runtimes of shape {runtimes.shape}, expected [candidates], at least one")
    if not np.isfinite(runtimes).all() or (runtimes <= 0).any():
        raise MetricError(
            f"graph {graph!r}: found a runtime of 0 or less, expected measured ones (test split hides them)"
        )
    if normalizers is None:
        return runtimes
    normalizers = np.asarray(normalizers)
    if normalizers.shape != runtimes.shape or (normalizers <= 0).any():
        raise MetricError(f"graph {graph!r}: expected one positive normalizer per runtime")
    return relative_costs(runtimes, normalizers)


def rank_candidates(scores: np.ndarray, *, graph: str = "") -> np.ndarray:
    """int64 [candidates]: candidate indices, predicted fastest first; equal scores are ordered by index."""
    scores = np.asarray(scores)
    if scores.ndim != 1:
        raise MetricError(f"graph {graph!r}: scores of shape {scores.shape}, expected [candidates]")
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise MetricError(
            f"graph {graph!r}: {len(bad)} of {len(scores)} scores are not finite, the first is {scores[bad[0]]} at "
            f"candidate {bad[0]}; check the checkpoint and the input features"
        )
    return np.argsort(_predicted_costs(scores), kind="stable").astype(np.int64)


def _predicted_costs(scores: np.ndarray) -> np.ndarray:
    """The negated scores, which increase with the runtime; unsigned integers and booleans become float64."""
    scores = np.asarray(scores)
    return -(scores.astype(np.float64) if scores.dtype.kind in "bu" else scores)


def pair_accuracy(runtimes: np.ndarray, scores: np.ndarray) -> float:
    """OPA: the share of pairs with different runtimes in which the faster candidate has the higher score.

    A pair of equal scores counts as wrong, as in the official metric. NaN if all runtimes are equal.
    """
    return _count_pairs(np.asarray(runtimes), _predicted_costs(scores)).accuracy


def kendall_tau(runtimes: np.ndarray, scores: np.ndarray) -> float:
    """Kendall's tau-b of runtimes and negated scores, equal to `scipy.stats.kendalltau`.

    Counts are exact, in O(n log n). NaN if all runtimes or all scores are equal.
    """
    return _count_pairs(np.asarray(runtimes), _predicted_costs(scores)).tau


def tau_beyond_noise(costs: np.ndarray, scores: np.ndarray, noise: float) -> float:
    """(right - wrong) / pairs over the pairs whose larger cost is more than 1 + noise times the smaller one.

    A pair of equal scores is neither right nor wrong. NaN without such a pair. Counts are exact, in O(n log n).
    """
    order = np.argsort(costs, kind="stable")
    costs = np.asarray(costs)[order]
    ranks = np.unique(_predicted_costs(scores), return_inverse=True)[1][order]
    # Costs ascend: the first `below[j]` of them are below the j-th by more than the noise.
    below = np.searchsorted(costs * (1 + noise) if noise else costs, costs, side="left")
    pairs = int(below.sum())
    if not pairs:
        return math.nan
    # The sequence has every candidate twice: as the smaller cost of a pair, at its index, and as the larger cost, right
    # after the candidates below it. A pair counts if the smaller cost is earlier in the sequence.
    count = len(costs)
    sequence = np.argsort(np.concatenate([2 * np.arange(count) + 1, 2 * below]), kind="stable")
    ranks, is_smaller = ranks[sequence % count], sequence < count
    wrong = _count_inversions(ranks, is_smaller)
    right = _count_inversions(ranks.max() - ranks, is_smaller)
    return (right - wrong) / pairs


def slowdown(costs: np.ndarray, ranking: np.ndarray, k: int) -> float:
    """Smallest cost of the k first-ranked candidates over the smallest cost of all, minus 1; 0 is perfect."""
    return float(costs[ranking[:k]].min() / costs.min()) - 1.0


def tile_contest_score(costs: np.ndarray, ranking: np.ndarray) -> float:
    """`2 - min(cost of the first 5) / min(cost of all)`, which can be negative."""
    return 1.0 - slowdown(costs, ranking, TILE_TOP)


def layout_contest_score(costs: np.ndarray, ranking: np.ndarray) -> float:
    """Kendall's tau of two permutations, the predicted order and the true order; 1 for a single candidate.

    A permutation has no ties: equal runtimes are ordered by candidate index, as `rank_candidates` orders equal scores.
    A ranking with another order of them loses those pairs; `tau` of `GraphMetrics` does not count them.
    """
    count = len(costs)
    if count == 1:
        return 1.0
    true_positions = np.empty(count, np.int64)
    true_positions[np.argsort(costs, kind="stable")] = np.arange(count)
    return 1.0 - 4.0 * _count_inversions(true_positions[ranking]) / (count * (count - 1))


@dataclass(frozen=True)
class _Pairs:
    """Exact counts of pairs of candidates."""

    comparable: int  # different runtimes
    scored_apart: int  # different scores
    right: int  # both different, same direction
    wrong: int  # both different, opposite direction

    @property
    def accuracy(self) -> float:
        return self.right / self.comparable if self.comparable else math.nan

    @property
    def tau(self) -> float:
        if not (self.comparable and self.scored_apart):
            return math.nan
        tau = (self.right - self.wrong) / math.sqrt(self.comparable) / math.sqrt(self.scored_apart)
        return min(1.0, max(-1.0, tau))


def _count_pairs(runtimes: np.ndarray, scores: np.ndarray) -> _Pairs:
    if runtimes.shape != scores.shape or runtimes.ndim != 1:
        raise MetricError(f"runtimes of shape {runtimes.shape} and scores of shape {scores.shape}: expected equal, [n]")
    times, time_counts = np.unique(runtimes, return_inverse=True, return_counts=True)[1:]
    ranks, rank_counts = np.unique(scores, return_inverse=True, return_counts=True)[1:]
    both_counts = np.unique(times * len(rank_counts) + ranks, return_counts=True)[1]
    total = math.comb(len(runtimes), 2)
    tied_times, tied_ranks, tied_both = (int((n * (n - 1) // 2).sum()) for n in (time_counts, rank_counts, both_counts))
    # After sorting by runtime, then by predicted cost, an inversion is a pair with both different, in opposite order.
    wrong = _count_inversions(ranks[np.lexsort((ranks, times))])
    right = total - tied_times - tied_ranks + tied_both - wrong
    return _Pairs(comparable=total - tied_times, scored_apart=total - tied_ranks, right=right, wrong=wrong)


def _count_inversions(values: np.ndarray, is_first: np.ndarray | None = None) -> int:
    """The number of pairs i < j with values[i] > values[j], for values in 0..n-1; O(n log n).

    With `is_first`, only pairs where i is marked and j is not. The highest bit in which two values differ decides
    whether they are inverted. The loop starts at the highest bit and keeps the values stably grouped by the higher
    bits: a value whose bit is 0 is inverted with every earlier value of its group whose bit is 1.
    """
    inversions = 0
    can_be_first = np.ones(len(values), bool) if is_first is None else is_first
    can_be_second = np.ones(len(values), bool) if is_first is None else ~is_first
    for bit in reversed(range(int(values.max(initial=0)).bit_length())):
        has_bit = ((values >> bit) & 1).astype(bool)
        ones = has_bit & can_be_first
        ones_before = np.cumsum(ones) - ones
        groups = values >> (bit + 1)
        group_starts = np.searchsorted(groups, groups)
        inversions += int((ones_before - ones_before[group_starts])[~has_bit & can_be_second].sum())
        order = np.argsort(values >> bit, kind="stable")
        values, can_be_first, can_be_second = values[order], can_be_first[order], can_be_second[order]
    return inversions


class GraphAccumulator:
    """Collects the scores of one graph from blocks of candidates, in any order."""

    def __init__(self, num_candidates: int, *, graph: str = "") -> None:
        self._graph = graph
        self._scores = np.zeros(num_candidates, np.float64)
        self._is_seen = np.zeros(num_candidates, bool)

    def add(self, indices: np.ndarray, scores: np.ndarray) -> None:
        """Adds the scores [b] of the candidates `indices` [b]; MetricError if a candidate has a score already."""
        indices, scores = np.asarray(indices), np.asarray(scores)
        if indices.ndim != 1 or indices.shape != scores.shape:
            raise MetricError(f"{self._name}: indices {indices.shape} and scores {scores.shape}, expected equal, [b]")
        outside = indices[(indices < 0) | (indices >= len(self._scores))]
        if len(outside):
            raise MetricError(f"{self._name}: candidate {outside[0]}, expected 0..{len(self._scores) - 1}")
        unique, counts = np.unique(indices, return_counts=True)
        again = unique[self._is_seen[unique] | (counts > 1)]
        if len(again):
            raise MetricError(f"{self._name}: candidate {again[0]} was scored twice, expected once")
        self._scores[indices] = scores
        self._is_seen[indices] = True

    def result(self) -> np.ndarray:
        """float64 [num_candidates]: the scores in candidate order; MetricError if some are missing."""
        missing = np.flatnonzero(~self._is_seen)
        if len(missing):
            raise MetricError(
                f"{self._name}: {len(missing)} of {len(self._scores)} candidates have no score, "
                f"the first is {missing[0]}; score every candidate"
            )
        return self._scores.copy()

    @property
    def _name(self) -> str:
        return f"graph {self._graph!r}"


def summarize(graphs: Iterable[GraphMetrics]) -> dict[str, dict]:
    """`{"collections": {id: means}, "overall": means}`, where means has METRICS and `num_graphs`.

    The means of a collection are over its graphs; `overall` is the mean over collections, as in the contest. Undefined
    metrics (NaN) are left out; the mean of no value is None, so that the result can be written as JSON.
    """
    rows: dict[str, list[dict]] = {}
    for graph in graphs:
        rows.setdefault(graph.collection, []).append(asdict(graph))
    collections = {name: _means(rows[name]) | {"num_graphs": len(rows[name])} for name in sorted(rows)}
    num_graphs = sum(len(members) for members in rows.values())
    return {"collections": collections, "overall": _means(list(collections.values())) | {"num_graphs": num_graphs}}


def _means(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    return {metric: _mean(_defined(row[metric] for row in rows)) for metric in METRICS}


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _defined(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and not math.isnan(value)]

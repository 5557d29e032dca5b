"""Rankers that nothing has to be trained for, beside which every run is judged: the cost model, and a random order."""

from __future__ import annotations

import numpy as np

from tpugraphs_polynormer.datasets.reader import RankingSplit

_BLOCK = 1024  # candidates that are priced at once


class CostScorer:
    """Scores the candidates of graphs with the cost model of each graph, in numpy."""

    def score_graph(self, split: RankingSplit, number: int, candidates: np.ndarray | None = None) -> np.ndarray:
        """float64 [c]: the scores of all candidates of a graph, or of those with indices `candidates` [c]."""
        if candidates is None:
            candidates = np.arange(split.graphs[number].num_candidates)
        physics = split.physics(number)
        blocks = (candidates[start : start + _BLOCK] for start in range(0, len(candidates), _BLOCK))
        return -np.concatenate([np.zeros(0), *(physics.total(split.read_codes(number, each)) for each in blocks)])


class RandomScorer:
    """Scores all candidates alike: every metric then has its exact mean over random orders (metrics.py)."""

    def score_graph(self, split: RankingSplit, number: int, candidates: np.ndarray | None = None) -> np.ndarray:
        """float64 [c]: zeros."""
        return np.zeros(split.graphs[number].num_candidates if candidates is None else len(candidates))


BASELINES = {"cost model": CostScorer(), "random order": RandomScorer()}  # by the label that tables show

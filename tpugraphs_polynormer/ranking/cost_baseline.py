"""The analytic cost model as a ranker: what any trained run has to beat, and nothing has to be trained for."""

from __future__ import annotations

import numpy as np

from tpugraphs_polynormer.datasets.reader import RankingSplit

LABEL = "cost model"  # in tables, beside the labels of runs
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

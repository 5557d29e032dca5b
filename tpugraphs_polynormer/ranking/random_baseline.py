"""Exact expectations of metrics over all orders of the candidates: the scores of a random ranking."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from tpugraphs_polynormer.catalog import TILE_TOP


def expected_slowdown(costs: np.ndarray, k: int) -> float:
    """Mean slowdown of the best of k candidates that are drawn at random from costs [c] without replacement.

    In ascending order of costs, the i-th (from 0) is the smallest of the draw in C(c - 1 - i, k - 1) of C(c, k) draws.
    """
    ascending = np.sort(np.asarray(costs, np.float64))
    count, k = len(ascending), min(k, len(costs))
    positions = np.arange(count - k + 1)
    log_chances = _log_binomial(count - 1 - positions, k - 1) - _log_binomial(count, k)
    return float(np.exp(log_chances) @ ascending[: count - k + 1] / ascending[0]) - 1.0


def expected_contest_score(kind: str, costs: np.ndarray) -> float:
    """The mean contest score of a random ranking of costs [c]; 0 for a layout graph."""
    if kind == "tile":
        return 1.0 - expected_slowdown(costs, TILE_TOP)
    return 0.0 if len(costs) > 1 else 1.0


def _log_binomial(total: np.ndarray | int, chosen: int) -> np.ndarray:
    return gammaln(np.add(total, 1)) - gammaln(chosen + 1) - gammaln(np.subtract(total, chosen - 1))

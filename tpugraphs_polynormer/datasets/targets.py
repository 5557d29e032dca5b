"""What is ranked: the cost of each candidate, lower is faster.

The cost of a layout is its runtime in nanoseconds; the cost of a tile is its runtime over that of the default tile.
"""

from __future__ import annotations

import numpy as np

from tpugraphs_polynormer.archives.npz import relative_costs
from tpugraphs_polynormer.datasets.split_files import SplitFiles

_RATIO_UNIT = 2.0**40  # of a tile's cost as an integer: finer than any measurement
_RATIO_MAX = 2.0**62  # ratios above four million become equal, but none overflows


def read_costs(split: SplitFiles, number: int, candidates: np.ndarray | None = None) -> np.ndarray:
    """[c]: the costs of all candidates of a graph, or of the numbered ones; all 0 where runtimes are hidden.

    int64 nanoseconds for layouts, float64 ratios for tiles.
    """
    runtimes = split.read_column(number, "runtimes", candidates)
    normalizers = split.read_column(number, "normalizers", candidates) if split.kind == "tile" else None
    return relative_costs(runtimes, normalizers)


def to_training_costs(costs: np.ndarray) -> np.ndarray:
    """int64 [c]: the costs that training compares: nanoseconds unchanged, ratios in units of 2^-40."""
    if costs.dtype.kind == "i":
        return costs
    return np.rint(np.minimum(costs * _RATIO_UNIT, _RATIO_MAX)).astype(np.int64)

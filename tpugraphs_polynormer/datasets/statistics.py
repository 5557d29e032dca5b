"""Statistics of the train split, by which features are scaled.

They are merged from the moments of graphs and shards in a fixed order, because sums of floats depend on the order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.catalog import NUM_NODE_FEATURES, NUM_OPCODES

HEAVY_TAIL = 8.0  # a column with larger values goes through the signed logarithm
QUANTILES = (0.5, 0.9, 0.99)
SIZE_NAMES = ("nodes", "edges", "config_nodes", "config_edges", "config_values", "candidates")


def signed_log(values: np.ndarray) -> np.ndarray:
    """sign(x) log(1 + |x|) in float64: keeps order and sign, and compresses columns that reach 1e7."""
    values = np.asarray(values, np.float64)
    return np.sign(values) * np.log1p(np.abs(values))


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations per column, plain and after the signed logarithm; extrema; opcodes."""

    count: int
    mean: np.ndarray  # [2, d] float64: plain, logged
    deviation: np.ndarray  # [2, d] float64: sum of (x - mean)^2
    minimum: np.ndarray  # [d]
    maximum: np.ndarray  # [d]
    opcodes: np.ndarray  # [NUM_OPCODES] int64


def measure_moments(node_feat: np.ndarray, node_opcode: np.ndarray) -> Moments:
    """The moments of one graph's nodes: [n, d] features, [n] opcodes."""
    both = np.stack([node_feat.astype(np.float64), signed_log(node_feat)])
    mean = both.mean(axis=1)
    return Moments(
        count=len(node_feat),
        mean=mean,
        deviation=((both - mean[:, None]) ** 2).sum(axis=1),
        minimum=node_feat.min(axis=0).astype(np.float64),
        maximum=node_feat.max(axis=0).astype(np.float64),
        opcodes=np.bincount(node_opcode, minlength=NUM_OPCODES),
    )


def merge(parts: Iterable[Moments]) -> Moments:
    """The moments of all parts together (Chan's update), which depend on the order of the parts in the last bits."""
    parts = iter(parts)
    total = next(parts)
    for part in parts:
        count = total.count + part.count
        shift = part.mean - total.mean
        total = Moments(
            count=count,
            mean=total.mean + shift * (part.count / count),
            deviation=total.deviation + part.deviation + shift**2 * (total.count * part.count / count),
            minimum=np.minimum(total.minimum, part.minimum),
            maximum=np.maximum(total.maximum, part.maximum),
            opcodes=total.opcodes + part.opcodes,
        )
    return total


@dataclass(frozen=True)
class FeatureStatistics:
    """The scaling of node features: log heavy columns, subtract `mean`, divide by `std`; constant columns become 0."""

    num_nodes: int
    mean: tuple[float, ...]  # [140], after the signed logarithm where heavy
    std: tuple[float, ...]  # [140], 0 for constant columns
    minimum: tuple[float, ...]
    maximum: tuple[float, ...]
    heavy: tuple[int, ...]  # columns that go through the signed logarithm
    constant: tuple[int, ...]  # columns with one value in all of train
    opcode_counts: tuple[int, ...]  # [121]


def summarize_moments(moments: Moments) -> FeatureStatistics:
    """The statistics of moments: of each column the logged or the plain ones."""
    heavy = np.maximum(-moments.minimum, moments.maximum) > HEAVY_TAIL
    columns = np.arange(NUM_NODE_FEATURES)
    chosen = heavy.astype(int)
    std = np.sqrt(moments.deviation[chosen, columns] / moments.count)
    constant = moments.minimum == moments.maximum
    return FeatureStatistics(
        num_nodes=moments.count,
        mean=tuple(moments.mean[chosen, columns].tolist()),
        std=tuple(np.where(constant, 0.0, std).tolist()),
        minimum=tuple(moments.minimum.tolist()),
        maximum=tuple(moments.maximum.tolist()),
        heavy=tuple(np.flatnonzero(heavy).tolist()),
        constant=tuple(np.flatnonzero(constant).tolist()),
        opcode_counts=tuple(moments.opcodes.tolist()),
    )


def summarize_sizes(sizes: np.ndarray) -> dict[str, dict[str, int]]:
    """{size name: maximum and quantiles} of sizes [graphs, 6], for padding budgets."""
    if not len(sizes):
        return {name: {"max": 0} | {f"q{q:g}": 0 for q in QUANTILES} for name in SIZE_NAMES}
    quantiles = np.quantile(sizes, QUANTILES, axis=0, method="higher")
    return {
        name: {"max": int(sizes[:, i].max())} | {f"q{q:g}": int(quantiles[j, i]) for j, q in enumerate(QUANTILES)}
        for i, name in enumerate(SIZE_NAMES)
    }

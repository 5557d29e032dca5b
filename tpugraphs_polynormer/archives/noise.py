"""Measurement noise of one graph, estimated from candidates that were measured more than once.

The relative difference of two costs is the larger over the smaller, minus one. A graph's *noise* is the relative
difference that 95 % of the pairs of repeated measurements do not exceed: a pair of candidates that differs by more is
almost surely ordered right by its measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.catalog import TYPICAL_NOISE

MIN_PAIRS = 10  # fewer pairs of repeated measurements give no estimate
NOISE_QUANTILE = 0.95
_BLOCK_BYTES = 4 << 20  # of candidates hashed or compared at once
_NUM_BINS = 200  # of differences, in the estimate of the perfect model's tau
_NUM_STEPS = 500  # of expectation maximisation; 2,000 change the tau of the real archives by at most 0.005
_NUM_DIFFERENCES = 400  # quantiles that represent the distribution of repeats


@dataclass(frozen=True)
class NoiseStudy:
    """The noise of one graph, estimated from repeated measurements, and the best ranking that it allows."""

    num_repeated: int  # candidates that were measured more than once
    median: float  # relative difference that half of their pairs (see `pair_repeats`) do not exceed
    noise: float  # relative difference that 95 % of these pairs do not exceed
    close_share: float  # share of the pairs of different candidates whose relative difference is at most `noise`
    perfect_tau: float  # see `estimate_perfect_tau`


def group_equal(*columns: np.ndarray) -> np.ndarray:
    """int64 [c]: a group number per row, equal for rows that agree in all columns [c, ...], by first appearance.

    Rows are sorted by a 64-bit hash, block by block so that no copy of a large array is held, and then compared.
    """
    keys = np.zeros(len(columns[0]), np.uint64)
    for number, column in enumerate(columns):
        keys = _mix_bits(keys + np.uint64(number)) + _hash_rows(column)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    if not all(_equals_rows(column, first[inverse]) for column in columns):  # two rows with one hash: 1 in 10^9 graphs
        texts = (b"".join(row.tobytes() for row in rows) for rows in zip(*columns, strict=True))
        numbers: dict[bytes, int] = {}
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    numbers_by_key = np.empty(len(first), np.int64)
    numbers_by_key[np.argsort(first)] = np.arange(len(first))
    return numbers_by_key[inverse]


def _hash_rows(column: np.ndarray) -> np.ndarray:
    """uint64 [c]: a hash of the bytes of each row of [c, ...]."""
    count, width = len(column), column.dtype.itemsize * math.prod(column.shape[1:])
    keys = np.zeros(count, np.uint64)
    rows = max(1, _BLOCK_BYTES // max(1, width))
    offsets = _mix_bits(np.arange(1, 2 + width // 8, dtype=np.uint64))  # the hash depends on a word's position
    for start in range(0, count, rows):
        block = np.ascontiguousarray(column[start : start + rows])
        padded = np.zeros((len(block), 8 * len(offsets)), np.uint8)
        padded[:, :width] = block.reshape(len(block), -1).view(np.uint8) if width else 0
        keys[start : start + rows] = _mix_bits(padded.view(np.uint64) + offsets).sum(axis=1)
    return keys


def _equals_rows(column: np.ndarray, rows: np.ndarray) -> bool:
    """Whether column[i] equals column[rows[i]] for all i; compares block by block."""
    step = max(1, _BLOCK_BYTES // max(1, column.dtype.itemsize * math.prod(column.shape[1:])))
    spans = (slice(start, start + step) for start in range(0, len(column), step))
    return all(np.array_equal(column[span], column[rows[span]]) for span in spans)


def _mix_bits(words: np.ndarray) -> np.ndarray:
    """uint64 -> uint64, each bit of the result depending on all bits of the word (the finalizer of splitmix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def pair_repeats(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([p], [p]) rows: pairs of measurements of the same candidate, each row in at most one pair.

    The k-th of a candidate's m measurements, in the order of rows, is paired with the one m // 2 later. The pairs are
    therefore independent, and include a drift between early and late measurements.
    """
    order = np.argsort(groups, kind="stable")
    counts = np.bincount(groups)
    positions = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
    halves = np.repeat(counts // 2, counts)
    first = np.flatnonzero(positions < halves)
    return order[first], order[first + halves[first]]


def measure_noise(costs: np.ndarray, groups: np.ndarray) -> float | None:
    """The noise of a graph's costs [c], or None if it cannot be estimated.

    It cannot if runtimes are hidden (0), if there are fewer than MIN_PAIRS pairs of repeats, and if all candidates are
    equal: they may differ by noise, or by something that the archive does not contain.
    """
    differences = _repeat_differences(costs, groups)
    return None if differences is None else _noise_of(differences)


def study_noise(costs: np.ndarray, groups: np.ndarray) -> NoiseStudy | None:
    """The study of the repeats among costs [c], or None if `measure_noise` gives None."""
    differences = _repeat_differences(costs, groups)
    if differences is None:
        return None
    noise = _noise_of(differences)
    single = np.asarray(costs, np.float64)[np.unique(groups, return_index=True)[1]]
    ascending = np.sort(single)
    return NoiseStudy(
        num_repeated=int((np.bincount(groups) > 1).sum()),
        median=float(np.median(np.expm1(differences))),
        noise=noise,
        close_share=_count_within(ascending, ascending * (1 + noise)) / math.comb(len(single), 2),
        perfect_tau=estimate_perfect_tau(single, differences),
    )


def typical_noise(noises: Iterable[float | None]) -> float:
    """The noise to assume for a graph without an estimate: the median of the known ones, else TYPICAL_NOISE."""
    known = [noise for noise in noises if noise is not None]
    return float(np.median(known)) if known else TYPICAL_NOISE


def estimate_perfect_tau(costs: np.ndarray, differences: np.ndarray) -> float:
    """Kendall's tau of a perfect model, which knows the true order, against one measurement [c] of each candidate.

    `differences` [p] are |log a - log b| of repeated measurements; F is their distribution function. Measurements
    put a pair of candidates with the true log difference D in the right order with probability (1 + F(|D|)) / 2, so
    that tau = E[F(|D|)] over pairs. D is unknown: the measured difference is D + r, where r is distributed as the
    repeats are, with either sign. The distribution of |D| is found by expectation maximisation on a histogram of the
    measured differences (the Richardson-Lucy deconvolution). Noise added to the measurements would overestimate tau,
    because they already contain noise.

    Assumes that the noise of all candidates has one distribution, relative to the runtime, and that it is
    independent between measurements. With 300 repeats the estimate is within 0.04 of the true tau where that is above
    0.7, within 0.1 where it is 0.5 to 0.7; below 0.2 it is too high, by 0.1 on average.
    """
    repeats = np.sort(differences)
    if repeats[-1] == 0:
        return 1.0
    low = max(np.median(repeats) / 50, repeats[-1] * 1e-6)
    edges = np.concatenate([[0.0], np.geomspace(low, 2 * repeats[-1], _NUM_BINS)])  # one more bin for larger ones
    true = np.concatenate([[0.0], (edges[:-1] + edges[1:]) / 2])
    logs = np.sort(np.log(np.asarray(costs, np.float64)))
    totals = [_count_within(logs, logs + edge) for edge in edges[1:]]
    measured = np.diff([0, *totals, math.comb(len(logs), 2)])
    explained = _difference_bins(
        true, edges, np.quantile(repeats, (np.arange(_NUM_DIFFERENCES) + 0.5) / _NUM_DIFFERENCES)
    )
    weights = np.full(len(true) + 1, measured.sum() / (len(true) + 1))
    for _ in range(_NUM_STEPS):
        weights *= explained.T @ (measured / np.maximum(explained @ weights, 1e-300))
    below, up_to = (np.searchsorted(repeats, true, side=side) for side in ("left", "right"))
    known_order = np.append((below + up_to) / 2 / len(repeats), 1.0)  # F, ties by half
    return float(weights @ known_order / weights.sum())


def _difference_bins(true: np.ndarray, edges: np.ndarray, repeats: np.ndarray) -> np.ndarray:
    """[bins + 1, differences + 1]: P(measured difference in bin | true difference), the last of each "larger"."""
    chances = np.zeros((len(edges), len(true) + 1))
    for number, difference in enumerate(true):
        noisy = np.abs(np.concatenate([difference - repeats, difference + repeats]))
        bins = np.searchsorted(edges[1:], noisy, side="left")
        chances[:, number] = np.bincount(bins, minlength=len(edges)) / len(noisy)
    chances[-1, -1] = 1.0
    return chances


def _noise_of(differences: np.ndarray) -> float:
    return float(np.quantile(np.expm1(differences), NOISE_QUANTILE))


def _repeat_differences(costs: np.ndarray, groups: np.ndarray) -> np.ndarray | None:
    """|log a - log b| [p] of the paired repeats, or None if the noise cannot be estimated."""
    first, second = pair_repeats(groups)
    if len(first) < MIN_PAIRS or not groups.any() or not np.all(costs):
        return None
    return np.abs(np.log(costs[first]) - np.log(costs[second]))


def _count_within(ascending: np.ndarray, limits: np.ndarray) -> int:
    """The number of pairs (i, j), i < j, with ascending[j] <= limits[i]; limits ascend too."""
    count = len(ascending)
    return int(np.searchsorted(ascending, limits, side="right").sum()) - count * (count + 1) // 2

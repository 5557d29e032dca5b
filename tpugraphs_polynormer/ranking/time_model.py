"""A Bayesian regression of measured times on candidates, with the scores of an ensemble as the prior mean.

What a run's network knows of a program enters by its scores; the measurements decide how much they count, how its
members are weighed, and what each choice adds to them. With nothing measured the order is the ensemble's; a prior that
the measurements contradict gets the weight 0, and what is left is a regression from scratch.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from tpugraphs_polynormer.hlo.choices import MAX_RANK, Choices

_NOISES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # variance of the noise over that of what the prior does not know
_PAIR_SHARES = (0.0, 0.5, 0.9)  # share of the latter that pairs of codes explain, the rest single codes
_WEIGHTS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # of the prior mean, over the ratio of deviations
_WEIGHT_DEVIATION = 1.5  # of the logarithm of such a weight before anything was measured
_USELESS = 0.1  # how likely a weight of 0 is then, compared with 1
_LEAST_VARIANCE = 1e-6  # of warped times, so that equal times have a likelihood
_PART_ROOTS = np.sqrt([1 / 2, 1 / 6, 1 / 6, 1 / 6]).astype(np.float32)  # of a choice and of its three tensors
_MOST = 256  # measurements that decide the settings: the latest


class OneHot:
    """The one-hot codes of a program's candidates: of each node its choice, and the layout of each of its tensors.

    The inner product of two candidates is 1 if they are equal. Groups count alike, and so do the nodes of a group: tied
    nodes count as one. A node counts half by its choice, half by its three tensors.
    """

    def __init__(self, choices: Choices) -> None:
        _, numbers, sizes = np.unique(choices.groups, return_inverse=True, return_counts=True)
        self._roots = np.sqrt(1 / (sizes[numbers.ravel()] * len(sizes)))
        spans = list(zip(choices.starts.tolist(), choices.counts.tolist(), strict=True))
        local = {span: _number_codes(choices.table[span[0] : sum(span)]) for span in dict.fromkeys(spans)}
        widths = np.array([local[span].max() + 1 for span in spans])
        offsets = np.cumsum(widths) - widths
        self._columns = [local[span] + offset for span, offset in zip(spans, offsets, strict=True)]
        self.width = int(widths.sum())

    def encode(self, indices: np.ndarray) -> np.ndarray:
        """float32 [c, width]: the codes of choice numbers [c, nc]."""
        codes, rows = np.zeros((len(indices), self.width), np.float32), np.arange(len(indices))[:, None]
        for node, (columns, root) in enumerate(zip(self._columns, self._roots, strict=True)):
            codes[rows, columns[indices[:, node]]] = root * _PART_ROOTS
        return codes


def _number_codes(table: np.ndarray) -> np.ndarray:
    """int64 [k, 4]: the columns of a node's choices [k, 18] and of the layouts of their three tensors."""
    parts = [np.arange(len(table))]
    for start in (0, MAX_RANK, 2 * MAX_RANK):
        _, numbers = np.unique(table[:, start : start + MAX_RANK], axis=0, return_inverse=True)
        parts.append(numbers.ravel() + parts[-1].max() + 1)
    return np.stack(parts, 1)


class Candidates:
    """Candidates as the regression sees them: one-hot codes, and the scores [members, c] of the prior, if there is one.

    Args:
      one_hot: of the program. indices: choice numbers [c, nc].
      scores: higher is faster, in standard deviations over candidates of the program.
    """

    def __init__(self, one_hot: OneHot, indices: np.ndarray, scores: np.ndarray | None = None) -> None:
        self.indices = np.asarray(indices, np.int64)
        self._codes = one_hot.encode(self.indices)
        self._scores = np.zeros((1, len(self.indices))) if scores is None else np.asarray(scores, np.float64)

    def __len__(self) -> int:
        return len(self.indices)

    def select(self, rows: np.ndarray | slice) -> Candidates:
        """Some of the candidates, by their rows."""
        chosen = copy.copy(self)
        chosen.indices, chosen._codes, chosen._scores = self.indices[rows], self._codes[rows], self._scores[:, rows]
        return chosen

    @property
    def prior_costs(self) -> np.ndarray:
        """[c]: what the ensemble says, higher is slower; 0 without one."""
        return -self._scores.mean(axis=0)

    @property
    def variances(self) -> np.ndarray:
        """[c]: the prior covariance of each candidate with itself."""
        return 1 + self._scores.var(axis=0)

    def covariance(self, others: Candidates, pair_share: float) -> np.ndarray:
        """[c, d]: the prior covariance with other candidates.

        The square of an inner product of codes is the inner product of the codes of all pairs. The members' deviations
        from their mean are features too, so that the members can be weighed.
        """
        agreement = (self._codes @ others._codes.T).astype(np.float64)
        mine, theirs = (each._scores - each._scores.mean(axis=0) for each in (self, others))
        return (1 - pair_share) * agreement + pair_share * agreement**2 + mine.T @ theirs / len(mine)


class Settings(NamedTuple):
    """What the marginal likelihood decides."""

    weight: float = 1.0  # of the prior mean
    variance: float = 0.25  # of what the prior mean does not explain, in squared warped times
    noise: float = 1e-2  # its variance over `variance`
    pair_share: float = 0.5


class TimeModel:
    """The posterior of the warped times of candidates, given measured ones.

    A warped time (`warp_times`) is offset + weight * (the ensemble's cost) + f + noise, where f is a sum of weights of
    one-hot codes, of pairs of them, and of the members' deviations: a Bayesian ridge regression, computed by the inner
    products of candidates. The offset is free, the other settings are found by the marginal likelihood.

    Args:
      measured: the candidates that were measured; there may be none. warped: [n], their warped times.
    """

    def __init__(self, measured: Candidates, warped: np.ndarray) -> None:
        self._measured, self.settings = measured, find_settings(measured, warped)
        if not len(measured):
            return
        covariance = measured.covariance(measured, self.settings.pair_share)
        self._root = np.linalg.cholesky(covariance + self.settings.noise * np.eye(len(measured)))
        residual = warped - self.settings.weight * measured.prior_costs
        whitened = solve_triangular(self._root, np.stack([residual, np.ones(len(warped))], 1), lower=True)
        solved = solve_triangular(self._root, whitened, lower=True, trans="T")
        self._offset = float(solved[:, 0].sum() / solved[:, 1].sum())
        self._coefficients = solved[:, 0] - self._offset * solved[:, 1]

    @property
    def has_data(self) -> bool:
        """Whether anything was measured."""
        return len(self._measured) > 0

    def predict(self, candidates: Candidates) -> tuple[np.ndarray, np.ndarray]:
        """([c], [c]): the means and the standard deviations of warped times, without noise."""
        means, shares = self.settings.weight * candidates.prior_costs, candidates.variances
        if self.has_data:
            covariance = self._measured.covariance(candidates, self.settings.pair_share)
            means = means + self._offset + self._coefficients @ covariance
            shares = shares - (solve_triangular(self._root, covariance, lower=True) ** 2).sum(axis=0)
        return means, np.sqrt(self.settings.variance * np.maximum(shares, 1e-12))

    def covariance(self, candidates: Candidates) -> np.ndarray:
        """[c, c]: the posterior covariance of candidates with each other."""
        found = candidates.covariance(candidates, self.settings.pair_share)
        if self.has_data:
            cross = self._measured.covariance(candidates, self.settings.pair_share)
            whitened = solve_triangular(self._root, cross, lower=True)
            found = found - whitened.T @ whitened
        return self.settings.variance * found


def warp_times(seconds: np.ndarray) -> np.ndarray:
    """[n]: log(1 + e / median e), where e is the logarithm of a time over the shortest time.

    Times of real candidates differ by a factor of five, and the best of them by a ten-thousandth. The differences
    between good ones must be resolved; of a slow one it is enough to know that it is slow.
    """
    excess = np.log(seconds / seconds.min())
    scale = np.median(excess[excess > 0]) if (excess > 0).any() else 1.0
    return np.log1p(excess / scale)


def find_settings(measured: Candidates, warped: np.ndarray) -> Settings:
    """The settings with the highest marginal likelihood; the default ones below two measurements."""
    if len(warped) < 2:
        return Settings()
    measured, warped = measured.select(slice(-_MOST, None)), warped[-_MOST:]
    count, costs = len(warped), measured.prior_costs
    weights = np.array(_WEIGHTS if np.ptp(costs) else [0.0])
    believed = np.log(np.where(weights > 0, weights, 1.0)) / _WEIGHT_DEVIATION
    believed = np.where(weights > 0, -0.5 * believed**2, np.log(_USELESS))
    # A tenth of a deviation: the first candidates are those that the prior likes, and have nearly equal scores.
    weights = weights * max(warped.std(), 1e-3) / max(costs.std(), 0.1)
    spread = max(float(warped.var()), _LEAST_VARIANCE)
    best, found = -np.inf, Settings()
    for pair_share in _PAIR_SHARES:
        covariance = measured.covariance(measured, pair_share)
        for noise in _NOISES:
            root = np.linalg.cholesky(covariance + noise * np.eye(count))
            columns = np.concatenate([warped[:, None] - costs[:, None] * weights, np.ones((count, 1))], 1)
            whitened = solve_triangular(root, columns, lower=True)
            residuals, ones = whitened[:, :-1], whitened[:, -1]
            offsets = ones @ residuals / (ones @ ones)
            squares = ((residuals - ones[:, None] * offsets) ** 2).sum(axis=0)
            variances = (squares + spread) / count  # as if one more were known: few measurements may agree by chance
            volume = 2 * np.log(np.diag(root)).sum() + np.log(ones @ ones)
            evidence = believed - 0.5 * ((count - 1) * np.log(variances) + volume)
            number = int(np.argmax(evidence))
            if evidence[number] > best:
                best = float(evidence[number])
                found = Settings(float(weights[number]), float(variances[number]), noise, pair_share)
    return found

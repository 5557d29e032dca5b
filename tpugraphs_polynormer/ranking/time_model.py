"""A Bayesian regression of measured times on candidates, with the scores of an ensemble as the prior mean."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from tpugraphs_polynormer.hlo.choices import MAX_RANK, Choices

Prior = Callable[[np.ndarray], np.ndarray]  # choice numbers [c, nc] -> scores [members, c], higher is faster
_NOISES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # variance of the noise over that of what the prior does not know
_PAIR_SHARES = (0.0, 0.5, 0.9)  # share of that variance that pairs of units explain, the rest single units
_WEIGHTS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # of the prior mean, over the ratio of deviations
_WEIGHT_DEVIATION = 1.5  # of the logarithm of that ratio, before anything was measured
_ZERO_CHANCE = 0.1  # of a prior that says nothing, before anything was measured
_LEAST_VARIANCE = 1e-6  # of the warped times, so that equal times have a likelihood
_PART_ROOTS = np.sqrt([1 / 2, 1 / 6, 1 / 6, 1 / 6]).astype(np.float32)  # of a choice and its three tensors
_MOST = 256  # measurements that decide the settings: the latest


class Settings(NamedTuple):
    """What the marginal likelihood decides."""

    weight: float = 1.0  # of the prior mean
    variance: float = 0.25  # of what the prior mean does not explain, in squared warped times
    noise: float = 1e-2  # over `variance`
    pair_share: float = 0.5


class OneHot:
    """The one-hot codes of a program's candidates: of each node its choice, and the layout of each of its tensors.

    The inner product of two candidates is 1 if they are equal. Groups count alike, and the nodes of a group, so that
    tied nodes count as one; a node counts half by its choice, half by its three tensors.
    """

    def __init__(self, choices: Choices) -> None:
        _, numbers, sizes = np.unique(choices.groups, return_inverse=True, return_counts=True)
        self._roots = np.sqrt(1 / (sizes[numbers.ravel()] * len(sizes)))
        local = {
            start: _number_parts(choices.table[start : start + count])
            for start, count in zip(choices.starts.tolist(), choices.counts.tolist(), strict=True)
        }
        found = [local[start] for start in choices.starts.tolist()]
        widths = np.array([each.max() + 1 for each in found])
        self._columns = [each + start for each, start in zip(found, np.cumsum(widths) - widths, strict=True)]
        self.width = int(widths.sum())

    def encode(self, indices: np.ndarray) -> np.ndarray:
        """float32 [c, width]: the codes of choice numbers [c, nc]."""
        codes, rows = np.zeros((len(indices), self.width), np.float32), np.arange(len(indices))[:, None]
        for node, (columns, root) in enumerate(zip(self._columns, self._roots, strict=True)):
            codes[rows, columns[indices[:, node]]] = root * _PART_ROOTS
        return codes


def _number_parts(table: np.ndarray) -> np.ndarray:
    """int64 [k, 4]: the columns of a node's choices [k, 18] and of their three tensors, all distinct."""
    parts = [np.arange(len(table))]
    for start in (0, MAX_RANK, 2 * MAX_RANK):
        _, numbers = np.unique(table[:, start : start + MAX_RANK], axis=0, return_inverse=True)
        parts.append(numbers.ravel() + parts[-1].max() + 1)
    return np.stack(parts, 1)


class Candidates:
    """Candidates as the regression sees them: one-hot codes, and the scores of the prior's members."""

    def __init__(self, one_hot: OneHot, indices: np.ndarray, scores: np.ndarray | None) -> None:
        self.indices = np.asarray(indices, np.int64)
        self._codes = one_hot.encode(self.indices)
        self.scores = np.zeros((1, len(self.indices))) if scores is None else np.asarray(scores, np.float64)

    def __len__(self) -> int:
        return len(self.indices)

    def select(self, rows: np.ndarray) -> Candidates:
        """Some of the candidates, by their rows or a mask."""
        chosen = copy.copy(self)
        chosen.indices, chosen._codes, chosen.scores = self.indices[rows], self._codes[rows], self.scores[:, rows]
        return chosen

    @property
    def prior_costs(self) -> np.ndarray:
        """[c]: what the ensemble says, higher is slower."""
        return -self.scores.mean(axis=0)

    def covariance(self, others: Candidates, pair_share: float) -> np.ndarray:
        """[c, d]: the prior covariance with other candidates, 1 for a candidate with itself if members agree on it."""
        agreement = (self._codes @ others._codes.T).astype(np.float64)
        found = (1 - pair_share) * agreement + pair_share * agreement**2
        if len(self.scores) > 1:  # the members' disagreement: the head may weigh them otherwise
            mine, theirs = (each.scores - each.scores.mean(axis=0) for each in (self, others))
            found += mine.T @ theirs / len(self.scores)
        return found

    @property
    def variances(self) -> np.ndarray:
        """[c]: the covariance of each candidate with itself."""
        return 1 + (self.scores.var(axis=0) if len(self.scores) > 1 else 0.0)


@dataclass(frozen=True)
class Predicted:
    """The posterior of candidates [c] in warped times (see `warp_times`): mean, and covariance [c, c] or None."""

    mean: np.ndarray
    variance: np.ndarray


class TimeModel:
    """The posterior of the times of candidates, given measured ones.

    A warped time is offset + weight * (the ensemble's cost) + f + noise, where f is a sum of weights of one-hot choices
    and of pairs of them, and of the members' deviations from their mean: Bayesian ridge regression, computed with the
    inner products of candidates. The offset is free; the others are settings, found by the marginal likelihood. Without
    measurements the order is the ensemble's.

    Args:
      measured: the candidates that were measured. warped: [n], their warped times.
      settings: found from earlier measurements; None finds them now.
    """

    def __init__(self, measured: Candidates, warped: np.ndarray, settings: Settings | None = None) -> None:
        self._measured, self.settings = measured, settings or find_settings(measured, warped)
        if not len(warped):
            return
        root = _root(measured, self.settings)
        residual = warped - self.settings.weight * measured.prior_costs
        solved = _solve(root, np.stack([residual, np.ones(len(warped))], 1))
        self._root, self._offset = root, float(solved[:, 0].sum() / solved[:, 1].sum())
        self._coefficients = solved[:, 0] - self._offset * solved[:, 1]

    def predict(self, candidates: Candidates) -> Predicted:
        """The posterior of other candidates, each by itself."""
        mean = self.settings.weight * candidates.prior_costs
        share = candidates.variances
        if len(self._measured):
            cross = self._covariance(candidates)
            mean = mean + self._offset + self._coefficients @ cross
            share = share - (solve_triangular(self._root, cross, lower=True) ** 2).sum(axis=0)
        return Predicted(mean, self.settings.variance * np.maximum(share, 1e-12))

    def _covariance(self, candidates: Candidates) -> np.ndarray:
        """[n, c]: of the measured candidates with others."""
        return self._measured.covariance(candidates, self.settings.pair_share)

    def joint(self, candidates: Candidates) -> tuple[np.ndarray, np.ndarray]:
        """([c], [c, c]): the mean and the covariance of candidates together."""
        covariance = candidates.covariance(candidates, self.settings.pair_share)
        if len(self._measured):
            cross = solve_triangular(self._root, self._covariance(candidates), lower=True)
            covariance = covariance - cross.T @ cross
        return self.predict(candidates).mean, self.settings.variance * covariance

    def draw(self, candidates: Candidates, count: int, rng: np.random.Generator) -> np.ndarray:
        """[count, c]: warped times of all candidates together, drawn from the posterior, without noise."""
        mean, covariance = self.joint(candidates)
        values, vectors = np.linalg.eigh(covariance)
        return mean + rng.standard_normal((count, len(mean))) @ (vectors * np.sqrt(np.maximum(values, 0))).T


def warp_times(seconds: np.ndarray) -> np.ndarray:
    """[n]: log(1 + e / median e), where e is how much longer a time is than the shortest, as a logarithm of the ratio.

    Times of real candidates differ by a factor of five, and the best ones by a ten-thousandth: what matters is resolved,
    and what is slow is only slow.
    """
    excess = np.log(seconds / seconds.min())
    scale = np.median(excess[excess > 0]) if (excess > 0).any() else 1.0
    return np.log1p(excess / scale)


def find_settings(measured: Candidates, warped: np.ndarray) -> Settings:
    """The settings with the highest marginal likelihood; those of an unmeasured program below two measurements."""
    if len(warped) < 2:
        return Settings()
    measured, warped = measured.select(slice(-_MOST, None)), warped[-_MOST:]
    count = len(warped)
    costs = measured.prior_costs
    knows = bool(np.ptp(measured.scores))
    unit = max(warped.std(), 1e-3) / max(costs.std(), 0.1) if knows else 0.0
    weights = np.array(_WEIGHTS) if knows else np.zeros(1)
    believed = np.where(
        weights > 0, -0.5 * (np.log(np.maximum(weights, 1e-9)) / _WEIGHT_DEVIATION) ** 2, np.log(_ZERO_CHANCE)
    )
    spread = max(float(warped.var()), _LEAST_VARIANCE)
    best, found = -np.inf, Settings()
    for pair_share in _PAIR_SHARES:
        covariance = measured.covariance(measured, pair_share)
        for noise in _NOISES:
            root = np.linalg.cholesky(covariance + noise * np.eye(count))
            columns = [warped - weight * unit * costs for weight in weights]
            whitened = solve_triangular(root, np.stack([*columns, np.ones(count)], 1), lower=True)
            ones = whitened[:, -1]
            offsets = ones @ whitened[:, :-1] / (ones @ ones)
            squares = ((whitened[:, :-1] - ones[:, None] * offsets) ** 2).sum(axis=0)
            variances = (squares + spread) / count  # as if one more were known, of the spread of all
            volume = 2 * np.log(np.diag(root)).sum() + np.log(ones @ ones)
            evidence = -0.5 * ((count - 1) * np.log(variances) + volume) + believed
            number = int(np.argmax(evidence))
            if evidence[number] > best:
                best = evidence[number]
                found = Settings(float(weights[number] * unit), float(variances[number]), noise, pair_share)
    return found


def _root(measured: Candidates, settings: Settings) -> np.ndarray:
    covariance = measured.covariance(measured, settings.pair_share)
    return np.linalg.cholesky(covariance + settings.noise * np.eye(len(covariance)))


def _solve(root: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return solve_triangular(root, solve_triangular(root, columns, lower=True), lower=True, trans="T")


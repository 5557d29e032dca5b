"""Proposes the candidates to measure next, given those that were measured: expected improvement, batch by batch.

A proposal is a function of the measurements, the prior and the seed alone, so that a tuning that was interrupted
continues as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.stats import norm

from tpugraphs_polynormer.hlo.choices import Choices
from tpugraphs_polynormer.ranking.search import search_layouts
from tpugraphs_polynormer.ranking.time_model import Candidates, OneHot, TimeModel, warp_times

Prior = Callable[[np.ndarray], np.ndarray]  # choice numbers [c, nc] -> scores [members, c], higher is faster
Score = Callable[[np.ndarray], np.ndarray]  # choice numbers [c, nc] -> [c], higher is more worth a measurement
# (score, the fastest measured candidates [k, nc], seed) -> the candidates [c, nc] that may be measured next
Source = Callable[[Score, np.ndarray, int], np.ndarray]
_SHORTLIST = 128  # candidates of the highest expected improvement, and of the shortest expected time
_MOST_STARTS = 8  # measured candidates from which a search starts
_DRAWN_SHARE = 0.25  # of the first batch, at random, so that the measurements can tell what the prior is worth
_SEARCHED = 1024  # candidates that are scored for a batch


@dataclass(frozen=True)
class Measured:
    """Candidates with their times, in the order of measurement."""

    indices: np.ndarray  # int64 [n, nc]: choice numbers
    seconds: np.ndarray  # float64 [n]; nan where a candidate could not be measured

    @property
    def best(self) -> int | None:
        """The row of the shortest time; None if there is no time."""
        return None if np.isnan(self.seconds).all() else int(np.nanargmin(self.seconds))

    @property
    def ascending(self) -> np.ndarray:
        """The rows that have a time, shortest first."""
        order = np.argsort(self.seconds, kind="stable")
        return order[~np.isnan(self.seconds[order])]


class Tuner:
    """Proposes batches of candidates.

    Args:
      choices: what each node may choose.
      source: where candidates come from: `search_source` of a program, or a fixed set of them.
      prior: the scores of an ensemble, in standard deviations; None: nothing is known.
      starts: choice numbers [k, nc] that come first, such as the default.
      seed: of the source and of ties.
    """

    def __init__(
        self,
        choices: Choices,
        source: Source,
        prior: Prior | None = None,
        *,
        starts: np.ndarray | None = None,
        seed: int = 0,
    ) -> None:
        self._source, self._prior, self._seed, self._one_hot = source, prior, seed, OneHot(choices)
        self._starts = np.zeros((0, len(choices.counts)), np.int64) if starts is None else np.asarray(starts, np.int64)

    @property
    def num_config_nodes(self) -> int:
        """The length of a candidate."""
        return self._starts.shape[1]

    def fit(self, measured: Measured) -> TimeModel:
        """What the measurements and the prior say of all candidates. One that failed counts as the slowest."""
        known = ~np.isnan(measured.seconds)
        if not known.any():
            return TimeModel(self._describe(measured.indices[:0]), measured.seconds[:0])
        times = np.where(known, measured.seconds, np.nanmax(measured.seconds))
        return TimeModel(self._describe(measured.indices), warp_times(times))

    def score(self, measured: Measured, indices: np.ndarray) -> np.ndarray:
        """[c]: the scores of candidates after the measurements, higher is faster; before them, the ensemble's order."""
        return -self.fit(measured).predict(self._describe(indices))[0]

    def propose(self, measured: Measured, count: int) -> np.ndarray:
        """int64 [at most count, nc]: distinct candidates that were not measured; fewer where no more are found."""
        rng = np.random.default_rng([self._seed, len(measured.indices)])
        model, seen = self.fit(measured), {row.tobytes() for row in measured.indices}
        first = _keep_new(self._starts, seen)[:count]
        fastest = measured.indices[measured.ascending[:_MOST_STARTS]]
        found: dict[bytes, np.ndarray] = {}
        pool = self._source(partial(self._optimism, model, found), fastest, int(rng.integers(2**31)))
        pool = _keep_new(pool, seen)
        pool = pool[rng.permutation(len(pool))]  # ties are broken at random
        share = 0.0 if model.has_data else 1.0 if self._prior is None else _DRAWN_SHARE
        drawn = pool[: int(share * (count - len(first)))]
        pool = pool[len(drawn) :]
        aim = float(model.predict(self._describe(measured.indices))[0].min()) if model.has_data else None
        chosen = self._choose(model, self._describe(pool, found), aim, max(count - len(first) - len(drawn), 0))
        return np.concatenate([first, chosen, drawn])[:count]

    def _describe(self, indices: np.ndarray, found: dict[bytes, np.ndarray] | None = None) -> Candidates:
        """Candidates with their scores; those that `found` has by the candidates' bytes are not computed again."""
        if self._prior is None or not len(indices):
            return Candidates(self._one_hot, indices)
        found, keys = {} if found is None else found, [row.tobytes() for row in indices]
        new = [row for row, key in enumerate(keys) if key not in found]
        if new:
            found.update(zip([keys[row] for row in new], self._prior(indices[new]).T, strict=True))
        return Candidates(self._one_hot, indices, np.stack([found[key] for key in keys], 1))

    def _optimism(self, model: TimeModel, found: dict[bytes, np.ndarray], indices: np.ndarray) -> np.ndarray:
        """[c]: how fast candidates may well be."""
        means, deviations = model.predict(self._describe(np.asarray(indices, np.int64), found))
        return deviations - means

    def _choose(self, model: TimeModel, pool: Candidates, aim: float | None, count: int) -> np.ndarray:
        """Candidates of a pool: by turns the one expected to be fastest, and the one that improves most.

        The improvement is on the aim, a warped time. Each candidate is taken to have its expected time, so that the
        next ones differ from it. By turns, because improvement alone tries all choices that were never measured.
        """
        means, deviations = model.predict(pool)
        aim = (means.min() if len(means) else 0.0) if aim is None else aim
        orders = np.argsort(-_improvement(means, deviations, aim), kind="stable"), np.argsort(means, kind="stable")
        shortlist = np.unique(np.concatenate([order[:_SHORTLIST] for order in orders]))
        means, covariance = means[shortlist], model.covariance(pool.select(shortlist))
        noise, chosen = model.settings.noise * model.settings.variance, []
        for _ in range(min(count, len(shortlist))):
            deviations = np.sqrt(np.maximum(np.diag(covariance), 1e-12))
            gains = _improvement(means, deviations, aim) if len(chosen) % 2 else -means
            gains[chosen] = -np.inf
            chosen.append(int(np.argmax(gains)))
            column = covariance[:, chosen[-1]]
            covariance = covariance - np.outer(column, column) / (column[chosen[-1]] + noise)
        return pool.indices[shortlist[chosen]]


def search_source(choices: Choices, *, budget: int = _SEARCHED) -> Source:
    """Candidates that a search finds by score, from the default and the fastest measured ones on."""

    def find(score: Score, fastest: np.ndarray, seed: int) -> np.ndarray:
        return search_layouts(score, choices, budget=budget, starts=fastest, seed=seed).indices

    return find


def _improvement(means: np.ndarray, deviations: np.ndarray, aim: float) -> np.ndarray:
    """[c]: the expected value of max(0, aim - x) of normal variables x."""
    standard = (aim - means) / deviations
    return deviations * (standard * norm.cdf(standard) + norm.pdf(standard))


def _keep_new(indices: np.ndarray, seen: set[bytes]) -> np.ndarray:
    """int64 [k, nc]: the rows that were not seen, each once; they count as seen from now on."""
    rows = []
    for row in np.asarray(indices, np.int64):
        key = row.tobytes()
        if key not in seen:
            seen.add(key)
            rows.append(row)
    return np.array(rows, np.int64).reshape(-1, np.shape(indices)[1])

"""Proposes the candidates to measure next, from those measured so far and a prior: expected improvement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from scipy.stats import norm

from tpugraphs_polynormer.hlo.choices import Choices
from tpugraphs_polynormer.hlo.sampling import draw_indices
from tpugraphs_polynormer.ranking.time_model import Candidates, OneHot, Predicted, Prior, TimeModel, warp_times

_SHORTLIST = 256


class Tuner:
    def __init__(self, choices, source, prior=None, *, seed=0, how="ts", warp=warp_times):
        self.one_hot=OneHot(choices); self.choices, self._source, self._prior, self._seed, self.how, self.warp = choices, source, prior, seed, how, warp

    def _candidates(self, indices):
        scores = self._prior(indices) if self._prior and len(indices) else None
        return Candidates(self.one_hot, indices, scores)

    def model(self, indices, seconds):
        seconds = np.asarray(seconds, np.float64)
        warped = self.warp(seconds) if len(seconds) else seconds
        return TimeModel(self._candidates(indices), warped), warped

    def propose(self, indices, seconds, count):
        model, warped = self.model(indices, seconds)
        rng = np.random.default_rng([self._seed, len(indices)])
        pool = self._source(indices, seconds, rng)
        seen = {row.tobytes() for row in np.asarray(indices, np.int64)}
        pool = pool[[row.tobytes() not in seen for row in pool.astype(np.int64)]]
        cands = self._candidates(pool)
        found = model.predict(cands)
        best = model.predict(model._measured).mean.min() if len(warped) else found.mean.min()
        dev = np.sqrt(found.variance)
        z = (best - found.mean) / dev
        ei = dev * (z * norm.cdf(z) + norm.pdf(z))
        order = np.lexsort((rng.random(len(ei)), -ei))
        if self.how == "greedy":
            return pool[np.lexsort((rng.random(len(ei)), found.mean))[:count]]
        short = order[:_SHORTLIST]
        if self.how == "believe":
            part = cands.select(short)
            mean, cov = model.joint(part)
            taken = []
            for _ in range(count):
                dev = np.sqrt(np.maximum(np.diag(cov), 1e-12))
                z = (best - mean) / dev
                e = dev * (z * norm.cdf(z) + norm.pdf(z)); e[taken] = -1
                k = int(np.argmax(e)); taken.append(k)
                col = cov[:, k] / (cov[k, k] + model.settings.noise * model.settings.variance)
                cov = cov - np.outer(col, cov[k])
            return pool[short[taken]]
        if self.how == "ei":
            return pool[short[:count]]
        drawn = model.draw(cands.select(short), count, rng)
        taken = []
        for row in drawn:
            row[taken] = np.inf
            taken.append(int(np.argmin(row)))
        return pool[short[taken]]

"""What a difference of scores means in time: fitted on the validation graphs of a run, kept beside it.

A ranking model predicts an order. Its unit is made of two parts. The score differs by d standard deviations of the
program's candidates. One deviation is as large as the analytic cost model says that the program's log runtimes spread:
u. So d * u is the log runtime ratio of a model that is right about everything and of a cost model that is right about
the spread. It does not depend on the candidates that the deviation was measured on, which belong to both d and u.

Validation graphs say how wrong both are: for pairs of their candidates, by d, the mean and the quantiles of the
measured log ratio in units of u. Every graph counts the same. Beyond the largest d of validation the ratio to d stays
what it is there, and `Calibration.reach` tells.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from tpugraphs_polynormer.catalog import TYPICAL_NOISE
from tpugraphs_polynormer.datasets.manifest import parse_record
from tpugraphs_polynormer.datasets.reader import RankingSplit
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.ranking.runs import load_ranker, open_ranking_run
from tpugraphs_polynormer.ranking.scorer import choose_candidates
from tpugraphs_polynormer.ranking.task import open_named
from tpugraphs_polynormer.training.run_directory import RunDirectory

CALIBRATION_NAME = "calibration.json"
SCHEMA = 1
LEVEL = 0.9  # the share of validation pairs inside the interval
_logger = logging.getLogger(__name__)
_NUM_CANDIDATES = 256  # of each graph
_NUM_PAIRS = 4096  # of each graph
_NUM_BINS = 12  # of d, with equally many pairs each


class GraphScorer(Protocol):
    """What scores stored candidates: ranking/scorer.py, or the cost model."""

    def score_graph(self, split: RankingSplit, number: int, candidates: np.ndarray | None = None) -> np.ndarray:
        """float64 [c]: higher is faster."""


@dataclass(frozen=True)
class Calibration:
    """A table from d, the difference of standardized scores, to log runtime ratios in units of u; see above."""

    schema: int
    collections: tuple[str, ...]
    num_graphs: int
    level: float
    differences: tuple[float, ...]  # d of each bin, ascending, from 0 on
    mean: tuple[float, ...]  # of the log ratio, in u; does not fall
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def reach(self) -> float:
        """The largest d that validation pairs have; what is beyond is extrapolated."""
        return self.differences[-1]

    def estimate(self, difference: float, spread: float) -> tuple[float, float, float]:
        """(mean, low, high) of log(runtime of the other / runtime of this), for a score that is higher by d.

        Args:
          difference: d, of either sign. spread: u, of the program.
        """
        size, sign = abs(difference), -1.0 if difference < 0 else 1.0
        beyond = max(1.0, size / self.reach)
        found = [beyond * spread * float(np.interp(size, self.differences, each)) for each in
                 (self.mean, self.low, self.high)]  # fmt: skip
        mean, low, high = (sign * each for each in found)
        return (mean, low, high) if sign > 0 else (mean, high, low)


def fit_calibration(
    graphs: Sequence[tuple[np.ndarray, np.ndarray, float]], *, collections: Sequence[str] = (), seed: int = 0
) -> Calibration | None:
    """The calibration of graphs, or None if no graph tells anything: equal scores, or a cost model without spread.

    Args:
      graphs: of each the scores [c], the runtimes [c] and the cost model's spread.
      collections: that they belong to. seed: of the pairs.
    """
    differences, ratios = [], []
    for number, (scores, runtimes, spread) in enumerate(graphs):
        deviation = float(np.std(scores))
        if deviation <= 0 or spread <= 0:
            continue
        first, second = np.random.default_rng((seed, number)).integers(len(scores), size=(2, _NUM_PAIRS))
        d = (scores[first] - scores[second]) / deviation
        logs = np.log(np.asarray(runtimes, np.float64))
        differences.append(np.abs(d))
        ratios.append(np.where(d < 0, -1.0, 1.0) * (logs[second] - logs[first]) / spread)
    if not differences:
        return None
    d, ratio = np.concatenate(differences), np.concatenate(ratios)
    d, ratio = d[d > 0], ratio[d > 0]
    bins = np.array_split(np.argsort(d, kind="stable"), min(_NUM_BINS, len(d)))
    tail = (1 - LEVEL) / 2
    mean = np.maximum.accumulate([0.0, *(ratio[each].mean() for each in bins)])
    low, high = (np.array([np.quantile(ratio[each], share) for each in bins]) for share in (tail, 1 - tail))
    # Equal scores say nothing: as wide as the pairs with the smallest differences, to both sides.
    width = max(-low[0], high[0], 0.0)
    return Calibration(
        schema=SCHEMA,
        collections=tuple(collections),
        num_graphs=len(differences),
        level=LEVEL,
        differences=(0.0, *(float(d[each].mean()) for each in bins)),
        mean=tuple(map(float, mean)),
        low=(-float(width), *np.minimum(low, mean[1:]).tolist()),
        high=(float(width), *np.maximum(high, mean[1:]).tolist()),
    )


def calibrate_run(
    run_dir: Path | str, data_dir: Path | str, *, scorer: GraphScorer | None = None
) -> Calibration | None:
    """The calibration of a run on the validation graphs of its layout collections, written beside it.

    None, and nothing is written, for tiles and where no validation graph tells anything.

    Args:
      run_dir, data_dir: the run directory, and the folder of all datasets.
      scorer: of the run's best weights, if the caller has one.
    """
    run = open_ranking_run(run_dir)
    if run.config.data.kind != "layout":
        return None
    scorer = scorer or load_ranker(run_dir, data_dir).make_scorer()
    names, graphs = run.config.data.names, []
    for name in names:
        split = open_named(name, data_dir).split("valid")
        for number, numbers in enumerate(choose_candidates(split, most=_NUM_CANDIDATES)):
            runtimes = split.read_column(number, "runtimes", numbers)
            if len(numbers) > 1 and runtimes.all():
                spread = split.physics(number).spread
                graphs.append((scorer.score_graph(split, number, numbers), runtimes, spread))
    calibration = fit_calibration(graphs, collections=names)
    if calibration is None:
        _logger.warning(
            "%s: no validation graph says how scores relate to runtimes; no calibration is written", run.path
        )
    else:
        run.write_json(CALIBRATION_NAME, asdict(calibration))
    return calibration


def read_calibration(run: RunDirectory) -> Calibration | None:
    """The calibration that `calibrate_run` wrote, or None without one."""
    path = run.path / CALIBRATION_NAME
    if not path.is_file():
        return None
    found = parse_record(Calibration, run.read_json(CALIBRATION_NAME), str(path))
    lengths = {len(each) for each in (found.differences, found.mean, found.low, found.high)}
    if found.schema != SCHEMA or len(lengths) != 1 or min(lengths) < 2 or not found.reach > 0:
        advice = "run `tpugraphs evaluate --split valid` again"
        raise UserError(f"{path}: found schema {found.schema} and tables of {lengths}, expected {SCHEMA}; {advice}")
    return found


@dataclass(frozen=True)
class Gain:
    """How much less time a candidate is expected to take than another one, in percent; negative: it takes more."""

    percent: float
    low: float
    high: float
    disagreement: float  # the standard deviation over members, in percent; 0 of one member
    extrapolated: bool  # whether the difference of scores is larger than validation pairs have

    @property
    def is_equal(self) -> bool:
        """Whether the two count as equal: the interval contains 0, or the gain is below the measurement noise."""
        return self.low <= 0 <= self.high or abs(self.percent) < 100 * TYPICAL_NOISE


def estimate_gain(calibrations: Sequence[Calibration], differences: Sequence[float], spread: float) -> Gain:
    """The gain that the members expect together.

    The interval is the mean of their intervals, widened by their disagreement.

    Args:
      calibrations, differences: of each member; how much higher the candidate's standardized score is.
      spread: the cost model's, of the program.
    """
    found = np.array(
        [each.estimate(float(d), spread) for each, d in zip(calibrations, differences, strict=True)]
    )  # [m, 3]
    mean, low, high = found.mean(axis=0)
    disagreement = float(found[:, 0].std())
    # 1.645 standard deviations to both sides hold 90 % of a normal distribution.
    low = mean - float(np.hypot(mean - low, 1.645 * disagreement))
    high = mean + float(np.hypot(high - mean, 1.645 * disagreement))
    beyond = any(abs(d) > each.reach for each, d in zip(calibrations, differences, strict=True))
    return Gain(*map(_to_percent, (mean, low, high)), 100 * disagreement, beyond)


def _to_percent(log_ratio: float) -> float:
    return float(-100 * np.expm1(-log_ratio))

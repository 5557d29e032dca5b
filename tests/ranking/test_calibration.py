"""Calibration on graphs with known ratios: the slope, the share inside the interval, ensembles, tie bands, files."""

import json

import numpy as np
import pytest

from tpugraphs_polynormer.catalog import TYPICAL_NOISE
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.ranking.calibration import (
    CALIBRATION_NAME,
    LEVEL,
    Calibration,
    Gain,
    estimate_gain,
    fit_calibration,
    read_calibration,
)
from tpugraphs_polynormer.training.run_directory import RunDirectory


def make_graph(seed: int, *, spread: float, slope: float, noise: float, scale: float = 1.0):
    """Scores of any scale and runtimes whose log is -slope * spread * (standardized score) plus noise."""
    random = np.random.default_rng(seed)
    z = random.normal(size=300)
    z = (z - z.mean()) / z.std()
    logs = -slope * spread * z + noise * spread * random.normal(size=300)
    return 7.0 + scale * z, np.exp(logs) * 1e6, spread


def simple(slope: float = 1.0, width: float = 0.5) -> Calibration:
    """mean slope * d, with +- width."""
    tables = [(shift, slope * 2.0 + shift) for shift in (0.0, -width, width)]
    return Calibration(1, ("c",), 3, LEVEL, (0.0, 2.0), *tables)


def test_the_slope_is_found_whatever_the_scale_of_scores_and_the_spread_of_runtimes():
    graphs = [make_graph(i, spread=0.01 * 3**i, slope=0.7, noise=0.0, scale=10.0**i) for i in range(4)]
    found = fit_calibration(graphs)
    assert found.num_graphs == 4 and found.differences[0] == 0.0 == found.mean[0]
    for d in (0.5, -1.0, 2.0):
        mean, low, high = found.estimate(d, spread=0.05)
        assert mean == pytest.approx(0.7 * 0.05 * d, rel=0.02)
        assert low <= mean <= high
    beyond = found.estimate(2 * found.reach, 1.0)[0]  # the ratio to d stays
    assert beyond == pytest.approx(2 * found.estimate(found.reach, 1.0)[0])


def test_the_interval_holds_its_share_of_other_graphs():
    noisy = {"spread": 0.1, "slope": 0.8, "noise": 0.5}
    found = fit_calibration([make_graph(i, **noisy) for i in range(8)])
    scores, runtimes, spread = make_graph(99, **noisy)
    first, second = np.random.default_rng(5).integers(300, size=(2, 3000))
    d = (scores[first] - scores[second]) / scores.std()
    ratios = np.log(runtimes[second] / runtimes[first])
    bounds = np.array([found.estimate(each, spread) for each in d])
    inside = (bounds[:, 1] <= ratios) & (ratios <= bounds[:, 2])
    assert inside.mean() == pytest.approx(LEVEL, abs=0.04)


def test_a_useless_model_promises_nothing():
    found = fit_calibration([make_graph(i, spread=0.1, slope=0.0, noise=1.0) for i in range(4)])
    gain = estimate_gain([found], [2.0], 0.1)
    assert abs(gain.percent) < 3 and gain.is_equal


def test_graphs_that_tell_nothing_are_left_out():
    flat = np.ones(50), np.arange(1, 51), 0.1
    unpriced = np.arange(50.0), np.arange(1, 51), 0.0
    assert fit_calibration([flat, unpriced]) is None and fit_calibration([]) is None
    assert fit_calibration([flat, make_graph(0, spread=0.1, slope=1.0, noise=0.1)]).num_graphs == 1


def test_a_gain_by_hand():
    gain = estimate_gain([simple()], [1.0], 0.1)
    expected = [100 * (1 - np.exp(-0.1 * each)) for each in (1.0, 0.5, 1.5)]
    assert [gain.percent, gain.low, gain.high] == pytest.approx(expected)
    assert not gain.is_equal and not gain.extrapolated and gain.disagreement == 0
    slower = estimate_gain([simple()], [-1.0], 0.1)
    assert slower.percent < 0 and slower.low < slower.percent < slower.high < 0 and not slower.is_equal
    assert estimate_gain([simple()], [2.5], 0.1).extrapolated


def test_members_that_disagree_widen_the_interval():
    agreeing = estimate_gain([simple(), simple()], [1.0, 1.0], 0.1)
    assert agreeing == estimate_gain([simple()], [1.0], 0.1)
    disagreeing = estimate_gain([simple(), simple()], [0.2, 1.8], 0.1)
    assert disagreeing.percent == pytest.approx(agreeing.percent)
    assert disagreeing.low < agreeing.low and disagreeing.high > agreeing.high
    assert disagreeing.disagreement == pytest.approx(100 * 0.1 * 0.8)
    assert disagreeing.is_equal and not agreeing.is_equal


@pytest.mark.parametrize(
    ("percent", "low", "high", "equal"),
    [(2.0, 1.0, 3.0, False), (2.0, -0.1, 4.0, True), (-2.0, -3.0, -1.0, False), (90 * TYPICAL_NOISE, 0.01, 0.2, True)],
)
def test_the_tie_band(percent, low, high, equal):
    assert Gain(percent, low, high, 0.0, extrapolated=False).is_equal is equal


def test_a_file_that_does_not_fit_is_refused(tmp_path):
    run = RunDirectory(tmp_path, None)
    assert read_calibration(run) is None
    content = {"schema": 1, "collections": ["c"], "num_graphs": 1, "level": 0.9, "differences": [0.0, 2.0]}
    content |= {"mean": [0.0, 1.0], "low": [-1.0, 0.0], "high": [1.0, 2.0]}
    (tmp_path / CALIBRATION_NAME).write_text(json.dumps(content))
    assert read_calibration(run).reach == 2.0
    for change in ({"schema": 2}, {"mean": [0.0]}, {"differences": [0.0, 0.0]}, {"low": "no"}):
        (tmp_path / CALIBRATION_NAME).write_text(json.dumps(content | change))
        with pytest.raises(UserError, match=CALIBRATION_NAME):
            read_calibration(run)

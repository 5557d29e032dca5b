"""The regression of measured times: codes, the ensemble's order without data, ridge regression with many."""

import numpy as np
import pytest

from tests.tuned import make_choices
from tpugraphs_polynormer.ranking.time_model import Candidates, OneHot, TimeModel, find_settings, warp_times


def draw(choices, count, seed=0):
    return np.random.default_rng(seed).integers(choices.counts, size=(count, len(choices.counts)))


def test_inner_products_count_groups_alike_and_choices_half_by_their_tensors():
    """Two tied nodes and a third: a difference at the third, in the output alone, costs half of it and a sixth."""
    choices = make_choices([4, 4, 4], groups=[0, 0, 1])
    codes = OneHot(choices).encode(np.array([[0, 0, 0], [0, 0, 1], [1, 0, 0], [3, 3, 3]]))
    products = codes @ codes.T
    np.testing.assert_allclose(np.diag(products), 1, rtol=1e-6)
    assert products[0, 1] == pytest.approx(1 / 2 + 1 / 2 * (1 - 1 / 2 - 1 / 6), rel=1e-6)
    assert products[0, 2] == pytest.approx(1 / 2 + 1 / 4 + 1 / 4 * (1 - 1 / 2 - 1 / 6), rel=1e-6)
    # Choice 3 of `make_choices` differs from choice 0 in output and input; the kernel is left to the compiler.
    assert products[0, 3] == pytest.approx(1 / 6, rel=1e-6)


def test_without_measurements_the_order_is_the_ensembles():
    choices = make_choices([8] * 5)
    indices, scores = draw(choices, 50), np.random.default_rng(1).standard_normal((3, 50))
    candidates = Candidates(OneHot(choices), indices, scores)
    means, deviations = TimeModel(candidates.select(slice(0, 0)), np.zeros(0)).predict(candidates)
    assert np.array_equal(np.argsort(means), np.argsort(-scores.mean(axis=0)))
    # Where members disagree, more is open.
    assert np.argmax(deviations) == np.argmax(scores.var(axis=0))


def test_the_posterior_is_that_of_ridge_regression_on_codes_with_a_free_offset():
    choices = make_choices([2, 3, 4])
    one_hot, indices = OneHot(choices), draw(choices, 40)
    times = np.random.default_rng(2).standard_normal(40)
    model = TimeModel(Candidates(one_hot, indices), times)
    noise, pairs = model.settings.noise, model.settings.pair_share
    singles = one_hot.encode(indices).astype(np.float64)
    products = (singles[:, :, None] * singles[:, None]).reshape(40, -1)
    features = np.concatenate([np.sqrt(1 - pairs) * singles, np.sqrt(pairs) * products], 1)
    whole = np.concatenate([features, np.ones((40, 1))], 1)
    penalty = noise * np.diag([*np.ones(features.shape[1]), 0])
    expected = whole @ np.linalg.lstsq(whole.T @ whole + penalty, whole.T @ times, rcond=None)[0]
    np.testing.assert_allclose(model.predict(Candidates(one_hot, indices))[0], expected, atol=1e-4)


def test_a_true_prior_counts_and_a_false_one_does_not():
    choices = make_choices([8] * 6)
    indices = draw(choices, 40)
    times = np.random.default_rng(3).standard_normal((8, 6))[indices, np.arange(6)].sum(axis=1)
    one_hot = OneHot(choices)
    true = find_settings(Candidates(one_hot, indices, -times[None]), times)
    false = find_settings(Candidates(one_hot, indices, times[None]), times)
    assert true.weight == pytest.approx(1) and false.weight == 0
    assert find_settings(Candidates(one_hot, indices), times).weight == 0


def test_measured_candidates_are_certain_and_equal_ones_share_their_time():
    choices = make_choices([8] * 4)
    one_hot, indices = OneHot(choices), draw(choices, 30)
    times = np.random.default_rng(4).standard_normal((8, 4))[indices, np.arange(4)].sum(axis=1)
    model = TimeModel(Candidates(one_hot, indices), times)
    known, other = Candidates(one_hot, indices), Candidates(one_hot, draw(choices, 30, seed=9))
    assert model.predict(known)[1].max() < 0.2 * model.predict(other)[1].mean()
    covariance = model.covariance(other)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), model.predict(other)[1], rtol=1e-3)
    assert np.linalg.eigvalsh(covariance).min() > -1e-6


def test_warped_times_keep_the_order_and_resolve_the_best():
    seconds = np.array([1.0, 1.001, 1.002, 5.0])
    warped = warp_times(seconds)
    assert warped[0] == 0 and (np.diff(warped) > 0).all()
    assert warped[1] / warped[3] > 0.05 > np.log(1.001) / np.log(5)
    assert np.array_equal(warp_times(np.ones(3)), np.zeros(3))

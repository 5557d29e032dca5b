"""Losses: brute force, numbers of tensorflow-ranking, finite differences, padding, order, ties and XLA."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import tensorflow as tf

from tpugraphs_polynormer.config.schema import ConfigError, LossConfig, load_config
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.training.losses import LOSSES, PAIR_NOISE, build_loss, spread_scores

# `lambda_rank` is discontinuous where ranks change, so the scores in these tests are well apart.
RUNTIMES = np.array([[5_000_000_007, 3_000, 3_000, 9_000_000, 2**40 + 1, 2**40], [7, 7, 3, 12, 0, 0]], np.int64)
SCORES = np.array([[0.3, -0.4, 0.9, 0.1, -1.2, 1.7], [0.5, -0.3, 0.8, 0.2, 3.0, -3.0]], np.float32)
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], bool)


def _call(name, runtimes, scores, mask):
    return LOSSES[name](tf.constant(runtimes), tf.constant(scores), tf.constant(mask)).numpy()


def _brute_force(name: str, runtimes: list[float], scores: list[float]) -> float:
    """The loss of one graph without padding, computed with loops over Python numbers."""
    count = len(runtimes)
    pairs = [(i, j) for i in range(count) for j in range(count) if runtimes[i] > runtimes[j]]
    if not pairs:
        return 0.0
    logs = [math.log(runtime) for runtime in runtimes]
    mean = sum(logs) / count
    deviation = math.sqrt(sum((log - mean) ** 2 for log in logs) / count)
    targets = [(log - mean) / deviation for log in logs]
    gains = [(max(logs) - log) / (max(logs) - min(logs)) for log in logs]
    costs = [-score for score in scores]
    difference = {(i, j): costs[i] - costs[j] for i in range(count) for j in range(count)}

    if name == "list_mle":
        total = 0.0
        for i in range(count):
            rivals = [j for j in range(count) if j == i or runtimes[j] > runtimes[i]]
            total -= math.log(math.exp(-costs[i]) / sum(math.exp(-costs[j]) for j in rivals))
        return total / count
    if name == "list_mle_slowest":
        total = 0.0
        for i in range(count):
            rivals = [j for j in range(count) if j == i or runtimes[j] < runtimes[i]]
            total -= math.log(math.exp(costs[i]) / sum(math.exp(costs[j]) for j in rivals))
        return total / count
    if name == "pairwise_hinge":
        return sum(max(0.0, 1 - difference[pair]) for pair in pairs) / len(pairs)
    if name == "pairwise_logistic":
        return sum(math.log(1 + math.exp(-difference[pair])) for pair in pairs) / len(pairs)
    if name == "pairwise_noisy":
        total = 0.0
        for i, j in pairs:
            right = NormalDist(0, PAIR_NOISE).cdf(math.log(runtimes[i] / runtimes[j]))
            total += right * math.log(1 + math.exp(-difference[i, j]))
            total += (1 - right) * math.log(1 + math.exp(difference[i, j]))
        return total / len(pairs)
    if name == "margin":
        return sum(max(0.0, targets[i] - targets[j] - difference[i, j]) for i, j in pairs) / len(pairs)
    if name == "mse":
        return sum((cost - target) ** 2 for cost, target in zip(costs, targets, strict=True)) / count
    if name == "relative_error":
        ahead = {(i, j): -difference[i, j] for i, j in pairs}
        shares = {pair: math.exp(x) if x <= 0 else 1 + x for pair, x in ahead.items()}
        return sum(abs(shares[i, j] - runtimes[j] / runtimes[i]) for i, j in pairs) / len(pairs)
    if name == "lambda_rank":
        order = sorted(range(count), key=lambda i: costs[i])
        discount = {i: 1 / math.log2(2 + position) for position, i in enumerate(order)}
        weights = {(i, j): abs(gains[i] - gains[j]) * abs(discount[i] - discount[j]) for i, j in pairs}
        losses = {pair: weights[pair] * math.log(1 + math.exp(-difference[pair])) for pair in pairs}
        return sum(losses.values()) / sum(weights.values())
    assert name == "approx_ndcg"
    dcg = 0.0
    for i in range(count):
        rank = 1 + sum(1 / (1 + math.exp(-difference[i, j] / 0.1)) for j in range(count) if j != i)
        dcg += gains[i] / math.log2(1 + rank)
    ideal = sum(gain / math.log2(2 + position) for position, gain in enumerate(sorted(gains, reverse=True)))
    return 1 - dcg / ideal


@pytest.mark.parametrize("name", LOSSES)
def test_equals_brute_force(name):
    expected = [
        _brute_force(name, row[keep].tolist(), score[keep].tolist())
        for row, score, keep in zip(RUNTIMES, SCORES, MASK, strict=True)
    ]
    np.testing.assert_allclose(_call(name, RUNTIMES, SCORES, MASK), expected, rtol=2e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_float_ratios_equal_brute_force(name):
    rng = np.random.default_rng(3)
    ratios = rng.choice([0.5, 0.75, 1.0, 1.25, 8.0], size=(3, 9))
    scores = rng.permuted(np.tile(np.linspace(-2, 2, 9), (3, 1)), axis=1)
    expected = [_brute_force(name, row.tolist(), score.tolist()) for row, score in zip(ratios, scores, strict=True)]
    for dtype in (np.float32, np.float64):
        values = _call(name, ratios.astype(dtype), scores.astype(np.float32), np.ones((3, 9), bool))
        np.testing.assert_allclose(values, expected, rtol=2e-5, atol=1e-6)


def test_equals_tensorflow_ranking():
    """tensorflow-ranking has relevances (higher is better) as labels, and divides by other counts."""
    runtimes = 10 - np.array([[3, 1, 2], [1, 2, -1]], np.int64)
    scores = np.array([[0.3, 0.1, 0.5], [0.1, 0.5, 0.9]], np.float32)
    mask = np.array([[True, True, True], [True, True, False]])
    list_mle = _call("list_mle", runtimes, scores, mask) * [3, 2]  # theirs is a sum over candidates
    assert list_mle.mean() == pytest.approx(1.068966, abs=1e-6)
    hinge = _call("pairwise_hinge", runtimes, scores, mask) * [3, 1]  # theirs is a sum over pairs, divided by 6 entries
    assert hinge.sum() / 6 == pytest.approx(0.533333, abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_right_order_costs_less_than_wrong_order(name):
    runtimes = np.array([[10, 20, 30, 40]] * 2, np.int64)
    scores = np.array([[1.5, 0.5, -0.5, -1.5], [-1.5, -0.5, 0.5, 1.5]], np.float32)
    right, wrong = _call(name, runtimes, scores, np.ones((2, 4), bool))
    assert right < 0.5 * wrong


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_equals_finite_differences(name):
    scores = tf.Variable(SCORES)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(LOSSES[name](tf.constant(RUNTIMES), scores, tf.constant(MASK)))
    gradient = tape.gradient(total, scores).numpy()
    assert not gradient[~MASK].any()
    step = 1e-3
    for graph, candidate in zip(*np.nonzero(MASK), strict=True):
        row, keep = RUNTIMES[graph], MASK[graph]
        moved = [SCORES[graph].astype(float) for _ in range(2)]
        moved[0][candidate] += step
        moved[1][candidate] -= step
        up, down = (_brute_force(name, row[keep].tolist(), values[keep].tolist()) for values in moved)
        assert gradient[graph, candidate] == pytest.approx((up - down) / (2 * step), abs=2e-4)


def _value_and_gradient(name, runtimes, scores, mask):
    scores = tf.Variable(scores)
    with tf.GradientTape() as tape:
        value = LOSSES[name](tf.constant(runtimes), scores, tf.constant(mask))
        total = tf.reduce_sum(value)
    return value.numpy(), tape.gradient(total, scores).numpy()


@pytest.mark.parametrize("name", LOSSES)
def test_order_of_candidates_does_not_matter(name):
    order = np.random.default_rng(0).permutation(RUNTIMES.shape[1])
    value, gradient = _value_and_gradient(name, RUNTIMES, SCORES, MASK)
    moved, moved_gradient = _value_and_gradient(name, RUNTIMES[:, order], SCORES[:, order], MASK[:, order])
    np.testing.assert_allclose(moved, value, rtol=1e-5)
    np.testing.assert_allclose(moved_gradient, gradient[:, order], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("junk", [np.nan, np.inf, -1e30, 0.0])
def test_padding_changes_nothing(name, junk):
    value, gradient = _value_and_gradient(name, RUNTIMES, SCORES, MASK)
    runtimes = np.pad(RUNTIMES, ((0, 1), (0, 3)), constant_values=-5)
    scores = np.pad(SCORES, ((0, 1), (0, 3)), constant_values=junk)
    mask = np.pad(MASK, ((0, 1), (0, 3)))
    padded, padded_gradient = _value_and_gradient(name, runtimes, scores, mask)
    np.testing.assert_allclose(padded, [*value, 0.0], rtol=1e-5)
    np.testing.assert_allclose(padded_gradient[:2, :6], gradient, rtol=1e-4, atol=1e-6)
    assert not padded_gradient[~mask].any()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("runtimes", [[[0, 0, 0]], [[2**50, 2**50, 1]], [[1.5, 1.5, 0.0]]])
def test_all_tied_or_one_candidate_gives_zero(name, runtimes):
    runtimes = np.array(runtimes)
    for mask in ([[True, True, False]], [[True, False, False]], [[False, False, False]]):
        value, gradient = _value_and_gradient(name, runtimes, np.array([[0.1, 2.0, -1.0]], np.float32), np.array(mask))
        assert value.tolist() == [0.0]
        assert gradient.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("name", LOSSES)
def test_equal_scores_still_learn(name):
    """A head with weights of zero gives equal scores; every loss must increase the score of the faster candidate."""
    _, gradient = _value_and_gradient(
        name, np.array([[10, 20, 30]]), np.zeros((1, 3), np.float32), np.ones((1, 3), bool)
    )
    assert gradient[0, 0] < 0 < gradient[0, 2]


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "pairwise_noisy"])
def test_one_nanosecond_in_a_second_is_no_tie(name):
    runtimes = np.array([[10**9, 10**9 + 1]], np.int64)
    assert np.float32(runtimes[0, 0]) == np.float32(runtimes[0, 1])
    right = _call(name, runtimes, np.array([[1.0, -1.0]], np.float32), np.ones((1, 2), bool))
    wrong = _call(name, runtimes, np.array([[-1.0, 1.0]], np.float32), np.ones((1, 2), bool))
    assert wrong[0] > right[0] + 0.1


def test_pairs_within_the_noise_are_pulled_together():
    runtimes, mask = np.array([[10**9, 10**9 + 100_000, 2 * 10**9]], np.int64), np.ones((1, 3), bool)
    _, gradient = _value_and_gradient("pairwise_noisy", runtimes, np.array([[1.0, -1.0, -9.0]], np.float32), mask)
    # The runtimes differ by 1e-4, a quarter of the noise: q is 0.5987, the best difference log(q / (1 - q)) = 0.4.
    assert gradient[0, 0] > 0 > gradient[0, 1]
    apart = np.float32(math.log(0.598706 / 0.401294) / 2)
    _, gradient = _value_and_gradient("pairwise_noisy", runtimes, np.array([[apart, -apart, -99.0]], np.float32), mask)
    np.testing.assert_allclose(gradient[0, :2], 0.0, atol=1e-4)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_half_precision_scores_are_computed_in_float32(name, dtype):
    scores = tf.cast(SCORES, dtype)
    value = LOSSES[name](tf.constant(RUNTIMES), scores, tf.constant(MASK))
    assert value.dtype == tf.float32
    np.testing.assert_array_equal(value, LOSSES[name](tf.constant(RUNTIMES), tf.cast(scores, tf.float32), MASK))


@pytest.mark.parametrize("name", LOSSES)
def test_large_scores_stay_finite(name):
    value, gradient = _value_and_gradient(name, RUNTIMES, SCORES * np.float32(1e6), MASK)
    assert np.isfinite(value).all() and np.isfinite(gradient).all()


def test_compiles_under_xla_with_static_shapes():
    loss = build_loss(dict.fromkeys(LOSSES, 0.5))

    def step(runtimes, scores, mask):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            value = loss(runtimes, scores, mask)
        return value, tape.gradient(value, scores)

    compiled = tf.function(step, jit_compile=True)
    arguments = tf.constant(RUNTIMES), tf.constant(SCORES), tf.constant(MASK)
    for eager, xla in zip(step(*arguments), compiled(*arguments), strict=True):
        np.testing.assert_allclose(xla, eager, rtol=1e-4, atol=1e-6)
    assert "<=" not in compiled.experimental_get_compiler_ir(*arguments)(stage="hlo")


def test_build_loss_is_the_weighted_sum():
    loss = build_loss({"list_mle": 2.0, "mse": 0.25, "margin": 0.0})
    expected = 2.0 * _call("list_mle", RUNTIMES, SCORES, MASK) + 0.25 * _call("mse", RUNTIMES, SCORES, MASK)
    np.testing.assert_allclose(loss(tf.constant(RUNTIMES), tf.constant(SCORES), tf.constant(MASK)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"listmle": 1.0}, "unknown loss 'listmle'.*list_mle"),
        ({"mse": -1.0}, "weight of loss 'mse' is -1.0"),
        ({"mse": math.nan}, "weight of loss 'mse' is nan"),
        ({"mse": 0.0}, "no loss has a positive weight"),
        ({}, "no loss has a positive weight"),
    ],
)
def test_build_loss_refuses(weights, message):
    with pytest.raises(UserError, match=message):
        build_loss(weights)


def test_relative_error_by_hand():
    runtimes, mask = np.array([[100, 200, 400]], np.int64), np.ones((1, 3), bool)
    # Right up to a constant of the graph: half and a quarter of the runtimes of the slower ones.
    right = np.log([[7 / 100, 7 / 200, 7 / 400]]).astype(np.float32)
    np.testing.assert_allclose(_call("relative_error", runtimes, right, mask), [0.0], atol=1e-6)
    # Equal scores predict shares of 1, where 1/2, 1/2 and 1/4 are true.
    np.testing.assert_allclose(_call("relative_error", runtimes, 0 * right, mask), [(0.5 + 0.5 + 0.75) / 3], rtol=1e-6)
    # The first two change places: shares 1 + log 2, 1/4 and 1/2.
    wrong = np.log([[1 / 200, 1 / 100, 1 / 400]]).astype(np.float32)
    expected = (1 + math.log(2) - 1 / 2 + (1 / 2 - 1 / 4) + (1 / 2 - 1 / 4)) / 3
    np.testing.assert_allclose(_call("relative_error", runtimes, wrong, mask), [expected], rtol=1e-6)


def test_spread_scores_have_the_deviation_whatever_scale_they_come_in():
    scaled = SCORES * np.array([[1e-2], [1e3]], np.float32) + 5
    found = spread_scores(tf.constant(np.where(MASK, scaled, np.nan)), tf.constant(MASK), 3.0).numpy()
    for row, mask in enumerate(MASK):
        known = SCORES[row, mask]
        np.testing.assert_allclose(found[row, mask], 3 * (known - known.mean()) / known.std(), rtol=2e-3)
        assert not found[row, ~mask].any()
    same = spread_scores(tf.zeros([1, 3]), tf.ones([1, 3], tf.bool), 3.0)
    np.testing.assert_array_equal(same, np.zeros([1, 3]))


def test_with_a_spread_a_loss_does_not_depend_on_the_scale_of_scores_and_its_gradient_is_finite():
    loss = build_loss({"pairwise_logistic": 1.0}, score_spread=2.0)
    runtimes, mask = tf.constant(RUNTIMES), tf.constant(MASK)
    one, ten = (loss(runtimes, tf.constant(SCORES * factor), mask).numpy() for factor in (1, 10))
    np.testing.assert_allclose(one, ten, rtol=1e-5)
    expected = build_loss({"pairwise_logistic": 1.0})(runtimes, spread_scores(tf.constant(SCORES), mask, 2.0), mask)
    np.testing.assert_allclose(one, expected, rtol=1e-6)
    for start in (np.zeros_like(SCORES), np.where(MASK, SCORES, np.nan)):
        scores = tf.constant(start)
        with tf.GradientTape() as tape:
            tape.watch(scores)
            total = tf.reduce_sum(loss(runtimes, scores, mask))
        assert np.isfinite(tape.gradient(total, scores)).all()


@pytest.mark.parametrize("name", ["mse", "relative_error"])
def test_a_loss_that_reads_the_scale_of_scores_refuses_a_spread(name):
    with pytest.raises(ConfigError, match=f"{name}: the scale of scores matters; expected score_spread=0"):
        load_config(None, [f"loss.{name}=1", "loss.score_spread=2"])
    assert load_config(None, ["loss.score_spread=2"]).loss.weights == LossConfig().weights

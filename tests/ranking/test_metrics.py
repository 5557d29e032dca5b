"""Metrics, compared with brute force, scipy, numbers computed by hand and real kernels."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from tpugraphs_polynormer.ranking.metrics import (
    GraphAccumulator,
    MetricError,
    graph_metrics,
    kendall_tau,
    layout_contest_score,
    pair_accuracy,
    rank_candidates,
    slowdown,
    summarize,
    tau_beyond_noise,
    tile_contest_score,
)

small_lists = st.lists(st.tuples(st.integers(1, 6), st.integers(-3, 3)), min_size=1, max_size=40)


def _brute_opa(runtimes, scores):
    pairs = [(i, j) for i, j in itertools.permutations(range(len(runtimes)), 2) if runtimes[i] > runtimes[j]]
    return sum(scores[i] > scores[j] for i, j in pairs) / len(pairs) if pairs else math.nan


@given(small_lists)
def test_opa_equals_brute_force(pairs):
    runtimes, scores = np.array(pairs).T
    np.testing.assert_equal(pair_accuracy(runtimes, -scores), _brute_opa(runtimes.tolist(), scores.tolist()))


@given(small_lists.filter(lambda pairs: len(pairs) > 1))
def test_tau_equals_scipy_with_ties(pairs):
    runtimes, scores = np.array(pairs).T
    np.testing.assert_equal(kendall_tau(runtimes, -scores), float(scipy.stats.kendalltau(runtimes, scores)[0]))


def test_tau_and_opa_of_a_hundred_thousand_candidates():
    rng = np.random.default_rng(0)
    runtimes = rng.integers(10**9, 10**9 + 50_000, 100_040)
    scores = (runtimes - 10**9 + rng.normal(0, 30_000, 100_040)).astype(np.float32)
    assert kendall_tau(runtimes, -scores) == scipy.stats.kendalltau(runtimes, scores)[0]
    # The two sides have different ties, so that each count is checked on its own.
    without_ties = rng.permutation(100_040)
    opa = pair_accuracy(without_ties, -(scores + np.linspace(0, 1e-3, 100_040)))
    tau = scipy.stats.kendalltau(without_ties, scores + np.linspace(0, 1e-3, 100_040))[0]
    assert opa == pytest.approx((tau + 1) / 2, abs=1e-12)


def test_opa_equals_tensorflow_ranking():
    """tensorflow-ranking gives 0.75 for these relevances and scores: two lists, weighted by their pairs (3 and 1)."""
    first = pair_accuracy(np.array([-3, -1, -2]), np.array([0.3, 0.1, 0.5]))
    second = pair_accuracy(np.array([-1, -2]), np.array([0.1, 0.5]))
    assert (3 * first + 1 * second) / 4 == pytest.approx(0.75)


def test_runtimes_are_compared_as_integers():
    runtimes = np.array([2**60 + 1, 2**60], np.int64)  # equal in float64 too
    assert pair_accuracy(runtimes, np.array([0.0, 1.0])) == 1.0
    assert graph_metrics("layout", runtimes, np.array([1.0, 0.0])).tau == -1.0


def test_tied_scores_are_wrong_in_opa_and_absent_in_tau():
    runtimes = np.array([10, 20, 30])
    scores = np.array([1.0, 1.0, 2.0])  # the pairs (10, 30) and (20, 30) are right, (10, 20) is tied
    assert pair_accuracy(runtimes, -scores) == graph_metrics("layout", runtimes, -scores).opa == pytest.approx(2 / 3)
    assert kendall_tau(runtimes, -scores) == pytest.approx(2 / math.sqrt(3 * 2))
    assert math.isnan(kendall_tau(runtimes, np.zeros(3)))


@pytest.mark.parametrize("order", list(itertools.permutations([10, 20, 40])))
def test_equal_scores_get_what_a_random_order_gets_whatever_the_order_of_rows(order):
    metrics = graph_metrics("layout", np.array(order), np.full(3, 0.7))
    assert (metrics.opa, metrics.tau, metrics.tau_beyond_noise, metrics.contest_score) == (0.5, 0.0, 0.0, 0.0)
    # Each of three candidates is the first in a third of the orders: the mean slowdown is (0 + 1 + 3) / 3.
    assert metrics.slowdown_1 == pytest.approx(4 / 3)
    assert metrics.slowdown_5 == pytest.approx(0, abs=1e-12)


def test_equal_scores_of_tiles_get_the_mean_over_all_orders():
    runtimes = np.array([70, 60, 20, 30, 50, 40])
    metrics = graph_metrics("tile", runtimes, np.zeros(6), np.full(6, 10))
    # Five of six candidates include the fastest (2) in 5 of 6 draws; otherwise the best is 3, a slowdown of 0.5.
    assert metrics.slowdown_5 == pytest.approx(0.5 / 6)
    assert metrics.contest_score == pytest.approx(1 - 0.5 / 6)
    assert (metrics.opa, metrics.tau, metrics.tau_beyond_noise) == (0.5, 0.0, 0.0)


def test_equal_scores_of_what_cannot_be_ranked():
    same = graph_metrics("layout", np.full(4, 9), np.zeros(4))
    assert math.isnan(same.opa) and math.isnan(same.tau) and math.isnan(same.tau_beyond_noise)
    assert (same.contest_score, same.slowdown_1) == (0.0, pytest.approx(0))
    alone = graph_metrics("layout", np.array([9]), np.zeros(1))
    assert (alone.contest_score, alone.slowdown_1) == (1.0, 0.0)


def test_tau_beyond_the_noise_by_hand():
    runtimes = np.array([1000, 1004, 1011, 1100])
    scores = np.array([2.0, 1.0, 3.0, 2.0])
    # More than 0.5 % apart: (1000, 1011) right, (1000, 1100) tied, (1004, 1011) right, (1004, 1100) right,
    # (1011, 1100) wrong. (1000, 1004), which is wrong, is within the noise.
    assert tau_beyond_noise(runtimes, -scores, 0.005) == pytest.approx((3 - 1) / 5)
    assert tau_beyond_noise(runtimes, -scores, 0.0) == pytest.approx((3 - 2) / 6)
    assert tau_beyond_noise(runtimes, -scores, 0.09) == pytest.approx((1 - 0) / 2)
    assert math.isnan(tau_beyond_noise(runtimes, -scores, 0.1))  # 1100 is not more than 1.1 times 1000
    assert graph_metrics("layout", runtimes, -scores, noise=0.005).tau_beyond_noise == pytest.approx(2 / 5)
    assert graph_metrics("layout", runtimes, -scores).tau_beyond_noise == pytest.approx(1 / 6)  # 0.1 %


def _brute_tau_beyond_noise(costs, scores, noise):
    apart = costs[:, None] * (1 + noise) < costs
    signs = np.sign(scores - scores[:, None])[apart]
    return signs.mean() if len(signs) else math.nan


@given(small_lists, st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0, 3.0]))
def test_tau_beyond_the_noise_equals_brute_force(pairs, noise):
    runtimes, scores = np.array(pairs).T
    expected = _brute_tau_beyond_noise(runtimes, scores, noise)
    np.testing.assert_allclose(tau_beyond_noise(runtimes, -scores, noise), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("noise", [0.0, 1e-4, 1e-3, 5e-3])
def test_tau_beyond_the_noise_of_many_candidates(noise):
    rng = np.random.default_rng(0)
    runtimes = rng.integers(10**8, 10**8 + 10**6, 3000)
    scores = np.round(runtimes + rng.normal(0, 3e5, 3000), -3)
    expected = _brute_tau_beyond_noise(runtimes, scores, noise)
    assert tau_beyond_noise(runtimes, -scores, noise) == pytest.approx(expected, abs=1e-12)


def test_tau_beyond_the_noise_of_a_hundred_thousand_candidates():
    rng = np.random.default_rng(0)
    runtimes = rng.permutation(100_040) + 10**9  # without ties and without noise it is tau
    scores = runtimes + rng.normal(0, 30_000, 100_040)
    assert tau_beyond_noise(runtimes, -scores, 0.0) == pytest.approx(kendall_tau(runtimes, -scores), abs=1e-12)
    assert tau_beyond_noise(runtimes, -runtimes.astype(float), 2e-5) == 1.0


def test_layout_metrics_by_hand():
    runtimes = np.array([400, 100, 300, 200])
    metrics = graph_metrics("layout", runtimes, -np.array([0.5, 0.3, 0.4, 0.1]), collection="c", graph="g")
    # Predicted order 3, 1, 2, 0 = runtimes 200, 100, 300, 400: one of six pairs is wrong.
    assert (metrics.collection, metrics.graph, metrics.num_candidates) == ("c", "g", 4)
    assert metrics.opa == pytest.approx(5 / 6)
    assert metrics.tau == pytest.approx(4 / 6)
    assert metrics.tau_beyond_noise == pytest.approx(4 / 6)
    assert metrics.contest_score == pytest.approx(4 / 6)
    assert metrics.slowdown_1 == pytest.approx(1.0)
    assert (metrics.slowdown_5, metrics.slowdown_10, metrics.slowdown_100) == (0.0, 0.0, 0.0)


def test_tile_metrics_by_hand():
    runtimes = np.array([60, 50, 40, 30, 20, 10, 90])
    normalizers = np.array([10, 10, 10, 10, 10, 1, 100])  # ratios 6, 5, 4, 3, 2, 10, 0.9
    metrics = graph_metrics("tile", runtimes, -np.arange(7.0), normalizers)
    assert metrics.contest_score == pytest.approx(2 - 2 / 0.9)  # below zero is not clipped
    assert metrics.slowdown_1 == pytest.approx(6 / 0.9 - 1)
    assert metrics.slowdown_5 == pytest.approx(2 / 0.9 - 1)
    assert metrics.slowdown_10 == 0.0
    assert metrics.opa == pytest.approx(5 / 21)  # right: candidate 5 against each of 0..4
    assert tile_contest_score(np.array([3.0, 1.0]), np.array([0, 1])) == 1.0  # fewer than five: all


@given(st.permutations(range(12)), st.integers(0, 2**32))
def test_layout_score_is_tau_of_permutations(ranking, seed):
    runtimes = np.random.default_rng(seed).permutation(12) + 1
    positions = np.argsort(np.array(ranking))
    expected = scipy.stats.kendalltau(positions, runtimes)[0]
    assert layout_contest_score(runtimes, np.array(ranking)) == pytest.approx(expected, abs=1e-12)


def test_layout_score_orders_ties_by_index():
    runtimes = np.array([5, 5, 9])
    assert layout_contest_score(runtimes, np.array([0, 1, 2])) == 1.0
    assert layout_contest_score(runtimes, np.array([1, 0, 2])) == pytest.approx(1 / 3)
    assert layout_contest_score(np.array([4]), np.array([0])) == 1.0


def test_slowdown_of_the_first_k():
    costs, ranking = np.array([4.0, 3.0, 2.0]), np.array([0, 1, 2])
    assert [slowdown(costs, ranking, k) for k in (1, 2, 3, 100)] == [1.0, 0.5, 0.0, 0.0]


def test_ranking_breaks_ties_by_index():
    ranking = rank_candidates(-np.array([1, 0, 1, 0, -2], np.float16))
    assert ranking.tolist() == [4, 1, 3, 0, 2]
    assert ranking.dtype == np.int64


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_must_be_finite(bad):
    with pytest.raises(MetricError, match=r"graph 'alexnet': 1 of 3 scores .* at candidate 1"):
        graph_metrics("layout", np.array([1, 2, 3]), np.array([0.0, bad, 1.0]), graph="alexnet")


@pytest.mark.parametrize(
    ("runtimes", "scores", "normalizers", "message"),
    [
        ([0, 0], [1.0, 2.0], None, "test split hides"),
        ([1, 2], [1.0], None, "1 scores for 2 runtimes"),
        ([], [], None, "at least one"),
        ([1, 2], [1.0, 2.0], [1, 0], "positive normalizer"),
        ([1, 2], [1.0, 2.0], [1], "positive normalizer"),
        ([1, 2], [[1.0, 2.0]], None, r"shape \(1, 2\)"),
    ],
)
def test_bad_input_names_the_graph(runtimes, scores, normalizers, message):
    normalizers = None if normalizers is None else np.array(normalizers)
    with pytest.raises(MetricError, match=f"graph 'g': .*{message}"):
        graph_metrics("tile", np.array(runtimes), np.array(scores), normalizers, graph="g")


def test_accumulator_takes_blocks_in_any_order():
    scores = np.random.default_rng(0).normal(size=10).astype(np.float32)
    order = np.random.default_rng(1).permutation(10)
    gathered = GraphAccumulator(10)
    for block in (order[7:], order[:3], order[3:7], order[:0]):
        gathered.add(block, scores[block])
    np.testing.assert_array_equal(gathered.result(), scores)


def test_accumulator_wants_each_candidate_once():
    gathered = GraphAccumulator(4, graph="g")
    gathered.add(np.array([0, 2]), np.array([1.0, 2.0]))
    for indices, message in [([2], "candidate 2 was scored twice"), ([1, 1], "candidate 1 was scored twice")]:
        with pytest.raises(MetricError, match=f"graph 'g': {message}"):
            gathered.add(np.array(indices), np.zeros(len(indices)))
    for outside in (4, -1):
        with pytest.raises(MetricError, match=rf"candidate {outside}, expected 0\.\.3"):
            gathered.add(np.array([outside]), np.zeros(1))
    with pytest.raises(MetricError, match="expected equal"):
        gathered.add(np.array([1, 3]), np.zeros(1))
    with pytest.raises(MetricError, match="2 of 4 candidates have no score, the first is 1"):
        gathered.result()
    gathered.add(np.array([3, 1]), np.array([4.0, 3.0]))
    assert gathered.result().tolist() == [1.0, 3.0, 2.0, 4.0]


def _graph(collection, scores, runtimes=(10, 20, 30)):
    return graph_metrics("layout", np.array(runtimes), -np.array(scores, float), collection=collection)


def test_summary_weighs_collections_equally_and_skips_unrankable_graphs():
    good, bad = [1, 2, 3], [3, 2, 1]
    graphs = [_graph("a", good), _graph("a", good), _graph("a", bad), _graph("b", bad), _graph("b", bad, (7, 7, 7))]
    summary = summarize(graphs)
    assert summary["collections"]["a"]["opa"] == pytest.approx(2 / 3)
    assert summary["collections"]["a"]["num_graphs"] == 3
    assert summary["collections"]["b"]["opa"] == 0.0
    assert summary["collections"]["b"]["num_graphs"] == 2
    assert summary["overall"]["opa"] == pytest.approx(1 / 3)
    assert summary["overall"]["slowdown_1"] == pytest.approx((2 / 3 + (2 + 0) / 2) / 2)
    assert summary["overall"]["num_graphs"] == 5
    assert summarize([_graph("b", bad, (7, 7, 7))])["overall"]["tau"] is None
    json.dumps(summary, allow_nan=False)


def test_real_kernels(real_data):
    paths = sorted((real_data / "tpugraphs" / "tile").glob("*.npz"))
    assert len(paths) == 8
    for path in paths:
        with np.load(path, allow_pickle=False) as archive:
            runtimes, normalizers = archive["config_runtime"], archive["config_runtime_normalizers"]
        perfect = graph_metrics("tile", runtimes, -runtimes / normalizers, normalizers, graph=path.stem)
        assert (perfect.slowdown_1, perfect.contest_score) == (0.0, 1.0)
        assert perfect.opa == 1.0 or len(np.unique(runtimes / normalizers)) == 1
        scores = np.random.default_rng(0).normal(size=len(runtimes))
        expected = 2 - (runtimes / normalizers)[np.argsort(scores)[:5]].min() / (runtimes / normalizers).min()
        assert graph_metrics("tile", runtimes, -scores, normalizers).contest_score == pytest.approx(expected)

"""Expectations of a random ranking, compared with the mean over all orders."""

from itertools import permutations

import numpy as np
import pytest

from tpugraphs_polynormer.ranking.metrics import layout_contest_score, slowdown, tile_contest_score
from tpugraphs_polynormer.ranking.random_baseline import expected_contest_score, expected_slowdown


@pytest.mark.parametrize("k", [1, 2, 5, 6, 10])
def test_expected_slowdown_is_the_mean_over_all_orders(k: int) -> None:
    costs = np.array([5.0, 2.0, 9.0, 2.5, 4.0, 7.0])
    mean = np.mean([slowdown(costs, np.array(order), k) for order in permutations(range(6))])
    assert expected_slowdown(costs, k) == pytest.approx(mean, abs=1e-12)


def test_expected_scores_are_the_means_over_all_orders() -> None:
    costs = np.array([5.0, 2.0, 9.0, 2.5, 4.0, 7.0])
    orders = [np.array(order) for order in permutations(range(6))]
    tile = np.mean([tile_contest_score(costs, order) for order in orders])
    layout = np.mean([layout_contest_score(costs, order) for order in orders])
    assert expected_contest_score("tile", costs) == pytest.approx(tile, abs=1e-12)
    assert expected_contest_score("layout", costs) == pytest.approx(layout, abs=1e-12) == 0.0
    assert expected_contest_score("layout", costs[:1]) == layout_contest_score(costs[:1], np.array([0])) == 1.0


def test_many_candidates_do_not_overflow() -> None:
    costs = np.arange(1.0, 100_001.0)
    assert expected_slowdown(costs, 5) == pytest.approx(100_001 / 6 - 1, rel=1e-6)  # mean minimum of 5 of 1..n

"""Proposals: the ensemble's best first, the optimum of a linear truth in few batches, never a candidate twice."""

from itertools import product

import numpy as np
import pytest

from tests.tuned import make_choices
from tpugraphs_polynormer.ranking.tuner import Measured, Tuner, search_source


def linear_truth(counts, seed):
    """Seconds that are a product of factors of each node's choice."""
    factors = np.random.default_rng(seed).random((8, len(counts))) * 0.3
    return lambda indices: np.exp(factors[indices, np.arange(len(counts))].sum(axis=-1)), factors


def run(tuner, truth, num_batches, batch=8):
    """The candidates of all batches and their times."""
    measured = Measured(np.zeros((0, tuner.num_config_nodes), np.int64), np.zeros(0))
    for _ in range(num_batches):
        proposed = tuner.propose(measured, batch)
        indices = np.concatenate([measured.indices, proposed])
        measured = Measured(indices, np.concatenate([measured.seconds, truth(proposed)]))
    return measured


def test_without_measurements_scores_have_the_ensembles_order():
    choices = make_choices([8] * 6)
    indices = np.random.default_rng(0).integers(8, size=(40, 6))
    prior = lambda rows: np.stack([rows.sum(axis=1), rows[:, 0]]) / 3.0  # noqa: E731
    tuner = Tuner(choices, search_source(choices), prior)
    scores = tuner.score(Measured(indices[:0], np.zeros(0)), indices)
    assert np.array_equal(np.argsort(scores), np.argsort(prior(indices).mean(axis=0)))


def test_the_first_batch_has_the_start_the_priors_best_and_some_drawn_ones():
    choices = make_choices([8] * 5)
    tuner = Tuner(choices, search_source(choices), lambda rows: rows.sum(axis=1)[None] / 5.0, starts=np.zeros((1, 5)))
    proposed = run(tuner, lambda rows: np.ones(len(rows)), 1, batch=16).indices
    assert not proposed[0].any()
    totals = proposed[1:].sum(axis=1)
    assert (totals >= 30).sum() >= 8, "most are near the prior's optimum, 35"
    assert (totals < 30).sum() >= 2, "some are drawn"


@pytest.mark.parametrize("seed", range(3))
def test_a_linear_truth_is_solved_in_few_batches_without_a_prior(seed):
    """One of 32,768 candidates, with 80 measurements."""
    choices = make_choices([8] * 5)
    truth, factors = linear_truth(choices.counts, seed)
    measured = run(Tuner(choices, search_source(choices, budget=300), seed=seed), truth, 10)
    assert measured.seconds.min() == pytest.approx(np.exp(factors.min(axis=0).sum()))


def test_a_wrong_prior_is_overruled_and_a_right_one_helps():
    choices = make_choices([8] * 5)
    truth, factors = linear_truth(choices.counts, 7)
    right = lambda rows: -np.log(truth(rows))[None] / 0.2  # noqa: E731
    wrong = lambda rows: -right(rows)  # noqa: E731
    best = np.exp(factors.min(axis=0).sum())
    found = [
        run(Tuner(choices, search_source(choices, budget=300), prior), truth, 10).seconds for prior in (right, wrong)
    ]
    assert found[0][:8].min() == pytest.approx(best) and found[1].min() == pytest.approx(best)
    assert found[1][:6].min() > best * 1.2, "the wrong prior did mislead the first batch"


def test_proposals_are_distinct_and_never_repeated_until_all_are_measured():
    choices = make_choices([2, 3, 4])
    truth, _ = linear_truth(choices.counts, 1)
    measured = run(Tuner(choices, search_source(choices), starts=np.zeros((1, 3))), truth, 5, batch=7)
    assert {tuple(row) for row in measured.indices.tolist()} == set(product(range(2), range(3), range(4)))
    assert len(measured.indices) == 24


def test_proposals_are_a_function_of_measurements_and_seed():
    choices = make_choices([8] * 5)
    truth, _ = linear_truth(choices.counts, 2)
    first, again, other = (
        run(Tuner(choices, search_source(choices, budget=200), seed=seed), truth, 3) for seed in (1, 1, 2)
    )
    assert np.array_equal(first.indices, again.indices)
    assert not np.array_equal(first.indices, other.indices)
    half = Measured(first.indices[:16], first.seconds[:16])
    fresh = Tuner(choices, search_source(choices, budget=200), seed=1)
    assert np.array_equal(fresh.propose(half, 8), first.indices[16:])


def test_a_failed_candidate_counts_as_slow_and_is_not_proposed_again():
    """The half of all candidates with a high choice of the first node fails; soon none of it is proposed."""
    choices = make_choices([8] * 4)
    factors = linear_truth(choices.counts, 3)[0]
    failing = lambda rows: np.where(rows[:, 0] >= 4, np.nan, factors(rows))  # noqa: E731
    measured = run(Tuner(choices, search_source(choices, budget=200)), failing, 8)
    assert len({tuple(row) for row in measured.indices.tolist()}) == 64
    assert (measured.indices[:8, 0] >= 4).any() and (measured.indices[40:, 0] >= 4).mean() < 0.2
    assert measured.best == int(np.nanargmin(measured.seconds)) == measured.ascending[0]
    assert len(measured.ascending) == (~np.isnan(measured.seconds)).sum()


def test_if_everything_failed_new_candidates_are_still_proposed():
    choices = make_choices([8] * 3)
    measured = run(Tuner(choices, search_source(choices, budget=200)), lambda rows: np.full(len(rows), np.nan), 3)
    assert len({tuple(row) for row in measured.indices.tolist()}) == 24
    assert measured.best is None

"""The search for layouts: what it scores, how often, how much of it, and what it finds."""

import itertools

import numpy as np
import pytest

from tests.simulator.test_optimum import price
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.hlo.choices import Choices
from tpugraphs_polynormer.hlo.sampling import MODES, draw_indices
from tpugraphs_polynormer.ranking import search as search_module
from tpugraphs_polynormer.ranking.search import MAX_BLOCK, search_layouts
from tpugraphs_polynormer.simulator.optimum import find_optimum
from tpugraphs_polynormer.simulator.programs import draw_program
from tpugraphs_polynormer.simulator.scales import SCALES

FAMILIES = ("recommender", "recurrent", "transformer")


def small_choices(counts):
    """Choices of nodes without links, of which no two are tied."""
    counts = np.array(counts)
    table = np.full((counts.sum(), 18), -1, np.int8)
    table[:, 0] = np.concatenate([np.arange(count) % 6 for count in counts])
    nothing = np.zeros((0, 3), np.int64)
    rows = np.arange(len(counts))
    return Choices(rows, table, np.cumsum(counts) - counts, counts, rows, nothing)


def draw_values(choices, seed):
    """A random number per node and choice."""
    return np.random.default_rng(seed).random((len(choices.counts), choices.counts.max()))


def additive_score(choices, seed=0):
    """A score, the sum of `draw_values` of a candidate's choices, and the blocks that it was asked for."""
    values, asked = draw_values(choices, seed), []

    def score(indices):
        asked.append(indices.copy())
        return values[np.arange(len(choices.counts)), indices].sum(axis=1)

    return score, asked


@pytest.fixture(scope="module")
def programs():
    """By family: the choices of a simulated program, its costs and their optimum."""
    size = SCALES["small"].size
    priced = {each: price(draw_program(each, size, np.random.default_rng(11))) for each in FAMILIES}
    return {family: (*found, find_optimum(found[1]).seconds) for family, found in priced.items()}


@pytest.mark.parametrize("budget", [1, 2, 7, 64, 300, 1000])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_scores_as_many_distinct_candidates_as_it_may(programs, family, budget):
    choices, costs, _ = programs[family]
    asked = []

    def score(indices):
        asked.append(indices.copy())
        return -costs.seconds(indices)

    found = search_layouts(score, choices, budget=budget)
    np.testing.assert_array_equal(np.concatenate(asked), found.indices)
    assert found.indices.dtype == np.int16
    assert len(np.unique(found.indices, axis=0)) == len(found.indices) == len(found.scores) == budget
    assert max(map(len, asked)) <= MAX_BLOCK
    assert not found.indices[0].any()
    assert (found.indices >= 0).all()
    assert (found.indices < choices.counts).all()
    np.testing.assert_array_equal(found.scores, -costs.seconds(found.indices))
    assert found.scores[found.best] == found.scores.max()


def test_candidates_are_scored_in_large_blocks(programs):
    choices, costs, _ = programs["transformer"]
    sizes = []
    search_layouts(lambda each: sizes.append(len(each)) or -costs.seconds(each), choices, budget=4096)
    assert max(sizes) == MAX_BLOCK
    assert np.repeat(sizes, sizes).mean() > MAX_BLOCK / 2


def test_a_seed_gives_the_same_candidates_and_another_seed_others(programs):
    choices, costs, _ = programs["recommender"]
    runs = [search_layouts(lambda each: -costs.seconds(each), choices, budget=300, seed=seed) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0].indices, runs[1].indices)
    np.testing.assert_array_equal(runs[0].scores, runs[1].scores)
    assert (runs[0].indices != runs[2].indices).any()


@pytest.mark.parametrize("counts", [[3, 1, 4, 2], [1], [2] * 6, [1] * 70])
def test_a_small_space_is_scored_completely(counts):
    choices = small_choices(counts)
    score, asked = additive_score(choices)
    everything = set(itertools.product(*map(range, counts)))
    found = search_layouts(score, choices, budget=64)
    assert {tuple(row) for row in found.indices.tolist()} == everything
    assert sum(map(len, asked)) == len(everything)
    assert not found.indices[0].any()


def test_a_budget_of_all_candidates_but_one_is_used_up():
    choices = small_choices([4, 4, 4, 4])
    score, _ = additive_score(choices)
    found = search_layouts(score, choices, budget=255)
    assert len(np.unique(found.indices, axis=0)) == 255


@pytest.mark.parametrize("seed", range(5))
def test_an_additive_score_is_solved_by_one_descent(seed):
    """30 nodes of 4 choices: 4 ** 30 candidates; the 90 changes of the default decide the optimum."""
    choices = small_choices([4] * 30)
    score, _ = additive_score(choices, seed)
    found = search_layouts(score, choices, budget=256, seed=seed)
    assert found.scores.max() == pytest.approx(draw_values(choices, seed).max(axis=1).sum())


@pytest.mark.parametrize("family", FAMILIES)
def test_it_finds_the_optimum_of_the_cost_model(programs, family):
    choices, costs, optimum = programs[family]
    found = search_layouts(lambda each: -costs.seconds(each), choices, budget=2048)
    assert -found.scores.max() == pytest.approx(optimum, rel=1e-9)


def test_a_larger_budget_finds_no_less_and_half_the_regret_of_random_search(programs):
    regrets = []
    for choices, costs, optimum in programs.values():
        drawn = [costs.seconds(draw_indices(choices, 256, seed=0, mode=mode)).min() for mode in MODES]
        found = [
            -search_layouts(lambda each, costs=costs: -costs.seconds(each), choices, budget=budget).scores.max()
            for budget in (1, 256)
        ]
        assert found[1] <= found[0]
        regrets.append([each / optimum - 1 for each in (min(drawn), found[1])])
    drawn, found = np.mean(regrets, axis=0)
    assert drawn > 0.001
    assert found <= drawn / 2


def test_starts_are_scored_after_the_default_and_once():
    choices = small_choices([4] * 10)
    score, _ = additive_score(choices)
    starts = np.array([[3] * 10, [0] * 10, [3] * 10, [2] * 10])
    found = search_layouts(score, choices, budget=20, starts=starts)
    np.testing.assert_array_equal(found.indices[:3], np.array([[0], [3], [2]]) * np.ones((1, 10), int))
    assert len(np.unique(found.indices, axis=0)) == 20


def test_a_good_start_is_improved(programs):
    """From the optimum, nothing better can be found; from beside it, the search finds the way back."""
    choices, costs, optimum = programs["transformer"]
    beside = find_optimum(costs).indices.copy()
    free = np.flatnonzero(choices.counts > 1)[::7]
    beside[free] = (beside[free] + 1) % choices.counts[free]
    assert costs.seconds(beside[None])[0] > optimum * 1.001
    found = search_layouts(lambda each: -costs.seconds(each), choices, budget=512, starts=beside[None])
    assert -found.scores.max() == pytest.approx(optimum, rel=1e-9)


def test_time_is_looked_at_between_blocks(monkeypatch):
    """Every block takes 10 seconds of a clock that nothing else moves: 35 seconds allow four blocks."""
    choices = small_choices([8] * 40)
    clock = [100.0]
    monkeypatch.setattr(search_module.time, "monotonic", lambda: clock[0])
    score, asked = additive_score(choices)

    def slow(indices):
        clock[0] += 10
        return score(indices)

    found = search_layouts(slow, choices, budget=10_000, seconds=35)
    assert len(asked) == 4
    assert len(found.scores) == sum(map(len, asked))
    clock[0] = 100.0
    asked.clear()
    assert len(search_layouts(slow, choices, budget=10_000, seconds=0).scores) == len(asked) == 1


@pytest.mark.parametrize(
    ("starts", "found"),
    [(np.zeros((2, 5)), r"\(2, 5\)"), (np.zeros(4), r"\(4,\)"), (np.full((1, 4), 3), r"\(1, 4\)")],
)
def test_starts_of_another_program_are_refused(starts, found):
    choices = small_choices([3] * 4)
    with pytest.raises(UserError, match=rf"^the starts of a search have shape {found}.*; expected \[k, 4\]"):
        search_layouts(additive_score(choices)[0], choices, budget=10, starts=starts)


def test_a_budget_of_nothing_and_scores_that_are_no_numbers_are_refused():
    choices = small_choices([3] * 4)
    with pytest.raises(UserError, match="a budget of 0 candidates; expected at least 1"):
        search_layouts(additive_score(choices)[0], choices, budget=0)
    with pytest.raises(UserError, match=r"returned shape \(1,\) with 1 NaN for 1 candidates"):
        search_layouts(lambda each: np.full(len(each), np.nan), choices, budget=10)
    with pytest.raises(UserError, match=r"returned shape \(1, 1\)"):
        search_layouts(lambda each: np.zeros((1, len(each))), choices, budget=10)

"""Reasons with a score that adds up: contributions, groups, the smallest change and copies are known exactly."""

import numpy as np
import pytest

from tests.ranking.additive_scorer import additive
from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.layout_flow import ProgramLayouts
from tpugraphs_polynormer.ranking.own_program import CandidateLog, propose
from tpugraphs_polynormer.ranking.reasons import compare_copies, explain_candidate
from tpugraphs_polynormer.simulator.copies import ProgramCopies
from tpugraphs_polynormer.simulator.costs import LayoutCosts
from tpugraphs_polynormer.simulator.hardware import TPU_V3
from tpugraphs_polynormer.simulator.programs import FAMILIES, draw_program
from tpugraphs_polynormer.simulator.scales import SCALES


def explain(scorer, row):
    return explain_candidate(scorer.program, lambda rows: scorer.score(rows).mean(axis=0), np.array(row, np.int16))


def test_each_change_has_what_it_adds_and_equal_changes_are_one():
    scorer = additive({(0, 1): 1.0, (1, 1): 2.0, (2, 3): 0.5, (4, 1): -0.25})
    reasons = explain(scorer, [1, 1, 3, 0, 1])
    assert [(each.nodes, each.contribution) for each in reasons.changes] == [((0, 1), 3.0), ((2,), 0.5), ((4,), -0.25)]
    first = reasons.changes[0]
    assert first.opcode == "dot" and first.shapes == ("f32[64,64]",) * 3
    choices = scorer.choices
    assert first.old == tuple(choices.table[choices.starts[0]]) and first.new == tuple(
        choices.table[choices.starts[0] + 1]
    )
    assert reasons.changes[2].shapes == ("f32[64,128]", "f32[64,64]", "f32[64,128]")


def test_the_default_has_no_reasons():
    reasons = explain(additive({(0, 1): 1.0}), [0] * 5)
    assert reasons.changes == () and reasons.smallest is None


@pytest.mark.parametrize(
    ("values", "expected", "kept"),
    [
        ([6.0, 3.5, 0.4, 0.1, 0.0], {0, 1}, 0.95),  # 9.5 of 10 is enough, 6 is not
        ([8.0, 0.5, 0.5, 0.5, 0.5], {0, 1, 2}, 0.9),  # exactly 90 %
        ([5.0, -4.0, 0.0, 0.0, 0.0], {0}, 5.0),  # without what does harm
    ],
)
def test_the_smallest_change_keeps_nine_tenths(values, expected, kept):
    """Choice numbers differ, so that each node is a group of its own."""
    row = [1, 2, 3, 4, 1]
    reasons = explain(additive({(node, row[node]): value for node, value in enumerate(values)}), row)
    chosen = {reasons.changes[number].nodes[0] for number in reasons.smallest.changes}
    assert len(chosen) == len(expected) and expected <= chosen | {1, 2, 3, 4}
    assert reasons.smallest.kept_share == pytest.approx(kept)
    assert set(np.flatnonzero(reasons.smallest.indices)) == chosen


def test_changes_that_only_work_together_stay_together():
    reasons = explain(additive({(4, 1): 0.1}, pairs={(0, 1): 2.0}), [1, 2, 3, 0, 1])
    assert {each.nodes: each.contribution for each in reasons.changes} == pytest.approx(
        {(0,): 2.0, (1,): 2.0, (2,): 0.0, (4,): 0.1}
    )
    assert {reasons.changes[number].nodes for number in reasons.smallest.changes} == {(0,), (1,)}


def test_a_slower_candidate_has_contributions_but_no_smallest_change():
    reasons = explain(additive({(0, 1): -1.0}), [1, 0, 0, 0, 0])
    assert reasons.changes[0].contribution == -1.0 and reasons.smallest is None


def test_proposals_are_distinct_within_the_budget_and_scored_once():
    scorer = additive({(0, 1): 1.0})
    log = propose(scorer, budget=300, seed=0)
    assert len(log) == scorer.num_scored == 300
    assert len(np.unique(log.indices, axis=0)) == 300 and not log.indices[0].any()
    again = propose(additive({(0, 1): 1.0}), budget=300, seed=0)
    assert np.array_equal(log.indices, again.indices)
    assert len(propose(additive({}), budget=1)) == 1
    before = scorer.num_scored
    assert np.array_equal(log.score(log.indices[[5, 5, 2]]), log.scores.mean(axis=0)[[5, 5, 2]])
    assert scorer.num_scored == before


def test_no_time_means_the_default_alone():
    assert len(propose(additive({}), budget=500, seconds=-1.0)) == 1


def test_rows_that_repeat_in_one_call_are_scored_once():
    scorer = additive({(1, 2): 3.0})
    log = CandidateLog(scorer)
    assert log.score(np.array([[0, 2, 0, 0, 0]] * 3)).tolist() == [3.0] * 3
    assert scorer.num_scored == 1


@pytest.mark.parametrize("family", sorted(FAMILIES)[:4])
def test_copies_are_those_of_the_cost_model(family):
    """Seconds of all copies, from the bytes of every edge, are what the cost model adds up for them."""
    module = draw_program(family, SCALES["tiny"].size, np.random.default_rng(3))
    choices, graph = enumerate_choices(module), featurize_module(module)
    tables = [choices.table[a : a + n] for a, n in zip(choices.starts, choices.counts, strict=True)]
    program = ProgramLayouts(graph.node_feat, graph.node_opcode, graph.edge_index, choices.node_ids, tables)
    copies, costs = ProgramCopies(program), LayoutCosts(program).tables
    rows = np.random.default_rng(1).integers(0, choices.counts, (20, len(tables)))
    rows[0] = 0
    found = copies.measure(rows).sum(axis=1) / TPU_V3.hbm_bandwidth
    expected = [
        sum(unary[i] - buffers[i] for unary, buffers, i in zip(costs.unary, costs.buffers, row, strict=True))
        + sum(table[row[a], row[b]] for (a, b), table in costs.pairs.items())
        for row in rows
    ]
    np.testing.assert_allclose(found - found[0], np.array(expected) - expected[0], rtol=1e-9, atol=1e-12)
    default, other = copies.measure(rows[:2])
    changes = compare_copies(copies, rows[1])
    assert changes.num_default == (default > 0).sum()
    assert changes.num_default + changes.num_appearing - changes.num_vanishing == (other > 0).sum()

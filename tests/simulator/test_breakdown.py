"""The shares of config nodes in a candidate's seconds, compared with the cost model and with numbers by hand."""

import numpy as np
import pytest

from tests.simulator.test_costs import BANDWIDTH, FIRST_MINOR, LAST_MINOR, PEAK, dot_program, setting
from tests.small_archives import tile_arrays
from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.layout_flow import FIXED, ProgramLayouts
from tpugraphs_polynormer.hlo.sampling import draw_indices
from tpugraphs_polynormer.simulator.breakdown import ADDITIVE, LAYOUT_COLUMNS, LayoutBreakdown
from tpugraphs_polynormer.simulator.costs import LayoutCosts
from tpugraphs_polynormer.simulator.programs import FAMILIES, draw_program
from tpugraphs_polynormer.simulator.scales import SCALES
from tpugraphs_polynormer.simulator.tile_costs import TILE_STREAMS, TileCosts


def drawn_program(family, num_candidates=30):
    """A small program of a family, and drawn choice numbers [c, nc]."""
    module = draw_program(family, SCALES["tiny"].size, np.random.default_rng(3))
    arrays, choices = featurize_module(module), enumerate_choices(module)
    tables = [choices.table[a : a + k] for a, k in zip(choices.starts, choices.counts, strict=True)]
    program = ProgramLayouts(arrays.node_feat, arrays.node_opcode, arrays.edge_index, choices.node_ids, tables)
    return program, draw_indices(choices, num_candidates, seed=1, mode="random", tied=False)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_additive_columns_and_the_constant_are_the_seconds(family):
    program, ids = drawn_program(family)
    breakdown = LayoutBreakdown(program)
    columns = breakdown.columns(ids)
    assert columns.shape == (ids.shape[1], len(ids), len(LAYOUT_COLUMNS))
    seconds = LayoutCosts(program).seconds(ids)
    np.testing.assert_allclose(breakdown.constant + columns[:, :, ADDITIVE].sum((0, 2)), seconds, rtol=1e-12)
    np.testing.assert_allclose(breakdown.seconds(columns), seconds, rtol=1e-12)
    np.testing.assert_array_equal(breakdown.columns(ids[4:5])[:, 0], columns[:, 4])


@pytest.mark.parametrize("family", sorted(FAMILIES)[:3])
def test_columns_are_those_of_the_tables_one_by_one(family):
    program, ids = drawn_program(family, 5)
    tables, columns = LayoutCosts(program).tables, LayoutBreakdown(program).columns(ids)
    for row, chosen in enumerate(ids):
        found = {name: np.zeros(len(chosen)) for name in LAYOUT_COLUMNS}
        for node, choice in enumerate(chosen):
            found["buffers"][node] += tables.buffers[node][choice]
            found["copies"][node] += tables.unary[node][choice] - tables.buffers[node][choice]
        for (first, second), table in tables.pairs.items():
            for node in (first, second):
                found["copies"][node] += table[chosen[first], chosen[second]] / 2
        for each in tables.operators:
            own = chosen[each.index]
            found["matrix"][each.index] = each.matrix[own]
            sources = [(table, 0 if source == FIXED else chosen[source]) for source, table in each.reads]
            found["hbm"][each.index] = each.write[own] + sum(table[choice] for table, choice in sources)
            turned = [(table, 0 if source == FIXED else chosen[source]) for source, table in each.turns]
            found["turns"][each.index] = sum(table[own, choice] for table, choice in turned)
            streams = (found[name][each.index] for name in ("matrix", "hbm", "turns"))
            found["operator"][each.index] = max(streams)
        for column, name in enumerate(LAYOUT_COLUMNS[:-1]):
            np.testing.assert_allclose(columns[:, row, column], found[name], rtol=1e-12, atol=1e-18, err_msg=name)


def test_a_dot_by_hand():
    """x [32, 64] times w [64, 256], read once by a tuple that needs the last dim minor."""
    arrays = dot_program()
    rows = np.array([setting(LAST_MINOR), setting(FIRST_MINOR)], np.int8)
    program = ProgramLayouts(arrays.node_feat, arrays.node_opcode, arrays.edge_index, np.array([2]), [rows])
    agreeing, disagreeing = LayoutBreakdown(program).columns(np.array([[0], [1]]))[0]
    operands = 4 * (32 * 128 + 64 * 256)
    wide, narrow = 4 * 128 * 256, 4 * 32 * 256
    by_name = dict(zip(LAYOUT_COLUMNS, disagreeing, strict=True))
    assert by_name["matrix"] == pytest.approx(2 * 128 * 256 * 128 / PEAK)
    assert by_name["hbm"] == pytest.approx((operands + wide) / BANDWIDTH)
    assert by_name["copies"] == pytest.approx((wide + narrow) / BANDWIDTH)
    assert by_name["padding"] == pytest.approx(0.75)  # 32 of 128 lanes are used
    by_name = dict(zip(LAYOUT_COLUMNS, agreeing, strict=True))
    assert by_name["padding"] == by_name["copies"] == 0
    assert by_name["operator"] == pytest.approx((operands + narrow) / BANDWIDTH)


def test_streams_of_a_tile_are_its_seconds():
    arrays = tile_arrays(num_candidates=12)
    arrays["node_feat"][:, 13] = 1  # a type, so that buffers have bytes
    costs = TileCosts(arrays["node_feat"], arrays["node_opcode"], arrays["edge_index"])
    streams = costs.streams(arrays["config_feat"])
    by_name = dict(zip(TILE_STREAMS, streams.T, strict=True))
    np.testing.assert_allclose(costs.seconds(arrays["config_feat"]), streams[:, :4].sum(1), rtol=1e-12)
    np.testing.assert_array_equal(by_name["slower"], np.maximum(by_name["transfer"], by_name["work"]))
    assert (by_name["transfer"] > 0).all()

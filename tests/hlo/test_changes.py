"""Changes of candidates: distances between choices, and neighbours that follow."""

import numpy as np

from tpugraphs_polynormer.hlo.changes import LayoutChanges
from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.simulator.array_shapes import F32
from tpugraphs_polynormer.simulator.builder import ModuleBuilder

LAST, FIRST, OPEN = (1, 0), (0, 1), ()


def three_dots():
    """The choices of three equal dots in a row."""
    module = ModuleBuilder("dots")
    main = module.computation("main")
    value = main.parameter((128, 128), F32)
    for _ in range(3):
        value = main.unary("tanh", main.dot(value, main.parameter((128, 128), F32)))
    main.finish(main.tuple([value]))
    return enumerate_choices(module.build())


def layouts(choices, node, choice):
    """(output, input, kernel) of a node's choice, without padding."""
    row = choices.table[choices.starts[node] + choice].reshape(3, 6).tolist()
    return tuple(tuple(dim for dim in part if dim >= 0) for part in row)


def number(choices, *wanted):
    """The choice of the first node with these layouts."""
    return next(each for each in range(choices.counts[0]) if layouts(choices, 0, each) == wanted)


def test_units_are_nodes_and_tied_groups():
    changes = LayoutChanges(three_dots())
    assert [unit.tolist() for unit in changes.nodes] == [[0], [1], [2]]
    assert [unit.tolist() for unit in changes.groups] == [[0, 1, 2]]


def test_the_distance_counts_contradicting_tensors():
    choices = three_dots()
    changes = LayoutChanges(choices)
    base = number(choices, LAST, LAST, FIRST)
    found = {layouts(choices, 0, other): distance for distance, other in changes.list_choices(0, base)}
    assert len(found) == 8
    assert found[LAST, OPEN, OPEN] == 0
    assert found[FIRST, LAST, FIRST] == found[LAST, FIRST, FIRST] == found[LAST, LAST, LAST] == 1
    assert found[FIRST, FIRST, LAST] == 3


def test_of_each_other_output_there_is_the_closest_choice():
    choices = three_dots()
    changes = LayoutChanges(choices)
    base = number(choices, LAST, LAST, FIRST)
    ((distance, other),) = changes.list_choices(0, base, outputs_only=True)
    assert (distance, layouts(choices, 0, other)) == (1, (FIRST, LAST, FIRST))


def test_neighbours_follow_to_the_depth_and_keep_the_rest():
    choices = three_dots()
    changes = LayoutChanges(choices)
    start = number(choices, LAST, LAST, LAST)
    for depth, expected in (
        (0, [(LAST, LAST, LAST), (LAST, FIRST, LAST), (LAST, LAST, LAST)]),
        (1, [(FIRST, LAST, LAST), (LAST, FIRST, LAST), (LAST, LAST, LAST)]),
    ):
        candidate = np.array([start] * 3, np.int16)
        candidate[1] = number(choices, LAST, FIRST, LAST)
        changes.follow(candidate, 1, depth=depth)
        assert [layouts(choices, node, each) for node, each in enumerate(candidate)] == expected
    candidate = np.array([start] * 3, np.int16)
    candidate[0] = number(choices, FIRST, FIRST, FIRST)
    changes.follow(candidate, 0, depth=2)
    assert layouts(choices, 1, candidate[1]) == (LAST, FIRST, LAST)
    assert layouts(choices, 2, candidate[2]) == (LAST, LAST, LAST)

"""The edges between config nodes, and the dimensions of their operands, on programs written by hand."""

import numpy as np

from tpugraphs_polynormer.datasets.config_graph import Program, connect_config_nodes, find_origins, operand_dims
from tpugraphs_polynormer.hlo.features import SHAPE_DIMENSIONS
from tpugraphs_polynormer.hlo.opcodes import OPCODE_IDS

# For each op: opcode, shape, operands.
PROGRAM = [
    ("convolution", (2, 2, 2, 2), ()),
    ("add", (2, 2, 2, 2), (0, 2)),
    ("broadcast", (2, 2, 2, 2), ()),
    ("multiply", (2, 2, 2, 2), (1, 2)),
    ("parameter", (2, 2), ()),
    ("dot", (2, 2), (3, 4)),
    ("tanh", (2, 2), (5,)),
]


def make_program(ops, config_ids) -> Program:
    features = np.zeros([len(ops), 140], np.float32)
    for op, (_, shape, _) in enumerate(ops):
        features[op, SHAPE_DIMENSIONS][: len(shape)] = shape
    opcodes = np.array([OPCODE_IDS[name] for name, _, _ in ops])
    pairs = [(operand, op) for op, (_, _, operands) in enumerate(ops) for operand in operands]
    producers, consumers = np.array(pairs, int).reshape(-1, 2).T
    return Program(features, opcodes, producers, consumers, np.array(config_ids))


def test_layouts_travel_through_what_no_candidate_decides():
    assert find_origins(make_program(PROGRAM, [0, 5])).tolist() == [0, 0, -1, 0, -1, 1, 1]


def test_config_nodes_meet_once_where_one_reads_the_other():
    assert connect_config_nodes(make_program(PROGRAM, [0, 5])).tolist() == [[0, 1]]
    assert connect_config_nodes(make_program(PROGRAM, [5, 0])).tolist() == [[0, 1]]
    twice = [*PROGRAM, ("add", (2, 2, 2, 2), (0, 3)), ("dot", (2, 2), (7, 6))]
    assert connect_config_nodes(make_program(twice, [0, 5, 8])).tolist() == [[0, 1], [0, 2], [1, 2]]


def test_a_long_chain_is_followed_to_its_start():
    shape = (2, 2, 2, 2)
    chain = [("convolution", shape, ()), *(("negate", shape, (op,)) for op in range(9000)), ("dot", (2, 2), (9000,))]
    origins = find_origins(make_program(chain, [0, 9001]))
    assert (origins[:-1] == 0).all() and origins[-1] == 1


def test_a_cycle_of_a_damaged_archive_ends():
    cycle = [("negate", (2, 2), (1,)), ("negate", (2, 2), (0,)), ("dot", (2, 2), (1,))]
    assert find_origins(make_program(cycle, [2])).tolist() == [-1, -1, 0]


def test_dims_of_a_config_node_and_its_first_and_last_operand():
    shapes = [("parameter", (4, 5), ()), ("parameter", (6,), ()), ("parameter", (7, 8, 9), ())]
    dims = operand_dims(make_program([*shapes, ("dot", (1, 2), (2, 0, 1))], [3, 0]))
    assert dims.dtype == np.float32
    assert dims[0].tolist() == [[1, 2, 0, 0, 0, 0], [4, 5, 0, 0, 0, 0], [7, 8, 9, 0, 0, 0]]
    assert dims[1].tolist() == [[4, 5, 0, 0, 0, 0], [0] * 6, [0] * 6]  # no operands


def test_a_program_without_config_nodes_or_operands_has_no_edges():
    program = make_program([("parameter", (2, 2), ())], np.zeros(0, int))
    assert connect_config_nodes(program).shape == (0, 2) and operand_dims(program).shape == (0, 3, 6)

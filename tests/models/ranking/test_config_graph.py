"""The edges between config nodes, on programs written by hand; XLA gives the same edges."""

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.hlo.features import SHAPE_DIMENSIONS
from tpugraphs_polynormer.hlo.opcodes import OPCODE_IDS
from tpugraphs_polynormer.models.ranking.config_graph import build_nconfig_edges, find_origins

# For each op: opcode, rank, operands. Ops 0 and 5 are config nodes; op 7 is padding.
PROGRAM = [
    ("convolution", 4, ()),
    ("add", 4, (0, 2)),
    ("broadcast", 4, ()),
    ("multiply", 4, (1, 2)),
    ("parameter", 2, ()),
    ("dot", 2, (3, 4)),
    ("tanh", 2, (5,)),
    ("parameter", 0, ()),
]
SLOT_OPS, SLOT_MASK = [0, 5, 7], [True, True, False]


def arguments(program=PROGRAM):
    features = np.zeros([len(program), 140], np.float32)
    for op, (_, rank, _) in enumerate(program):
        features[op, SHAPE_DIMENSIONS][:rank] = 2
    opcodes = tf.constant([OPCODE_IDS[name] for name, _, _ in program], tf.int64)
    pairs = [(operand, op) for op, (_, _, operands) in enumerate(program) for operand in operands]
    producers, consumers = (tf.constant(each, tf.int32) for each in zip(*pairs, strict=True))
    return tf.constant(features), opcodes, producers, consumers, tf.constant(SLOT_OPS), tf.constant(SLOT_MASK)


def real_edges(edges) -> set[tuple[int, int]]:
    mask = np.ones(len(edges.source), bool) if edges.mask is None else edges.mask.numpy()
    return set(zip(edges.source.numpy()[mask].tolist(), edges.target.numpy()[mask].tolist(), strict=True))


def test_layouts_travel_through_what_no_candidate_decides():
    origins = find_origins(*arguments()).numpy()
    assert origins.tolist() == [0, 0, -1, 0, -1, 1, 1, -1]


def test_slots_meet_where_one_reads_the_other():
    given = arguments()
    edges = build_nconfig_edges(find_origins(*given), given[2], given[3], 3)
    assert real_edges(edges) - {(2, 2)} == {(0, 0), (1, 1), (0, 1), (1, 0)}


def test_a_long_chain_is_followed_to_its_start():
    program = [("convolution", 4, ()), *(("negate", 4, (op,)) for op in range(3000)), ("dot", 2, (3000,))]
    features, opcodes, producers, consumers, _, _ = arguments(program)
    origins = find_origins(
        features, opcodes, producers, consumers, tf.constant([0, 3001]), tf.constant([True, True])
    ).numpy()
    assert (origins[:-1] == 0).all() and origins[-1] == 1


def test_xla_gives_the_same_edges():
    given = arguments()

    @tf.function(jit_compile=True)
    def compiled(*tensors):
        return build_nconfig_edges(find_origins(*tensors), tensors[2], tensors[3], 3)

    plain = build_nconfig_edges(find_origins(*given), given[2], given[3], 3)
    found = compiled(*given)
    assert real_edges(found) - {(2, 2)} == real_edges(plain) - {(2, 2)}

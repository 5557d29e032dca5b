"""The graph of config nodes: two are joined where a tensor of one reaches the other through undecided nodes.

A node that no candidate decides takes the layout of an operand. So the layouts of two config nodes must agree, or be
copied, however many elementwise nodes are between them.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.catalog import NUM_OPCODES
from tpugraphs_polynormer.hlo.opcodes import FREE_OPCODES, OPCODE_IDS
from tpugraphs_polynormer.layers.edge_index import EdgeIndex, build_undirected_edge_tensors
from tpugraphs_polynormer.layers.ops.formulation import in_xla
from tpugraphs_polynormer.models.ranking.features import shape_ranks

_NUM_DOUBLINGS = 12  # follows 4,096 operands in a row


def find_origins(
    features: tf.Tensor,
    opcodes: tf.Tensor,
    producers: tf.Tensor,
    consumers: tf.Tensor,
    nconfig_ops: tf.Tensor,
    nconfig_mask: tf.Tensor,
) -> tf.Tensor:
    """[n] int32: the config node whose layout reaches each op, -1 for none. A config node reaches its own op.

    Another op takes its layout from its last operand of two or more dimensions, and so on up the program.

    Args:
      features: [n, 140]. opcodes: [n]. producers, consumers: [e], one pair for each operand.
      nconfig_ops, nconfig_mask: [s].
    """
    num_ops = tf.shape(features)[0]
    numbers = tf.where(nconfig_mask, tf.range(tf.shape(nconfig_ops)[0]), -1)
    nconfig_of = tf.maximum(tf.math.unsorted_segment_max(numbers, nconfig_ops, num_ops), -1)
    is_free = np.isin(np.arange(NUM_OPCODES), [OPCODE_IDS[name] for name in FREE_OPCODES])
    hands_on = tf.gather((shape_ranks(features) >= 2) & ~tf.gather(is_free, opcodes), producers)
    parent = tf.math.unsorted_segment_max(tf.where(hands_on, producers, -1), consumers, num_ops)
    parent = tf.where((nconfig_of >= 0) | (parent < 0), tf.range(num_ops), parent)
    for _ in range(_NUM_DOUBLINGS):
        parent = tf.gather(parent, parent)
    return tf.gather(nconfig_of, parent)


def build_nconfig_edges(
    origins: tf.Tensor, producers: tf.Tensor, consumers: tf.Tensor, num_config_nodes: int | tf.Tensor
) -> EdgeIndex:
    """Edges among config nodes, both ways, with self-loops: where an op with one origin reads an op with another.

    Under XLA shapes are static: the other pairs are masked loops of the last config node, which is padding there.
    """
    source, target = tf.gather(origins, producers), tf.gather(origins, consumers)
    meet = (source >= 0) & (target >= 0) & (source != target)
    if not in_xla():
        return build_undirected_edge_tensors(
            tf.boolean_mask(source, meet), tf.boolean_mask(target, meet), num_config_nodes
        )
    last = num_config_nodes - 1
    return build_undirected_edge_tensors(
        tf.where(meet, source, last), tf.where(meet, target, last), num_config_nodes, mask=meet
    )

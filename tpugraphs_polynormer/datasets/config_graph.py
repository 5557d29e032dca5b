"""The graph of config nodes: two are joined where a tensor of one reaches the other through undecided nodes.

A node that no candidate decides takes the layout of an operand. So the layouts of two config nodes must agree, or be
copied, however many elementwise nodes are between them. No candidate changes this graph, so preprocessing computes it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tpugraphs_polynormer.catalog import NUM_OPCODES
from tpugraphs_polynormer.hlo.features import SHAPE_DIMENSIONS
from tpugraphs_polynormer.hlo.opcodes import FREE_OPCODES, OPCODE_IDS

_IS_FREE = np.isin(np.arange(NUM_OPCODES), [OPCODE_IDS[name] for name in FREE_OPCODES])


class Program(NamedTuple):
    """The arrays of a program with n nodes, e operands and s config nodes."""

    node_feat: np.ndarray  # [n, 140]
    node_opcode: np.ndarray  # [n]
    producers: np.ndarray  # [e], the node behind each operand
    consumers: np.ndarray  # [e], the node that reads it
    config_ids: np.ndarray  # [s], the config nodes


def find_origins(program: Program) -> np.ndarray:
    """[n]: the index of the config node whose layout reaches each node, -1 for none. A config node is its own origin.

    Another node takes its layout from its last operand of two or more dimensions, and so on up the program.
    """
    num_nodes = len(program.node_feat)
    nconfig_of = np.full(num_nodes, -1)
    nconfig_of[program.config_ids] = np.arange(len(program.config_ids))
    ranks = (program.node_feat[:, SHAPE_DIMENSIONS] > 0).sum(1)
    has_layout = ((ranks >= 2) & ~_IS_FREE[program.node_opcode])[program.producers]
    parent = np.full(num_nodes, -1)
    np.maximum.at(parent, program.consumers[has_layout], program.producers[has_layout])
    parent = np.where((nconfig_of >= 0) | (parent < 0), np.arange(num_nodes), parent)
    # Each round doubles the way; a damaged archive can have a cycle, which never settles.
    for _ in range(num_nodes.bit_length()):
        parent = parent[parent]
    return nconfig_of[parent]


def connect_config_nodes(program: Program) -> np.ndarray:
    """[m, 2]: the pairs of config nodes, smaller first, where a node of one origin reads a node of the other."""
    origins = find_origins(program)
    pairs = np.stack([origins[program.producers], origins[program.consumers]], axis=1)
    pairs = pairs[(pairs >= 0).all(axis=1) & (pairs[:, 0] != pairs[:, 1])]
    return np.unique(np.sort(pairs, axis=1), axis=0)


def operand_dims(program: Program) -> np.ndarray:
    """[s, 3, 6] float32: dimensions of each config node's result and of its first and last operand, 0 without one."""
    num_nodes = len(program.node_feat)
    dims = np.concatenate([program.node_feat[:, SHAPE_DIMENSIONS], np.zeros((1, 6), np.float32)])  # the last: no node
    first, last = np.full(num_nodes, num_nodes), np.full(num_nodes, -1)
    np.minimum.at(first, program.consumers, program.producers)
    np.maximum.at(last, program.consumers, program.producers)
    ids = program.config_ids
    return dims[np.stack([ids, first[ids], last[ids]], axis=1)]

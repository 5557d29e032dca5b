"""The copies of a candidate: where a node's result has another layout than its consumer wants.

The cost model (costs.py) prices them; this module says where they are, and how many bytes each one moves.
"""

from __future__ import annotations

import numpy as np

from tpugraphs_polynormer.hlo.layout_flow import (
    CONVOLUTION,
    DOT,
    FIXED,
    FREE,
    REDUCE,
    RESHAPE,
    SAME_DIMENSIONS,
    TRANSPOSE,
    NodeLayout,
    ProgramLayouts,
    opcode_set,
)
from tpugraphs_polynormer.hlo.shapes import element_bytes

NO_TRAFFIC = FREE | opcode_set("tuple while call conditional after-all")


class ProgramCopies:
    """The copies of one program's candidates.

    `edges` int64 [e, 2]: rows (consumer, producer) of the edges that have a copy for some candidates only.

    Args:
      program: with the choices of each config node.
    """

    def __init__(self, program: ProgramLayouts) -> None:
        edges, tables, first, second = [], [], [], []
        widths = element_bytes(program.node_feat)
        for consumer, producers in enumerate(program.operands):
            for producer in producers:
                wanted = wanted_layout(program, consumer, producer)
                sources = (program.nodes[producer].source, FIXED if wanted is None else wanted.source)
                if wanted is None or sources == (FIXED, FIXED):
                    continue
                edges.append((consumer, producer))
                tables.append(copied_elements(program, producer, wanted) * float(widths[producer]))
                first.append(sources[0])
                second.append(sources[1])
        self.edges = np.array(edges, np.int64).reshape(-1, 2)
        sizes = np.array([each.size for each in tables], np.int64)
        self._starts = np.cumsum(sizes) - sizes
        self._widths = np.array([each.shape[1] for each in tables], np.int64)
        self._bytes = np.concatenate([np.zeros(0), *(each.ravel() for each in tables)])
        self._first, self._second = np.array(first, np.int64), np.array(second, np.int64)

    def measure(self, choice_ids: np.ndarray) -> np.ndarray:
        """float64 [c, e]: the bytes that the copy on each edge reads and writes, of candidates [c, nc]; 0 if none."""
        ids = np.concatenate([choice_ids, np.zeros((len(choice_ids), 1), choice_ids.dtype)], axis=1).astype(np.int64)
        return self._bytes[self._starts + ids[:, self._first] * self._widths + ids[:, self._second]]


def is_operator(program: ProgramLayouts, node: int) -> bool:
    """Whether a node is a convolution or a dot whose layouts a candidate decides."""
    return node in program.config_index and int(program.opcode[node]) in (CONVOLUTION, DOT)


def wanted_layout(program: ProgramLayouts, consumer: int, producer: int) -> NodeLayout | None:
    """The layout in which a consumer reads a producer, or None if it accepts any.

    An operator reads its operands in any layout: its cross-lane unit turns them.
    """
    opcode, rank = int(program.opcode[consumer]), len(program.dims[producer])
    if int(program.opcode[producer]) in NO_TRAFFIC or rank < 2 or is_operator(program, consumer):
        return None
    if opcode == RESHAPE and consumer in program.config_index:
        index = program.config_index[consumer]
        inputs = [choice.input for choice in program.layout_choices[index]]
        return NodeLayout(index, tuple(each if each is not None and len(each) == rank else () for each in inputs))
    if opcode in FREE or opcode in (REDUCE, TRANSPOSE):
        return None
    if opcode in SAME_DIMENSIONS and len(program.dims[consumer]) == rank:
        return program.nodes[consumer]
    return NodeLayout(FIXED, (program.default_layout(producer),))


def copied_elements(program: ProgramLayouts, producer: int, wanted: NodeLayout) -> np.ndarray:
    """float64 [producer's choices, wanted's choices]: elements that a copy reads and writes, padding included.

    0 where the two layouts have the same order of elements; the layout () accepts any.
    """
    layouts = program.nodes[producer].layouts
    table = np.zeros((len(layouts), len(wanted.layouts)))
    size = {each: program.padded_size(producer, each) for each in {*layouts, *wanted.layouts} if each}
    for row, have in enumerate(layouts):
        for column, want in enumerate(wanted.layouts):
            if want and program.order(producer, have) != program.order(producer, want):
                table[row, column] = size[have] + size[want]
    return table

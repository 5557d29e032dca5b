"""Layout propagation: the layout of each node's result as a function of one config node's choice.

A node's layout is the minor-to-major order of its dimensions. A candidate gives the layouts of convolutions, dots and
reshapes; the program fixes those of parameters and other boundaries; every other node takes the layout of an operand.
Each node therefore has at most one *source*: the config node whose choice decides its layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.hlo.features import DIMENSIONS, MINOR_TO_MAJOR, SHAPE_DIMENSIONS
from tpugraphs_polynormer.hlo.opcodes import ELEMENTWISE_OPCODES, FREE_OPCODES, OPCODE_IDS
from tpugraphs_polynormer.hlo.shapes import SUBLANES, padded_elements

FIXED = -1  # the source of a layout that no candidate can change
Layout = tuple[int, ...]


def opcode_set(names: str) -> frozenset[int]:
    """The ids of space-separated opcode names."""
    return frozenset(OPCODE_IDS[name] for name in names.split())


CONVOLUTION, DOT, RESHAPE = (OPCODE_IDS[name] for name in ("convolution", "dot", "reshape"))
REDUCE, TRANSPOSE = OPCODE_IDS["reduce"], OPCODE_IDS["transpose"]
FREE, ELEMENTWISE = (frozenset(OPCODE_IDS[name] for name in names) for names in (FREE_OPCODES, ELEMENTWISE_OPCODES))
# Opcodes that keep the meaning of each dimension: the result takes the operand's layout.
SAME_DIMENSIONS = ELEMENTWISE | opcode_set(
    "batch-norm-inference concatenate dynamic-slice dynamic-update-slice pad reduce-window reverse "
    "select-and-scatter slice"
)


@dataclass(frozen=True)
class NodeLayout:
    """A node's layout as a function of its source's choice: one entry per choice, or a single entry if it is fixed."""

    source: int  # index into the config nodes, or FIXED
    layouts: tuple[Layout, ...]


@dataclass(frozen=True)
class LayoutChoice:
    """One choice of a config node, None leaves the layout to the compiler."""

    output: Layout | None
    input: Layout | None
    kernel: Layout | None

    @classmethod
    def from_row(cls, row: np.ndarray) -> LayoutChoice:
        """The choice of one row of 18 features."""
        parts = (tuple(int(dim) for dim in row[start : start + 6] if dim >= 0) for start in (0, 6, 12))
        return cls(*(part or None for part in parts))


def complete_layout(minor_dims: Sequence[int], rank: int) -> Layout:
    """A complete minor-to-major order: the given dimensions, then the others from the last one on."""
    return (*minor_dims, *(dim for dim in range(rank - 1, -1, -1) if dim not in minor_dims))


class ProgramLayouts:
    """The layout of every node of one program for every choice of its config nodes.

    Made from the archive's arrays: node_feat [n, 140], node_opcode [n], edge_index [m, 2] (consumer, producer),
    node_config_ids [nc], and per config node its distinct choices int8 [k, 18].
    """

    def __init__(
        self,
        node_feat: np.ndarray,
        node_opcode: np.ndarray,
        edge_index: np.ndarray,
        node_config_ids: np.ndarray,
        choices: Sequence[np.ndarray],
    ) -> None:
        self.node_feat, self.opcode = node_feat, node_opcode.astype(np.int64)
        sizes = node_feat[:, SHAPE_DIMENSIONS].astype(np.int64)
        self.dims: list[tuple[int, ...]] = [tuple(row[: np.count_nonzero(row)].tolist()) for row in sizes]
        self.operands: list[list[int]] = [[] for _ in self.dims]
        self.consumers: list[list[int]] = [[] for _ in self.dims]
        for consumer, producer in edge_index.tolist():
            self.operands[consumer].append(producer)
            self.consumers[producer].append(consumer)
        self.config_index = {int(node): index for index, node in enumerate(node_config_ids)}
        self.layout_choices = [[LayoutChoice.from_row(row) for row in rows] for rows in choices]
        self.nodes: list[NodeLayout] = []
        for node in range(len(self.dims)):
            self.nodes.append(self._node_layout(node))

    def default_layout(self, node: int) -> Layout:
        """The layout that the program records for a node, else the one with the last dimension minor."""
        rank = len(self.dims[node])
        recorded = tuple(self.node_feat[node, MINOR_TO_MAJOR].astype(int)[:rank].tolist())
        return recorded if sorted(recorded) == list(range(rank)) else complete_layout((), rank)

    def _node_layout(self, node: int) -> NodeLayout:
        if node in self.config_index:
            return self._configured(node)
        rank = len(self.dims[node])
        if rank > 1:
            if self.opcode[node] in SAME_DIMENSIONS:
                parent = self._parent(node, rank)
                if parent is not None:
                    return self.nodes[parent]
            if self.opcode[node] == TRANSPOSE and self.operands[node]:
                return self._transposed(node)
            if self.opcode[node] == REDUCE:
                parent = self._parent(node, None)
                if parent is not None:
                    return self._reduced(node, parent)
        return NodeLayout(FIXED, (self.default_layout(node),))

    def _configured(self, node: int) -> NodeLayout:
        index, rank = self.config_index[node], len(self.dims[node])
        layouts = []
        for choice in self.layout_choices[index]:
            valid = choice.output is not None and max(choice.output) < rank
            layouts.append(complete_layout(choice.output, rank) if valid else self.default_layout(node))
        return NodeLayout(index, tuple(layouts))

    def _parent(self, node: int, rank: int | None) -> int | None:
        """The operand whose layout the node takes, or None: the last fixed one, else the last one."""
        best = None
        for operand in self.operands[node]:
            own_rank = len(self.dims[operand])
            if self.opcode[operand] in FREE or own_rank < 2 or (rank is not None and own_rank != rank):
                continue
            if best is None or (self.nodes[operand].source == FIXED) >= (self.nodes[best].source == FIXED):
                best = operand
        return best

    def _transposed(self, node: int) -> NodeLayout:
        """The layout of a transpose: output dimension i is the operand's dimension `dimensions[i]`."""
        parent = self.nodes[self.operands[node][-1]]
        rank = len(self.dims[node])
        order = self.node_feat[node, DIMENSIONS].astype(int)[:rank].tolist()
        if sorted(order) != list(range(rank)) or len(parent.layouts[0]) != rank:
            return NodeLayout(FIXED, (self.default_layout(node),))
        return NodeLayout(parent.source, tuple(tuple(order.index(dim) for dim in each) for each in parent.layouts))

    def _reduced(self, node: int, parent: int) -> NodeLayout:
        """The layout of a reduce: the operand's order without the reduced dimensions, the others renumbered."""
        layout, rank = self.nodes[parent], len(self.dims[parent])
        count = rank - len(self.dims[node])
        dropped = set(self.node_feat[node, DIMENSIONS].astype(int)[:count].tolist())
        kept = [dim for dim in range(rank) if dim not in dropped]
        if len(kept) != len(self.dims[node]):
            return NodeLayout(FIXED, (self.default_layout(node),))
        rename = {dim: index for index, dim in enumerate(kept)}
        layouts = (tuple(rename[dim] for dim in each if dim in rename) for each in layout.layouts)
        return NodeLayout(layout.source, tuple(layouts))

    def padded(self, node: int) -> np.ndarray:
        """float64 [choices of the source]: elements of the node's padded buffer."""
        return np.array([self.padded_size(node, each) for each in self.nodes[node].layouts], dtype=np.float64)

    def padded_size(self, node: int, layout: Layout) -> int:
        """Elements of the node's padded buffer in a layout.

        XLA moves space into the batch of images with a small batch (its space-to-batch pass), so that no padding of
        the batch remains.
        """
        dims = self.dims[node]
        small = len(dims) >= 4 and dims[0] < SUBLANES
        order = self.order(node, layout)
        rest = tuple(dim for dim in layout if dim not in order)  # of size 1: last, where nothing pads them
        return padded_elements(dims, order + rest, filled=0 if small else None) if order else 1

    def order(self, node: int, layout: Layout) -> Layout:
        """The dimensions of a node in a layout that are larger than 1: where the others are makes no difference to the
        order of elements, so that XLA moves them by a bitcast."""
        return tuple(dim for dim in layout if self.dims[node][dim] != 1)

"""Runtime of a program on a simulated TPU v3 core for each candidate of layouts, from the archive's arrays alone.

The time of a candidate is the sum of
- for each convolution and dot, the slowest of three overlapping streams: the work of the systolic arrays on the padded
  result (8 x 128, contraction padded to 128); HBM traffic of padded operands and result; and the cross-lane unit,
  which moves an operand whose minor dimensions are others than the node asks for. Exchanging the two is free: the Cloud
  TPU performance guide says so of activations and kernels before a convolution and of the operands of a dot;
- for each other node that is not fused, HBM traffic of its padded buffer, written once and read by each consumer;
- for each edge whose producer and consumer have different layouts, one copy: the padded buffer, read in one layout and
  written in the other. Fixed boundaries (parameters, tuples, results) count as consumers.
The body of a loop counts once, because no array holds its number of iterations.

Every term depends on the choices of at most two nodes (three for an operator with two operands). It is tabulated once
per distinct choice; the cost of a block of candidates is a sum of table entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tpugraphs_polynormer.hlo.choices import Choices
from tpugraphs_polynormer.hlo.features import CONVOLUTION_DIMENSIONS, WINDOW_SIZE, ModuleArrays
from tpugraphs_polynormer.hlo.layout_flow import (
    CONVOLUTION,
    ELEMENTWISE,
    FIXED,
    REDUCE,
    Layout,
    NodeLayout,
    ProgramLayouts,
    opcode_set,
)
from tpugraphs_polynormer.hlo.shapes import LANES, element_bytes, round_up
from tpugraphs_polynormer.simulator.copies import NO_TRAFFIC, copied_elements, is_operator, wanted_layout
from tpugraphs_polynormer.simulator.hardware import MEASUREMENT_NOISE, TPU_V3

_BLOCK_ROWS = 8192
_NOT_WRITTEN = NO_TRAFFIC | opcode_set(
    "reshape transpose parameter get-tuple-element bitcast infeed dynamic-update-slice"
)
_NOT_READING = _NOT_WRITTEN | opcode_set("gather dynamic-slice")  # reads an index or a few rows


@dataclass(frozen=True)
class Operator:
    """A convolution or dot: seconds of each stream, tabulated by its own choice and by its operands' sources."""

    index: int
    matrix: np.ndarray  # [own choices]
    write: np.ndarray  # [own choices]
    reads: tuple[tuple[int, np.ndarray], ...]  # (source, [source's choices])
    turns: tuple[tuple[int, np.ndarray], ...]  # (source, [own choices, source's choices])


class CostTables(NamedTuple):
    """The tables of a program's costs: a candidate's seconds are the constant and one entry of each table."""

    constant: float
    unary: list[np.ndarray]  # by config node, [its choices]: buffers and copies that it alone decides
    buffers: list[np.ndarray]  # by config node, [its choices]: the part of `unary` that is traffic of padded buffers
    pairs: dict[tuple[int, int], np.ndarray]  # (config node, config node) -> copies [choices, choices]
    operators: list[Operator]


class LayoutCosts:
    """The costs of one program's candidates."""

    def __init__(self, program: ProgramLayouts) -> None:
        self._program = program
        self._bytes = element_bytes(program.node_feat)
        self._constant = 0.0
        self._unary = [np.zeros(len(rows)) for rows in program.layout_choices]
        self._buffers = [np.zeros(len(rows)) for rows in program.layout_choices]
        self._pairs: dict[tuple[int, int], np.ndarray] = {}
        self._operators: list[Operator] = []
        for node in range(len(program.node_feat)):
            self._add_traffic(node)
            self._add_operator(node)
            for producer in self._program.operands[node]:
                self._add_copy(node, producer)

    @property
    def tables(self) -> CostTables:
        """What `seconds` adds up, for those who ask which config node a candidate's seconds belong to."""
        return CostTables(self._constant, self._unary, self._buffers, self._pairs, self._operators)

    def seconds(self, choice_ids: np.ndarray) -> np.ndarray:
        """float64 [c]: noiseless seconds of candidates given as choice numbers [c, nc]."""
        blocks = [
            self._block_seconds(np.ascontiguousarray(choice_ids[start : start + _BLOCK_ROWS].T))
            for start in range(0, len(choice_ids), _BLOCK_ROWS)
        ]
        return np.concatenate(blocks) if blocks else np.zeros(0)

    def _block_seconds(self, ids: np.ndarray) -> np.ndarray:
        """float64 [b]: seconds of the candidates with the choice numbers ids [nc, b]."""
        total = np.full(ids.shape[1], self._constant)
        for index, table in enumerate(self._unary):
            total += table[ids[index]]
        for (first, second), table in self._pairs.items():
            total += table[ids[first], ids[second]]
        for operator in self._operators:
            own = ids[operator.index]
            hbm = operator.write[own]
            for source, table in operator.reads:
                hbm = hbm + (table[0] if source == FIXED else table[ids[source]])
            slowest = np.maximum(operator.matrix[own], hbm)
            if operator.turns:
                turned = sum(table[own, 0 if source == FIXED else ids[source]] for source, table in operator.turns)
                slowest = np.maximum(slowest, turned)
            total += slowest
        return total

    def _add(self, first: NodeLayout, second: NodeLayout, table: np.ndarray) -> None:
        """Adds a table [first's choices, second's choices] to the tables of the two sources."""
        if first.source == FIXED and second.source == FIXED:
            self._constant += float(table[0, 0])
        elif first.source == FIXED:
            self._unary[second.source] += table[0]
        elif second.source == FIXED:
            self._unary[first.source] += table[:, 0]
        elif first.source == second.source:
            self._unary[first.source] += np.diagonal(table)
        elif table.any():
            key = (first.source, second.source)
            self._pairs[key] = self._pairs.get(key, 0.0) + table

    def _traffic(self, node: int) -> np.ndarray:
        """float64 [choices of its source]: seconds to move a node's padded buffer through HBM once."""
        return self._program.padded(node) * float(self._bytes[node]) / TPU_V3.hbm_bandwidth

    def _add_traffic(self, node: int) -> None:
        """Adds one write and one read per consumer; operators add those of their operands and results themselves."""
        program, opcode = self._program, int(self._program.opcode[node])
        if opcode in NO_TRAFFIC or not program.dims[node] or self._is_fused(node):
            return
        moves = sum(
            int(program.opcode[consumer]) not in _NOT_READING and not is_operator(program, consumer)
            for consumer in program.consumers[node]
        )
        moves += opcode not in _NOT_WRITTEN and not is_operator(program, node)
        layout = program.nodes[node]
        self._add(layout, layout, np.diag(self._traffic(node) * moves))
        if layout.source != FIXED:
            self._buffers[layout.source] += self._traffic(node) * moves

    def _is_fused(self, node: int) -> bool:
        """Whether a node stays in registers: it is elementwise, and its only consumer is elementwise or a reduce."""
        program = self._program
        if int(program.opcode[node]) not in ELEMENTWISE or len(program.consumers[node]) != 1:
            return False
        consumer = int(program.opcode[program.consumers[node][0]])
        return consumer in ELEMENTWISE or consumer == REDUCE

    def _add_copy(self, consumer: int, producer: int) -> None:
        wanted = wanted_layout(self._program, consumer, producer)
        if wanted is not None:
            self._add(self._program.nodes[producer], wanted, self._copy_table(producer, wanted))

    def _copy_table(self, producer: int, wanted: NodeLayout) -> np.ndarray:
        """Seconds [producer's choices, wanted's choices] of a copy if the two differ."""
        return copied_elements(self._program, producer, wanted) * float(self._bytes[producer]) / TPU_V3.hbm_bandwidth

    def _add_operator(self, node: int) -> None:
        if not is_operator(self._program, node):
            return
        program, index = self._program, self._program.config_index[node]
        operands = [each for each in program.operands[node] if len(program.dims[each]) > 0][-2:]
        contraction = contraction_size(program, node, operands)
        work = 2.0 * program.padded(node) * round_up(contraction, LANES)
        reads = tuple((program.nodes[each].source, self._traffic(each)) for each in operands)
        turns = [(program.nodes[each].source, self._turn_table(node, each)) for each in operands]
        self._operators.append(
            Operator(
                index=index,
                matrix=work / TPU_V3.peak_flops,
                write=self._traffic(node),
                reads=reads,
                turns=tuple(each for each in turns if each[1].any()),
            )
        )

    def _turn_table(self, node: int, operand: int) -> np.ndarray:
        """Seconds [own choices, operand's choices] in the cross-lane unit for an operand with other minor dims."""
        program, index = self._program, self._program.config_index[node]
        kernel = operand == kernel_operand(program, node)
        layouts, padded = program.nodes[operand].layouts, program.padded(operand)
        table = np.zeros((len(program.layout_choices[index]), len(layouts)))
        for row, choice in enumerate(program.layout_choices[index]):
            want: Layout | None = choice.kernel if kernel else choice.input
            for column, have in enumerate(layouts):
                if want is not None and set(have[:2]) != set(want[:2]):
                    table[row, column] = padded[column] / TPU_V3.transpose_rate
        return table


def lay_out(graph: ModuleArrays, choices: Choices) -> ProgramLayouts:
    """A program as the cost model reads it, from its arrays and the choices of its config nodes."""
    spans = zip(choices.starts.tolist(), choices.counts.tolist(), strict=True)
    tables = [choices.table[start : start + count] for start, count in spans]
    return ProgramLayouts(graph.node_feat, graph.node_opcode, graph.edge_index, choices.node_ids, tables)


def price_choices(graph: ModuleArrays, choices: Choices) -> LayoutCosts:
    """The costs of a program by choice numbers."""
    return LayoutCosts(lay_out(graph, choices))


def kernel_operand(program: ProgramLayouts, node: int) -> int | None:
    """The operand that is the kernel, found by its shape, because edges do not keep the order of operands."""
    operands = [each for each in program.operands[node] if program.dims[each]]
    if len(operands) < 2:
        return None
    if int(program.opcode[node]) == CONVOLUTION:
        fits = [each for each in operands if _fits_kernel(program, node, each)]
        return fits[-1] if fits else operands[-1]
    last = program.dims[node][-1] if program.dims[node] else 0
    fits = [each for each in operands if last in program.dims[each]]
    return fits[-1] if fits else operands[-1]


def _fits_kernel(program: ProgramLayouts, node: int, operand: int) -> bool:
    """Whether an operand has the window's sizes at the kernel's spatial dims and the result's feature count."""
    dims, numbers = program.dims[operand], program.node_feat[node, CONVOLUTION_DIMENSIONS].astype(int).tolist()
    spatial, window = numbers[8:12], program.node_feat[node, WINDOW_SIZE].astype(int).tolist()
    out_feature = program.dims[node][numbers[13]]
    if numbers[7] >= len(dims) or dims[numbers[7]] != out_feature:
        return False
    return all(spatial[index] < len(dims) and dims[spatial[index]] == window[index] for index in range(len(dims) - 2))


def contraction_size(program: ProgramLayouts, node: int, operands: Sequence[int]) -> int:
    """The number of products per element of the result: K of a dot, taps times input features of a convolution."""
    sizes = [math.prod(program.dims[each]) for each in operands]
    if not sizes:
        return 1
    out = math.prod(program.dims[node])
    if int(program.opcode[node]) == CONVOLUTION:
        numbers = program.node_feat[node, CONVOLUTION_DIMENSIONS].astype(int).tolist()
        kernel = kernel_operand(program, node)
        kernel_size = math.prod(program.dims[operands[-1] if kernel is None else kernel])
        return max(1, kernel_size // max(1, program.dims[node][numbers[13]]))
    batch = _batch_size(program, node, operands)
    return max(1, math.isqrt(sizes[0] * sizes[-1] // max(1, out * batch)))


def _batch_size(program: ProgramLayouts, node: int, operands: Sequence[int]) -> int:
    """The product of a dot's batch dims, which lead its result and occur anywhere in both operands.

    No array tells them apart. With batch B and contraction K, the sizes of the operands have the product B K K times
    the size of the result, so B is the longest run of leading dims, found in both operands, that leaves a square.
    """
    dims, left = program.dims[node], [list(program.dims[each]) for each in (operands[0], operands[-1])]
    products = math.prod(math.prod(each) for each in left) // max(1, math.prod(dims))
    found = batch = 1
    for size in dims[:-2]:
        if not all(size in each for each in left):
            break
        for each in left:
            each.remove(size)
        batch *= size
        if products % batch == 0 and math.isqrt(products // batch) ** 2 == products // batch:
            found = batch
    return found


def encode_choices(candidates: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """The distinct choices of each node, int8 [k, 18], and the choice number of each candidate, int32 [c, nc]."""
    weights = 7 ** np.arange(candidates.shape[2], dtype=np.int64)
    choices, ids = [], np.empty(candidates.shape[:2], dtype=np.int32)
    for index in range(candidates.shape[1]):
        rows = candidates[:, index].astype(np.int8)
        _, first, inverse = np.unique((rows.astype(np.int64) + 1) @ weights, return_index=True, return_inverse=True)
        choices.append(rows[first])
        ids[:, index] = inverse
    return choices, ids


def layout_seconds(*arrays: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """float64 [c]: noiseless seconds of candidates int8 [c, nc, 18], as an archive holds them.

    `arrays` are node_feat, node_opcode, edge_index and node_config_ids.
    """
    choices, ids = encode_choices(candidates)
    return LayoutCosts(ProgramLayouts(*arrays, choices)).seconds(ids)


def measure(seconds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """int64 nanoseconds [c]: the seconds with relative measurement noise, at least 1."""
    noisy = seconds * (1.0 + MEASUREMENT_NOISE * rng.standard_normal(len(seconds)))
    return np.maximum(1, np.rint(noisy * 1e9)).astype(np.int64)

"""Node features, opcodes, edges and splits of an HLO module, equal to those of the official tool bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.catalog import NUM_NODE_FEATURES
from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.module import ConvolutionDimensions, Instruction, Module, WindowDimension
from tpugraphs_polynormer.hlo.opcodes import opcode_id
from tpugraphs_polynormer.hlo.operands import pack_operands

# Columns 2..20: the XLA PrimitiveType numbers in one-hot order. Types newer than the dataset have no column.
ELEMENT_TYPE_ORDER = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 15, 18, 13, 14, 17)
_ELEMENT_TYPE_COLUMN = {number: 2 + index for index, number in enumerate(ELEMENT_TYPE_ORDER)}
ELEMENT_TYPE_NAMES = {
    0: "invalid", 1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
    10: "f16", 11: "f32", 12: "f64", 13: "tuple", 14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128",
}  # fmt: skip
_SPLITTING_NAMES = ("cluster", "while", "cond")
_ROWS_PER_BLOCK = 4096


ELEMENT_TYPE = slice(2, 21)
SHAPE_DIMENSIONS = slice(21, 27)
DIMENSIONS = slice(31, 37)
WINDOW_SIZE = slice(37, 43)
CONVOLUTION_DIMENSIONS = slice(93, 107)
MINOR_TO_MAJOR = slice(134, 140)

_EMPTY_PRODUCTS = (28, 44, 52, 60, 68, 76, 84, 112, 116, 120, 124, 128, 132)
_TEMPLATE = [1 if column in _EMPTY_PRODUCTS else 0 for column in range(NUM_NODE_FEATURES)]
_WINDOW_FIELDS = ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation")


@dataclass(frozen=True)
class ModuleArrays:
    """A module as arrays: n instructions in stored order, m edges, s split points.

    node_feat float32 [n, 140]; node_opcode uint8 [n]; edge_index int64 [m, 2], unique and sorted rows (consumer,
    producer); node_splits int64 [s]; positions maps an instruction's id to its row; node_operands int64 [n] (see
    operands.py), None if the arrays are those of an archive without them.
    """

    node_feat: np.ndarray
    node_opcode: np.ndarray
    edge_index: np.ndarray
    node_splits: np.ndarray
    positions: dict[int, int]
    node_operands: np.ndarray | None = None

    def members(self, *, operands: bool = False) -> dict[str, np.ndarray]:
        """The arrays that layout and tile archives share, by key; with `operands` also node_operands, if known."""
        graph = {"node_feat": self.node_feat, "node_opcode": self.node_opcode, "edge_index": self.edge_index}
        known = operands and self.node_operands is not None
        return graph | ({"node_operands": self.node_operands} if known else {})


def featurize_module(module: Module) -> ModuleArrays:
    """The TpuGraphs arrays of a module; raises HloError if its ids are inconsistent."""
    positions = _position_of_each_id(module)
    return ModuleArrays(
        node_feat=_node_features(module),
        node_opcode=np.array([opcode_id(each.opcode) for each in _instructions(module)], dtype=np.uint8),
        edge_index=_edges(module, positions),
        node_splits=_node_splits(module),
        positions=positions,
        node_operands=pack_operands(module, positions),
    )


def pad_sum_product(values: Sequence[int], count: int, *, empty_product: int = 1) -> list[int]:
    """The first `count` values padded with 0, then sum and product of all values in wrapping int64 arithmetic."""
    product = 1 if values else empty_product
    for value in values:
        product = wrap_int64(product * value)
    return [*pad_lead(values, count), wrap_int64(sum(values)), product]


def pad_lead(values: Sequence[int], count: int) -> list[int]:
    """The first `count` values, padded with 0."""
    return [*values[:count], *(0,) * (count - len(values))]


def wrap_int64(value: int) -> int:
    """The value that int64 arithmetic gives on overflow."""
    if -(1 << 63) <= value < 1 << 63:
        return value
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def _instructions(module: Module) -> Iterable[Instruction]:
    return (instruction for computation in module.computations for instruction in computation.instructions)


def _position_of_each_id(module: Module) -> dict[int, int]:
    positions: dict[int, int] = {}
    for row, instruction in enumerate(_instructions(module)):
        if instruction.id in positions:
            first, name = positions[instruction.id], instruction.name
            raise HloError(
                f"module {module.name!r}: instruction id {instruction.id} occurs twice (rows {first} and {row}, the "
                f"latter named {name!r}); ids must be unique in the whole module: dump it again"
            )
        positions[instruction.id] = row
    return positions


def _node_features(module: Module) -> np.ndarray:
    """float32 [n, 140], cast once from int64, in blocks: a cast through float64 would round twice."""
    rows = (
        _feature_row(instruction, is_root=instruction.id == computation.root_id)
        for computation in module.computations
        for instruction in computation.instructions
    )
    blocks = [np.zeros((0, NUM_NODE_FEATURES), dtype=np.float32)]
    try:
        while block := list(itertools.islice(rows, _ROWS_PER_BLOCK)):
            blocks.append(np.array(block, dtype=np.int64).astype(np.float32))
    except OverflowError as error:
        raise HloError(f"module {module.name!r}: a field does not fit into 64 bits; expected int64 values") from error
    return np.concatenate(blocks)


def _feature_row(instruction: Instruction, *, is_root: bool) -> list[int]:
    """The 140 integers of one instruction: the template, overwritten by the fields that the instruction has."""
    row = _TEMPLATE.copy()
    shape = instruction.shape
    row[0] = int(is_root)
    if shape.element_type in _ELEMENT_TYPE_COLUMN:
        row[_ELEMENT_TYPE_COLUMN[shape.element_type]] = 1
    if shape.dimensions:
        row[21:29] = pad_sum_product(shape.dimensions, 6)
    if shape.minor_to_major:
        row[134:140] = pad_lead(shape.minor_to_major, 6)
    row[29] = len(shape.tuple_shapes)
    row[30] = instruction.parameter_number
    if instruction.dimensions:
        row[31:37] = pad_lead(instruction.dimensions, 6)
    if instruction.window:
        row[37:93] = _window_columns(instruction.window)
    if instruction.convolution is not None:
        row[93:107] = _convolution_columns(instruction.convolution)
    row[107] = instruction.feature_group_count
    row[108] = instruction.batch_group_count
    if instruction.slice_dimensions or instruction.dynamic_slice_sizes or instruction.padding:
        row[109:133] = _slice_and_padding_columns(instruction)
    row[133] = int(instruction.is_stable)
    return row


def _field_columns(records: Sequence[object], names: Sequence[str], count: int) -> list[int]:
    """`pad_sum_product` of each named field of the records, one after the other."""
    return [value for name in names for value in pad_sum_product([getattr(each, name) for each in records], count)]


def _window_columns(window: Sequence[WindowDimension]) -> list[int]:
    reversals = [int(each.reversal) for each in window]
    counts = [sum(reversals), len(reversals) - sum(reversals)]
    return [*_field_columns(window, _WINDOW_FIELDS, 6), *pad_lead(reversals, 6), *counts]


def _convolution_columns(numbers: ConvolutionDimensions) -> list[int]:
    return [
        numbers.input_batch,
        numbers.input_feature,
        *pad_lead(numbers.input_spatial, 4),
        numbers.kernel_input_feature,
        numbers.kernel_output_feature,
        *pad_lead(numbers.kernel_spatial, 4),
        numbers.output_batch,
        numbers.output_feature,
    ]


def _slice_and_padding_columns(instruction: Instruction) -> list[int]:
    return [
        *_field_columns(instruction.slice_dimensions, ("start", "stride", "limit"), 2),
        *pad_sum_product(instruction.dynamic_slice_sizes, 2),
        *_field_columns(instruction.padding, ("low", "high"), 2),
    ]


def _edges(module: Module, positions: dict[int, int]) -> np.ndarray:
    """int64 [m, 2]: (consumer, producer) per distinct operand, and (caller, callee's root) per called computation."""
    root_ids = {computation.id: computation.root_id for computation in module.computations}
    edges: list[tuple[int, int]] = []
    for row, instruction in enumerate(_instructions(module)):
        producers = {_position(positions, operand, instruction) for operand in instruction.operand_ids}
        for callee in instruction.called_computation_ids:
            if callee not in root_ids:
                raise HloError(f"instruction {instruction.name!r} calls computation {callee}, which the module lacks")
            producers.add(_position(positions, root_ids[callee], instruction))
        producers.discard(row)
        edges.extend((row, producer) for producer in sorted(producers))
    return np.array(edges, dtype=np.int64).reshape(-1, 2)


def _position(positions: dict[int, int], identifier: int, consumer: Instruction) -> int:
    if identifier not in positions:
        raise HloError(
            f"instruction {consumer.name!r} (id {consumer.id}) refers to instruction id {identifier}, which the module "
            "lacks; expected a whole module: dump it again"
        )
    return positions[identifier]


def _node_splits(module: Module) -> np.ndarray:
    """int64 [s]: 0, the end of every computation named after a cluster, while or cond, and n."""
    splits, count = [0], 0
    for computation in module.computations:
        count += len(computation.instructions)
        if any(part in computation.name for part in _SPLITTING_NAMES):
            splits.append(count)
    if splits[-1] != count:
        splits.append(count)
    return np.array(splits, dtype=np.int64)

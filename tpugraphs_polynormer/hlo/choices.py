"""The layouts that the compiler may choose for each convolution, dot and reshape of a program.

A choice is 18 small integers: output, first operand ("input") and second operand ("kernel"), six dims each from the
minor-most on, padded with -1; six -1 leave that tensor to the compiler. The real archives (alexnet, unet) show:

* convolution: only the two minor-most dims of each tensor, in either order: output and input {batch, feature}, kernel
  {input feature, output feature}. All three are given: 8 choices. A weight-gradient convolution swaps the roles of
  batch and feature; its own dimension numbers say so.
* dot of matrices: both dims of each tensor in either order, all three given: 8 choices. A ninth choice, the default,
  gives the output alone and leaves both operands to the compiler. The available files contain no larger dots; that
  their last two dims are the ones to order is an assumption.
* reshape: output and input in full, the kernel's six always -1. Both are permuted together so that the reshape stays
  a bitcast: runs of dims with equal products move as one, and dims of size 1 go to the major end. A reshape between a
  scalar and a one-element tensor leaves everything to the compiler (the default) or names the one dim.

The default of convolutions and dots is the order with the least padding (see shapes.py), and the last dim minor if both
orders need the same; the default of reshapes is the last dim minor. The default runs of the files agree for 25 of
alexnet's 26 nodes and 60 of unet's 62. In these files, nodes with equal opcode, default and choices always share one
choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product

import numpy as np

from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.module import Instruction, Module
from tpugraphs_polynormer.hlo.opcodes import CONFIGURABLE_OPCODES, ELEMENTWISE_OPCODES
from tpugraphs_polynormer.hlo.shapes import padded_elements

MAX_RANK = 6
NUM_LAYOUT_COLUMNS = 18
Layout = tuple[int, ...]
Choice = tuple[Layout, Layout, Layout]

# Opcodes whose result takes the layout of an operand with the same dimensions.
_PASSING = ELEMENTWISE_OPCODES | {"all-reduce"}


@dataclass(frozen=True)
class Choices:
    """The choices of all nc config nodes of a program; a node's choice 0 is the compiler's default.

    node_ids int64 [nc]: rows of the nodes, ascending (node_config_ids). table int8 [t, 18]: the choices of all nodes,
    concatenated. starts, counts int64 [nc]: node j owns table[starts[j] : starts[j] + counts[j]]. groups int64 [nc]:
    nodes with the same number have the same opcode and choices; real searches give them one common choice. links int64
    [l, 3]: (consumer j, operand 1 or 2, producer j): that operand of j is the producer's output, up to elementwise ops.
    """

    node_ids: np.ndarray
    table: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    groups: np.ndarray
    links: np.ndarray


def enumerate_choices(module: Module, *, default: np.ndarray | None = None) -> Choices:
    """The choices of every convolution, dot and reshape of a module.

    Args:
      module: a whole program.
      default: int [nc, 18], the compiler's default if it is known (from the default run of a tuning file).
    """
    instructions = [each for computation in module.computations for each in computation.instructions]
    by_id = {each.id: each for each in instructions}
    rows = [row for row, each in enumerate(instructions) if each.opcode in CONFIGURABLE_OPCODES]
    tables = [_node_table(instructions[row], by_id) for row in rows]
    if default is not None:
        tables = _put_defaults_first(tables, default)
    distinct, numbers = _number_tables(tables)
    counts = np.array([len(table) for table in distinct], dtype=np.int64)
    keys = [(instructions[row].opcode, number) for row, number in zip(rows, numbers.tolist(), strict=True)]
    group_numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return Choices(
        node_ids=np.array(rows, dtype=np.int64),
        table=np.concatenate([np.zeros((0, NUM_LAYOUT_COLUMNS), np.int8), *distinct]),
        starts=(np.cumsum(counts) - counts)[numbers],
        counts=counts[numbers],
        groups=np.array([group_numbers[key] for key in keys], dtype=np.int64),
        links=_links(instructions, rows),
    )


def _node_table(instruction: Instruction, by_id: dict[int, Instruction]) -> np.ndarray:
    """int8 [k, 18]: the choices of one node; equal nodes share one array."""
    operands = [_operand(instruction, operand, by_id) for operand in instruction.operand_ids]
    expected = 1 if instruction.opcode == "reshape" else 2
    if len(operands) < expected:
        raise HloError(
            f"{instruction.opcode} {instruction.name!r}: {len(operands)} operands, expected {expected}; dump it again"
        )
    if instruction.opcode == "reshape":
        return _reshape_table(instruction.shape.dimensions, operands[0].shape.dimensions)
    shapes = (instruction.shape.dimensions, operands[0].shape.dimensions, operands[1].shape.dimensions)
    if instruction.opcode == "dot":
        pairs = [range(max(0, len(shape) - 2), len(shape)) for shape in shapes]
    else:
        pairs = _convolution_pairs(instruction, shapes)
    options = tuple(_two_minor_dims(pair, shape) for pair, shape in zip(pairs, shapes, strict=True))
    return _product_table(options, output_alone=instruction.opcode == "dot")


def _operand(instruction: Instruction, operand: int, by_id: dict[int, Instruction]) -> Instruction:
    if operand not in by_id:
        raise HloError(f"instruction {instruction.name!r} refers to instruction id {operand}, which the module lacks")
    return by_id[operand]


def _convolution_pairs(instruction: Instruction, shapes: Sequence[Layout]) -> list[tuple[int, int]]:
    """The two dims of output, input and kernel that a candidate orders."""
    numbers = instruction.convolution
    if numbers is None:
        raise HloError(f"convolution {instruction.name!r} has no dimension numbers: dump it again")
    pairs = [
        (numbers.output_batch, numbers.output_feature),
        (numbers.input_batch, numbers.input_feature),
        (numbers.kernel_input_feature, numbers.kernel_output_feature),
    ]
    for pair, shape in zip(pairs, shapes, strict=True):
        if not all(0 <= dim < len(shape) for dim in pair) or pair[0] == pair[1]:
            raise HloError(
                f"convolution {instruction.name!r}: dimension numbers {pair} do not fit a tensor of rank {len(shape)}"
            )
    return pairs


@lru_cache(maxsize=1024)
def _product_table(options: tuple[tuple[Layout, ...], ...], *, output_alone: bool) -> np.ndarray:
    """int8 [k, 18]: all combinations of the tensors' options; the default has the first ones, or only the output's."""
    default = (options[0][0], (), ()) if output_alone else tuple(each[0] for each in options)
    return _encode([default, *product(*options)])


def _two_minor_dims(dims: Iterable[int], shape: Layout) -> tuple[Layout, ...]:
    """Both orders of two dims, the default first; a tensor of too high a rank is left to the compiler."""
    high_first = tuple(sorted(dims, reverse=True))
    if any(dim >= MAX_RANK for dim in high_first):
        return ((),)
    if len(high_first) < 2:
        return (high_first,)
    low_first = high_first[::-1]
    if _padded_size(low_first, shape) < _padded_size(high_first, shape):
        return (low_first, high_first)
    return (high_first, low_first)


def _padded_size(order: Layout, shape: Layout) -> int:
    return padded_elements([shape[dim] for dim in order], minor_to_major=(0, 1))


def _reshape_table(output: Layout, operand: Layout) -> np.ndarray:
    # A candidate holds six dims at most; unequal numbers of elements (padded, dynamic) are no bitcast.
    fits = max(len(output), len(operand)) <= MAX_RANK and math.prod(output) == math.prod(operand)
    groups = _equal_product_groups(output, operand) if fits else ()
    return _permutation_table(groups, len(output), len(operand))


@lru_cache(maxsize=1024)
def _permutation_table(groups: tuple[tuple[Layout, Layout], ...], output_rank: int, operand_rank: int) -> np.ndarray:
    """int8 [k, 18]: the choices of a reshape, every order of its groups of (output, operand) dims, major to minor."""
    nothing: Choice = ((), (), ())
    if max(output_rank, operand_rank) > MAX_RANK:
        return _encode([nothing])
    plain: Choice = (tuple(reversed(range(output_rank))), tuple(reversed(range(operand_rank))), ())
    if not output_rank or not operand_rank:
        return _encode([nothing, plain])
    orders = list(permutations(reversed(groups)))[1:]  # the first is the default
    return _encode([plain, *((_join(order, 0, output_rank), _join(order, 1, operand_rank), ()) for order in orders)])


def _equal_product_groups(output: Layout, operand: Layout) -> tuple[tuple[Layout, Layout], ...]:
    """The finest partition of both shapes into runs of dims with equal products, major to minor, without sizes of 1."""
    shapes = (output, operand)
    sides = [[dim for dim, size in enumerate(shape) if size != 1] for shape in shapes]
    groups, start, index, sizes = [], [0, 0], [0, 0], [1, 1]
    while index[0] < len(sides[0]) or index[1] < len(sides[1]):
        behind = 0 if (sizes[0] <= sizes[1] and index[0] < len(sides[0])) or index[1] == len(sides[1]) else 1
        sizes[behind] *= shapes[behind][sides[behind][index[behind]]]
        index[behind] += 1
        if sizes[0] == sizes[1] != 0 and index[0] > start[0] and index[1] > start[1]:
            groups.append(tuple(tuple(sides[side][start[side] : index[side]]) for side in (0, 1)))
            start, sizes = list(index), [1, 1]
    return tuple(groups)


def _join(order: Iterable[tuple[Layout, Layout]], side: int, rank: int) -> Layout:
    dims = [dim for group in order for dim in reversed(group[side])]
    return (*dims, *(dim for dim in reversed(range(rank)) if dim not in dims))


def _encode(choices: Sequence[Choice]) -> np.ndarray:
    """int8 [k, 18], the default first, the others sorted: each tensor's dims from the minor-most on, padded with -1."""
    choices = [choices[0], *sorted(set(choices) - {choices[0]})]
    rows = [
        [value for layout in choice for value in (*layout, *(-1,) * (MAX_RANK - len(layout)))] for choice in choices
    ]
    table = np.array(rows, dtype=np.int8)
    table.setflags(write=False)  # the caches share it
    return table


def _put_defaults_first(tables: list[np.ndarray], default: np.ndarray) -> list[np.ndarray]:
    if default.shape != (len(tables), NUM_LAYOUT_COLUMNS):
        raise HloError(
            f"the default candidate has shape {default.shape}, expected ({len(tables)}, {NUM_LAYOUT_COLUMNS})"
        )
    made: dict[tuple[int, bytes], np.ndarray] = {}
    found = []
    for row, table in zip(default.astype(np.int8), tables, strict=True):
        key = (id(table), row.tobytes())
        if key not in made:
            made[key] = np.concatenate([row[None], table[(table != row).any(axis=1)]])
        found.append(made[key])
    return found


def _number_tables(tables: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """The distinct tables, and for each node the number of its table; thousands of nodes have few distinct ones."""
    contents = [table.tobytes() for table in tables]
    distinct = dict(zip(contents, tables, strict=True))
    number_of = {content: number for number, content in enumerate(distinct)}
    return list(distinct.values()), np.array([number_of[content] for content in contents], dtype=np.int64)


def _links(instructions: Sequence[Instruction], rows: Sequence[int]) -> np.ndarray:
    """int64 [l, 3]: (consumer, operand number, producer) of config nodes, see `Choices.links`."""
    number = {row: j for j, row in enumerate(rows)}
    row_of = {each.id: row for row, each in enumerate(instructions)}
    source: list[int] = []  # for each instruction the row of the config node that its value comes from, or -1
    links: list[tuple[int, int, int]] = []
    for row, instruction in enumerate(instructions):
        operands = [row_of[each] for each in instruction.operand_ids if each in row_of and row_of[each] < row]
        if row in number:
            links.extend(
                (number[row], operand_number, number[source[operand]])
                for operand_number, operand in enumerate(operands[:2], start=1)
                if source[operand] >= 0
            )
            source.append(row)
            continue
        shape = instruction.shape.dimensions
        carried = [source[each] for each in operands if instructions[each].shape.dimensions == shape]
        source.append(max(carried, default=-1) if instruction.opcode in _PASSING else -1)
    return np.array(links, dtype=np.int64).reshape(-1, 3)

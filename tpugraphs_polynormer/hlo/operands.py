"""What HLO says of operands and the official arrays do not: their order, and the dimensions that a dot pairs.

The edges of an archive are sorted by producer and name a repeated operand once, and no column has the contracting and
batch dimensions of a dot. Here each node has them as one number, whose bits `unpack_operands` names.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tpugraphs_polynormer.hlo.module import DotDimensions, Instruction, Module

_MAX_RANK = 6  # as in the 140 columns
_DOT_FIELDS = ("first_contracting", "second_contracting", "first_batch", "second_batch")
_SWAPPED = _MAX_RANK * len(_DOT_FIELDS)  # the second operand comes before the first one in the program
_REPEATED = _SWAPPED + 1  # an operand occurs more than once
_KNOWN = _SWAPPED + 2  # set in every node of a program: 0 says that nothing is known
NUM_OPERAND_BITS = _SWAPPED + 3


def pack_operands(module: Module, positions: Mapping[int, int]) -> np.ndarray:
    """int64 [n]: a number below 2^NUM_OPERAND_BITS for each instruction; `positions` maps ids to rows."""
    packed = [_pack(each, positions) for computation in module.computations for each in computation.instructions]
    return np.array(packed, dtype=np.int64)


def unpack_operands(packed: np.ndarray) -> np.ndarray:
    """bool [n, NUM_OPERAND_BITS].

    Six columns each for the contracting dimensions of the first and of the second operand and for their batch
    dimensions, then: swapped, repeated, known.
    """
    return (packed[:, np.newaxis] >> np.arange(NUM_OPERAND_BITS)) & 1 == 1


def _pack(instruction: Instruction, positions: Mapping[int, int]) -> int:
    rows = [positions[each] for each in instruction.operand_ids]
    packed = 1 << _KNOWN
    if len(rows) > 1:
        packed |= (rows[1] < rows[0]) << _SWAPPED | (len(set(rows)) < len(rows)) << _REPEATED
    return packed if instruction.dot is None else packed | _pack_dot(instruction.dot)


def _pack_dot(numbers: DotDimensions) -> int:
    packed = 0
    for place, field in enumerate(_DOT_FIELDS):
        for dimension in getattr(numbers, field):
            if 0 <= dimension < _MAX_RANK:
                packed |= 1 << place * _MAX_RANK + dimension
    return packed

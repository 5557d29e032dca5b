"""Layout candidates as text: the layouts of each config node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tpugraphs_polynormer.hlo.choices import Choices
from tpugraphs_polynormer.hlo.features import ELEMENT_TYPE_NAMES
from tpugraphs_polynormer.hlo.module import Instruction, Module, Shape

_TENSORS = ("output", "input", "kernel")


def describe_candidate(
    module: Module, choices: Choices, layouts: np.ndarray, *, reference: np.ndarray | None = None
) -> list[str]:
    """One line per config node of a candidate.

    Args:
      module: the program.
      choices: its choices.
      layouts: int [nc, 18], the candidate.
      reference: int [nc, 18]; where given (the compiler's default), only the nodes that differ from it are described.

    Example line: `convolution.12 f32[32,54,54,64]: output {3,0} input {0,3} kernel {3,2}`; braces list the dims from
    the minor-most on; a tensor that is left to the compiler is "compiler's choice".
    """
    instructions = [each for computation in module.computations for each in computation.instructions]
    return [
        f"{_title(instructions[row])}: {describe_layouts(instructions[row].opcode, layouts[node])}"
        for node, row in enumerate(choices.node_ids.tolist())
        if reference is None or (layouts[node] != reference[node]).any()
    ]


def describe_layouts(opcode: str, row: np.ndarray) -> str:
    """The 18 integers of one node as text; a reshape has no kernel."""
    tensors = np.asarray(row).reshape(3, 6)[: 2 if opcode == "reshape" else 3]
    return " ".join(f"{name} {_layout(dims)}" for name, dims in zip(_TENSORS, tensors, strict=False))


def describe_difference(old: Sequence[int], new: Sequence[int]) -> str:
    """The tensors of one node whose layouts differ between two rows of 18 integers, the old layout before the new."""
    pairs = zip(_TENSORS, np.reshape(old, (3, 6)), np.reshape(new, (3, 6)), strict=True)
    return ", ".join(f"{name} {_layout(a)} -> {_layout(b)}" for name, a, b in pairs if (a != b).any())


def describe_shape(shape: Shape) -> str:
    """A shape as HLO text writes it: `f32[2,3]`, `(f32[2], s32[])`."""
    if shape.tuple_shapes:
        return f"({', '.join(describe_shape(part) for part in shape.tuple_shapes)})"
    known = shape.element_type in ELEMENT_TYPE_NAMES
    name = ELEMENT_TYPE_NAMES[shape.element_type] if known else f"type{shape.element_type}"
    return f"{name}[{','.join(map(str, shape.dimensions))}]"


def _title(instruction: Instruction) -> str:
    return f"{instruction.name or instruction.opcode} {describe_shape(instruction.shape)}"


def _layout(dims: np.ndarray) -> str:
    named = [str(dim) for dim in dims.tolist() if dim >= 0]
    return f"{{{','.join(named)}}}" if named else "compiler's choice"

"""A scorer whose scores are sums over config nodes, and a program for it: every answer can be computed by hand."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.layout_program import LayoutProgram, presume_layouts
from tpugraphs_polynormer.hlo.module import Computation, Instruction, Metadata, Module, Shape


def five_dots() -> Module:
    """Four equal dots in a chain and one of another shape; the third and the last one have metadata."""
    square, wide = Shape(11, (64, 64), (), (1, 0)), Shape(11, (64, 128), (), (1, 0))
    named = {5: Metadata("jit(f)/third", "model.py", 12), 7: Metadata("jit(f)/last")}
    instructions = [
        Instruction(id=1, opcode="parameter", name="x", shape=square),
        Instruction(id=2, opcode="parameter", name="w", shape=wide, parameter_number=1),
        *(
            Instruction(
                id=number,
                opcode="dot",
                name=f"dot.{number}",
                shape=square,
                operand_ids=(number - 1 if number > 3 else 1, 1),
                metadata=named.get(number),
            )
            for number in range(3, 7)
        ),
        Instruction(id=7, opcode="dot", name="dot.7", shape=wide, operand_ids=(6, 2), metadata=named[7]),
    ]
    return Module("five", (Computation(1, "main", 7, tuple(instructions)),), 1)


class AdditiveScorer:
    """In the place of a ProgramScorer: a member's score of a candidate is the sum of its nodes' values.

    Args:
      program: with its choices.
      values: per member, per config node and choice number what it adds; what is not there adds 0.
      pairs: (node, node) -> what both together add if neither has its default.
    """

    def __init__(
        self,
        program: LayoutProgram,
        values: Sequence[dict[tuple[int, int], float]],
        pairs: dict[tuple[int, int], float] | None = None,
    ) -> None:
        self.program, self.choices, self.graph = program, program.choices, featurize_module(program.module)
        self._values, self._pairs = values, pairs or {}
        self.facts, self.spread = [SimpleNamespace(statistics=None)], 0.1
        self.num_scored = 0

    def score(self, indices: np.ndarray) -> np.ndarray:
        self.num_scored += len(indices)
        return np.array([[self._sum(values, row) for row in indices.tolist()] for values in self._values])

    def _sum(self, values: dict[tuple[int, int], float], row: list[int]) -> float:
        together = sum(value for (a, b), value in self._pairs.items() if row[a] and row[b])
        return together + sum(values.get(each, 0.0) for each in enumerate(row))


def additive(*values: dict[tuple[int, int], float], **settings) -> AdditiveScorer:
    """An AdditiveScorer of `five_dots`."""
    return AdditiveScorer(presume_layouts(five_dots()), values, **settings)

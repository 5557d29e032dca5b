"""A computation of HLO text while it is read: operands by name, the root, control predecessors."""

from __future__ import annotations

import re

from tpugraphs_polynormer.hlo.module import Instruction
from tpugraphs_polynormer.hlo.text_order import order_instructions
from tpugraphs_polynormer.hlo.text_scanner import ARRAY, NAME, Scanner

_PLAIN_OPERANDS = re.compile(r"([%\w.\-,\s]*)\)", re.ASCII)
_OPERAND = re.compile(rf"\s*(?:{ARRAY}\s+)?%?({NAME})\s*([,)])", re.ASCII)


class Body:
    """One computation; instructions refer to each other by their positions in `instructions`."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._index: dict[str, int] = {}
        self._root: int | None = None
        self._predecessors: dict[int, tuple[int, ...]] = {}
        self.instructions: list[Instruction] = []

    def check_name(self, name: str, position: int) -> None:
        """Raises HloError if an instruction with that name exists."""
        if name in self._index:
            self._scanner.fail(position, f"the name {name!r} occurs twice in this computation; expected one of its own")

    def mark_root(self, position: int) -> None:
        """Makes the next instruction the root."""
        if self._root is not None:
            self._scanner.fail(position, "a second ROOT in this computation; expected one")
        self._root = len(self.instructions)

    def add(self, instruction: Instruction) -> None:
        """Appends an instruction."""
        self._index[instruction.name] = len(self.instructions)
        self.instructions.append(instruction)

    @property
    def root_id(self) -> int:
        """The id of the instruction that is marked as ROOT, or of the last one, as XLA has it."""
        return self.instructions[-1 if self._root is None else self._root].id

    def operands(self, position: int) -> tuple[tuple[Instruction, ...], int]:
        """The operands after an instruction's '(', with or without their shapes; and the position after its ')'."""
        text = self._scanner.text
        plain = _PLAIN_OPERANDS.match(text, position)
        if plain is not None:
            names = plain[1].replace("%", "").split(",")
            found = [self._index.get(name.strip()) for name in names]
            if None not in found:
                return tuple(self.instructions[each] for each in found), plain.end()
        operands: list[Instruction] = []
        while True:
            match = _OPERAND.match(text, position)
            if match is None:  # the shape of a tuple, or no operand at all
                start = self._scanner.skip_space(position)
                if not operands and text.startswith(")", start):
                    return (), start + 1
                if text.startswith(("(", "b("), start):
                    match = _OPERAND.match(text, self._scanner.end_of_shape(start))
            if match is None:
                self._scanner.expected(position, "the name of an operand, and then ',' or ')'")
            operands.append(self.instructions[self._find(match[1], match.start(1), "operand")])
            position = match.end()
            if match[2] == ")":
                return tuple(operands), position

    def add_predecessors(self, start: int, end: int) -> None:
        """Notes the control predecessors `{%a, %b}` of the next instruction: they are stored before it."""
        names = self._scanner.text[start:end].strip("{}").replace("%", "").replace(",", " ").split()
        found = tuple(self._find(name, start, "control predecessor") for name in names)
        self._predecessors[len(self.instructions)] = found

    def _find(self, name: str, position: int, role: str) -> int:
        found = self._index.get(name)
        if found is None:
            self._scanner.fail(position, f"the {role} {name!r} is not defined before this line in its computation")
        return found

    def stored_order(self) -> list[Instruction]:
        """The instructions in a protobuf's order; see `order_instructions`."""
        return order_instructions(self.instructions, self._predecessors)

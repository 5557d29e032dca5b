"""Reads HLO text, as XLA's --xla_dump_to writes it: any text becomes a Module, or one HloError with line and column.

The records are those of the protobuf of the same module, up to ids: the text has none, so instructions and computations
are numbered in the order of the text. Both files order computations and instructions in the same way, except for
scheduled modules (is_scheduled=true), whose text is in the order of execution; they are put back into the order of the
protobuf, a post order of the operands.

Read are the forms that XLA has printed over the years: operands with and without shapes, names with and without %,
computations by name or in place, comments, ROOT or not. Literals, metadata, sharding and configurations are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tpugraphs_polynormer.hlo.module import Computation, Instruction, Module, Shape
from tpugraphs_polynormer.hlo.text_attributes import DEFAULTS, Attributes
from tpugraphs_polynormer.hlo.text_scanner import ARRAY, MAX_NESTING, Scanner

_NAME = r"[\w.\-]+"
_BYTE_ORDER_MARK = "\ufeff"
_SKIPPED = r"(?:\s|//[^\n]*\n|/\*.*?\*/)*"
_START = re.compile(rf"{_SKIPPED}(?:HloModule(?=[\s,:]|\Z)|ENTRY\s|%{_NAME}\s*[({{])", re.DOTALL | re.ASCII)
_START_BYTES = 65536

_HEADER = re.compile(r"\s*HloModule\b[ \t]*([^\s,:]*)[ \t]*:?")
_TABLE = re.compile(r"\s*(?:FileNames|FunctionNames|FileLocations|StackFrames)\b(?!\s*[({])")
_TABLE_ROW = re.compile(r"\s*\d+[ \t]*(?=[\"{])", re.ASCII)
_COMPUTATION = re.compile(rf"\s*(ENTRY\b)?\s*%?({_NAME})?\s*(?=[({{])", re.ASCII)
_ARROW = re.compile(r"\s*->\s*")
_OPEN = re.compile(r"\s*\{")
_CLOSE = re.compile(r"\s*\}")
_INSTRUCTION = re.compile(rf"\s*(ROOT\s+)?%?({_NAME})\s*=\s*(?:({ARRAY})\s+([a-z][\w\-]*)\()?", re.ASCII)
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\s*\(", re.ASCII)
_PLAIN_OPERANDS = re.compile(r"([%\w.\-,\s]*)\)", re.ASCII)
_OPERAND = re.compile(rf"\s*(?:{ARRAY}\s+)?%?({_NAME})\s*([,)])", re.ASCII)
_LITERAL = re.compile(r"[^()\"]*\)")
_ATTRIBUTE = re.compile(r"\s*,\s*([A-Za-z_][\w.\-]*)\s*=[ \t]*", re.ASCII)
_NAMES = re.compile(rf"\s*(?:%?({_NAME})|\{{\s*((?:%?{_NAME}\s*,?\s*)*)\}})", re.ASCII)
_COMMA = re.compile(r"\s*,")

# Attributes that name computations, in the order in which XLA stores them.
_CALLS = (
    "to_apply", "calls", "body", "condition", "true_computation", "false_computation", "branch_computations",
    "called_computations", "select", "scatter",
)  # fmt: skip
_CALL_ORDER = {name: number for number, name in enumerate(_CALLS)}
# `foo-start`, `foo-update` and `foo-done` of any other opcode mean async operations around a computation with one foo.
_ASYNC = re.compile(r"(.+)-(start|update|done)")
_NO_ASYNC = frozenset("all-gather all-reduce collective-permute copy send recv async".split())  # noqa: SIM905


def is_text(data: bytes) -> bool:
    """Whether bytes are HLO text: they start with a module's header or a computation, after comments."""
    return _START.match(data[:_START_BYTES].decode("utf-8", "replace").removeprefix(_BYTE_ORDER_MARK)) is not None


def parse_text(data: bytes | str) -> Module:
    """The module of an HLO text.

    Raises:
      HloError: the text is no HLO module; the message has the line and the column.
    """
    text = data if isinstance(data, str) else data.decode("utf-8", errors="replace")
    return _Reader(text.removeprefix(_BYTE_ORDER_MARK)).module()


class _Body:
    """What is known of the computation that is being read."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.index: dict[str, int] = {}  # the position of each name in `instructions`
        self.root: int | None = None
        self.predecessors: dict[int, list[int]] = {}  # control dependencies, by position


class _Reader:
    """One pass over the text; `_next_id` numbers the instructions of all computations."""

    def __init__(self, text: str) -> None:
        self._scanner = Scanner(text)
        self._text = self._scanner.text
        self._attributes = Attributes(self._scanner)
        self._computations: list[Computation] = []
        self._computation_ids: dict[str, int] = {}
        self._defined: set[int] = set()
        self._first_use: dict[int, tuple[str, int]] = {}
        self._next_id = 1
        self._last_computation_id = 0
        self._scheduled = False

    def module(self) -> Module:
        """The whole text."""
        name, position = self._header()
        entry: int | None = None
        while self._scanner.skip_space(position) < len(self._text):
            start, identifier, position, is_entry = self._computation(position)
            if is_entry and entry is not None:
                self._scanner.fail(start, "a second ENTRY computation; expected one module with one ENTRY")
            entry = identifier if is_entry else entry
        if not self._computations:
            self._scanner.expected(position, "a computation, such as ENTRY %main (x: f32[]) -> f32[] {")
        for identifier, (callee, where) in self._first_use.items():
            if identifier not in self._defined:
                self._scanner.fail(where, f"the computation {callee!r} is not in the text; expected a whole module")
        return Module(name, tuple(self._computations), entry or self._computations[-1].id)

    def _header(self) -> tuple[str, int]:
        """The module's name, and where its computations start."""
        match = _HEADER.match(self._text)
        position = match.end() if match else 0
        attributes = []
        while match and (attribute := _ATTRIBUTE.match(self._text, position)):
            position = self._scanner.end_of_value(attribute.end())
            attributes.append((attribute[1], self._text[attribute.end() : position]))
        self._scheduled = ("is_scheduled", "true") in attributes
        while table := _TABLE.match(self._text, position):
            position = table.end()
            while row := _TABLE_ROW.match(self._text, position):
                position = self._scanner.end_of_value(row.end())
        return match[1] if match else "", position

    def _computation(self, position: int) -> tuple[int, int, int, bool]:
        """Reads a named computation: where it starts, its id, where it ends, and whether it is the ENTRY."""
        match = _COMPUTATION.match(self._text, position)
        start = self._scanner.skip_space(position)
        if match is None:
            self._scanner.expected(position, "a computation, such as %name (x: f32[]) -> f32[] {")
        name, position = match[2] or "", match.end()
        if self._text.startswith("(", position):
            arrow = _ARROW.match(self._text, self._scanner.end_of_brackets(position))
            if arrow is None:
                self._scanner.expected(self._scanner.end_of_brackets(position), "-> and the computation's shape")
            position = self._scanner.end_of_shape(arrow.end())
        opening = _OPEN.match(self._text, position)
        if opening is None:
            self._scanner.expected(position, "'{' and the computation's instructions")
        identifier = self._computation_id(name) if name else self._new_computation_id()
        if identifier in self._defined:
            self._scanner.fail(start, f"the computation {name!r} occurs twice; expected a name of its own")
        position = self._instructions(opening.end(), identifier, name, depth=0)
        while attribute := _ATTRIBUTE.match(self._text, position):  # execution_thread
            position = self._scanner.end_of_value(attribute.end())
        return start, identifier, position, match[1] is not None

    def _new_computation_id(self) -> int:
        self._last_computation_id += 1
        return self._last_computation_id

    def _computation_id(self, name: str) -> int:
        if name not in self._computation_ids:
            self._computation_ids[name] = self._new_computation_id()
        return self._computation_ids[name]

    def _instructions(self, position: int, identifier: int, name: str, depth: int) -> int:
        """Reads the instructions of a computation, after its '{'; the position after its '}'."""
        if depth > MAX_NESTING:
            self._scanner.fail(position, f"computations are nested deeper than {MAX_NESTING} levels")
        body = _Body()
        while (closing := _CLOSE.match(self._text, position)) is None:
            position = self._instruction(position, body, depth)
        if not body.instructions:
            self._scanner.expected(position, f"an instruction: the computation {name!r} is empty")
        root = body.instructions[-1 if body.root is None else body.root].id
        self._finish(identifier, name, root, _stored_order(body) if self._scheduled else body.instructions)
        return closing.end()

    def _finish(self, identifier: int, name: str, root: int, instructions: Sequence[Instruction]) -> None:
        self._defined.add(identifier)
        self._computations.append(Computation(identifier, name, root, tuple(instructions)))

    def _instruction(self, position: int, body: _Body, depth: int) -> int:
        """Reads one instruction; the position after it."""
        match = _INSTRUCTION.match(self._text, position)
        if match is None:
            self._scanner.expected(position, "an instruction, such as %name = f32[2]{0} add(%x, %y), or '}'")
        is_root, name, array, opcode = match.groups()
        if name in body.index:
            self._scanner.fail(match.start(2), f"the name {name!r} occurs twice in this computation")
        if array is not None:
            shape, position = self._scanner.shape(*match.span(3)), match.end()
        else:
            end = self._scanner.end_of_shape(match.end())
            shape, named = self._scanner.shape(match.end(), end), _OPCODE.match(self._text, end)
            if named is None:
                self._scanner.expected(end, "an opcode and '(', such as add(")
            opcode, position = named[1], named.end()
        fields: dict[str, Any] = dict(DEFAULTS.get(opcode, ()))
        operands: tuple[int, ...] = ()
        if opcode == "constant":
            position = self._end_of_literal(position)
        elif opcode == "parameter":
            end = self._end_of_literal(position)
            fields["parameter_number"] = self._scanner.integer(position, self._text[position : end - 1])
            position = end
        else:
            operands, position = self._operands(position, body)
        called: list[tuple[int, int]] = []
        while attribute := _ATTRIBUTE.match(self._text, position):
            key, start = attribute[1], attribute.end()
            if key in _CALL_ORDER:
                ids, position = self._called(start, depth)
                called.extend((_CALL_ORDER[key], each) for each in ids)
                continue
            position = self._scanner.end_of_value(start)
            if key == "control-predecessors":
                body.predecessors[len(body.instructions)] = self._predecessors(start, position, body)
            else:
                self._attributes.read(key, start, position, fields)
        called.sort(key=lambda pair: pair[0])
        fields["operand_ids"] = tuple(body.instructions[each].id for each in operands)
        if called:
            fields["called_computation_ids"] = tuple(each for _, each in called)
        parts = _ASYNC.fullmatch(opcode)
        if parts is not None and parts[1] not in _NO_ASYNC:
            shapes = [body.instructions[each].shape for each in operands]
            opcode, fields = self._async(match.start(2), parts, shape, fields, shapes)
        if is_root is not None:
            if body.root is not None:
                self._scanner.fail(match.start(1), "a second ROOT in this computation; expected one")
            body.root = len(body.instructions)
        body.index[name] = len(body.instructions)
        body.instructions.append(Instruction(self._new_id(), opcode, shape, name, **fields))
        return position

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _end_of_literal(self, position: int) -> int:
        """The end of what follows `constant(` or `parameter(`, after the ')'."""
        match = _LITERAL.match(self._text, position)
        return match.end() if match else self._scanner.end_of_brackets(position - 1)

    def _operands(self, position: int, body: _Body) -> tuple[tuple[int, ...], int]:
        """The operands after an instruction's '(', as positions in the computation; the position after its ')'."""
        plain = _PLAIN_OPERANDS.match(self._text, position)
        if plain is not None:
            names = plain[1].replace("%", "").replace(",", " ").split()
            if all(name in body.index for name in names) and len(names) == plain[1].count(",") + (1 if names else 0):
                return tuple(body.index[name] for name in names), plain.end()
        found: list[int] = []
        while True:
            match = _OPERAND.match(self._text, position)
            if match is None:  # the shape of a tuple, or nothing at all
                start = self._scanner.skip_space(position)
                if not found and self._text.startswith(")", start):
                    return (), start + 1
                if self._text.startswith(("(", "b("), start):
                    start = self._scanner.end_of_shape(start)
                match = _OPERAND.match(self._text, start)
            if match is None:
                self._scanner.expected(position, "an operand's name, after which ',' or ')' follows")
            if match[1] not in body.index:
                self._scanner.fail(match.start(1), f"the operand {match[1]!r} is not defined before in its computation")
            found.append(body.index[match[1]])
            position = match.end()
            if match[2] == ")":
                return tuple(found), position

    def _predecessors(self, start: int, end: int, body: _Body) -> list[int]:
        names = self._text[start:end].strip("{}").replace("%", "").replace(",", " ").split()
        for name in names:
            if name not in body.index:
                self._scanner.fail(start, f"the control predecessor {name!r} is not defined before in its computation")
        return [body.index[name] for name in names]

    def _called(self, position: int, depth: int) -> tuple[list[int], int]:
        """The ids of computations that an attribute names or contains, and the position after it."""
        match = _NAMES.match(self._text, position)
        if match is not None:
            names = [match[1]] if match[1] else match[2].replace("%", "").replace(",", " ").split()
            ids = [self._computation_id(name) for name in names]
            for name, identifier in zip(names, ids, strict=True):
                self._first_use.setdefault(identifier, (name, self._scanner.skip_space(position)))
            return ids, match.end()
        opening = _OPEN.match(self._text, position)
        if opening is None:
            self._scanner.expected(position, "a computation's name, names in braces, or instructions in braces")
        nested = _OPEN.match(self._text, opening.end())
        if nested is None:
            identifier = self._new_computation_id()
            return [identifier], self._instructions(opening.end(), identifier, "", depth + 1)
        ids, position = [], opening.end()
        while (closing := _CLOSE.match(self._text, position)) is None:
            nested = _OPEN.match(self._text, position)
            if nested is None:
                self._scanner.expected(position, "'{' and the instructions of a computation, or '}'")
            ids.append(self._new_computation_id())
            position = self._instructions(nested.end(), ids[-1], "", depth + 1)
            comma = _COMMA.match(self._text, position)
            position = comma.end() if comma else position
        return ids, closing.end()

    def _async(
        self, position: int, parts: re.Match[str], shape: Shape, fields: dict[str, Any], operands: list[Shape]
    ) -> tuple[str, dict[str, Any]]:
        """The async opcode and fields of `foo-start` and its like; a start adds the computation that contains foo."""
        opcode, stage = parts.groups()
        kept = {"operand_ids": fields["operand_ids"]}
        if stage != "start":
            return f"async-{stage}", kept
        if len(shape.tuple_shapes) < 2:
            self._scanner.fail(position, f"{opcode}-start has no tuple of operands, result and state as its shape")
        inner = [
            Instruction(self._new_id(), "parameter", each, f"param_{number}", parameter_number=number)
            for number, each in enumerate(operands)
        ]
        wrapped = {**fields, "operand_ids": tuple(each.id for each in inner)}
        inner.append(Instruction(self._new_id(), opcode, shape.tuple_shapes[1], opcode, **wrapped))
        identifier = self._new_computation_id()
        self._finish(identifier, "async_wrapped", inner[-1].id, inner)
        return "async-start", {**kept, "called_computation_ids": (identifier,)}


def _stored_order(body: _Body) -> list[Instruction]:
    """The instructions in the protobuf's order: operands before users, depth first from each one without users."""
    number_of = {each.id: number for number, each in enumerate(body.instructions)}
    before = [[number_of[operand] for operand in each.operand_ids] for each in body.instructions]
    used = {number for operands in before for number in operands}
    order: list[Instruction] = []
    visiting, done = set(), set()
    for sink in (number for number in range(len(before)) if number not in used):
        stack = [sink]
        while stack:
            current = stack[-1]
            if current in done:
                stack.pop()
            elif current in visiting:
                stack.pop()
                done.add(current)
                order.append(body.instructions[current])
            else:
                visiting.add(current)
                stack.extend(each for each in reversed(before[current]) if each not in done)
                stack.extend(each for each in body.predecessors.get(current, ()) if each not in done)
    return order

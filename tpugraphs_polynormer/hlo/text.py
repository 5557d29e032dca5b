"""Reads HLO text, as XLA's --xla_dump_to writes it: any text becomes a Module, or one HloError with line and column.

The records are those of the module's protobuf, up to ids: the text has none, so instructions and computations are
numbered as they occur. It reads the forms that XLA has printed over the years: operands with and without shapes, names
with and without %, computations by name or in place, comments, and the short form of asynchronous operations. Literals,
sharding and backend configurations are skipped.

Order of the nodes (text_order.py): instructions are in the protobuf's order; the text of a scheduled module has them in
the order of execution, and they are put back. Computations are in the protobuf's order for programs that are not
compiled yet, and for all programs of XLA versions up to 2023. New versions list the computations that compiler passes
have made in one order as text and in another as protobuf; the order of the text is kept.
"""

from __future__ import annotations

import re
from typing import Any

from tpugraphs_polynormer.hlo.module import Computation, Instruction, Module, Shape
from tpugraphs_polynormer.hlo.text_attributes import DEFAULTS, Attributes
from tpugraphs_polynormer.hlo.text_body import Body
from tpugraphs_polynormer.hlo.text_metadata import TABLES, SourceTables
from tpugraphs_polynormer.hlo.text_order import order_computations
from tpugraphs_polynormer.hlo.text_scanner import ARRAY, MAX_NESTING, NAME, Scanner

_BYTE_ORDER_MARK = "\ufeff"
_SKIPPED = r"(?:\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*"
_START = re.compile(rf"{_SKIPPED}(?:HloModule(?=[\s,:]|\Z)|ENTRY\s|%{NAME}\s*[({{])", re.ASCII)
_START_BYTES = 65536  # where a text that begins with long comments must have its first word

_HEADER = re.compile(r"\s*HloModule\b[ \t]*([^\s,:]*)[ \t]*:?")
_TABLE = re.compile(rf"\s*({'|'.join(TABLES)})\b(?!\s*[({{])")
_TABLE_ROW = re.compile(r"\s*(\d+)[ \t]*(?=[\"{])", re.ASCII)
_COMPUTATION = re.compile(rf"(ENTRY\b\s*)?(?:%?({NAME})\s*)?(?=[({{])", re.ASCII)
_ARROW = re.compile(r"\s*->\s*")
_OPEN = re.compile(r"\s*\{")
_CLOSE = re.compile(r"\s*\}")
_INSTRUCTION = re.compile(rf"\s*(ROOT\s+)?%?({NAME})\s*=\s*(?:({ARRAY})\s+([a-z][\w\-]*)\()?", re.ASCII)
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\s*\(", re.ASCII)
_LITERAL = re.compile(r"[^()\"]*\)")
_ATTRIBUTE = re.compile(r"\s*,\s*([A-Za-z_][\w.\-]*)\s*=[ \t]*", re.ASCII)
_CALLEES = re.compile(rf"\s*(?:%?({NAME})|\{{\s*((?:%?{NAME}\s*(?:,\s*%?{NAME}\s*)*)?)\}})", re.ASCII)
_COMMA = re.compile(r"\s*,")
_MAX_DIGITS = 10  # of the number of a row in a table

# Attributes that name computations, in the order in which XLA stores them.
_CALLS = (
    "to_apply", "calls", "body", "condition", "true_computation", "false_computation", "branch_computations",
    "called_computations", "select", "scatter",
)  # fmt: skip
_CALL_ORDER = {name: number for number, name in enumerate(_CALLS)}
# `foo-start`, `foo-update` and `foo-done` of any other opcode are async operations around a computation with one foo.
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
    return _Reader(text.removeprefix(_BYTE_ORDER_MARK)).read_module()


class _Reader:
    """One pass over a text: each `_read_` method starts at a position and returns the one after what it has read."""

    def __init__(self, text: str) -> None:
        self._scanner = Scanner(text)
        self._text = self._scanner.text
        self._sources = SourceTables()
        self._attributes = Attributes(self._scanner)
        self._name = ""
        self._scheduled = False
        self._entry: int | None = None
        self._computations: list[Computation] = []
        self._defined: set[int] = set()
        self._computation_ids: dict[str, int] = {}
        self._callees: dict[int, tuple[str, int]] = {}  # by id, the name and position of the first call by name
        self._num_ids = 0
        self._num_computation_ids = 0

    def read_module(self) -> Module:
        """The whole text."""
        position = self._read_header()
        while self._scanner.skip_space(position) < len(self._text):
            position = self._read_computation(position)
        if not self._computations:
            self._scanner.expected(position, "a computation, such as ENTRY %main (x: f32[]) -> f32[] {")
        if self._entry is None and len(self._computations) > 1:
            self._scanner.expected(position, "an ENTRY computation: the text is cut off, or only a part of a module")
        for identifier, (name, where) in self._callees.items():
            if identifier not in self._defined:
                self._scanner.fail(where, f"the computation {name!r} is not in the text; expected a whole module")
        entry = self._entry or self._computations[-1].id
        return Module(self._name, tuple(order_computations(self._computations)), entry)

    def _read_header(self) -> int:
        """Reads the module's line and the tables of source locations; a text may have neither."""
        match = _HEADER.match(self._text)
        if match is None:
            return 0
        self._name, position = match[1], match.end()
        while attribute := _ATTRIBUTE.match(self._text, position):
            position = self._scanner.end_of_value(attribute.end())
            if attribute[1] == "is_scheduled":
                self._scheduled = self._text[attribute.end() : position] == "true"
        while table := _TABLE.match(self._text, position):
            position = table.end()
            while row := _TABLE_ROW.match(self._text, position):
                position = self._scanner.end_of_value(row.end())
                if len(row[1]) < _MAX_DIGITS:
                    self._sources.add_row(table[1], int(row[1]), self._text[row.end() : position])
        return position

    def _read_computation(self, position: int) -> int:
        """Reads `ENTRY %name (x: f32[2]) -> f32[2] { ... }`, of which ENTRY, name and shapes may be missing."""
        start = self._scanner.skip_space(position)
        match = _COMPUTATION.match(self._text, start)
        if match is None:
            self._scanner.expected(start, "a computation, such as %name (x: f32[]) -> f32[] {")
        name, position = match[2] or "", match.end()
        if self._text.startswith("(", position):
            position = self._scanner.end_of_brackets(position)
            arrow = _ARROW.match(self._text, position)
            if arrow is None:
                self._scanner.expected(position, "-> and the shape of the computation's result")
            position = self._scanner.end_of_shape(arrow.end())
        opening = _OPEN.match(self._text, position)
        if opening is None:
            self._scanner.expected(position, "'{' and the computation's instructions")
        identifier = self._computation_id(name)
        if identifier in self._defined:
            self._scanner.fail(start, f"the computation {name!r} occurs twice; expected a name of its own")
        if match[1] is not None:
            if self._entry is not None:
                self._scanner.fail(start, "a second ENTRY computation; expected one module")
            self._entry = identifier
        position = self._read_instructions(opening.end(), identifier, name, depth=0)
        while attribute := _ATTRIBUTE.match(self._text, position):  # execution_thread="..."
            position = self._scanner.end_of_value(attribute.end())
        return position

    def _computation_id(self, name: str = "") -> int:
        """The id of the computation with that name; a new one without a name."""
        if name and name in self._computation_ids:
            return self._computation_ids[name]
        self._num_computation_ids += 1
        if name:
            self._computation_ids[name] = self._num_computation_ids
        return self._num_computation_ids

    def _new_id(self) -> int:
        self._num_ids += 1
        return self._num_ids

    def _read_instructions(self, position: int, identifier: int, name: str, depth: int) -> int:
        """Reads the instructions of a computation, after its '{', and its '}'."""
        if depth > MAX_NESTING:
            self._scanner.fail(position, f"computations are nested deeper than {MAX_NESTING} levels")
        body = Body(self._scanner)
        while (closing := _CLOSE.match(self._text, position)) is None:
            position = self._read_instruction(position, body, depth)
        if not body.instructions:
            self._scanner.expected(position, "an instruction: this computation has none")
        instructions = body.stored_order() if self._scheduled else body.instructions
        self._add_computation(Computation(identifier, name, body.root_id, tuple(instructions)))
        return closing.end()

    def _add_computation(self, computation: Computation) -> None:
        self._defined.add(computation.id)
        self._computations.append(computation)

    def _read_instruction(self, position: int, body: Body, depth: int) -> int:
        """Reads `ROOT %name = shape opcode(operands), attribute=value, ...`."""
        match = _INSTRUCTION.match(self._text, position)
        if match is None:
            self._scanner.expected(position, "an instruction, such as %name = f32[2]{0} add(%x, %y), or '}'")
        root, name, array, opcode = match.groups()
        body.check_name(name, match.start(2))
        if root is not None:
            body.mark_root(match.start(1))
        if array is not None:
            shape, position = self._scanner.shape(*match.span(3)), match.end()
        else:  # a tuple, or something rare
            end = self._scanner.end_of_shape(match.end())
            shape, found = self._scanner.shape(match.end(), end), _OPCODE.match(self._text, end)
            if found is None:
                self._scanner.expected(end, "an opcode and '(', such as add(")
            opcode, position = found[1], found.end()
        fields: dict[str, Any] = dict(DEFAULTS.get(opcode, ()))
        operands: tuple[Instruction, ...] = ()
        if opcode == "constant":
            position = self._end_of_literal(position)
        elif opcode == "parameter":
            start, position = position, self._end_of_literal(position)
            fields["parameter_number"] = self._scanner.integer(start, self._text[start : position - 1])
        else:
            operands, position = body.operands(position)
            fields["operand_ids"] = tuple(each.id for each in operands)
        position = self._read_attributes(position, body, fields, depth)
        is_async = _ASYNC.fullmatch(opcode)
        if is_async is not None and is_async[1] not in _NO_ASYNC:
            opcode, fields = self._unfold_async(match.start(2), *is_async.groups(), shape, operands, fields)
        body.add(Instruction(self._new_id(), opcode, shape, name, **fields))
        return position

    def _end_of_literal(self, position: int) -> int:
        """The position after what is in the parentheses of `constant(` or `parameter(`."""
        match = _LITERAL.match(self._text, position)
        return match.end() if match else self._scanner.end_of_brackets(position - 1)

    def _read_attributes(self, position: int, body: Body, fields: dict[str, Any], depth: int) -> int:
        """Reads the attributes of an instruction into the fields of its record."""
        callees: list[tuple[int, int]] = []
        while attribute := _ATTRIBUTE.match(self._text, position):
            name, start = attribute[1], attribute.end()
            if name in _CALL_ORDER:
                identifiers, position = self._read_callees(start, depth)
                callees.extend((_CALL_ORDER[name], each) for each in identifiers)
                continue
            position = self._scanner.end_of_value(start)
            if name == "control-predecessors":
                body.add_predecessors(start, position)
            elif name == "metadata":
                fields["metadata"] = self._sources.read(self._text[start:position])
            else:
                self._attributes.read(name, start, position, fields)
        if callees:
            callees.sort(key=lambda pair: pair[0])
            fields["called_computation_ids"] = tuple(each for _, each in callees)
        return position

    def _read_callees(self, position: int, depth: int) -> tuple[list[int], int]:
        """Reads `%name`, `{%name, %name}`, `{ instructions }` or `{{ instructions }, { instructions }}`: the ids."""
        match = _CALLEES.match(self._text, position)
        if match is not None:
            names = [match[1]] if match[1] else match[2].replace("%", "").replace(",", " ").split()
            for name in names:
                self._callees.setdefault(self._computation_id(name), (name, self._scanner.skip_space(position)))
            return [self._computation_id(name) for name in names], match.end()
        opening = _OPEN.match(self._text, position)
        if opening is None:
            self._scanner.expected(position, "a computation's name, names in braces, or instructions in braces")
        if _OPEN.match(self._text, opening.end()) is None:
            identifier = self._computation_id()
            return [identifier], self._read_instructions(opening.end(), identifier, "", depth + 1)
        identifiers, position = [], opening.end()
        while (closing := _CLOSE.match(self._text, position)) is None:
            nested = _OPEN.match(self._text, position)
            if nested is None:
                self._scanner.expected(position, "'{' and the instructions of a computation, or '}'")
            identifiers.append(self._computation_id())
            position = self._read_instructions(nested.end(), identifiers[-1], "", depth + 1)
            comma = _COMMA.match(self._text, position)
            position = comma.end() if comma else position
        return identifiers, closing.end()

    def _unfold_async(
        self, position: int, opcode: str, stage: str, shape: Shape, operands: tuple[Instruction, ...], fields: dict
    ) -> tuple[str, dict[str, Any]]:
        """The opcode and fields of `foo-start` and its like; a start adds the computation that contains the foo."""
        outer = {"operand_ids": fields["operand_ids"]}
        if stage != "start":
            return f"async-{stage}", outer
        if len(shape.tuple_shapes) < 2:
            self._scanner.fail(position, f"{opcode}-start without a tuple of its operands and its result as shape")
        inner = [
            Instruction(self._new_id(), "parameter", each.shape, f"param_{number}", parameter_number=number)
            for number, each in enumerate(operands)
        ]
        fields = {**DEFAULTS.get(opcode, {}), **fields, "operand_ids": tuple(each.id for each in inner)}
        inner.append(Instruction(self._new_id(), opcode, shape.tuple_shapes[1], opcode, **fields))
        identifier = self._computation_id()
        self._add_computation(Computation(identifier, "async_wrapped", inner[-1].id, tuple(inner)))
        return "async-start", {**outer, "called_computation_ids": (identifier,)}

"""The lower half of the HLO text reader: positions of errors, comments, brackets, values and shapes."""

from __future__ import annotations

import re
from typing import NoReturn

from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.features import ELEMENT_TYPE_NAMES
from tpugraphs_polynormer.hlo.module import Shape

MAX_NESTING = 100  # of tuples and of computations, as in a protobuf
_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1
UNBOUNDED = _MIN_INT64  # the size that XLA stores for a dimension "?"
TUPLE, BUFFER = 13, 34

# Types newer than the dataset have no feature column, but a program may contain them.
_NEWER_TYPES = {
    "f8e5m2": 19, "f8e4m3fn": 20, "s4": 21, "u4": 22, "f8e4m3b11fnuz": 23, "f8e5m2fnuz": 24, "f8e4m3fnuz": 25,
    "s2": 26, "u2": 27, "f8e4m3": 28, "f8e3m4": 29, "s1": 30, "u1": 31, "f4e2m1fn": 32, "f8e8m0fnu": 33,
}  # fmt: skip
TYPE_NUMBERS = {name: number for number, name in ELEMENT_TYPE_NAMES.items() if number != TUPLE} | _NEWER_TYPES

# A string that is not closed extends to the end of the text. So the pattern always matches, at once: without that, a
# text of many escaped quotes would be scanned again from each of them.
STRING = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
NAME = r"[\w.\-]+"
ARRAY = r"[a-z]\w*\[[^\]\[(){}\"]*\](?:\{[^{}\"]*\})?"


def _nested_braces(levels: int) -> str:
    """The pattern of a group in braces, with strings and with groups nested to a number of levels."""
    inner = STRING if levels == 1 else f"(?:{STRING}|{_nested_braces(levels - 1)})"
    return rf"\{{[^{{}}\"]*(?:{inner}[^{{}}\"]*)*\}}"


_COMMENT_OR_STRING = re.compile(rf"{STRING}|/\*.*?(?:\*/|\Z)|//[^\n]*", re.DOTALL)
_BRACKET = re.compile(rf"{STRING}|[(){{}}\[\]]", re.DOTALL)
_CLOSERS = {"(": ")", "{": "}", "[": "]"}
_STRING = re.compile(STRING, re.DOTALL)
_BRACES = re.compile(_nested_braces(4), re.DOTALL)  # most configurations; a loop reads deeper ones
_BARE = re.compile(r"(?:[^\s,(){}\[\]\"'<]+|'[^'\n]*'|<=|<[^<>\n]*>|<)+")
_BEFORE_BRACE = re.compile(r"[ \t]+(?=\{)")
_UNPRINTABLE = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")  # a message has one line
_NOT_LINE = re.compile(r"[^\n]")
_ARRAY = re.compile(ARRAY, re.ASCII)
_ARRAY_PARTS = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^:}]*))?", re.ASCII)  # tiles follow a ":"
_DIMENSION = re.compile(r"\s*(<=)?\s*(\?|-?[0-9]{1,19})\s*", re.ASCII)
_INTEGER = re.compile(r"\s*(-?[0-9]{1,19})\s*", re.ASCII)
_SPACE = re.compile(r"\s*")


class Scanner:
    """A text without its comments, and the extents of what starts at a position in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._shapes: dict[str, Shape] = {}
        if "/*" in text or "//" in text:
            self.text = _COMMENT_OR_STRING.sub(self._blank, text)

    def _blank(self, match: re.Match[str]) -> str:
        """The string itself, or as many spaces as the comment is long: positions do not change."""
        found = match[0]
        if found.startswith('"'):
            return found
        if found.startswith("/*") and not (found.endswith("*/") and len(found) >= 4):
            self.fail(match.start(), "the comment is not closed; expected */")
        return _NOT_LINE.sub(" ", found)

    def fail(self, position: int, message: str) -> NoReturn:
        """Raises HloError with the line and column of a position, both from 1."""
        position = min(position, len(self.text))
        line = self.text.count("\n", 0, position) + 1
        column = position - self.text.rfind("\n", 0, position)
        raise HloError(f"HLO text, line {line}, column {column}: {_UNPRINTABLE.sub(' ', message)}")

    def expected(self, position: int, what: str) -> NoReturn:
        """Raises HloError: something else is at that position, after white space."""
        position = self.skip_space(position)
        found = self.text[position : position + 40].split("\n")[0].strip()
        self.fail(position, f"found {found!r}, expected {what}" if found else f"the text ends here, expected {what}")

    def skip_space(self, position: int) -> int:
        """The position of the next character that is not white space."""
        return _SPACE.match(self.text, position).end()

    def end_of_string(self, position: int) -> int:
        """The end of the string that starts at `position`."""
        return self._closed(_STRING.match(self.text, position))

    def _closed(self, match: re.Match[str]) -> int:
        """The end of a string that was matched; an open one ends at the end of the text."""
        found = match[0]
        if match.end() == len(self.text):
            inner = found[1:-1]
            escapes = len(inner) - len(inner.rstrip("\\"))
            if len(found) < 2 or not found.endswith('"') or escapes % 2:
                self.fail(match.start(), 'the string is not closed; expected "')
        return match.end()

    def end_of_brackets(self, position: int) -> int:
        """The end of the group in brackets that starts at `position`."""
        flat = _BRACES.match(self.text, position)
        if flat is not None:
            return flat.end()
        closers: list[str] = []
        for match in _BRACKET.finditer(self.text, position):
            found = match[0]
            if found in _CLOSERS:
                closers.append(_CLOSERS[found])
            elif found.startswith('"'):
                self._closed(match)
            elif closers.pop() != found:
                self.fail(match.start(), f"found {found!r}, which closes no bracket of its kind")
            elif not closers:
                return match.end()
        self.fail(position, f"the {self.text[position]!r} is not closed; expected {_CLOSERS[self.text[position]]!r}")

    def end_of_value(self, position: int) -> int:
        """The end of an attribute's value: strings, groups in brackets and bare words without white space between."""
        start, text = position, self.text
        while position < len(text):
            character = text[position]
            if character == '"':
                position = self.end_of_string(position)
            elif character in "{([":
                position = self.end_of_brackets(position)
            else:
                match = _BARE.match(text, position)
                if match is None:
                    break
                position = match.end()
            if character not in '"{':
                space = _BEFORE_BRACE.match(text, position)  # `replica_groups=mesh['x'=2] {'x'}`
                position = space.end() if space else position
        if position == start and text[start : start + 1] not in (",", "\n", ""):  # an empty `padding=` is valid
            self.expected(position, "the attribute's value")
        return position

    def end_of_shape(self, position: int) -> int:
        """The end of the shape that starts at `position`."""
        if self.text.startswith("(", position):
            return self.end_of_brackets(position)
        if self.text.startswith("b(", position):
            return self.end_of_brackets(position + 1)
        match = _ARRAY.match(self.text, position)
        if match is None:
            self.expected(position, "a shape, such as f32[2,3]{1,0} or (f32[], s32[4]{0}); print result shapes")
        if self.text.startswith("{", match.end()):  # a layout that contains a shape
            return self.end_of_brackets(match.end())
        return match.end()

    def shape(self, start: int, end: int) -> Shape:
        """The shape in text[start:end]; a program repeats few shapes, so each is read once."""
        key = self.text[start:end]
        found = self._shapes.get(key)
        if found is None:
            self._shapes[key] = found = self._read_shape(start, 0)[0]
        return found

    def _read_shape(self, start: int, depth: int) -> tuple[Shape, int]:
        """The shape that starts at `start`, and where it ends."""
        if depth > MAX_NESTING:
            self.fail(start, f"shapes are nested deeper than {MAX_NESTING} levels")
        for opening, number in (("(", TUPLE), ("b(", BUFFER)):
            if self.text.startswith(opening, start):
                parts, end = self._tuple_parts(start + len(opening), depth)
                return Shape(number, tuple_shapes=parts), end
        return self._array(start), self.end_of_shape(start)

    def _array(self, start: int) -> Shape:
        match = _ARRAY_PARTS.match(self.text, start)
        if match is None:
            self.expected(start, "a shape in a tuple, such as f32[2,3]{1,0}")
        name, sizes, layout = match.groups()
        if name not in TYPE_NUMBERS:
            self.fail(start, f"the element type {name[:40]!r} is unknown; expected one such as f32, bf16, s32 or pred")
        position = start + len(name) + 1
        dimensions = self._dimensions(position, sizes)
        if layout is None:
            # As XLA's own reader does: the last dimension is minor.
            return Shape(TYPE_NUMBERS[name], dimensions, (), tuple(reversed(range(len(dimensions)))))
        order = self.integers(position + len(sizes) + 2, layout)
        if order and sorted(order) != list(range(len(dimensions))):
            message = f"the layout {{{layout[:40]}}} does not fit the shape [{sizes[:40]}]"
            self.fail(start, f"{message}; expected each of its {len(dimensions)} dimensions once")
        return Shape(TYPE_NUMBERS[name], dimensions, (), order)

    def _tuple_parts(self, position: int, depth: int) -> tuple[tuple[Shape, ...], int]:
        """The shapes of a tuple, after its '(', and where its ')' ends."""
        parts: list[Shape] = []
        position = self.skip_space(position)
        while not self.text.startswith(")", position):
            part, position = self._read_shape(position, depth + 1)
            parts.append(part)
            position = self.skip_space(position)
            if self.text.startswith(",", position):
                position = self.skip_space(position + 1)
            elif not self.text.startswith(")", position):
                self.expected(position, "',' or ')' in the shape of a tuple")
        return tuple(parts), position + 1

    def _dimensions(self, position: int, sizes: str) -> tuple[int, ...]:
        """Sizes such as `2,<=8,?`: a bounded dynamic dimension counts with its bound."""
        found: list[int] = []
        for part in sizes.split(",") if sizes.strip() else ():
            match = _DIMENSION.fullmatch(part)
            if match is None:
                self.fail(position, f"the dimension {part[:40]!r} is none; expected a number, <= a number, or ?")
            found.append(UNBOUNDED if match[2] == "?" else self.integer(position, match[2]))
            position += len(part) + 1
        return tuple(found)

    def integers(self, position: int, values: str) -> tuple[int, ...]:
        """The numbers of `1, 2,3`, which starts at `position`."""
        found: list[int] = []
        for part in values.split(",") if values.strip() else ():
            found.append(self.integer(position, part))
            position += len(part) + 1
        return tuple(found)

    def integer(self, position: int, value: str) -> int:
        """The number, which must fit into int64."""
        match = _INTEGER.fullmatch(value)
        number = int(match[1]) if match is not None else _MAX_INT64 + 1
        if not _MIN_INT64 <= number <= _MAX_INT64:
            shown = value.strip()[:40]
            self.fail(self.skip_space(position), f"found {shown!r}, expected a number of at most 64 bits")
        return number

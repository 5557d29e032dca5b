"""The rows that a contest csv must have, and everything that is wrong with a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from tpugraphs_polynormer.catalog import COLLECTIONS, TILE_TOP, Collection
from tpugraphs_polynormer.errors import UserError

HEADER = "ID,TopConfigs"
MAX_SHOWN = 100  # violations listed one by one; the rest is counted
_SPARE_BYTES = 4096  # a row may be this much longer than the longest right one before it is no longer looked into
_INTEGER = re.compile(r"-?[0-9]+")


class SubmissionError(UserError):
    """A submission, or what it is to be made from, that cannot be used."""


@dataclass(frozen=True)
class ExpectedRow:
    """One row the submission must have."""

    id: str
    num_candidates: int

    @property
    def collection(self) -> Collection:
        """The collection the id begins with."""
        for collection in COLLECTIONS.values():
            if self.id.startswith(f"{collection.id}:"):
                return collection
        raise SubmissionError(f"id {self.id!r} begins with none of {', '.join(COLLECTIONS)}")

    @property
    def graph(self) -> str:
        """The graph's name: what follows the collection."""
        return self.id.removeprefix(f"{self.collection.id}:")

    @property
    def num_listed(self) -> int:
        """How many candidates the row lists."""
        return min(TILE_TOP, self.num_candidates) if self.collection.kind == "tile" else self.num_candidates


@dataclass(frozen=True)
class Violation:
    """One thing wrong with a submission; `line` counts from 1, `id` and `line` are None where they say nothing."""

    kind: str
    id: str | None
    line: int | None
    found: str
    expected: str

    def __str__(self) -> str:
        place = [f"line {self.line}"] if self.line is not None else []
        place += [self.id] if self.id is not None else []
        return ": ".join([*place, f"found {self.found}, expected {self.expected}"])


def check_submission(path: Path | str, expected: Sequence[ExpectedRow]) -> list[Violation]:
    """Everything wrong with a file, in the order met; past 100 a last one of kind "more" counts the rest.

    Strict where readers of csv are lenient: CRLF line ends, a byte order mark and rows in another order are each
    reported once, since the file then is not byte for byte what the data set asks for. A missing last newline and
    quotes around a field are fine. Rows too long to be right are measured, not read: memory stays bounded.
    """
    return _read(path, expected)[1].all()


def read_submission(path: Path | str, expected: Sequence[ExpectedRow]) -> dict[str, np.ndarray]:
    """The rankings of a file without violations, by ID; raises with all of them otherwise."""
    rankings, faults = _read(path, expected)
    faults.raise_if_any(f"{path}: not a valid submission")
    return rankings


class Faults:
    """Violations as they are met, the first hundred kept and the others counted."""

    def __init__(self) -> None:
        self._kept: list[Violation] = []
        self._num_more = 0
        self._once: set[str] = set()

    def add(self, kind: str, row_id: str | None, line: int | None, found: str, expected: str) -> None:
        if len(self._kept) < MAX_SHOWN:
            self._kept.append(Violation(kind, row_id, line, found, expected))
        else:
            self._num_more += 1

    def add_once(self, kind: str, line: int | None, found: str, expected: str) -> None:
        if kind not in self._once:
            self._once.add(kind)
            self.add(kind, None, line, found, expected)

    def all(self) -> list[Violation]:
        more = Violation("more", None, None, f"{self._num_more} more violations", "none")
        return [*self._kept, more] if self._num_more else list(self._kept)

    def raise_if_any(self, what: str) -> None:
        if self._kept:
            raise SubmissionError("\n  ".join([what, *map(str, self.all())]))


def _read(path: Path | str, expected: Sequence[ExpectedRow]) -> tuple[dict[str, np.ndarray], Faults]:
    reader = _Reader(expected)
    try:
        with open(path, "rb") as file:
            for number, (raw, length) in enumerate(_bounded_lines(file, reader.max_bytes), start=1):
                reader.take_line(number, raw, length)
    except OSError as fault:
        raise SubmissionError(f"{path}: cannot be read ({fault.strerror}); give the path of a csv file") from None
    reader.finish()
    return reader.rankings, reader.faults


class _Reader:
    """Goes through the lines of a file once, and keeps the good rows and all faults."""

    def __init__(self, expected: Sequence[ExpectedRow]) -> None:
        self._rows = {row.id: row for row in expected}
        self._positions = {row.id: position for position, row in enumerate(expected)}
        self._lines: dict[str, int] = {}  # where each ID was first seen
        self._last_id: str | None = None
        self._num_lines = 0
        self.max_bytes = _SPARE_BYTES + max((_row_bytes(row) for row in expected), default=0)
        self.rankings: dict[str, np.ndarray] = {}
        self.faults = Faults()

    def take_line(self, number: int, raw: bytes, length: int) -> None:
        self._num_lines = number
        if number == 1 and raw.startswith(b"\xef\xbb\xbf"):
            self.faults.add_once("bom", 1, "a byte order mark", "the file to begin with its header")
            raw = raw[3:]
        raw = raw.removesuffix(b"\n")
        if raw.endswith(b"\r"):
            self.faults.add_once("line_end", number, "CRLF line ends", "LF line ends")
            raw = raw.removesuffix(b"\r")
        try:
            text = raw.decode("utf-8") if length <= self.max_bytes else raw.decode("utf-8", errors="replace")
        except UnicodeDecodeError as fault:
            self.faults.add("encoding", None, number, f"byte {raw[fault.start]:#04x} at {fault.start}", "UTF-8 text")
            return
        fields = [_unquote(field) for field in text.split(",", 2)]
        if number == 1:
            if fields == HEADER.split(","):
                return
            self.faults.add("header", None, 1, _shorten(text), HEADER)
            if fields[0] not in self._rows:
                return
        self._take_row(number, fields, text, length)

    def _take_row(self, number: int, fields: list[str], text: str, length: int) -> None:
        if not text.strip():
            self.faults.add("blank", None, number, "a blank line", "an ID and its candidates")
        elif len(fields) != 2:
            self.faults.add("fields", None, number, _shorten(text), "two fields, ID and TopConfigs")
        elif self._take_id(number, fields[0]):
            row = self._rows[fields[0]]
            if length > self.max_bytes:
                self.faults.add("too_long", row.id, number, f"a row of {length} bytes", f"{row.num_listed} candidates")
            else:
                self._take_candidates(row, number, fields[1])

    def _take_id(self, number: int, row_id: str) -> bool:
        """Whether the ID is one of ours, and new."""
        if row_id not in self._rows:
            self.faults.add("foreign", None, number, f"the ID {_shorten(row_id)}", "the ID of a test graph")
            return False
        if row_id in self._lines:
            first = self._lines[row_id]
            self.faults.add("duplicate", row_id, number, f"the ID again, first on line {first}", "each ID once")
            return False
        if self._last_id is not None and self._positions[row_id] < self._positions[self._last_id]:
            self.faults.add_once("order", number, f"{row_id} after {self._last_id}", "rows in the data set's order")
        self._lines[row_id] = number
        self._last_id = row_id
        return True

    def _take_candidates(self, row: ExpectedRow, number: int, text: str) -> None:
        tokens = text.split(";")
        for token in tokens:
            if not _INTEGER.fullmatch(token):
                found = f"{_shorten(token)} among the candidates" if text else "no candidates"
                self.faults.add("not_integer", row.id, number, found, "integers joined by ';'")
                return
        # Python refuses to read thousands of digits, int64 to hold them; that many are out of range anyhow.
        indices = np.array([int(token) if len(token) <= 18 else -1 for token in tokens], np.int64)
        if check_indices(row, number, indices, tokens, self.faults):
            self.rankings[row.id] = indices

    def finish(self) -> None:
        if not self._num_lines:
            self.faults.add("empty", None, None, "an empty file", f"the header {HEADER} and {len(self._rows)} rows")
        for row_id in self._rows:
            if row_id not in self._lines:
                self.faults.add("missing", row_id, None, "no row", "one row for every test graph")


def check_indices(row: ExpectedRow, line: int | None, indices: np.ndarray, shown: Sequence, faults: Faults) -> bool:
    """Whether the row lists the right number of its graph's candidates, each once; `shown` is what the user wrote."""
    is_right = True
    if len(indices) != row.num_listed:
        faults.add("count", row.id, line, f"{len(indices)} candidates", f"{row.num_listed} candidates")
        is_right = False
    outside = np.flatnonzero((indices < 0) | (indices >= row.num_candidates))
    if len(outside):
        found = f"candidate {_shorten(str(shown[outside[0]]))}"
        faults.add("range", row.id, line, found, f"candidates in 0..{row.num_candidates - 1}")
        return False
    values, counts = np.unique(indices, return_counts=True)
    repeated = values[counts > 1]
    if len(repeated):
        faults.add("repeat", row.id, line, f"candidate {repeated[0]} more than once", "each candidate once")
        is_right = False
    return is_right


def _bounded_lines(file: IO[bytes], max_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Yields (line, its whole length); of a line longer than `max_bytes` only the beginning is kept."""
    while line := file.readline(max_bytes + 1):
        length, tail = len(line), line
        while len(line) > max_bytes and tail and not tail.endswith(b"\n"):
            tail = file.readline(1 << 20)
            length += len(tail)
        yield line, length


def _row_bytes(row: ExpectedRow) -> int:
    return len(row.id.encode()) + row.num_listed * (len(str(row.num_candidates)) + 1)


def _unquote(field: str) -> str:
    return field[1:-1] if len(field) >= 2 and field[0] == field[-1] == '"' else field


def _shorten(text: str, width: int = 60) -> str:
    return repr(text) if len(text) <= width else f"{text[:width]!r}..."

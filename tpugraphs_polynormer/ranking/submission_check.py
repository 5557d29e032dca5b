"""Everything that is wrong with a contest csv, with the data set at hand or without it.

One reader serves both cases; `submission_rules` tells it which rows a file must have.

The reader splits lines itself, in five lines of code, instead of using the csv module. A row of 100 MB costs
`csv.reader` 637 MB of memory, and this reader 3 MB. `csv.reader` refuses fields of more than 131,072 characters, which
is a limit of the whole process, and a layout row of 100,040 candidates has 589,169. It takes all lines after a quote
that is never closed as one field, so that neither their violations nor their numbers would be known, and lets such a
quote pass on the last line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from tpugraphs_polynormer.ranking.submission_rules import (
    ExactRules,
    ExpectedRow,
    Faults,
    OfficialRules,
    RowRule,
    Rules,
    SubmissionError,
    Violation,
    shorten,
)

HEADER = "ID,TopConfigs"
_SPARE_BYTES = 4096  # a row that is longer than the longest valid row by more than this is measured, not parsed
_SPARE_LINES = 1000  # so many lines more than twice the rows of a valid file are read; a hostile file may have millions
_INTEGER = re.compile(r"-?[0-9]+")
_MAX_DIGITS = 18  # int64 holds every integer of that many characters


def check_submission(path: Path | str, expected: Sequence[ExpectedRow] | None = None) -> list[Violation]:
    """Everything wrong with a file, in the order met; past 100 a last one of kind "more" counts the rest.

    The check is strict where readers of csv are lenient: CRLF line ends, a byte order mark and rows in another order
    are each reported once, since the file then is not byte for byte what the data set asks for. A missing last newline
    and quotes around a field are fine. Memory and time are bounded: rows too long to be valid are measured, not parsed,
    and the check ends at a line that is far beyond the last row of a valid file.

    Args:
        path: The file.
        expected: The rows of the data set. None checks for the official test split by what is known without its
            files: 894 rows, so many of each collection in any order; five distinct candidates of a tile kernel, or all
            of 0..k-1 for k < 5, as a kernel may have so few; a permutation of 1,000 or 1,001 candidates of a layout
            graph.
    """
    rules = OfficialRules() if expected is None else ExactRules(expected)
    return _read(path, rules)[1].all()


def read_submission(path: Path | str, expected: Sequence[ExpectedRow]) -> dict[str, np.ndarray]:
    """The rankings of a file without violations, by ID; raises with all of them otherwise."""
    rankings, faults = _read(path, ExactRules(expected))
    faults.raise_if_any(f"{path}: not a valid submission")
    return rankings


def _read(path: Path | str, rules: Rules) -> tuple[dict[str, np.ndarray], Faults]:
    reader = _Reader(rules)
    try:
        with open(path, "rb") as file:
            for number, (raw, length) in enumerate(_bounded_lines(file, reader.max_bytes), start=1):
                if number > reader.max_lines:
                    reader.refuse_rest(number)
                    break
                reader.take_line(number, raw, length)
    except OSError as fault:
        raise SubmissionError(f"{path}: cannot be read ({fault.strerror}); give the path of a csv file") from None
    reader.finish()
    return reader.rankings, reader.faults


class _Reader:
    """Takes the lines of a file one by one, and keeps the valid rows and all violations."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._lines: dict[str, int] = {}  # where each ID was first seen
        self._num_lines = 0
        self._is_whole = True
        self.max_bytes = _SPARE_BYTES + rules.max_row_bytes
        self.max_lines = _SPARE_LINES + 2 * rules.num_rows
        self.rankings: dict[str, np.ndarray] = {}
        self.faults = Faults()

    def take_line(self, number: int, raw: bytes, length: int) -> None:
        """Checks one line; `raw` is only its beginning if its `length` is more than `max_bytes`."""
        self._num_lines = number
        if number == 1 and raw.startswith(b"\xef\xbb\xbf"):
            self.faults.add_once("bom", 1, "a byte order mark", "the file to begin with its header")
            raw = raw[3:]
        raw = raw.removesuffix(b"\n")
        if raw.endswith(b"\r"):
            self.faults.add_once("line_end", number, "CRLF line ends", "LF line ends")
            raw = raw.removesuffix(b"\r")
        try:
            text = raw.decode("utf-8", errors="strict" if length <= self.max_bytes else "replace")
        except UnicodeDecodeError as fault:
            self._take_undecodable(number, raw, fault)
            return
        fields = _split_fields(text)
        if number == 1:
            if fields == HEADER.split(","):
                return
            self.faults.add("header", None, 1, shorten(text), HEADER)
            if self._find_rule(fields[0]) is None:
                return
        self._take_row(number, fields, text, length)

    def refuse_rest(self, number: int) -> None:
        """Says that the file has too many lines: what is missing in it, or how many rows it has, is then not known."""
        self._is_whole = False
        self.faults.add("lines", None, number, "too many lines, not read from here on", f"{self._rules.num_rows} rows")

    def finish(self) -> None:
        """Adds what can only be known at the end of the file."""
        if not self._num_lines:
            self.faults.add(
                "empty", None, None, "an empty file", f"the header {HEADER} and {self._rules.num_rows} rows"
            )
        first = self.faults.first("foreign")
        if self._lines or first is None:
            if self._is_whole:
                self._rules.finish(self.faults)
            return
        rows = f"none of {self.faults.count('foreign')} rows has a known ID, the first has {first.found}"
        found = f"{self._rules.usual_cause}: {rows}"
        self.faults.replace("foreign", Violation("no_match", None, first.line, found, self._rules.id_form))

    def _take_undecodable(self, number: int, raw: bytes, fault: UnicodeDecodeError) -> None:
        """Reports a line that is not UTF-8, and counts its row if the ID is readable."""
        rule = self._find_rule(_split_fields(raw.decode("utf-8", errors="replace"))[0])
        row_id = None if rule is None else rule.id
        self.faults.add("encoding", row_id, number, f"byte {raw[fault.start]:#04x} at {fault.start}", "UTF-8 text")
        if row_id is not None:
            self._take_id(number, row_id)

    def _take_row(self, number: int, fields: list[str], text: str, length: int) -> None:
        if not text.strip():
            self.faults.add("blank", None, number, "a blank line", "an ID and its candidates")
        elif len(fields) != 2:
            self.faults.add("fields", None, number, shorten(text), "two fields, ID and TopConfigs")
        elif rule := self._take_id(number, fields[0]):
            if length > self.max_bytes:
                self.faults.add("too_long", rule.id, number, f"a row of {length} bytes", rule.expected_count)
            else:
                self._take_candidates(rule, number, fields[1])

    def _find_rule(self, field: str) -> RowRule | None:
        """The rule for the row of that ID, also if the field has spaces around the ID."""
        return self._rules.find(field) or self._rules.find(field.strip())

    def _take_id(self, number: int, field: str) -> RowRule | None:
        """The rule to check the row by; None if the ID already says all that is wrong."""
        rule = self._find_rule(field)
        if rule is None:
            self.faults.add("foreign", None, number, f"the ID {shorten(field)}", self._rules.id_form)
            return None
        if rule.id != field:
            self.faults.add("spaces", rule.id, number, f"spaces around the ID: {shorten(field)}", "no spaces")
        if rule.id in self._lines:
            first = self._lines[rule.id]
            self.faults.add("duplicate", rule.id, number, f"the ID again, first on line {first}", "each ID once")
            return None
        self._rules.count(rule.id, number, self.faults)
        self._lines[rule.id] = number
        return rule

    def _take_candidates(self, rule: RowRule, number: int, text: str) -> None:
        tokens = text.split(";")
        for token in tokens:
            if not _INTEGER.fullmatch(token):
                found = f"{shorten(token)} among the candidates" if text else "no candidates"
                self.faults.add("not_integer", rule.id, number, found, "integers joined by ';'")
                return
        # More digits than int64 holds, or than Python converts at all, are out of range: -1 is reported as such.
        indices = np.array([int(token) if len(token) <= _MAX_DIGITS else -1 for token in tokens], np.int64)
        if rule.check(indices, tokens, number, self.faults):
            self.rankings[rule.id] = indices


def _bounded_lines(file: IO[bytes], max_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Yields (line, its whole length); of a line longer than `max_bytes` only the beginning is kept."""
    while line := file.readline(max_bytes + 1):
        length, tail = len(line), line
        while len(line) > max_bytes and tail and not tail.endswith(b"\n"):
            tail = file.readline(1 << 20)
            length += len(tail)
        yield line, length


def _split_fields(text: str) -> list[str]:
    """The fields of a line, without quotes around them; a third one holds all that is too much."""
    return [_unquote(field) for field in text.split(",", 2)]


def _unquote(field: str) -> str:
    return field[1:-1] if len(field) >= 2 and field[0] == field[-1] == '"' else field

"""Checks a contest csv and lists its violations, with or without the data set.

The same reader is used in both cases; `submission_rules` has the rows that a file must have.

The reader splits lines itself, in five lines of code, instead of using the csv module. For a row of 100 MB `csv.reader`
needs 637 MB of memory, and this reader 3 MB. `csv.reader` refuses fields of more than 131,072 characters, a limit of
the whole process, but a layout row of 100,040 candidates has 589,169. After a quote that is never closed it reads all
remaining lines as one field, so that their violations and line numbers are lost, and it accepts such a quote on the
last line.
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
_SPARE_BYTES = 4096  # a row that exceeds the longest valid row by more than this is measured, not parsed
_SPARE_LINES = 1000  # lines that are read beyond twice the rows of a valid file; a hostile file may have millions
_INTEGER = re.compile(r"-?[0-9]+")
_MAX_DIGITS = 18  # int64 can represent every integer of that many characters


def check_submission(path: Path | str, expected: Sequence[ExpectedRow] | None = None) -> list[Violation]:
    """The violations of a file, in the order of the file; at most 100, then one of kind "more" with the number left.

    CRLF line ends, a byte order mark and rows in another order are violations too, each reported once; csv readers
    often accept them. A missing last newline and quotes around a field are accepted. Memory and time are bounded: a row
    that is too long to be valid is measured, not parsed, and the check ends at a line far beyond the last row of a
    valid file.

    Args:
      path: the file.
      expected: the rows of the data set. None checks what is known about the official test split without its files:
        894 rows, with the official number per collection, in any order; for a tile kernel five distinct candidates, or
        all of 0..k-1 if it has k < 5; for a layout graph a permutation of 1,000 or 1,001 candidates.
    """
    rules = OfficialRules() if expected is None else ExactRules(expected)
    return _read(path, rules)[1].all()


def read_submission(path: Path | str, expected: Sequence[ExpectedRow]) -> dict[str, np.ndarray]:
    """The rankings of a file, by ID; SubmissionError with all violations if there are any."""
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
    """Collects valid rows and violations, line by line."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._lines: dict[str, int] = {}  # ID -> line of its first row
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
        """Reports that the file has too many lines; missing rows and numbers of rows are then not reported."""
        self._is_whole = False
        self.faults.add("lines", None, number, "too many lines, not read from here on", f"{self._rules.num_rows} rows")

    def finish(self) -> None:
        """Adds the violations that are known only at the end of the file."""
        if not self._num_lines:
            self.faults.add(
                "empty", None, None, "an empty file", f"the header {HEADER} and {self._rules.num_rows} rows"
            )
        num_foreign, first = self.faults.of_kind("foreign")
        if self._lines or first is None:
            if self._is_whole:
                self._rules.finish(self.faults)
            return
        rows = f"none of {num_foreign} rows has a known ID, the first has {first.found}"
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
        """The rule for the row's candidates; None if the ID is unknown or repeated, which is reported."""
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
        # A number with too many digits for int64, or for Python's int(), becomes -1 and is reported as out of range.
        indices = np.array([int(token) if len(token) <= _MAX_DIGITS else -1 for token in tokens], np.int64)
        if rule.check(indices, tokens, number, self.faults):
            self.rankings[rule.id] = indices


def _bounded_lines(file: IO[bytes], max_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Pairs of a line and its full length; a line longer than `max_bytes` is cut."""
    while line := file.readline(max_bytes + 1):
        length, tail = len(line), line
        while len(line) > max_bytes and tail and not tail.endswith(b"\n"):
            tail = file.readline(1 << 20)
            length += len(tail)
        yield line, length


def _split_fields(text: str) -> list[str]:
    """The fields of a line, without quotes around them; a third field contains everything after the second comma."""
    return [_unquote(field) for field in text.split(",", 2)]


def _unquote(field: str) -> str:
    return field[1:-1] if len(field) >= 2 and field[0] == field[-1] == '"' else field

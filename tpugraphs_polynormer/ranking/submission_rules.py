"""The rules for the rows of a contest csv, and the violations of them.

With the data set the rows are known exactly: `ExactRules` has one `ExpectedRow` per test graph. Without it,
`OfficialRules` checks the official number of graphs per collection and the contest's rules for rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.catalog import COLLECTIONS, LAYOUT_TEST_CANDIDATES, NUM_TEST_GRAPHS, TILE_TOP, Collection
from tpugraphs_polynormer.errors import UserError

MAX_SHOWN = 100  # violations that are listed; the rest is counted
_MAX_NAME = 255  # characters of a graph's name, the limit of common file systems

# For each kind of collection, a mapping and its description for messages. The mapping is from each allowed number of
# listed candidates to the number of candidates that the graph then has (None: unknown). A tile kernel may have fewer
# than five candidates; its row lists all of them.
_OFFICIAL_ROWS: dict[str, tuple[Mapping[int, int | None], str]] = {
    "tile": (
        {num: num for num in range(1, TILE_TOP)} | {TILE_TOP: None},
        f"{TILE_TOP} candidates, or fewer if the kernel has fewer",
    ),
    "layout": (
        {num: num for num in LAYOUT_TEST_CANDIDATES},
        f"{' or '.join(map(str, LAYOUT_TEST_CANDIDATES))} candidates",
    ),
}


class SubmissionError(UserError):
    """A submission, or the predictions or archives for it, cannot be used."""


@dataclass(frozen=True)
class ExpectedRow:
    """One row that the submission must have."""

    id: str
    num_candidates: int

    @property
    def collection(self) -> Collection:
        """The collection with which the id begins."""
        collection = _find_collection(self.id)
        if collection is None:
            raise SubmissionError(f"id {self.id!r} begins with none of {', '.join(COLLECTIONS)}")
        return collection

    @property
    def graph(self) -> str:
        """The graph's name: the id without the collection."""
        return self.id.removeprefix(f"{self.collection.id}:")

    @property
    def num_listed(self) -> int:
        """The number of candidates that the row lists."""
        return min(TILE_TOP, self.num_candidates) if self.collection.kind == "tile" else self.num_candidates

    @property
    def rule(self) -> RowRule:
        """The rule for the row's candidates."""
        return RowRule(self.id, {self.num_listed: self.num_candidates}, f"{self.num_listed} candidates")


@dataclass(frozen=True)
class Violation:
    """One violation in a submission.

    `line` counts from 1; `id` is that of the row, or of a collection with the wrong number of rows. Both are None if
    they do not apply.
    """

    kind: str
    id: str | None
    line: int | None
    found: str
    expected: str

    def __str__(self) -> str:
        place = [f"line {self.line}"] if self.line is not None else []
        place += [self.id] if self.id is not None else []
        return ": ".join([*place, f"found {self.found}, expected {self.expected}"])


class Faults:
    """The violations found so far; of each kind the first MAX_SHOWN are kept, the others are counted."""

    def __init__(self) -> None:
        self._kept: list[Violation] = []
        self._counts: Counter[str] = Counter()

    def add(self, kind: str, row_id: str | None, line: int | None, found: str, expected: str) -> None:
        """Adds one violation."""
        self._counts[kind] += 1
        if self._counts[kind] <= MAX_SHOWN:
            self._kept.append(Violation(kind, row_id, line, found, expected))

    def add_once(self, kind: str, line: int | None, found: str, expected: str) -> None:
        """Adds a violation of the whole file, unless one of its kind was added before."""
        if not self._counts[kind]:
            self.add(kind, None, line, found, expected)

    def of_kind(self, kind: str) -> tuple[int, Violation | None]:
        """The number of violations of a kind, and the first of them, or None."""
        return self._counts[kind], next((each for each in self._kept if each.kind == kind), None)

    def replace(self, kind: str, summary: Violation) -> None:
        """Replaces all violations of a kind by one, which becomes the first in the list."""
        self._kept = [summary, *(violation for violation in self._kept if violation.kind != kind)]
        del self._counts[kind]
        self._counts[summary.kind] += 1

    def all(self) -> list[Violation]:
        """The first MAX_SHOWN violations, then one of kind "more" with the number left, if any."""
        shown = self._kept[:MAX_SHOWN]
        num_more = self._counts.total() - len(shown)
        more = Violation("more", None, None, f"{num_more} more violations", "none")
        return [*shown, more] if num_more else shown

    def raise_if_any(self, what: str) -> None:
        """Raises a SubmissionError that lists the violations below the line `what`."""
        if self._kept:
            raise SubmissionError("\n  ".join([what, *map(str, self.all())]))


@dataclass(frozen=True)
class RowRule:
    """The candidates that one row may list.

    `sizes` maps each allowed number of listed candidates to the number of candidates that the graph then has, None if
    unknown. `expected_count` describes the allowed numbers in messages.
    """

    id: str
    sizes: Mapping[int, int | None]
    expected_count: str

    def check(self, indices: np.ndarray, shown: Sequence, line: int | None, faults: Faults) -> bool:
        """Whether the row lists an allowed number of candidates of its graph, each once.

        Violations are added to `faults`; `shown` are the indices as the user wrote them.
        """
        num_listed = len(indices)
        is_right = num_listed in self.sizes
        if not is_right:
            faults.add("count", self.id, line, f"{num_listed} candidates", self.expected_count)
        size = self.sizes[num_listed if is_right else max(self.sizes)]
        is_outside = indices < 0 if size is None else (indices < 0) | (indices >= size)
        if is_outside.any():
            if size is None:
                expected = "candidates from 0 up"
            elif is_right and len(self.sizes) > 1:
                expected = f"{self.expected_count}; a row of {num_listed} lists all of 0..{size - 1}"
            else:
                expected = f"candidates in 0..{size - 1}"
            faults.add("range", self.id, line, f"candidate {shorten(str(shown[is_outside.argmax()]))}", expected)
            return False
        ordered = np.sort(indices)
        repeated = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(repeated):
            faults.add("repeat", self.id, line, f"candidate {repeated[0]} more than once", "each candidate once")
            is_right = False
        return is_right


class ExactRules:
    """Rules that require one row for each test graph of a data set, in its order.

    As those of `OfficialRules`, its methods find the rule of an ID (None: no row may have it), count a row whose ID is
    allowed and new, and add the violations that are known only at the end of the file. `max_row_bytes` is the length of
    the longest valid row; `id_form` and `usual_cause` say what an ID must be, and why all can be wrong.
    """

    usual_cause = "the file of another data set, or --archives names the wrong folder"

    def __init__(self, expected: Sequence[ExpectedRow]) -> None:
        self.num_rows = len(expected)
        self.max_row_bytes = max(map(_row_bytes, expected), default=0)
        self.id_form = f"the ID of a test graph, such as {expected[0].id}" if expected else "no rows"
        self._rules = {row.id: row.rule for row in expected}
        self._positions = {row.id: position for position, row in enumerate(expected)}
        self._seen: set[str] = set()
        self._last_id: str | None = None

    def find(self, row_id: str) -> RowRule | None:
        return self._rules.get(row_id)

    def count(self, row_id: str, line: int, faults: Faults) -> None:
        if self._last_id is not None and self._positions[row_id] < self._positions[self._last_id]:
            faults.add_once("order", line, f"{row_id} after {self._last_id}", "rows in the data set's order")
        self._seen.add(row_id)
        self._last_id = row_id

    def finish(self, faults: Faults) -> None:
        for row_id in self._rules:
            if row_id not in self._seen:
                faults.add("missing", row_id, None, "no row", "one row for every test graph")


class OfficialRules:
    """Rules that require, for each collection, the official number of test graphs, with any names and order."""

    num_rows = NUM_TEST_GRAPHS
    max_row_bytes = _MAX_NAME + max(LAYOUT_TEST_CANDIDATES) * len("1000;")
    id_form = f"COLLECTION:GRAPH with one of {', '.join(COLLECTIONS)} and a printable name without spaces and quotes"
    usual_cause = "a file that is no submission to this contest"

    def __init__(self) -> None:
        self._num_seen = dict.fromkeys(COLLECTIONS, 0)

    def find(self, row_id: str) -> RowRule | None:
        collection = _find_collection(row_id)
        if collection is None or not _is_graph_name(row_id.removeprefix(f"{collection.id}:")):
            return None
        return RowRule(row_id, *_OFFICIAL_ROWS[collection.kind])

    def count(self, row_id: str, line: int, faults: Faults) -> None:
        for name in self._num_seen:
            self._num_seen[name] += row_id.startswith(f"{name}:")

    def finish(self, faults: Faults) -> None:
        for name, num_seen in self._num_seen.items():
            num_graphs = COLLECTIONS[name].num_test_graphs
            if num_seen != num_graphs:
                found = "1 row" if num_seen == 1 else f"{num_seen} rows"
                faults.add("rows", name, None, found, f"{num_graphs} rows")


Rules = ExactRules | OfficialRules


def _find_collection(row_id: str) -> Collection | None:
    """The collection with which an id begins, or None."""
    return next((each for each in COLLECTIONS.values() if row_id.startswith(f"{each.id}:")), None)


def _is_graph_name(text: str) -> bool:
    """Whether a graph can have this name; the official names are not known without the data."""
    return 0 < len(text) <= _MAX_NAME and text.isprintable() and not set(text) & set(' ,"')


def _row_bytes(row: ExpectedRow) -> int:
    """An upper bound of the row's length in bytes."""
    return len(row.id.encode()) + row.num_listed * (len(str(row.num_candidates)) + 1)


def shorten(text: str, width: int = 60) -> str:
    """A text from a file for a message: quoted, control characters escaped, cut after `width` characters."""
    return repr(text) if len(text) <= width else f"{text[:width]!r}..."

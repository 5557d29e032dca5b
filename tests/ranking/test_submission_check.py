"""The check without the data set: valid files, every kind of violation, other csv files, and random bytes."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.ranking.submission_check import check_submission
from tpugraphs_polynormer.ranking.submission_rules import MAX_SHOWN, SubmissionError, Violation


def make_lines() -> list[str]:
    """The header and 894 valid rows, in the order of the catalog."""
    rng, lines = np.random.default_rng(0), ["ID,TopConfigs"]
    for collection in COLLECTIONS.values():
        for graph in range(collection.num_graphs[2]):
            indices = rng.permutation(1000)[:5] if collection.kind == "tile" else rng.permutation(1000 + graph % 2)
            lines.append(f"{collection.id}:{rng.bytes(16).hex()},{';'.join(map(str, indices))}")
    return lines


LINES = make_lines()
TILE, LAYOUT = 1, 845  # positions of the first tile row and the first layout row; line numbers are one more
TILE_ID, LAYOUT_ID = (LINES[position].split(",")[0] for position in (TILE, LAYOUT))


def join(indices: Iterable[int]) -> str:
    """The text of a list of candidates in a row."""
    return ";".join(map(str, indices))


def check(path: Path, lines: list[str] | bytes) -> list[Violation]:
    """The violations of a file with these lines."""
    path.write_bytes(lines if isinstance(lines, bytes) else ("\n".join(lines) + "\n").encode())
    return check_submission(path)


def changed(position: int, *lines: str) -> list[str]:
    """The valid file with one line replaced."""
    return [*LINES[:position], *lines, *LINES[position + 1 :]]


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return tmp_path / "submission.csv"


def test_a_valid_file_has_894_rows_in_any_order(csv: Path) -> None:
    assert len(LINES) == 1 + 894
    assert check(csv, LINES) == []
    assert check(csv, [LINES[0], *reversed(LINES[1:])]) == []


def test_quoted_fields_and_no_last_newline_are_fine(csv: Path) -> None:
    assert check(csv, "\n".join(LINES).encode()) == []
    assert check(csv, [",".join(f'"{field}"' for field in line.split(",")) for line in LINES]) == []


@pytest.mark.parametrize(
    "name", ["conv.1", "unet_3d.4x4.bf16", "retinanet.2x2.fp32_-342c949e14733d96", "größe", "x" * 255]
)
def test_graphs_may_have_other_names_than_hashes(csv: Path, name: str) -> None:
    assert check(csv, changed(TILE, f"tile:xla:{name},4;3;2;1;0")) == []


@pytest.mark.parametrize("indices", ["0", "1;0", "2;0;1", "3;1;0;2", "9899;0;1;2;3", "0;1;2;3;123456789012345678"])
def test_tile_rows_list_five_or_all_of_a_small_kernel(csv: Path, indices: str) -> None:
    assert check(csv, changed(TILE, f"{TILE_ID},{indices}")) == []


@pytest.mark.parametrize("num_candidates", [1000, 1001])
def test_layout_rows_are_permutations(csv: Path, num_candidates: int) -> None:
    assert check(csv, changed(LAYOUT, f"{LAYOUT_ID},{join(reversed(range(num_candidates)))}")) == []


@pytest.mark.parametrize(
    ("indices", "kind", "found", "expected"),
    [
        ("5;0;1;2;3;4", "count", "6 candidates", "5 candidates, or fewer if the kernel has fewer"),
        (
            "5;0;1",
            "range",
            "candidate '5'",
            "5 candidates, or fewer if the kernel has fewer; a row of 3 lists all of 0..2",
        ),
        ("1", "range", "candidate '1'", "a row of 1 lists all of 0..0"),
        ("1;1;0", "repeat", "candidate 1 more than once", "each candidate once"),
        ("7;0;1;2;7", "repeat", "candidate 7 more than once", "each candidate once"),
        ("7;0;1;2;-3", "range", "candidate '-3'", "candidates from 0 up"),
        (f"7;0;1;2;{'9' * 19}", "range", "candidate '999", "candidates from 0 up"),
        (f"7;0;1;2;{'9' * 5000}", "range", "9'...", "candidates from 0 up"),
        ("7;0;1;2; 3", "not_integer", "' 3' among", "integers joined by ';'"),
        (" 7;0;1;2;3", "not_integer", "' 7' among", "integers joined by ';'"),
        ("7;0;1;2;3 ", "not_integer", "'3 ' among", "integers joined by ';'"),
        ("7 0 1 2 3", "not_integer", "'7 0 1 2 3' among", "integers joined by ';'"),
        ("7;0;1;2;3;", "not_integer", "''", "integers joined by ';'"),
        ("7.0;0;1;2;3", "not_integer", "'7.0'", "integers joined by ';'"),
        ("7;0;1;2;3\0", "not_integer", r"'3\x00'", "integers joined by ';'"),
        ('"7;0;1;2;3', "not_integer", "'\"7'", "integers joined by ';'"),
        ("", "not_integer", "no candidates", "integers joined by ';'"),
        (join(range(9900)), "too_long", "bytes", "5 candidates, or fewer if the kernel has fewer"),
    ],
)
def test_violations_of_tile_rows(csv: Path, indices: str, kind: str, found: str, expected: str) -> None:
    (violation,) = check(csv, changed(TILE, f"{TILE_ID},{indices}"))
    assert (violation.kind, violation.id, violation.line) == (kind, TILE_ID, TILE + 1)
    assert found in violation.found and expected in violation.expected
    assert str(violation).startswith(f"line 2: {TILE_ID}: found ")


@pytest.mark.parametrize(
    ("indices", "kinds", "expected"),
    [
        (range(999), ["count"], "1000 or 1001 candidates"),
        (range(1002), ["count", "range"], "1000 or 1001 candidates"),
        (range(5), ["count"], "1000 or 1001 candidates"),
        (range(1, 1001), ["range"], "a row of 1000 lists all of 0..999"),
        ([*range(1000), 1001], ["range"], "a row of 1001 lists all of 0..1000"),
        ([*range(999), 0], ["repeat"], "each candidate once"),
    ],
)
def test_violations_of_layout_rows(csv: Path, indices: Iterable[int], kinds: list[str], expected: str) -> None:
    violations = check(csv, changed(LAYOUT, f"{LAYOUT_ID},{join(indices)}"))
    assert [violation.kind for violation in violations] == kinds
    assert {(violation.id, violation.line) for violation in violations} == {(LAYOUT_ID, LAYOUT + 1)}
    assert expected in violations[0].expected


@pytest.mark.parametrize(
    ("lines", "collection", "found", "expected"),
    [
        (LINES[:-1], "layout:nlp:random", "16 rows", "17 rows"),
        ([*LINES, f"layout:nlp:random:more,{join(range(1000))}"], "layout:nlp:random", "18 rows", "17 rows"),
        (changed(TILE), "tile:xla", "843 rows", "844 rows"),
        ([*LINES, "tile:xla:more,0;1;2;3;4"], "tile:xla", "845 rows", "844 rows"),
        (changed(LAYOUT), "layout:xla:default", "7 rows", "8 rows"),
        (LINES[:1] + LINES[LAYOUT:], "tile:xla", "0 rows", "844 rows"),
    ],
)
def test_each_collection_has_its_number_of_rows(
    csv: Path, lines: list[str], collection: str, found: str, expected: str
) -> None:
    assert check(csv, lines) == [Violation("rows", collection, None, found, expected)]


def test_a_row_in_the_wrong_collection_is_wrong_in_both(csv: Path) -> None:
    violations = check(csv, changed(TILE, f"layout:xla:random:moved,{join(range(1000))}"))
    assert [(violation.id, violation.found) for violation in violations] == [
        ("tile:xla", "843 rows"),
        ("layout:xla:random", "9 rows"),
    ]


@pytest.mark.parametrize(
    "row_id",
    [
        "tile:gpu:x",
        "TILE:xla:x",
        "layout:xla:x",
        "tile:xla:",
        "tile:xla",
        "23559853d9702baaaacbb0c83fd32266",
        "tile:xla:a b",
        "tile:xla:a\tb",
        'tile:xla:a"b',
        "tile:xla:a\0b",
        "tile:xla:a\x1b[31m",
        "tile:xla:" + "x" * 256,
        "",
    ],
)
def test_malformed_ids(csv: Path, row_id: str) -> None:
    malformed, short = check(csv, changed(TILE, f"{row_id},4;3;2;1;0"))
    assert (malformed.kind, malformed.id, malformed.line) == ("foreign", None, 2)
    assert repr(row_id)[:60] in malformed.found and "COLLECTION:GRAPH" in malformed.expected
    assert str(malformed).isprintable()
    assert (short.kind, short.id, short.found) == ("rows", "tile:xla", "843 rows")


@pytest.mark.parametrize(
    ("lines", "kind", "row_id", "line", "found"),
    [
        ([*LINES, LINES[LAYOUT]], "duplicate", LAYOUT_ID, 896, "first on line 846"),
        (changed(TILE, f"{TILE_ID} ,4;3;2;1;0"), "spaces", TILE_ID, 2, f"'{TILE_ID} '"),
        (changed(TILE, f"\t{TILE_ID},4;3;2;1;0"), "spaces", TILE_ID, 2, rf"'\t{TILE_ID}'"),
        ([*LINES, ""], "blank", None, 896, "a blank line"),
        ([*LINES, TILE_ID], "fields", None, 896, repr(TILE_ID)),
        ([*LINES, f"{TILE_ID},0,1"], "fields", None, 896, "0,1"),
        (changed(0, "ID, TopConfigs"), "header", None, 1, "'ID, TopConfigs'"),
        (changed(0, "ID;TopConfigs"), "header", None, 1, "'ID;TopConfigs'"),
        (changed(0), "header", None, 1, TILE_ID),
    ],
)
def test_other_violations(csv: Path, lines: list[str], kind: str, row_id: str | None, line: int, found: str) -> None:
    (violation,) = check(csv, lines)
    assert (violation.kind, violation.id, violation.line) == (kind, row_id, line)
    assert found in violation.found


@pytest.mark.parametrize(
    ("data", "kind", "line", "row_id"),
    [
        ("\r\n".join(LINES).encode(), "line_end", 1, None),
        (b"\xef\xbb\xbf" + "\n".join(LINES).encode(), "bom", 1, None),
        ("\n".join(changed(TILE, f"{TILE_ID},4;3;2;1;0\xa0")).encode("latin-1"), "encoding", 2, TILE_ID),
    ],
    ids=["CRLF", "byte order mark", "latin-1"],
)
def test_bytes_that_are_no_plain_text(csv: Path, data: bytes, kind: str, line: int, row_id: str | None) -> None:
    (violation,) = check(csv, data)
    assert (violation.kind, violation.line, violation.id) == (kind, line, row_id)


def test_a_spreadsheet_with_everything_at_once(csv: Path) -> None:
    """Byte order mark, CRLF, quotes and spaces are each reported, and the rows are still read."""
    lines = ['"ID","TopConfigs"', *('"{}", "{}"'.format(*line.split(",")) for line in LINES[1:3]), *LINES[3:]]
    violations = check(csv, b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert [violation.kind for violation in violations] == ["bom", "line_end", "not_integer", "not_integer"]


@pytest.mark.parametrize(
    ("data", "kinds"),
    [
        (b"", ["empty"] + ["rows"] * 5),
        (b"ID,TopConfigs\n", ["rows"] * 5),
        (b"\0" * 20_000, ["header"] + ["rows"] * 5),
        ("\r".join(LINES).encode(), ["header"] + ["rows"] * 5),
        (b'ID,TopConfigs\n"tile:xla:x,0\n' + b"\n" * 3, ["no_match"] + ["blank"] * 3),
    ],
    ids=["empty", "header only", "NUL bytes", "CR line ends", "a quote left open"],
)
def test_files_that_are_no_submission(csv: Path, data: bytes, kinds: list[str]) -> None:
    assert [violation.kind for violation in check(csv, data)] == kinds


def test_a_file_of_another_contest_is_one_violation(csv: Path) -> None:
    (violation,) = check(csv, ["ID,TopConfigs", *(f"{number},1" for number in range(300))])
    assert (violation.kind, violation.line) == ("no_match", 2)
    assert "none of 300 rows has a known ID, the first has the ID '0'" in str(violation)


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere.csv"):
        with pytest.raises(SubmissionError, match="cannot be read"):
            check_submission(path)


def test_a_hundred_are_shown_in_the_order_of_the_file(csv: Path) -> None:
    violations = check(csv, [LINES[0], *(f"{line};x" for line in LINES[1:])])
    assert [violation.line for violation in violations[:-1]] == list(range(2, MAX_SHOWN + 2))
    assert violations[-1].kind == "more" and violations[-1].found == "794 more violations"


@pytest.mark.parametrize(
    "data",
    [
        b"tile:xla:x," + b"1;" * 10_000_000,
        b'"' * 20_000_000,
        b"\0" * 20_000_000,
        b"".join(b"tile:xla:%d,0;1;2;3;4\n" % number for number in range(40_000)),
    ],
    ids=["long row", "quotes", "NUL bytes", "many IDs"],
)
def test_memory_is_bounded(csv: Path, data: bytes) -> None:
    csv.write_bytes(b"ID,TopConfigs\n" + data)
    tracemalloc.start()
    violations = check_submission(csv)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert violations
    assert peak < 4 << 20


def test_a_file_of_millions_of_lines_is_answered_at_once(csv: Path) -> None:
    """The check ends at a line that no valid file has; rows after it are not reported as missing."""
    lines = [LINES[0], *(f"tile:xla:{number},0;1;2;3;4" for number in range(894 * 2 + 999))]
    kinds = [violation.kind for violation in check(csv, lines)]
    assert kinds == ["rows"] * 5  # this many lines are read to the end
    (violation,) = check(csv, [*lines, *["tile:xla:more,0;1;2;3;4"] * 1_000_000])
    assert (violation.kind, violation.line) == ("lines", 2789)
    assert str(violation) == "line 2789: found too many lines, not read from here on, expected 894 rows"
    start = time.monotonic()
    check_submission(csv)
    assert time.monotonic() - start < 2
    kinds = [violation.kind for violation in check(csv, [LINES[0], *["a,1"] * 1_000_000])]
    assert kinds == ["no_match", "lines"]


PIECES = st.sampled_from(
    [
        "ID,TopConfigs",
        *COLLECTIONS,
        ":",
        "x",
        ",",
        ";",
        '"',
        "0",
        "1",
        "-",
        "9" * 30,
        " ",
        "\r",
        "\n",
        "\0",
        "\ufeff",
        "é",
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(st.one_of(st.binary(max_size=300), st.lists(PIECES, max_size=60).map(lambda pieces: "".join(pieces).encode())))
def test_no_bytes_raise(csv: Path, data: bytes) -> None:
    """A small file is never valid: it has violations, each of one line of text."""
    violations = check(csv, data)
    assert violations
    assert all("\n" not in str(violation) for violation in violations)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(st.data())
def test_random_damage_is_found_or_harmless(csv: Path, data: st.DataObject) -> None:
    """A valid file with replaced bytes is refused, or a second implementation of the rules accepts it too."""
    whole = ("\n".join(LINES) + "\n").encode()
    start = data.draw(st.integers(0, len(whole) - 2))
    stop = data.draw(st.integers(start + 1, min(start + 400, len(whole) - 1)))
    damaged = whole[:start] + data.draw(st.binary(max_size=3)) + whole[stop:]
    if check(csv, damaged):
        return
    rows = [line.replace('"', "").split(",") for line in damaged.decode().splitlines()[1:]]
    assert len({row_id for row_id, _ in rows}) == len(rows) == 894
    for row_id, candidates in rows:
        indices = sorted(map(int, candidates.split(";")))
        assert len(set(indices)) == len(indices)
        if row_id.startswith("layout"):
            assert indices in ([*range(1000)], [*range(1001)])
        else:
            assert len(indices) == 5 or indices == [*range(len(indices))]

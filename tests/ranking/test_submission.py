"""Submissions: expected rows, writing, every kind of violation, random damage and scores."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpugraphs_polynormer.ranking.metrics import MetricError
from tpugraphs_polynormer.ranking.submission import (
    expected_rows,
    prediction_path,
    read_prediction,
    read_rankings,
    score_submission,
    write_prediction,
    write_submission,
)
from tpugraphs_polynormer.ranking.submission_check import check_submission, read_submission
from tpugraphs_polynormer.ranking.submission_rules import MAX_SHOWN, ExpectedRow, SubmissionError

EXPECTED = [
    ExpectedRow("tile:xla:conv.1", 7),
    ExpectedRow("tile:xla:small", 3),
    ExpectedRow("layout:xla:default:net", 4),
    ExpectedRow("layout:nlp:random:bert", 3),
]
LINES = [
    "ID,TopConfigs",
    "tile:xla:conv.1,6;0;5;1;2",
    "tile:xla:small,2;1;0",
    "layout:xla:default:net,3;0;2;1",
    "layout:nlp:random:bert,0;2;1",
]
RANKINGS = {
    "layout:xla:default:net": np.array([3, 0, 2, 1]),
    "tile:xla:conv.1": np.array([6, 0, 5, 1, 2, 4, 3]),
    "layout:nlp:random:bert": np.array([0, 2, 1]),
    "tile:xla:small": np.array([2, 1, 0]),
}


@pytest.fixture
def csv(tmp_path):
    return tmp_path / "submission.csv"


def _check(csv, lines):
    data = lines if isinstance(lines, bytes) else ("\n".join(lines) + "\n").encode()
    csv.write_bytes(data)
    return check_submission(csv, EXPECTED)


def _write_archive(path, runtimes, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, config_runtime=np.array(runtimes, np.int64), **arrays)


def test_written_file_byte_for_byte(csv):
    write_submission(csv, RANKINGS, EXPECTED)
    assert csv.read_bytes() == ("\n".join(LINES) + "\n").encode()
    assert [path.name for path in csv.parent.iterdir()] == [csv.name]
    assert check_submission(csv, EXPECTED) == []
    np.testing.assert_array_equal(read_submission(csv, EXPECTED)["tile:xla:conv.1"], [6, 0, 5, 1, 2])


@pytest.mark.parametrize(
    "data",
    [
        "\n".join(LINES).encode(),  # no last newline
        "\n".join(",".join(f'"{field}"' for field in line.split(",")) for line in LINES).encode(),  # quoted
    ],
)
def test_harmless_variants_pass(csv, data):
    assert _check(csv, data) == []


@pytest.mark.parametrize(
    ("change", "kind", "row_id", "line", "found", "expected"),
    [
        ({2: None}, "missing", "tile:xla:small", None, "no row", "one row for every"),
        ({2: LINES[1]}, "duplicate", "tile:xla:conv.1", 3, "first on line 2", "each ID once"),
        ({5: "tile:xla:other,0;1"}, "foreign", None, 6, "'tile:xla:other'", "the ID of a test graph"),
        ({3: "layout:xla:default:net,3;0;2"}, "count", "layout:xla:default:net", 4, "3 cand", "4 candidates"),
        ({3: "layout:xla:default:net,3;0;2;4"}, "range", "layout:xla:default:net", 4, "'4'", "0..3"),
        ({3: "layout:xla:default:net,3;0;2;-1"}, "range", "layout:xla:default:net", 4, "'-1'", "0..3"),
        ({3: f"layout:xla:default:net,3;0;2;{'9' * 3000}"}, "range", "layout:xla:default:net", 4, "9'...", "0..3"),
        ({3: "layout:xla:default:net,3;0;2;2"}, "repeat", "layout:xla:default:net", 4, "candidate 2", "once"),
        ({1: "tile:xla:conv.1,6;0;5;1"}, "count", "tile:xla:conv.1", 2, "4 candidates", "5 candidates"),
        ({1: "tile:xla:conv.1,6;0;5;1;2;3"}, "count", "tile:xla:conv.1", 2, "6 candidates", "5 candidates"),
        ({2: "tile:xla:small,2;1"}, "count", "tile:xla:small", 3, "2 candidates", "3 candidates"),
        ({2: "tile:xla:small,2;1;x"}, "not_integer", "tile:xla:small", 3, "'x'", "integers"),
        ({2: "tile:xla:small,2;1;0.0"}, "not_integer", "tile:xla:small", 3, "'0.0'", "integers"),
        ({2: "tile:xla:small,2;1; 0"}, "not_integer", "tile:xla:small", 3, "' 0'", "integers"),
        ({2: "tile:xla:small,2;1;٠"}, "not_integer", "tile:xla:small", 3, "'٠'", "integers"),
        ({2: "tile:xla:small,2;1;0;"}, "not_integer", "tile:xla:small", 3, "''", "integers"),
        ({2: "tile:xla:small,"}, "not_integer", "tile:xla:small", 3, "no candidates", "integers"),
        ({2: " tile:xla:small ,2;1;0"}, "spaces", "tile:xla:small", 3, "' tile:xla:small '", "no spaces"),
        ({0: "id,TopConfigs"}, "header", None, 1, "'id,TopConfigs'", "ID,TopConfigs"),
        ({0: "ID,TopConfigs,Usage"}, "header", None, 1, "Usage", "ID,TopConfigs"),
        ({0: None}, "header", None, 1, "conv.1", "ID,TopConfigs"),
        ({4: LINES[4] + "\n"}, "blank", None, 6, "a blank line", "an ID"),
        ({5: "tile:xla:small"}, "fields", None, 6, "'tile:xla:small'", "two fields"),
        ({5: "tile:xla:small,1,2"}, "fields", None, 6, "1,2", "two fields"),
        ({3: LINES[4], 4: LINES[3]}, "order", None, 5, "net after layout:nlp:random:bert", "data set's order"),
    ],
)
def test_each_violation_is_found_alone(csv, change, kind, row_id, line, found, expected):
    lines = dict(enumerate(LINES)) | change
    if kind == "duplicate":
        lines[2] = f"{lines[2]}\n{LINES[2]}"
    (violation,) = _check(csv, [line for line in lines.values() if line is not None])
    assert (violation.kind, violation.id, violation.line) == (kind, row_id, line)
    assert found in violation.found and expected in violation.expected
    assert violation.found in str(violation) and (row_id is None or row_id in str(violation))


@pytest.mark.parametrize(
    ("data", "kind", "line"),
    [
        ("\r\n".join(LINES).encode(), "line_end", 1),
        (b"\xef\xbb\xbf" + "\n".join(LINES).encode(), "bom", 1),
        ("\n".join([*LINES, "tile:xla:caf\xe9,1"]).encode("latin-1"), "encoding", 6),
    ],
)
def test_bytes_that_are_no_plain_text(csv, data, kind, line):
    (violation,) = _check(csv, data)
    assert (violation.kind, violation.line) == (kind, line)


def test_a_row_that_is_no_text_is_known_by_its_id(csv):
    data = "\n".join([*LINES[:4], LINES[4] + "\xe9"]).encode("latin-1")
    assert [str(violation) for violation in _check(csv, data)] == [
        "line 5: layout:nlp:random:bert: found byte 0xe9 at 28, expected UTF-8 text"
    ]


def test_empty_file_and_other_formats(csv):
    assert [violation.kind for violation in _check(csv, b"")] == ["empty"] + ["missing"] * 4
    assert [violation.kind for violation in _check(csv, b"ID,TopConfigs\n")] == ["missing"] * 4
    assert {violation.kind for violation in _check(csv, bytes(range(256)) * 50)} >= {"encoding", "missing"}
    for missing in (csv.parent / "nowhere.csv", csv.parent):
        with pytest.raises(SubmissionError, match="cannot be read"):
            check_submission(missing, EXPECTED)


@pytest.mark.parametrize("start", ["tile:xla:small,", "", "ID,TopConfigs,"])
def test_a_row_of_30_megabytes_takes_little_memory(csv, start):
    lines = [*LINES[:2], start + "1;" * 15_000_000, *LINES[3:]]
    csv.write_text("\n".join(lines))
    tracemalloc.start()
    violations = check_submission(csv, EXPECTED)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
    assert violations[0].line == 3
    if start.startswith("tile"):
        (violation,) = violations
        assert violation.kind == "too_long" and f"{len(lines[2]) + 1} bytes" in violation.found


def test_a_hundred_are_shown_and_the_rest_counted(csv):
    violations = _check(csv, [*LINES[:2], *["tile:xla:foreign,1"] * 250])
    assert len(violations) == MAX_SHOWN + 1
    assert violations[-1].kind == "more" and "153 more" in violations[-1].found


def test_a_file_of_another_data_set_is_one_violation(csv):
    others = [line.replace(":xla:", ":xla:default:") for line in LINES[1:3]] * 200
    (violation,) = _check(csv, [LINES[0], *others])
    assert (violation.kind, violation.id, violation.line) == ("no_match", None, 2)
    assert violation.found.startswith(
        "the file of another data set, or --archives names the wrong folder: none of 400 rows"
    )
    assert "'tile:xla:default:conv.1'" in violation.found and "such as tile:xla:conv.1" in violation.expected
    kinds = [violation.kind for violation in _check(csv, "\r\n".join(["", *others]).encode())]
    assert kinds == ["no_match", "line_end", "header"]  # violations of the whole file are still reported


@st.composite
def _rankings(draw):
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    kinds = ("tile:xla", "layout:nlp:default")
    rows = [ExpectedRow(f"{kinds[index % 2]}:g{index}", size) for index, size in enumerate(sizes)]
    return rows, {row.id: np.array(draw(st.permutations(range(row.num_candidates)))) for row in rows}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(_rankings())
def test_what_is_written_passes_and_reads_back(csv, data):
    rows, rankings = data
    write_submission(csv, rankings, rows)
    assert check_submission(csv, rows) == []
    for row in rows:
        np.testing.assert_array_equal(read_submission(csv, rows)[row.id], rankings[row.id][: row.num_listed])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(st.data())
def test_random_damage_is_found(csv, data):
    """A file without some of its bytes is refused or, rarely, valid with other candidates."""
    write_submission(csv, RANKINGS, EXPECTED)
    whole = csv.read_bytes()
    start = data.draw(st.integers(0, len(whole) - 2))
    stop = data.draw(st.integers(start + 1, len(whole) - 1))  # only the last newline is optional
    junk = data.draw(st.binary(max_size=3))
    csv.write_bytes(whole[:start] + junk + whole[stop:])
    if csv.read_bytes() == whole or check_submission(csv, EXPECTED):
        return
    lines = csv.read_text().splitlines()
    assert lines[0] == LINES[0]
    for line, row in zip(lines[1:], EXPECTED, strict=True):
        row_id, candidates = line.replace('"', "").split(",")
        indices = [int(token) for token in candidates.split(";")]
        assert row_id == row.id
        assert len(set(indices)) == len(indices) == row.num_listed
        assert set(indices) <= set(range(row.num_candidates))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tile:xla:small": None}, "tile:xla:small: found no ranking"),
        ({"tile:xla:other": np.array([0])}, "tile:xla:other: found a ranking, expected none"),
        ({"layout:xla:default:net": np.array([0, 1, 2])}, "net: found 3 candidates, expected 4"),
        ({"layout:xla:default:net": np.array([0, 1, 2, 2])}, "candidate 2 more than once"),
        ({"layout:xla:default:net": np.array([0, 1, 2, 4])}, "candidate '4'"),
        ({"layout:xla:default:net": np.array([0.0, 1, 2, 3])}, "found float64"),
    ],
)
def test_wrong_rankings_are_not_written(csv, change, message):
    csv.write_text("the old one")
    rankings = {key: value for key, value in (RANKINGS | change).items() if value is not None}
    with pytest.raises(SubmissionError, match=message):
        write_submission(csv, rankings, EXPECTED)
    assert csv.read_text() == "the old one"
    assert [path.name for path in csv.parent.iterdir()] == [csv.name]


def test_expected_rows_follow_the_data_set(tmp_path):
    feat = np.zeros((3, 2, 18), np.float32)
    for name in ("layout/nlp/random/test/b", "layout/xla/default/test/z", "layout/xla/default/train/t"):
        _write_archive(tmp_path / "npz" / f"{name}.npz", [0, 0, 0], node_config_feat=feat)
    for name, count in (("conv.10", 9), ("conv.1", 2), ("Conv", 6)):
        path = tmp_path / "npz" / "tile" / "xla" / "test" / f"{name}.npz"
        _write_archive(path, [0] * count, config_feat=np.zeros((count, 24), np.float32))
    rows = expected_rows(tmp_path)
    assert [(row.id, row.num_candidates, row.num_listed) for row in rows] == [
        ("tile:xla:Conv", 6, 5),
        ("tile:xla:conv.1", 2, 2),
        ("tile:xla:conv.10", 9, 5),
        ("layout:xla:default:z", 3, 3),
        ("layout:nlp:random:b", 3, 3),
    ]
    assert (rows[4].collection.folder, rows[4].graph) == ("layout/nlp/random", "b")
    with pytest.raises(SubmissionError, match="found no <collection>/test"):
        expected_rows(tmp_path / "npz")
    (tmp_path / "npz/layout/nlp/random/test/b.npz").rename(tmp_path / "npz/layout/nlp/random/test/b,c.npz")
    with pytest.raises(SubmissionError, match=r"b,c\.npz: a comma"):
        expected_rows(tmp_path)


def test_predictions_become_a_submission(tmp_path, csv):
    scores = {row.id: np.random.default_rng(0).normal(size=row.num_candidates) for row in EXPECTED}
    for row_id, values in scores.items():
        assert write_prediction(tmp_path / "p", row_id, values) == prediction_path(tmp_path / "p", row_id)
    assert (tmp_path / "p" / "layout" / "nlp" / "random" / "bert.npz").is_file()
    rankings = read_rankings(tmp_path / "p")
    assert set(rankings) == set(scores)
    for row_id, values in scores.items():
        np.testing.assert_array_equal(rankings[row_id], np.argsort(-values, kind="stable"))
        ranking, stored = read_prediction(prediction_path(tmp_path / "p", row_id))
        np.testing.assert_array_equal(ranking, rankings[row_id])
        np.testing.assert_array_equal(stored, values.astype(np.float32))
    write_submission(csv, rankings, EXPECTED)
    assert check_submission(csv, EXPECTED) == []


def test_bad_predictions_are_refused(tmp_path):
    with pytest.raises(SubmissionError, match="tpugraphs predict"):
        read_rankings(tmp_path)
    with pytest.raises(MetricError, match=r"'conv\.1'.* not finite"):
        write_prediction(tmp_path, "tile:xla:conv.1", np.array([np.nan]))
    with pytest.raises(SubmissionError, match="begins with none of tile:xla"):
        write_prediction(tmp_path, "tile:gpu:conv.1", np.array([0.0]))
    path = write_prediction(tmp_path, "tile:xla:conv.1", np.array([0.0]))
    pickled = np.array([{}], object)
    for save in (
        lambda: np.savez(path, scores=[1.0]),
        lambda: path.write_bytes(b"PK\x03\x04"),
        lambda: path.write_bytes(b""),
        lambda: np.savez(path, ranking=pickled),
    ):
        save()
        with pytest.raises(SubmissionError, match=r"conv\.1\.npz: expected an archive with ranking"):
            read_rankings(tmp_path)
    with path.open("wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(SubmissionError, match=r"conv\.1\.npz: expected an archive with ranking"):
        read_rankings(tmp_path)


def _write_truth(root):
    _write_archive(
        root / "tile/xla/test/conv.1.npz",
        [10, 20, 30, 40, 50, 60, 700],
        config_runtime_normalizers=np.array([10, 10, 10, 80, 10, 10, 10]),
    )
    _write_archive(root / "tile/xla/test/small.npz", [3, 2, 1], config_runtime_normalizers=np.ones(3, np.int64))
    _write_archive(root / "layout/xla/default/test/net.npz", [20, 40, 30, 10])
    _write_archive(root / "layout/nlp/random/test/bert.npz", [5, 6, 7])


def test_scores_by_hand(tmp_path, csv):
    _write_truth(tmp_path / "truth")
    write_submission(csv, RANKINGS, EXPECTED)
    scores = {name: score for name, (score, _) in score_submission(csv, tmp_path / "truth", EXPECTED).items()}
    # conv.1: the best of the first five has ratio 1, the best of all 0.5: 2 - 1 / 0.5 = 0. small: 1.
    # net has the right order; bert has one of three pairs wrong.
    assert scores == pytest.approx(
        {"tile:xla": 0.5, "layout:xla:default": 1.0, "layout:nlp:random": 1 / 3, "mean": (0.5 + 1 + 1 / 3) / 3}
    )


def test_scoring_names_what_is_wrong(tmp_path, csv):
    truth = tmp_path / "truth"
    write_submission(csv, RANKINGS, EXPECTED)
    with pytest.raises(SubmissionError, match=r"conv\.1\.npz: found nothing"):
        score_submission(csv, truth, EXPECTED)
    _write_truth(truth)
    _write_archive(truth / "layout/nlp/random/test/bert.npz", [5, 6, 7, 8])
    with pytest.raises(SubmissionError, match=r"bert\.npz: 4 runtimes, expected 3"):
        score_submission(csv, truth, EXPECTED)
    _write_archive(truth / "layout/nlp/random/test/bert.npz", [0, 0, 0])
    with pytest.raises(MetricError, match=r"'layout:nlp:random:bert'.*test split hides"):
        score_submission(csv, truth, EXPECTED)
    csv.write_text("ID,TopConfigs\n")
    with pytest.raises(SubmissionError, match=r"not a valid submission\n.*conv\.1: found no row"):
        score_submission(csv, truth, EXPECTED)

"""The stages after training as a user runs them, in new processes; bad input gives a message and no traceback."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.small_datasets import LAYOUT, TILE
from tests.trained import Trained, make_trained
from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.cli.main import main
from tpugraphs_polynormer.ranking.submission import expected_rows


@pytest.fixture(scope="module")
def trained() -> Trained:
    """Trained runs that tests share and must not change."""
    return make_trained()


def run(*arguments: Path | str) -> subprocess.CompletedProcess:
    """The finished process of `tpugraphs <arguments>`."""
    command = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.slow
def test_from_runs_to_a_scored_submission(trained: Trained, tmp_path: Path) -> None:
    runs, output = ["--run-dir", trained.layout, trained.tile], tmp_path / "predictions"
    evaluated = run("evaluate", *runs, "--datasets", trained.data, "--output", tmp_path / "evaluation")
    assert evaluated.returncode == 0, evaluated.stderr
    assert not re.search(r"^[IWEF]\d{4} ", evaluated.stderr, re.M)  # the format of TensorFlow's messages
    summary = json.loads((tmp_path / "evaluation" / "tile" / "evaluation-valid.json").read_text())
    assert f"{summary['overall']['contest_score']:.4f}" in evaluated.stdout
    predicted = run("predict", *runs, "--datasets", trained.data, "--output", output)
    assert predicted.returncode == 0, predicted.stderr
    assert "6 graphs, 6 predicted now" in predicted.stdout
    again = run("predict", *runs, "--datasets", trained.data, "--output", output, "--runner=FnApiRunner")
    assert "6 graphs, 0 predicted now" in again.stdout, again.stderr
    csv = tmp_path / "submission.csv"
    truth = ["--archives", trained.tree, "--truth", trained.tree / "truth"]
    submitted = run("submit", "--predictions", output, "--output", csv, *truth)
    assert submitted.returncode == 0, submitted.stderr
    assert run("submit", "--check", csv, *truth).stdout == submitted.stdout
    table = dict(line.split() for line in submitted.stdout.splitlines()[2:])
    assert set(table) == {LAYOUT, TILE, "mean"}
    assert float(table["mean"]) == pytest.approx((float(table[LAYOUT]) + float(table[TILE])) / 2, abs=1e-4)


@pytest.mark.slow
def test_a_beam_job_from_its_own_file(trained: Trained, tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "pipelines" / "score.py"
    places = ["--datasets", trained.data, "--output", tmp_path]
    command = [sys.executable, script, "--run-dir", trained.tile, *places, "--runner=FnApiRunner"]
    environment = os.environ | {"PYTHONPATH": str(script.parents[1])}
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, check=False)
    assert "3 graphs, 3 predicted now" in ended.stdout, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["evaluate", "predict", "report", "export"])
def test_an_empty_run_directory_is_told_without_a_traceback(trained: Trained, tmp_path: Path, stage: str) -> None:
    output = ["--output", tmp_path / "output"]
    ended = run(stage, "--run-dir", tmp_path, "--datasets", trained.data, *output)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(f"tpugraphs {stage}: error: {tmp_path}: no config.yaml")
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "output").exists()


def failure(capsys: pytest.CaptureFixture, *arguments: Path | str) -> str:
    """The error message of a stage that fails."""
    assert main(list(map(str, arguments))) == 2
    return capsys.readouterr().err


def test_submit_needs_exactly_one_source(trained: Trained, tmp_path: Path, capsys) -> None:
    assert "either --predictions" in failure(capsys, "submit", "--archives", trained.tree)
    both = ["--predictions", tmp_path, "--check", tmp_path / "a.csv"]
    assert "either --predictions" in failure(capsys, "submit", "--archives", trained.tree, *both)


@pytest.mark.parametrize("flags", [["--predictions", "p"], ["--check", "a.csv", "--truth", "truth"]])
def test_submit_writes_and_scores_only_with_the_data(flags: list[str], capsys) -> None:
    told = failure(capsys, "submit", *flags)
    assert f"error: {flags[-2]} needs the names of the test graphs" in told and told.endswith("as --archives\n")


def test_report_needs_all_that_a_test_score_needs(capsys) -> None:
    flags = ["--run-dir", "run", "--datasets", "data", "--submission", "a.csv", "--truth", "truth"]
    assert "--submission, --archives and --truth belong together" in failure(capsys, "report", *flags)


def write_official(path: Path) -> list[str]:
    """Writes a valid csv for the official test split; returns its lines."""
    lines = ["ID,TopConfigs"]
    for collection in COLLECTIONS.values():
        candidates = ";".join(map(str, range(5 if collection.kind == "tile" else 1000)))
        lines += [f"{collection.id}:{graph:032x},{candidates}" for graph in range(collection.num_test_graphs)]
    path.write_text("\n".join(lines) + "\n")
    return lines


def test_submit_checks_without_the_data(tmp_path: Path) -> None:
    csv = tmp_path / "others.csv"
    lines = write_official(csv)
    valid = run("submit", "--check", csv)
    assert (valid.returncode, valid.stderr) == (0, "")
    assert valid.stdout == (
        f"{csv}: 894 rows, valid as far as can be told without the data "
        "(give --archives to check graph names and candidate counts)\n"
    )
    csv.write_text("\n".join([*lines[:1], f"{lines[1]};5", f"{lines[2]} ", *lines[4:]]) + "\n")
    invalid = run("submit", "--check", csv)
    assert (invalid.returncode, invalid.stdout) == (2, "")
    first, *violations = invalid.stderr.splitlines()
    assert first.startswith(f"tpugraphs submit: error: {csv}: not a valid submission") and "give --archives" in first
    tile = "tile:xla:" + "0" * 31
    assert violations == [
        f"  line 2: {tile}0: found 6 candidates, expected 5 candidates, or fewer if the kernel has fewer",
        f"  line 3: {tile}1: found '4 ' among the candidates, expected integers joined by ';'",
        "  tile:xla: found 843 rows, expected 844 rows",
    ]


def test_submit_checks_exactly_with_the_data(tmp_path: Path) -> None:
    features = (("tile/xla", "config_feat", (3, 24)), ("layout/xla/default", "node_config_feat", (4, 2, 18)))
    for folder, key, shape in features:
        path = tmp_path / "npz" / folder / "test" / "net.npz"
        path.parent.mkdir(parents=True)
        np.savez(path, config_runtime=np.zeros(shape[0], np.int64), **{key: np.zeros(shape, np.float32)})
    csv = tmp_path / "others.csv"
    csv.write_text("ID,TopConfigs\ntile:xla:net,2;1;0\nlayout:xla:default:net,3;0;2;1\n")
    valid = run("submit", "--check", csv, "--archives", tmp_path)
    assert (valid.returncode, valid.stdout, valid.stderr) == (0, f"{csv}: 2 rows, valid\n", "")
    csv.write_text("ID,TopConfigs\ntile:xla:net,1;0\nlayout:xla:default:net,3;0;2;1\n")
    invalid = run("submit", "--check", csv, "--archives", tmp_path)
    assert (invalid.returncode, invalid.stdout) == (2, "")
    assert invalid.stderr.endswith("line 2: tile:xla:net: found 2 candidates, expected 3 candidates\n")
    write_official(csv)
    other = run("submit", "--check", csv, "--archives", tmp_path)
    assert other.returncode == 2
    assert len(other.stderr.splitlines()) == 2 and "found the file of another data set, or --archives" in other.stderr


@pytest.mark.parametrize("data", [b"", b"\0" * 10_000, bytes(range(256)) * 20, b'"' * 5_000, "é;\n".encode("utf-16")])
def test_submit_gives_any_file_a_verdict(tmp_path: Path, capsys, data: bytes) -> None:
    csv = tmp_path / "others.csv"
    csv.write_bytes(data)
    assert "not a valid submission" in failure(capsys, "submit", "--check", csv)
    assert "cannot be read" in failure(capsys, "submit", "--check", tmp_path)


def test_submit_lists_every_violation(trained: Trained, tmp_path: Path, capsys) -> None:
    rows = expected_rows(trained.tree)
    lines = [f"{row.id},{';'.join(map(str, range(row.num_listed)))}" for row in rows]
    csv = tmp_path / "others.csv"
    csv.write_text("\n".join(["ID,TopConfigs", *lines]) + "\n")
    assert main(["submit", "--archives", str(trained.tree), "--check", str(csv)]) == 0
    assert f"{len(rows)} rows, valid" in capsys.readouterr().out
    broken = [*lines[:-2], lines[-2].replace(",0;", ",1;")]
    csv.write_text("\n".join(["ID,TopConfigs", *broken]) + "\n")
    told = failure(capsys, "submit", "--archives", trained.tree, "--check", csv)
    assert f"{rows[-2].id}: found candidate 1 more than once" in told
    assert f"{rows[-1].id}: found no row" in told


def test_submit_tells_the_datasets_folder_from_the_tree(trained: Trained, tmp_path: Path, capsys) -> None:
    assert "that holds npz/" in failure(capsys, "submit", "--archives", trained.data, "--check", tmp_path / "a.csv")


def test_predict_refuses_options_that_are_nobodys(trained: Trained, tmp_path: Path, capsys) -> None:
    places = ["--run-dir", trained.tile, "--datasets", trained.data, "--output", tmp_path]
    assert "--speed" in failure(capsys, "predict", *places, "--speed=9")


def test_benchmarks_are_listed_and_found_by_name(tmp_path, capsys):
    assert main(["benchmark", "--list", "--files", str(tmp_path)]) == 0
    assert "0 of 13 benchmarks" in capsys.readouterr().out
    told = failure(capsys, "benchmark", "--name", "minesweeper", "--files", tmp_path)
    assert "minesweeper.npz" in told and "tpugraphs download --benchmarks minesweeper --files" in told
    assert "--files" in failure(capsys, "experiment", "heatmaps", "--output", tmp_path)


def test_a_shipped_config_is_found_by_name_from_any_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["config", "show", "demo/layout_xla_random"]) == 0
    shown = capsys.readouterr().out
    assert main(["config", "show", "configs/demo/layout_xla_random.yaml"]) == 2
    assert "did you mean demo/layout_xla_random" in capsys.readouterr().err
    (tmp_path / "own.yaml").write_text("data:\n  collection: tile:xla\n")
    assert main(["config", "show", "own.yaml"]) == 0
    assert "collection: tile:xla" in capsys.readouterr().out and "collection: layout:xla:random" in shown


def test_downloads_need_the_folder_of_their_kind(tmp_path, capsys):
    assert "with --archives" in failure(capsys, "download", "--collections", "tile:xla", "--files", tmp_path)
    assert "with --files" in failure(capsys, "download", "--benchmarks", "pokec", "--archives", tmp_path)

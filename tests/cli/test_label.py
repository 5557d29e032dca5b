"""The stage label: one-line errors before any work, and its last lines, with a stand-in for the compiler."""

import functools
import importlib.metadata

import pytest

from tests.compiler.test_session import fake
from tpugraphs_polynormer.beam import label
from tpugraphs_polynormer.cli.main import main

ZOO = ["label", "--programs", "zoo", "--archives", "OUT"]


def fails(capsys, folder, arguments: list[str]) -> str:
    """The one line of a stage that fails and writes nothing."""
    out = folder / "out"
    assert main([word.replace("OUT", str(out)) for word in arguments]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and not out.exists()
    return told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([*ZOO, "--topology", "v9:2x2"], "--topology 'v9:2x2': expected a chip and its arrangement"),
        ([*ZOO, "--candidates", "1"], "--candidates: found '1', expected a whole number in 2.."),
        ([*ZOO, "--count", "0"], "--count: found '0'"),
        ([*ZOO, "--time-limit", "0"], "--time-limit: found '0'"),
        ([*ZOO, "--workers", "-1"], "--workers: found '-1'"),
        ([*ZOO, "--search", "best"], "--search: invalid choice: 'best'"),
        ([*ZOO, "--runer=x"], "unknown options --runer=x"),
        (["label", "--programs", "nowhere", "--archives", "OUT"], "nowhere: found no such folder; expected zoo, simul"),
        (["label", "--programs", "zoo", "--archives", "gs://bucket/labels"], "found a remote folder"),
        (["label", "--programs", "zoo", "--archives", "/proc/labels"], "--archives"),
    ],
)
def test_a_wrong_option_is_one_line(tmp_path, capsys, monkeypatch, arguments, told):
    monkeypatch.setattr("tpugraphs_polynormer.compiler.xla.check_versions", dict)
    assert told in fails(capsys, tmp_path, arguments)


def test_a_missing_extra_is_one_line(tmp_path, capsys, monkeypatch):
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    told = fails(capsys, tmp_path, ZOO)
    assert "needs jax, which is not installed; run pip install 'tpugraphs-polynormer[tpu-compiler]'" in told


def test_the_last_lines_count_what_was_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tpugraphs_polynormer.compiler.xla.check_versions", dict)
    command = fake(tmp_path / "log", "refuse", 3)
    monkeypatch.setattr(label, "LabelJob", functools.partial(label.LabelJob, command=command))
    options = ["--count", "2", "--candidates", "8", "--workers", "1"]
    assert main([word.replace("OUT", str(tmp_path / "out")) for word in (*ZOO, *options)]) == 0
    told = capsys.readouterr()
    assert told.out == "layout:xla:random: 2 train, 0 valid, 0 test (estimated by the TPU compiler, not measured)\n"
    assert "labelled 2 programs with " in told.err and "refused: 0 programs, " in told.err

"""The log of a tuning: a cut line is dropped, another tuning is refused; a killed run ends as an undisturbed one."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.tuned import make_choices, small_program
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.hlo.text_writer import serialize_text
from tpugraphs_polynormer.ranking.judges import TableJudge, Verdict
from tpugraphs_polynormer.ranking.tuner import Tuner, search_source
from tpugraphs_polynormer.ranking.tuning_log import LOG_NAME, TuningLog, tune

FACTS = {"program": "p", "judge": "table"}
SLOW = """
import json, sys, time
time.sleep(0.15)
print(1 + sum(node["choice"] for node in json.load(open(sys.argv[1]))["nodes"]))
"""


class CountingJudge(TableJudge):
    """Every candidate of two nodes, slower with its choices; counts what it is asked."""

    def __init__(self):
        indices = np.stack(np.meshgrid(np.arange(8), np.arange(8), indexing="ij"), -1).reshape(-1, 2)
        super().__init__(indices, 1 + indices.sum(axis=1) / 10)
        self.asked = 0

    def judge(self, candidate):
        """The verdict of the table."""
        self.asked += 1
        return super().judge(candidate)


def make_tuner():
    choices = make_choices([8, 8])
    return Tuner(choices, search_source(choices), starts=np.zeros((1, 2)))


def test_a_cut_line_is_dropped_and_measured_again(tmp_path):
    how = {"measurements": 12, "batch": 4}
    whole = tune(make_tuner(), CountingJudge(), tmp_path / "whole", FACTS, **how)
    text = (tmp_path / "whole" / LOG_NAME).read_text()
    for cut in (3, len(text.splitlines()[0]) + 1, len(text) // 2, len(text) - 1):
        folder = tmp_path / f"cut {cut}"
        folder.mkdir()
        (folder / LOG_NAME).write_text(text[:cut])
        judge = CountingJudge()
        again = tune(make_tuner(), judge, folder, FACTS, **how)
        assert (folder / LOG_NAME).read_text() == text and again.indices == whole.indices
        assert judge.asked == 12 - max(text[:cut].count("\n") - 1, 0)


def test_more_measurements_extend_a_tuning_as_if_asked_for_at_once(tmp_path):
    for count in (3, 6, 7, 16):
        tune(make_tuner(), CountingJudge(), tmp_path / "grown", FACTS, measurements=count, batch=4)
    tune(make_tuner(), CountingJudge(), tmp_path / "once", FACTS, measurements=16, batch=4)
    assert (tmp_path / "grown" / LOG_NAME).read_text() == (tmp_path / "once" / LOG_NAME).read_text()


def test_it_ends_where_all_candidates_are_measured(tmp_path):
    log = tune(make_tuner(), CountingJudge(), tmp_path, FACTS, measurements=100, batch=8)
    assert len(log) == 64 and log.measured().best == 0, "the start is the fastest"


def test_another_tuning_and_foreign_lines_are_refused(tmp_path):
    log = TuningLog(tmp_path / LOG_NAME, FACTS, 2)
    log.add(0, np.array([1, 2]), Verdict(0.5))
    with pytest.raises(UserError, match="another tuning \\(program: p there, q here\\); choose another --output"):
        TuningLog(tmp_path / LOG_NAME, {**FACTS, "program": "q"}, 2)
    for line in ("[]", '{"choices": [1]}', "no JSON", '{"choices": [1, 2, 3], "batch": 0, "seconds": 1, "error": ""}'):
        (tmp_path / "damaged").write_text(json.dumps(FACTS) + "\n" + line + "\n")
        with pytest.raises(UserError, match="damaged: found lines that are no measurements"):
            TuningLog(tmp_path / "damaged", FACTS, 2)


def test_failures_are_kept_and_only_failures_are_an_error(tmp_path):
    class Refusing(CountingJudge):
        def judge(self, candidate):
            """A failure."""
            return Verdict(None, "out of memory")

    with pytest.raises(UserError, match="none of 4 measurements succeeded, the first because: out of memory"):
        tune(make_tuner(), Refusing(), tmp_path, FACTS, measurements=12, batch=4)
    records = [json.loads(line) for line in (tmp_path / LOG_NAME).read_text().splitlines()[1:]]
    assert [record["seconds"] for record in records] == [None] * 4 and records[0]["error"] == "out of memory"


def start_tuning(folder, *judge):
    words = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", "tune", str(folder.parent / "my program.txt")]
    command = [*words, "--measurements", "14", "--batch", "4", "--output", str(folder), "--judge", *judge]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process):
    output, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    return output


@pytest.mark.slow
def test_a_killed_tuning_continues_to_the_same_end(tmp_path):
    """By kill -9 of the real command, inside of a batch and between batches; the judge is slow enough to be met."""
    (tmp_path / "my program.txt").write_text(serialize_text(small_program().module))
    (tmp_path / "measure.py").write_text(SLOW)
    judge = ("command", "--command", sys.executable, str(tmp_path / "measure.py"))
    whole = finish(start_tuning(tmp_path / "whole", *judge))
    log = tmp_path / "killed" / LOG_NAME
    for lines in (3, 9):  # with the first: the second measurement of batch 0; the last one of batch 1
        process = start_tuning(tmp_path / "killed", *judge)
        while not (log.exists() and log.read_text().count("\n") >= lines):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert log.read_text().count("\n") < 15, "it was killed before its end"
    assert finish(start_tuning(tmp_path / "killed", *judge)) == whole
    for name in (LOG_NAME, "best.json", "best.npz"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    records = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    assert len({tuple(record["choices"]) for record in records}) == 14 and not any(records[0]["choices"])
    best = min(record["seconds"] for record in records)
    assert json.loads((tmp_path / "killed" / "best.json").read_text())["seconds"] == best
    assert "nothing that was measured is faster" in whole, "the default has the smallest choice numbers"


def test_the_simulator_as_judge_finds_what_is_faster_than_the_default(tmp_path):
    (tmp_path / "my program.txt").write_text(serialize_text(small_program().module))
    told = finish(start_tuning(tmp_path / "tuned", "simulator"))
    best = json.loads((tmp_path / "tuned" / "best.json").read_text())
    assert best["gain"] > 0.02 and best["default_seconds"] > best["seconds"] and f"{100 * best['gain']:.2f} %" in told
    with np.load(tmp_path / "tuned" / "best.npz") as arrays:
        assert arrays["node_config_feat"].shape == (1, 14, 18)
        assert arrays["choices"].tolist() == [node["choice"] for node in best["nodes"]]

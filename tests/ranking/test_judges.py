"""Judges: what each says of a candidate, and failures of a user's command in one line each."""

import json
import sys
import time

import numpy as np
import pytest

from tests.tuned import small_program
from tpugraphs_polynormer.compiler.program import CompiledProgram
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.ranking.judges import (
    CommandJudge,
    CompilerJudge,
    SimulatorJudge,
    TableJudge,
    build_costs,
    describe_layouts,
    parse_time,
    score_by_cost,
)
from tpugraphs_polynormer.simulator.hardware import MEASUREMENT_NOISE

DEFAULT = np.zeros(14, np.int64)


def command(tmp_path, code, *, time_limit=20.0):
    """A judge that runs Python code, in a folder whose name has a space."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "my script.py").write_text(code)
    words = [sys.executable, str(folder / "my script.py"), "$HOME; one word"]
    return CommandJudge(words, small_program(), folder, time_limit=time_limit)


def test_a_command_reads_the_candidate_and_prints_its_time(tmp_path):
    code = (
        "import json, sys\n"
        "assert sys.argv[1] == '$HOME; one word'\n"
        "nodes = json.load(open(sys.argv[2]))['nodes']\n"
        "print('warming up')\nprint(sum(node['choice'] for node in nodes) + 0.5, 'ms')\nprint()\n"
    )
    judge = command(tmp_path, code)
    candidate = DEFAULT.copy()
    candidate[:2] = 3, 4
    assert judge.judge(candidate).seconds == pytest.approx(7.5e-3)
    assert judge.judge(DEFAULT).seconds == pytest.approx(0.5e-3)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import sys; print(1.0); sys.exit('no TPU here')", "exit code 1: 'no TPU here'"),
        ("print('fast')", "printed 'fast' as its last line, expected a time above 0"),
        ("pass", "printed '' as its last line"),
        ("print(-1)", "printed '-1'"),
        ("print('nan')", "printed 'nan'"),
        ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
    ],
)
def test_what_is_no_time_is_a_failure(tmp_path, code, told):
    verdict = command(tmp_path, code).judge(DEFAULT)
    assert verdict.seconds is None and verdict.error.startswith(told) and "\n" not in verdict.error


def test_a_time_limit_ends_the_command_and_what_it_started(tmp_path):
    """The grandchild holds the pipe open and would write a file."""
    late = tmp_path / "late"
    child = f"import time; time.sleep(4); open({str(late)!r}, 'w')"
    code = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(60)"
    judge = command(tmp_path, code, time_limit=2.0)
    assert judge.judge(DEFAULT).error == "no time within 2 s"
    time.sleep(3)
    assert not late.exists()


def test_a_command_that_is_not_there_is_refused(tmp_path):
    for words, told in (((), "found nothing"), (("no-such-program-here",), "no-such-program-here: found no such")):
        with pytest.raises(UserError, match=told):
            CommandJudge(words, small_program(), tmp_path, time_limit=1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0.5", 0.5), (" 12.5 ms ", 0.0125), ("3us", 3e-6), ("1.5e3 ns", 1.5e-6), ("2 s", 2), (".5", 0.5)],
)
def test_times(text, seconds):
    assert parse_time(text).seconds == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "-3", "1,5", "5 minutes", "time: 3", "inf", "1e999"])
def test_no_times(text):
    assert parse_time(text).seconds is None


def test_the_simulator_has_its_noise_and_repeats_itself():
    judge, costs = SimulatorJudge(small_program(), seed=1), build_costs(small_program())
    candidates = np.random.default_rng(0).integers(small_program().choices.counts, size=(200, 14))
    seconds = np.array([judge.judge(candidate).seconds for candidate in candidates])
    errors = seconds / costs.seconds(candidates) - 1
    assert 0.7 < errors.std() / MEASUREMENT_NOISE < 1.3
    assert judge.judge(candidates[7]).seconds == seconds[7]
    assert SimulatorJudge(small_program(), seed=2).judge(candidates[7]).seconds != seconds[7]


def test_the_cost_models_scores_are_its_negated_log_seconds():
    prior, costs = score_by_cost(small_program()), build_costs(small_program())
    candidates = np.random.default_rng(1).integers(small_program().choices.counts, size=(50, 14))
    logs = np.log(costs.seconds(candidates))
    slope, shift = np.polyfit(logs, prior(candidates)[0], 1)
    np.testing.assert_allclose(prior(candidates)[0], slope * logs + shift, atol=1e-6)
    assert slope < 0 and 0.5 < prior(candidates).std() < 2


def test_a_table_knows_its_rows_alone():
    judge = TableJudge(np.array([[0, 1], [2, 3]]), np.array([0.5, 0.25]))
    assert judge.judge(np.array([2, 3])).seconds == 0.25
    assert judge.judge(np.array([2, 2])).error == "not in the table"


class FakeSession:
    """Answers with as many cycles as the module has bytes, and refuses every second module."""

    def __init__(self):
        self.asked = []

    def compile(self, module):
        """The answer."""
        self.asked.append(module)
        if len(self.asked) % 2 == 0:
            return {"error": "RESOURCE_EXHAUSTED"}
        return {"cycles": len(module) * 940_000, "unestimated": {}}


class FakeProgram(CompiledProgram):
    """A program that forces a candidate by its bytes."""

    def force(self, indices):
        """The candidate's choices, one byte each."""
        return bytes(indices.tolist())


def test_the_compilers_cycles_become_seconds_and_its_refusal_a_failure(tmp_path):
    known = small_program()
    program = FakeProgram(known.module, known.choices, "v3:2x2", snapshot=b"", assigned={}, origins={}, unforced={})
    session = FakeSession()
    judge = CompilerJudge(program, session, {"libtpu": "1"})
    assert judge.judge(DEFAULT).seconds == pytest.approx(14e-3, rel=0.01), "14 Mcycles at 940 MHz"
    assert judge.judge(DEFAULT).error == "RESOURCE_EXHAUSTED"
    assert judge.facts == {"judge": "compiler", "topology": "v3:2x2", "versions": {"libtpu": "1"}}
    told = CommandJudge(["true"], program, tmp_path, time_limit=20).judge(DEFAULT)
    assert told.error and (tmp_path / "candidate.hlo.pb").read_bytes() == bytes(14)
    assert json.loads((tmp_path / "candidate.json").read_text())["module"] == str(tmp_path / "candidate.hlo.pb")


def test_a_candidates_layouts_are_named_node_by_node():
    program = small_program()
    candidate = DEFAULT.copy()
    candidate[0] = 1
    nodes = describe_layouts(program, candidate)["nodes"]
    assert [node["name"] for node in nodes] == [node.name for node in program.config_nodes]
    row = program.choices.table[program.choices.starts[0] + 1].tolist()
    assert nodes[0]["choice"] == 1 and nodes[0]["output"] == [dim for dim in row[:6] if dim >= 0]
    assert nodes[0]["operands"] == [[dim for dim in row[part : part + 6] if dim >= 0] for part in (6, 12)]

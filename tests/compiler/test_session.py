"""A session outlives what its child does; the child here is a stand-in."""

import sys
import zlib
from pathlib import Path

import pytest

from tests.hlo.programs import small_cnn
from tpugraphs_polynormer.compiler.session import CompilerSession
from tpugraphs_polynormer.compiler.zoo import draw_zoo_program
from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.writer import serialize_module


def fake(log, fault="none", every=1) -> tuple[str, ...]:
    """The command of a stand-in that has the fault at modules with checksums divisible by `every`."""
    Path(f"{log}.pb").write_bytes(serialize_module(small_cnn()))
    return (sys.executable, str(Path(__file__).with_name("fake_compiler.py")), str(log), fault, str(every))


def test_one_child_answers_many_modules(tmp_path):
    with CompilerSession("v3:2x2", command=fake(tmp_path / "log")) as session:
        child = session._child
        answers = [session.compile(bytes([number])) for number in range(3)]
        assert child is None and all(answer["num_estimated"] == 7 for answer in answers)
        pid = session._child.pid
        answer, before, after = session.compile_with_snapshots(b"module")
        assert answer["cycles"] > 0 and before == after == b"module"
        assert parse_module(session.lower(draw_zoo_program(0, 0))) == small_cnn()
        assert session._child.pid == pid
    assert len((tmp_path / "log").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("abort", "the compiler aborted: gather_emitter.cc:620] Check failed: all is well"),
        ("hang", "no result within 1 s"),
        ("refuse", "does not fit: 50G of 16G hbm"),
    ],
)
def test_a_fault_costs_one_module(tmp_path, fault, told):
    struck = next(bytes([number]) for number in range(256) if zlib.crc32(bytes([number])) % 2 == 0)
    other = next(bytes([number]) for number in range(256) if zlib.crc32(bytes([number])) % 2 == 1)
    with CompilerSession("v3:2x2", command=fake(tmp_path / "log", fault, 2)) as session:
        assert "error" not in session.compile(other)
        session._time_limit = 1.0  # now that the stand-in has started
        assert session.compile(struck) == {"error": told}
        session._time_limit = 60.0
        assert "error" not in session.compile(other)


def test_a_child_that_does_not_start_is_an_error_of_each_module(tmp_path):
    with CompilerSession("v3:2x2", command=(sys.executable, "-c", "raise SystemExit('no libtpu')")) as session:
        for _ in range(2):
            assert session.compile(b"module") == {"error": "the compiler ended with code 1: no libtpu"}

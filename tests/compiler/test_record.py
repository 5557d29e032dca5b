"""The compiler's answers: estimates read from a program's text, topologies, messages. Needs no extra."""

import pytest

from tpugraphs_polynormer.compiler.compile import (
    describe_failure,
    describe_refusal,
    parse_record,
    serialize_record,
)
from tpugraphs_polynormer.compiler.record import CompileRecord, CostlyOp, read_estimates
from tpugraphs_polynormer.compiler.topologies import CHIPS, GIB, TOPOLOGIES, find_chip
from tpugraphs_polynormer.compiler.xla import check_versions
from tpugraphs_polynormer.errors import UserError

COMPILED = """HloModule step, is_scheduled=true

%fused_computation.1 (param_0: f32[8]) -> f32[8] {
  %param_0 = f32[8]{0:T(128)} parameter(0)
  ROOT %scatter.5 = f32[8]{0:T(128)} scatter(%param_0), backend_config={"estimated_cycles":"999"}
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0:T(128)} parameter(0)
  %scatter_fusion = f32[8]{0:T(128)} fusion(%a), kind=kCustom, calls=%fused_computation.1
  %gather.2 = f32[8]{0:T(128)S(1)} gather(%scatter_fusion, %a), offset_dims={}
  %offloaded = f32[8]{0:T(128)} copy(%a), backend_config={"estimated_cycles":"9223372036854775807"}
  %small = f32[]{:T(128)} bitcast(%a)
  %fusion.7 = (f32[8]{0:T(128)}, f32[8]{0}) fusion(%a), kind=kLoop, metadata={op_name="model/layer_1/mul"}, backend_config={"window_config":{},"estimated_cycles":"70"}
  ROOT %add = f32[8]{0:T(128)} add(%a, %a), backend_config={"estimated_cycles":"30"}
}
"""  # noqa: E501


def test_estimates_are_read_from_what_runs_by_itself():
    found = read_estimates(COMPILED)
    assert (found["cycles"], found["num_estimated"]) == (100, 2)
    assert found["unestimated"] == {"copy": 1, "gather": 1, "scatter": 1}
    assert found["costly"] == (CostlyOp("fusion.7", "model/layer_1/mul", 70), CostlyOp("add", "", 30))


LOOPS = """HloModule step, is_scheduled=true

%inner_condition (p: (s32[], f32[8])) -> pred[] {
  %limit.1 = s32[]{:T(256)} constant(5)
  ROOT %less.1 = pred[] compare(%count.1, %limit.1), direction=LT
}

%inner_body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  ROOT %fusion.1 = f32[8]{0:T(128)} fusion(%p), kind=kLoop, backend_config={"estimated_cycles":"7"}
}

%outer_condition (p: (s32[], f32[8])) -> pred[] {
  %limit.2 = s32[]{:T(256)} constant(3)
  ROOT %less.2 = pred[] compare(%count.2, %limit.2), direction=LT
}

%outer_body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %fusion.2 = f32[8]{0:T(128)} fusion(%p), kind=kLoop, backend_config={"estimated_cycles":"100"}
  ROOT %while.1 = (s32[], f32[8]) while(%p), condition=%inner_condition, body=%inner_body
}

%unknown_condition (p: (s32[], f32[8])) -> pred[] {
  ROOT %less.3 = pred[] compare(%count.3, %p), direction=LT
}

%unknown_body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  ROOT %fusion.3 = f32[8]{0:T(128)} fusion(%p), kind=kLoop, backend_config={"estimated_cycles":"1000"}
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %while.2 = (s32[], f32[8]) while(%a), condition=%outer_condition, body=%outer_body
  %while.3 = (s32[], f32[8]) while(%a), condition=%unknown_condition, body=%unknown_body
  ROOT %add = f32[8]{0:T(128)} add(%a, %a), backend_config={"estimated_cycles":"30"}
}
"""


def test_the_bodies_of_loops_count_once_or_as_often_as_they_run():
    assert read_estimates(LOOPS)["cycles"] == 30 + 1000 + 100 + 7
    found = read_estimates(LOOPS, repeat_loops=True)
    assert found["cycles"] == 30 + 1000 + 3 * 100 + 3 * 5 * 7
    assert found["num_estimated"] == 4 and found["unestimated"] == {"while": 3}
    assert read_estimates(COMPILED, repeat_loops=True) == read_estimates(COMPILED)


def test_a_record_survives_json_and_derives_time_and_memory():
    record = CompileRecord(
        "v3:2x2", 4, cycles=940_000, temporary_bytes=3 * GIB, code_bytes=GIB, costly=(CostlyOp("a", "b", 7),)
    )
    assert parse_record(serialize_record(record)) == record
    assert record.compiles and record.milliseconds == pytest.approx(1.0) and record.hbm_share == pytest.approx(0.25)


def test_the_topologies_of_the_tables_are_known():
    assert [find_chip(topology).name for topology in TOPOLOGIES] == ["v3", "v4", "v5e", "v5p", "v6e"]
    assert all(find_chip(chip.example) is chip for chip in CHIPS.values())


@pytest.mark.parametrize("name", ["", "v4", "v4:", "v9:2x2", "v4:2", "v4:0x2", "v4:2x2x2x2", "v4:2x2;rm", "V4:2x2x1"])
def test_a_wrong_topology_is_one_line(name):
    with pytest.raises(UserError, match=r"expected a chip and its arrangement, such as .*v4:2x2x1") as caught:
        find_chip(name)
    assert "\n" not in str(caught.value)


def test_an_abort_is_told_by_its_failed_check():
    stderr = "I0000 start\nF1118 06:38:29.38  5607 gather_emitter.cc:620] Check failed: a == b \n*** stack\n@ 0x7f\n"
    told = describe_failure(stderr, -6)
    assert told == "the compiler aborted: gather_emitter.cc:620] Check failed: a == b"
    assert describe_failure("", -9) == "the compiler ended with code -9: no message"
    assert describe_failure("x\nKilled\n\n", -9) == "the compiler ended with code -9: Killed"


def test_a_program_that_does_not_fit_says_by_how_much():
    message = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
        "Used 30.12G of 15.48G hbm. Exceeded hbm capacity by 14.64G.\n\nTotal hbm usage >= 30.38G:\n"
    )
    assert describe_refusal(message) == "does not fit: Used 30.12G of 15.48G hbm"
    message = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (20.13G) exceeds available HBM (15.75G). HLO module: step.2.\nmore"
    )
    told = "does not fit: the total memory required for HLO temporaries (20.13G) exceeds available HBM (15.75G)"
    assert describe_refusal(message) == told
    assert describe_refusal("INVALID_ARGUMENT: no\nmore") == "the compiler refused: INVALID_ARGUMENT: no"


@pytest.mark.parametrize(("name", "version"), [("jax", "0.9.2"), ("libtpu", "0.0.49"), ("jaxlib", "0.11.0")])
def test_another_version_is_refused_with_the_command(monkeypatch, name, version):
    versions = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.51"} | {name: version}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    with pytest.raises(UserError, match=rf"found {name} {version}, expected .* to below .*; run pip install"):
        check_versions()


def test_a_missing_extra_is_one_line(monkeypatch):
    import importlib.metadata

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(UserError, match=r"needs jax, which is not installed; run pip install .*tpu-compiler"):
        check_versions()

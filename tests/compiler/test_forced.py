"""The real TPU compiler obeys forced layouts, on programs of the zoo. Needs the extra tpu-compiler."""

import json

import numpy as np
import pytest

from tpugraphs_polynormer.archives.npz import read_archive
from tpugraphs_polynormer.cli.main import main
from tpugraphs_polynormer.compiler.layouts import (
    NodeOrders,
    _order,
    _parse,
    complete_orders,
    force_layouts,
    prepare_module,
    read_assigned,
)
from tpugraphs_polynormer.compiler.program import compile_program
from tpugraphs_polynormer.compiler.session import CompilerSession
from tpugraphs_polynormer.compiler.zoo import ZooProgram
from tpugraphs_polynormer.hlo.sampling import draw_candidates

pytestmark = pytest.mark.tpu_compiler

SMALLEST = {
    "alexnet": {"b": 16, "i": 16, "w": 8, "k": 3, "c": 10},
    "resnet": {"b": 16, "i": 8, "w": 16, "c": 10},
    "unet2d": {"b": 4, "i": 8, "w": 8, "c": 2},
    "unet3d": {"b": 2, "i": 4, "w": 8, "c": 2},
    "bert": {"b": 2, "s": 16, "h": 2, "f": 32, "v": 1000},
    "lstm": {"b": 8, "s": 8, "w": 64, "n": 1, "c": 10},
    "recommender": {"b": 64, "t": 3, "f": 16, "w": 64, "n": 1},
}


@pytest.fixture(scope="module")
def session():
    """One compiler for all tests."""
    pytest.importorskip("libtpu", reason="the extra tpu-compiler is not installed")
    with CompilerSession("v3:2x2", time_limit=300.0) as opened:
        yield opened


def orders_by_op_name(after: bytes) -> dict[str, NodeOrders]:
    """The layouts in a dump of a prepared snapshot, whose config nodes have their first names as op_names."""
    instructions = [each for computation in _parse(after).computations for each in computation.instructions]
    by_id = {each.id: each for each in instructions}
    return {
        each.metadata.op_name.decode(): NodeOrders(_order(each), tuple(_order(by_id[one]) for one in each.operand_ids))
        for each in instructions
        if each.opcode in (b"convolution", b"dot", b"reshape")
    }


@pytest.mark.parametrize("family", SMALLEST)
@pytest.mark.parametrize("train", [False, True])
def test_its_own_layouts_forced_cost_what_they_cost_unforced(session, family, train):
    """Also that every family lowers and compiles, in both steps and precisions."""
    program = ZooProgram(family, train, "bf16" if train else "f32", SMALLEST[family])
    answer, before, after = session.compile_with_snapshots(session.lower(program))
    assert not answer.get("error"), answer
    snapshot, assigned = prepare_module(before), read_assigned(before, after)
    again = session.compile(snapshot)
    assert again["cycles"] == pytest.approx(answer["cycles"], rel=0.05), "compiling the snapshot changes little"
    forced = session.compile(force_layouts(snapshot, assigned))
    assert forced["cycles"] == pytest.approx(again["cycles"], rel=0.2)  # bert's reshapes no longer merge


@pytest.mark.parametrize("family", ["alexnet", "unet3d"])
def test_convolutions_and_dots_get_the_layouts_of_a_random_candidate(session, family):
    module = session.lower(ZooProgram(family, True, "f32", SMALLEST[family]))
    program = compile_program(module, "v3:2x2", session=session)
    candidate = draw_candidates(program.choices, 2, seed=1, mode="random", tied=False)[1]
    wanted = {
        node.name: complete_orders(row, program.assigned[node.name])
        for node, row in zip(program.config_nodes, candidate, strict=True)
        if node.opcode != "reshape"
    }
    assert any(wanted[name] != program.assigned[name] for name in wanted)
    answer, _, after = session.compile_with_snapshots(force_layouts(program.snapshot, wanted))
    assert not answer.get("error"), answer
    found = orders_by_op_name(after)
    for name, orders in wanted.items():
        pairs = zip((orders.output, *orders.operands), (found[name].output, *found[name].operands), strict=False)
        assert all(not want or want == have for want, have in pairs), name


def test_the_stage_writes_archives_with_runtimes_that_differ(session, tmp_path):
    options = ["--count", "1", "--candidates", "6", "--workers", "1", "--seed", "2"]
    assert main(["label", "--programs", "zoo", "--archives", str(tmp_path), *options]) == 0
    (path,) = (tmp_path / "npz/layout/xla/random/train").iterdir()
    archive = read_archive(path)
    assert archive.num_candidates == 6 and len(np.unique(archive.config_runtime)) > 2
    (facts,) = json.loads((tmp_path / "labels.json").read_text())["labelled"]
    assert facts["first_ns"] == archive.config_runtime[0] and facts["has_default"]

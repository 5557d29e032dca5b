"""A program as the compiler sees it, and judged candidates, with a stand-in for the compiler."""

import numpy as np
import pytest

from tests.compiler.test_layouts import with_fusion
from tests.compiler.test_session import fake
from tests.hlo.programs import array, program, small_cnn
from tpugraphs_polynormer.compiler.layouts import NodeOrders, read_assigned
from tpugraphs_polynormer.compiler.program import (
    CompiledProgram,
    RefusedError,
    compile_program,
    enumerate_assigned,
    judge_candidates,
    nanoseconds,
)
from tpugraphs_polynormer.compiler.session import CompilerSession
from tpugraphs_polynormer.errors import HloError, UserError
from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.hlo.layout_program import LayoutProgram
from tpugraphs_polynormer.hlo.module import Instruction
from tpugraphs_polynormer.hlo.protobuf import parse_module
from tpugraphs_polynormer.hlo.sampling import draw_indices
from tpugraphs_polynormer.hlo.text_writer import serialize_text
from tpugraphs_polynormer.hlo.writer import serialize_module

TOPOLOGY = "v3:2x2"


@pytest.fixture
def session(tmp_path):
    """A stand-in that refuses a third of the candidates."""
    with CompilerSession(TOPOLOGY, command=fake(tmp_path / "log", "refuse", 3)) as opened:
        yield opened


@pytest.fixture
def compiled(session) -> CompiledProgram:
    """The small CNN; the stand-in assigns the layouts that it was given."""
    return compile_program(serialize_module(small_cnn()), TOPOLOGY, session=session)


def test_cycles_at_the_clock_are_nanoseconds():
    assert nanoseconds(940_000, "v3:2x2") == 1_000_000
    assert nanoseconds(0, "v3:2x2") == 1
    assert nanoseconds(1_050, "v4:2x2x1") == 1_000


def test_the_first_choices_are_the_assigned_layouts(compiled):
    assert [node.name for node in compiled.config_nodes] == ["conv", "flat", "logits"]
    assert compiled.assigned["conv"] == NodeOrders((3, 2, 1, 0), ((3, 2, 1, 0), (3, 2, 1, 0)))
    assert compiled.choices.table[compiled.choices.starts[0]].tolist()[:2] == [3, 2], "not the presumed ones"
    assert compiled.topology == TOPOLOGY and "sees it, with its own default" in compiled.provenance
    assert compiled.unforced_judgement.cycles == compiled.unforced["cycles"] > 0


def test_text_is_read_by_the_compilers_own_reader(compiled, session):
    """The stand-in reads every text as the small CNN."""
    again = compile_program(serialize_text(with_fusion()).encode(), TOPOLOGY, session=session)
    assert again.module == compiled.module and again.snapshot == compiled.snapshot


def test_config_nodes_know_the_instruction_that_they_were_made_of(compiled):
    assert {name: origin.name for name, origin in compiled.origins.items()} == {
        "conv": "conv",
        "flat": "flat",
        "logits": "logits",
    }


def test_judged_candidates_are_compiled_once_and_refusals_have_a_reason(compiled, session, tmp_path):
    indices = draw_indices(compiled.choices, 12, seed=0, mode="random", tied=False)
    before = len((tmp_path / "log").read_text().splitlines())
    answers = judge_candidates(compiled, np.concatenate([indices, indices]), session)
    distinct = len(np.unique(indices, axis=0))
    assert len((tmp_path / "log").read_text().splitlines()) == before + distinct
    assert answers[:12] == answers[12:] and 0 < sum(bool(each.error) for each in answers[:12]) < 12
    for each in answers:
        assert (each.error == "does not fit: 50G of 16G hbm") == (each.cycles == each.nanoseconds == 0)
        assert each.nanoseconds == round(each.cycles / 0.94)
    forced = parse_module(compiled.force(indices[1]))
    assert sum(each.custom_call_target == "LayoutConstraint" for each in forced.computations[0].instructions) > 3


def test_choice_numbers_that_do_not_exist_are_refused(compiled):
    for bad in ([0, 0], [0, 0, 99], [-1, 0, 0]):
        with pytest.raises(HloError, match="expected one for each of the 3 config nodes"):
            compiled.force(np.array(bad))


def test_a_program_without_a_choice_is_refused(session):
    plain = program(Instruction(1, "parameter", array(8), "x"), Instruction(2, "tanh", array(8), "y", (1,)))
    with pytest.raises(RefusedError, match="no convolution, dot or reshape"):
        compile_program(serialize_module(plain), TOPOLOGY, session=session)


def test_a_wrong_topology_is_named_before_anything_starts():
    with pytest.raises(UserError, match=r"--topology 'v9:2x2': expected a chip and its arrangement"):
        compile_program(serialize_module(small_cnn()), "v9:2x2")


def test_nodes_of_fusions_are_no_config_nodes():
    data = serialize_module(with_fusion())
    choices = enumerate_assigned(with_fusion(), read_assigned(data, data))
    assert len(enumerate_choices(with_fusion()).node_ids) == 2
    assert [node.name for node in LayoutProgram(with_fusion(), choices).config_nodes] == ["product"]
    assert choices.node_ids.tolist() == [4]

"""One program is labelled with a stand-in for the compiler: candidates, refusals, the journal, and runtimes."""

import json

import numpy as np
import pytest

from tests.compiler.test_session import fake
from tests.hlo.programs import array, check_candidates, program, small_cnn
from tpugraphs_polynormer.archives.npz import read_archive
from tpugraphs_polynormer.archives.writer import write_archive
from tpugraphs_polynormer.compiler.labelling import LabelOptions, Labels, label_program
from tpugraphs_polynormer.compiler.layouts import read_assigned
from tpugraphs_polynormer.compiler.program import RefusedError, enumerate_assigned
from tpugraphs_polynormer.compiler.session import CompilerSession
from tpugraphs_polynormer.hlo.module import Instruction
from tpugraphs_polynormer.hlo.writer import serialize_module

MODULE = serialize_module(small_cnn())


def options(count: int = 12, *, time_limit: float = 60.0, search: str = "random") -> LabelOptions:
    return LabelOptions("v3:2x2", count, search, seed=5, time_limit=time_limit)


def label(folder, chosen: LabelOptions, *fault: object, module: bytes = MODULE) -> Labels:
    """The labels, with answers kept in the folder."""
    command = fake(folder / "log", *fault)
    with CompilerSession(chosen.topology, time_limit=chosen.time_limit, command=command) as session:
        return label_program(session, module, folder / "journal.jsonl", chosen)


def compiled(folder) -> int:
    """How many modules the stand-in was given."""
    return len((folder / "log").read_text().splitlines())


def test_an_archive_has_the_official_form_and_legal_candidates(tmp_path):
    labels = label(tmp_path, options())
    write_archive(tmp_path / "graph.npz", labels.arrays)
    archive = read_archive(tmp_path / "graph.npz")
    assert archive.kind == "layout" and archive.num_candidates == 12
    assert archive.node_config_ids.tolist() == [3, 5, 6]
    check_candidates(enumerate_assigned(small_cnn(), read_assigned(MODULE, MODULE)), archive.node_config_feat)
    assert archive.node_config_feat[0, 0].tolist()[:2] == [3, 2], "the layouts of the stand-in, not the presumed ones"
    assert labels.facts["candidates"] == 12 and labels.facts["refused"] == {} and labels.facts["has_default"]
    assert labels.facts["unestimated_ops"] == {"gather": 2}
    assert (archive.config_runtime % 1000 == 0).all(), "940 cycles are 1,000 ns"
    assert labels.facts["best_ns"] == archive.config_runtime.min()


def test_equal_candidates_are_compiled_once_and_get_one_runtime(tmp_path):
    small = program(Instruction(1, "parameter", array(8, 8), "x"), Instruction(2, "dot", array(8, 8), "y", (1, 1)))
    labels = label(tmp_path, options(60), module=serialize_module(small))
    rows = labels.arrays["node_config_feat"].reshape(60, -1)
    distinct = np.unique(rows, axis=0)
    assert 2 < len(distinct) <= 9 and compiled(tmp_path) == 1 + len(distinct)
    for row in distinct:
        assert len(set(labels.arrays["config_runtime"][(rows == row).all(axis=1)].tolist())) == 1


def test_a_second_run_asks_the_journal_and_more_candidates_append(tmp_path):
    first = label(tmp_path, options(8))
    before = compiled(tmp_path)
    again = label(tmp_path, options(8))
    assert compiled(tmp_path) == before + 1, "only the snapshot is made again"
    more = label(tmp_path, options(12))
    for key in ("node_config_feat", "config_runtime"):
        assert (first.arrays[key] == again.arrays[key]).all() and (first.arrays[key] == more.arrays[key][:8]).all()


def test_a_journal_that_was_cut_in_a_line_continues(tmp_path):
    whole = label(tmp_path, options(8)).arrays
    path = tmp_path / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + lines[4][:20])
    resumed = label(tmp_path, options(8)).arrays
    assert all((whole[key] == resumed[key]).all() for key in whole)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [json.loads(line) for line in lines]


def test_a_journal_of_another_program_is_not_used(tmp_path):
    label(tmp_path, options(4))
    other = program(Instruction(1, "parameter", array(8, 8), "x"), Instruction(2, "dot", array(8, 8), "y", (1, 1)))
    before = compiled(tmp_path)
    label(tmp_path, options(4), module=serialize_module(other))
    assert compiled(tmp_path) > before + 1
    assert (tmp_path / "journal.jsonl").read_text().count("program") == 1


@pytest.mark.parametrize(("fault", "kind"), [("abort", "the compiler aborted"), ("refuse", "does not fit")])
def test_refused_candidates_are_left_out_and_counted(tmp_path, fault, kind):
    (tmp_path / "good").mkdir()
    whole = label(tmp_path / "good", options(12))
    labels = label(tmp_path, options(12), fault, 3)
    refused = labels.facts["refused"][kind]
    assert 0 < refused < 12 and labels.facts["candidates"] == len(labels.arrays["config_runtime"]) == 12 - refused
    kept = [
        row for row, runtime in enumerate(whole.arrays["config_runtime"]) if runtime in labels.arrays["config_runtime"]
    ]
    assert (whole.arrays["node_config_feat"][kept] == labels.arrays["node_config_feat"]).all()


def test_a_candidate_that_took_too_long_is_tried_again_with_a_higher_limit_only(tmp_path):
    label(tmp_path, options(4))
    path = tmp_path / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[2] = {key: lines[2][key] for key in ("candidate", "key")} | {
        "error": "no result within 60 s",
        "time_limit": 60,
    }
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert label(tmp_path, options(4)).facts["refused"] == {"no result within 60 s": 1}
    assert label(tmp_path, options(4, time_limit=90.0)).facts["refused"] == {}
    assert label(tmp_path, options(4)).facts["refused"] == {}


def test_a_program_without_a_choice_or_without_answers_is_refused(tmp_path):
    plain = program(Instruction(1, "parameter", array(8), "x"), Instruction(2, "tanh", array(8), "y", (1,)))
    with pytest.raises(RefusedError, match="no convolution, dot or reshape"):
        label(tmp_path, options(), module=serialize_module(plain))
    with pytest.raises(RefusedError, match="12 of 12 candidates are refused: does not fit: 50G"):
        label(tmp_path, options(), "refuse", 1)

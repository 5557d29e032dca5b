"""A ranking as text, JSON, npz and page: from hand-made scores, so that every number in it is known."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.ranking.additive_scorer import additive
from tests.ranking.test_calibration import simple
from tpugraphs_polynormer import __version__
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.ranking.own_program import CandidateLog, explain_best
from tpugraphs_polynormer.ranking.program_files import to_json, write_ranking
from tpugraphs_polynormer.ranking.program_ranking import Member, Novelty, ProgramRanking

ROWS = np.array([[0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 3, 0, 0], [1, 1, 0, 0, 1]], np.int16)
VALUES = {(0, 1): 0.5, (1, 1): 0.5, (4, 1): 1.0, (2, 3): -1.5}


def make_ranking(*, calibration=None, num_members: int = 1, top: int = 5, values=VALUES) -> ProgramRanking:
    """Candidate 4 has score 2; 1 and 2 have 1; the default 0; 3 has -1.5."""
    scorer = additive(*[values] * num_members)
    log = CandidateLog(scorer)
    log.score(ROWS)
    members = [
        Member(f"runs/{number}", ("layout:xla:random",), "simulated, not measured", calibration)
        for number in range(num_members)
    ]
    return explain_best(scorer, log, members, top=top, seed=3)


def test_ranks_count_distinct_candidates():
    ranking = make_ranking()
    assert ranking.order.tolist() == [4, 1, 2, 0, 3] and ranking.default_rank == 4
    assert [each.number for each in ranking.best] == [4, 1, 2, 0, 3]
    assert ranking.candidates.shape == (5, 5, 18) and ranking.scores.tolist() == [0, 1, 1, -1.5, 2]


def test_the_text_has_the_reasons_and_the_units():
    text = make_ranking(calibration=simple(width=0.5)).describe()
    assert "the compiler's default presumed" in text and "simulated, not measured" in text
    assert "the compiler's default is predicted at rank 4 of 5" in text
    lines = [line for line in text.splitlines() if line.startswith("1. candidate 4")]
    gain, low, high = (100 * (1 - np.exp(-0.1 * each)) for each in (2.0, 1.5, 2.5))
    assert f"{gain:.1f} % less time (90 % interval of the gain: {low:.1f} to {high:.1f} %)" in lines[0]
    assert re.search(r"\+50 %  2 x dot f32\[64,64\]: .* -> .*  dot\.3 and 1 more\n", text)
    assert re.search(r"\+50 %  dot f32\[64,128\]: .* -> .*  dot\.7  \(jit\(f\)/last\)", text)
    assert "model.py:12, jit(f)/third" in text  # of candidate 3, which is slower
    assert "5. candidate 3: 16.2 % more time" in text and "4. candidate 0: the compiler's default" in text
    assert "do not trust" not in text and "equal within the noise" not in text


def test_without_a_calibration_the_text_names_the_command():
    ranking = make_ranking(num_members=2)
    text = ranking.describe()
    assert "tpugraphs evaluate --datasets DIR --run-dir runs/0 runs/1" in text and "less time" not in text
    assert "1. candidate 4: score +2.00 standard deviations beside the default" in text


def test_what_is_inside_the_noise_is_called_equal():
    ranking = make_ranking(calibration=simple(width=1.5))  # 2 is beyond it, 1 is not
    text = ranking.describe()
    assert "2. candidate 1: equal to the default within the noise" in text
    assert "1. candidate 4: equal" not in text
    assert ranking.num_equal_best == 3 and text.endswith("ranks 1 to 3 are equal within the noise")


def test_many_equal_changes_are_one_line_and_many_different_ones_are_cut():
    ranking = make_ranking(values={})
    changes = ranking.best[1].reasons.changes
    assert len(changes) == 1 and len(changes[0].nodes) == 2
    many = replace(ranking.best[1], reasons=replace(ranking.best[1].reasons, changes=changes * 20))
    text = replace(ranking, best=(many,)).describe()
    assert text.count(" x dot ") == 8 and "and 12 more changes of 24 nodes" in text


def test_a_third_of_unknown_nodes_is_not_to_be_trusted():
    ranking = make_ranking()
    assert not Novelty((), 0.0, 0.33).is_too_new
    new = replace(ranking, novelty=Novelty(("sort",), 0.1, 1 / 3))
    assert "do not trust this ranking" in new.describe() and to_json(new)["novelty"]["do_not_trust"] is True


NUMBER = (int, float)
COMPARISON = {"score_difference": NUMBER, "score_disagreement": NUMBER, "gain": (dict, type(None)), "equal": bool}
SHAPE = {
    "schema": int,
    "version": str,
    "seed": int,
    "program": {"name": str, "num_nodes": int, "num_config_nodes": int, "topology": type(None), "provenance": str},
    "runs": [{"run": str, "collections": [str], "runtimes": str, "calibration_graphs": (int, type(None))}],
    "box": type(None),
    "novelty": {"unseen_opcodes": list, "unseen_share": NUMBER, "outside_share": NUMBER, "do_not_trust": bool},
    "num_candidates": int,
    "default_rank": int,
    "num_equal_best": int,
    "nodes": [{"row": int, "id": int, "name": str, "opcode": str, "shape": str, "op_name": str, "source": str}],
    "best": [
        {
            "rank": int,
            "candidate": int,
            "scores": [NUMBER],
            "beside_default": COMPARISON,
            "equal_to_best": bool,
            "changes": [
                {
                    "nodes": [int],
                    "opcode": str,
                    "shapes": [str],
                    "old": {"output": list, "input": (list, type(None)), "kernel": (list, type(None))},
                    "new": {"output": list, "input": list, "kernel": list},
                    "contribution": NUMBER,
                }
            ],
            "smallest": (dict, type(None)),
            "copies": dict,
        }
    ],
}


def check_shape(value, shape, where="") -> None:
    """Asserts that JSON has exactly the fields and types of a pattern; [x] is a list of x."""
    if isinstance(shape, dict):
        assert isinstance(value, dict) and list(value) == list(shape), where
        for key, each in shape.items():
            check_shape(value[key], each, f"{where}.{key}")
    elif isinstance(shape, list):
        assert isinstance(value, list), where
        for each in value:
            check_shape(each, shape[0], f"{where}[]")
    else:
        assert isinstance(value, shape), (where, value)


def test_the_schema_of_the_json_file(tmp_path):
    ranking = make_ranking(calibration=simple())
    write_ranking(tmp_path / "new" / "r.json", ranking)
    found = json.loads((tmp_path / "new" / "r.json").read_text())
    check_shape(found, SHAPE)
    assert found["schema"] == 1 and found["version"] == __version__ and found["seed"] == 3
    assert found["nodes"][2] == {
        "row": 4,
        "id": 5,
        "name": "dot.5",
        "opcode": "dot",
        "shape": "f32[64,64]",
        "op_name": "jit(f)/third",
        "source": "model.py:12",
    }
    best = found["best"][0]
    assert best["beside_default"]["gain"].keys() == {"percent", "low", "high", "disagreement", "extrapolated"}
    assert best["changes"][0]["old"] == {"output": [1, 0], "input": None, "kernel": None}
    assert [change["nodes"] for change in best["changes"]] == [[0, 1], [4]]
    assert best["smallest"] == {"changes": [0, 1], "kept_share": 1.0}


def test_the_npz_file_has_all_candidates(tmp_path):
    ranking = make_ranking(num_members=2)
    write_ranking(tmp_path / "r.npz", ranking)
    with np.load(tmp_path / "r.npz", allow_pickle=False) as arrays:
        assert arrays["member_scores"].shape == (2, 5) and arrays["node_config_feat"].shape == (5, 5, 18)
        assert np.array_equal(np.argsort(-arrays["scores"], kind="stable"), arrays["ranking"])
        assert arrays["node_config_ids"].tolist() == [2, 3, 4, 5, 6]
    with pytest.raises(UserError, match=r"suffix '\.txt', expected one of \.html, \.json, \.npz"):
        write_ranking(tmp_path / "r.txt", ranking)
    assert not (tmp_path / "r.txt").exists()

"""The compiler's word beside a ranking: hand-made estimates, so that table and correlation are known."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.ranking.test_program_ranking import make_ranking
from tpugraphs_polynormer.compiler.program import Judgement
from tpugraphs_polynormer.ranking import program_judging
from tpugraphs_polynormer.ranking.program_judging import verify_ranking, write_applied


@pytest.fixture
def judged(monkeypatch):
    """Asks a compiler whose estimate is 1,000 cycles less 100 for each unit of the score; it refuses one candidate."""

    def ask(refused: tuple[int, ...] = (), *, sign: int = -1, count: int = 2):
        ranking = make_ranking()
        program = SimpleNamespace(unforced_judgement=Judgement(990, 1100), choices=ranking.program.choices)
        scores = {row.tobytes(): score for row, score in zip(ranking.indices, ranking.scores, strict=True)}

        def judge(_, indices: np.ndarray, __) -> list[Judgement]:
            answers = []
            for row in indices:
                cycles = int(1000 + sign * 100 * scores[row.tobytes()])
                is_refused = row.tobytes() in {ranking.indices[number].tobytes() for number in refused}
                answers.append(Judgement(error="does not fit: 20G") if is_refused else Judgement(cycles, 2 * cycles))
            return answers

        monkeypatch.setattr(program_judging, "judge_candidates", judge)
        return verify_ranking(replace(ranking, program=program), None, count=count)

    return ask


def test_the_best_and_others_are_judged_beside_the_default(judged):
    found = judged()
    assert found.names == ("the default", "rank 1", "rank 2", "rank 3", "rank 5")
    assert [each.cycles for each in found.judgements] == [1000, 800, 900, 900, 1150]
    assert found.tau == pytest.approx(1.0) and found.names[found.best] == "rank 1" and found.numbers[found.best] == 4
    lines = found.describe().splitlines()
    assert lines[1].split() == ["the", "default", "+0.00", "1,000", "2.0", "+0.0", "%"]
    assert lines[2].split() == ["rank", "1", "+2.00", "800", "1.6", "-20.0", "%"]
    assert "scores and estimates: 1.00" in lines[-1] and "990 cycles" in lines[-1]


def test_the_correlation_is_negative_where_the_compiler_disagrees(judged):
    found = judged(sign=1)
    assert found.tau == pytest.approx(-1.0)
    assert found.names[found.best] == "rank 5", "what is applied is best by the compiler's word"


def test_a_refused_candidate_is_named_and_not_counted(judged):
    found = judged(refused=(4,))
    assert "does not fit: 20G" in found.describe().splitlines()[2]
    assert found.names[found.best] == "rank 2"
    assert found.tau == pytest.approx(1.0)


def test_few_candidates_are_judged_once_each(judged):
    assert judged(count=50).names == ("the default", "rank 1", "rank 2", "rank 3", "rank 5")


def test_applied_programs_are_written_beside_the_output(tmp_path, monkeypatch):
    monkeypatch.setattr(program_judging, "apply_to_hlo", lambda *_: (b"\x08\x01", "HloModule x\n"))
    written = write_applied(tmp_path / "new" / "best.json", None, np.zeros(3), None)
    assert [path.name for path in written] == ["best.applied.hlo.pb", "best.applied.txt"]
    assert written[0].read_bytes() == b"\x08\x01" and written[1].read_text() == "HloModule x\n"

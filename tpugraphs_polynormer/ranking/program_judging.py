"""Asks the real TPU compiler about the best candidates of a ranking, and writes programs with their layouts forced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.compiler.program import CompiledProgram, Judgement, apply_to_hlo, judge_candidates
from tpugraphs_polynormer.compiler.session import CompilerSession
from tpugraphs_polynormer.files import replacing, write_text, writing
from tpugraphs_polynormer.ranking.metrics import kendall_tau
from tpugraphs_polynormer.ranking.program_ranking import ProgramRanking
from tpugraphs_polynormer.ranking.tables import format_table


@dataclass(frozen=True)
class Verification:
    """The compiler's estimates beside a ranking's scores.

    `numbers` [c] of the judged candidates in the ranking, and their `names`: the default, the others by rank. `scores`
    float64 [c]: higher is faster. `judgements` [c]: of the compiler, all with their layouts forced. `unforced`: of the
    program as it is.
    """

    numbers: tuple[int, ...]
    names: tuple[str, ...]
    scores: np.ndarray
    judgements: tuple[Judgement, ...]
    unforced: Judgement

    @property
    def best(self) -> int:
        """The position of the candidate with the fewest cycles; the default, if no other has fewer."""
        return min(range(len(self.numbers)), key=lambda each: (self._cycles(each), each))

    def _cycles(self, position: int) -> float:
        judgement = self.judgements[position]
        return float("inf") if judgement.error else judgement.cycles

    @property
    def tau(self) -> float:
        """Kendall's tau of scores and estimates, over the candidates that the compiler took; NaN if nothing differs."""
        taken = np.array([not each.error for each in self.judgements])
        cycles = np.array([each.cycles for each in self.judgements])
        return kendall_tau(cycles[taken], self.scores[taken]) if taken.sum() > 1 else float("nan")

    def describe(self) -> str:
        """A table, and the rank correlation."""
        default, rows = self.judgements[0], []
        for name, score, each in zip(self.names, self.scores, self.judgements, strict=True):
            if each.error:
                rows.append([name, f"{score:+.2f}", each.error.split(";")[0], "", ""])
                continue
            beside = "" if default.error else f"{100 * (each.cycles / default.cycles - 1):+.1f} %"
            rows.append([name, f"{score:+.2f}", f"{each.cycles:,}", f"{each.nanoseconds / 1000:,.1f}", beside])
        table = format_table(["judged by the TPU compiler", "score", "cycles", "us", "beside the default"], rows)
        missing = sum(default.unestimated.values())
        return (
            f"{table}\nKendall's tau of scores and estimates: {self.tau:.2f}; without forced layouts "
            f"{self.unforced.cycles:,} cycles; {missing:,} ops carry no estimate"
        )


def verify_ranking(ranking: ProgramRanking, session: CompilerSession, *, count: int) -> Verification:
    """The compiler's answers for the default, the `count` best candidates, and as many of the others.

    The best alone are nearly equal, and say little about the order. The others are taken at even distances of rank.

    Args:
      ranking: of a CompiledProgram. session: a compiler of its topology. count: of the best.
    """
    ranked = [(rank, number) for rank, number in enumerate(ranking.order.tolist(), start=1) if number != 0]
    best, others = ranked[:count], ranked[count:]
    spread = np.linspace(0, len(others) - 1, min(count, len(others))).astype(int)
    judged = [*best, *(others[position] for position in spread)]
    numbers = [0, *(number for _, number in judged)]
    names = ["the default", *(f"rank {rank:,}" for rank, _ in judged)]
    judgements = judge_candidates(ranking.program, ranking.indices[numbers], session)
    return Verification(
        tuple(numbers), tuple(names), ranking.scores[numbers], tuple(judgements), ranking.program.unforced_judgement
    )


def write_applied(path: Path, program: CompiledProgram, indices: np.ndarray, session: CompilerSession) -> list[Path]:
    """Writes the program with a candidate's layouts forced, as HLO protobuf and as text; returns the two paths.

    Args:
      path: whose suffix is replaced by `.applied.hlo.pb` and `.applied.txt`.
      program: as the compiler sees it. indices: int [nc], the candidate. session: a compiler of its topology.
    """
    module, text = apply_to_hlo(program, indices, session)
    binary, readable = path.with_suffix(".applied.hlo.pb"), path.with_suffix(".applied.txt")
    with writing(binary):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(binary) as temporary:
            temporary.write_bytes(module)
        write_text(readable, text)
    return [binary, readable]

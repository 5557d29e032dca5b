"""Ranks layout candidates of a user's own HLO program with trained runs, and scores candidates that the user gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.hlo.layout_program import LayoutProgram, number_layouts, presume_layouts
from tpugraphs_polynormer.hlo.module import Module
from tpugraphs_polynormer.ranking.box import box_runs, describe_card, read_card
from tpugraphs_polynormer.ranking.calibration import read_calibration
from tpugraphs_polynormer.ranking.metrics import rank_candidates
from tpugraphs_polynormer.ranking.program_ranking import (
    Member,
    ProgramRanking,
    RankedCandidate,
    compare_candidates,
    measure_novelty,
)
from tpugraphs_polynormer.ranking.program_scorer import ProgramScorer
from tpugraphs_polynormer.ranking.reasons import explain_candidate
from tpugraphs_polynormer.ranking.search import search_layouts
from tpugraphs_polynormer.simulator.copies import ProgramCopies
from tpugraphs_polynormer.simulator.costs import lay_out, price_choices
from tpugraphs_polynormer.simulator.optimum import find_optimum

RunDirs = Sequence[Path | str] | Path | str


class CandidateLog:
    """All candidates that were scored, each once; scoring one again costs nothing.

    Args:
      scorer: of the program.
    """

    def __init__(self, scorer: ProgramScorer) -> None:
        self._scorer = scorer
        self._numbers: dict[bytes, int] = {}
        self._means: list[float] = []
        self._indices: list[np.ndarray] = []
        self._scores: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def score(self, indices: np.ndarray) -> np.ndarray:
        """float64 [c]: the mean scores over members of candidates [c, nc]; higher is faster."""
        rows = np.ascontiguousarray(indices, np.int16)
        numbers = [self._numbers.get(row.tobytes(), -1) for row in rows]
        if -1 in numbers:
            new = list({row.tobytes(): row for row, number in zip(rows, numbers, strict=True) if number < 0}.values())
            self._numbers |= {row.tobytes(): len(self) + position for position, row in enumerate(new)}
            self._indices.append(np.stack(new))
            self._scores.append(self._scorer.score(self._indices[-1]))
            self._means += self._scores[-1].mean(axis=0).tolist()
            numbers = [self._numbers[row.tobytes()] for row in rows]
        return np.array([self._means[number] for number in numbers])

    @property
    def indices(self) -> np.ndarray:
        """int16 [c, nc]: the distinct candidates, in the order in which they were first scored."""
        return np.concatenate(self._indices)

    @property
    def scores(self) -> np.ndarray:
        """float64 [members, c]."""
        return np.concatenate(self._scores, axis=1)


def propose(scorer: ProgramScorer, *, budget: int, seconds: float | None = None, seed: int = 0) -> CandidateLog:
    """The distinct candidates that a search finds worth looking at, scored; the default is the first.

    The search starts from the default and from the optimum of the analytic cost model.

    Args:
      scorer: of the program.
      budget: how many are scored at most. seconds: after which no more are scored; None for no limit.
      seed: of the search.
    """
    log = CandidateLog(scorer)
    optimum = find_optimum(price_choices(scorer.graph, scorer.choices), seed=seed)
    limits = {"budget": budget, "seconds": seconds, "starts": optimum.indices[None]}
    search_layouts(log.score, scorer.choices, **limits, seed=seed)
    return log


def rank_program(
    run_dirs: RunDirs | None,
    program: Module | LayoutProgram,
    *,
    budget: int = 1000,
    seconds: float | None = None,
    top: int = 5,
    seed: int = 0,
) -> ProgramRanking:
    """Layout candidates of a program, ranked by trained runs, the best ones with reasons.

    Args:
      run_dirs: a run trained on a layout collection, or several, whose scores are averaged; None for the ranker in the
        box.
      program: from `hlo.program.parse_program`, `hlo.from_jax` or `hlo.from_tf`, whose default is presumed; or a
        LayoutProgram, such as the TPU compiler's.
      budget, seconds: of the candidates that are scored, see `propose`.
      top: how many of the best are explained.
      seed: of the candidates and of the scale of scores.
    """
    program = presume_layouts(program) if isinstance(program, Module) else program
    with ProgramScorer(_list(run_dirs), program, seed=seed) as scorer:
        members = tuple(
            Member(str(run.path), run.config.data.names, facts.origin, read_calibration(run))
            for run, facts in zip(scorer.runs, scorer.facts, strict=True)
        )
        log = propose(scorer, budget=budget, seconds=seconds, seed=seed)
        ranking = explain_best(scorer, log, members, top=top, seed=seed)
    return ranking if run_dirs is not None else dataclasses.replace(ranking, card=describe_card(read_card()))


def explain_best(
    scorer: ProgramScorer, log: CandidateLog, members: Sequence[Member], *, top: int, seed: int
) -> ProgramRanking:
    """The ranking of all candidates of a log, the best `top` of them with reasons; the default is the log's first."""
    program, graph = scorer.program, scorer.graph
    indices, scores = log.indices, log.scores
    order = rank_candidates(scores.mean(axis=0))
    copies, chosen = ProgramCopies(lay_out(graph, scorer.choices)), order[:top].tolist()
    best = tuple(
        RankedCandidate(
            rank=rank,
            number=number,
            beside_default=compare_candidates(members, scores[:, number] - scores[:, 0], scorer.spread),
            beside_best=compare_candidates(members, scores[:, chosen[0]] - scores[:, number], scorer.spread),
            reasons=explain_candidate(program, log.score, indices[number], copies=copies),
        )
        for rank, number in enumerate(chosen, start=1)
    )
    novelty = max(
        (measure_novelty(graph.node_feat, graph.node_opcode, facts.statistics) for facts in scorer.facts),
        key=lambda each: each.outside_share,
    )
    return ProgramRanking(program, indices, scores, order, novelty, tuple(members), best, seed)


def score_layouts(run_dirs: RunDirs | None, program: Module | LayoutProgram, layouts: np.ndarray) -> np.ndarray:
    """float64 [c]: the scores of one's own candidates; higher is faster, in standard deviations of the program's.

    Args:
      run_dirs, program: see `rank_program`.
      layouts: int [c, nc, 18], of each config node the layouts of output, input and kernel (hlo/choices.py).

    Raises:
      HloError: a layout is not legal; the message names the node and the legal ones.
    """
    program = presume_layouts(program) if isinstance(program, Module) else program
    indices = number_layouts(program, layouts)
    with ProgramScorer(_list(run_dirs), program) as scorer:
        return scorer.score(indices).mean(axis=0)


def _list(run_dirs: RunDirs | None) -> Sequence[Path | str]:
    if run_dirs is None:
        return box_runs()
    return [run_dirs] if isinstance(run_dirs, str | Path) else run_dirs

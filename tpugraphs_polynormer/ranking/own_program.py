"""Ranks layout candidates of a user's own HLO program with a trained run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.datasets.statistics import FeatureStatistics
from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.hlo.describe import describe_candidate
from tpugraphs_polynormer.hlo.layout_program import presume_layouts
from tpugraphs_polynormer.hlo.module import Module
from tpugraphs_polynormer.hlo.opcodes import OPCODE_NAMES
from tpugraphs_polynormer.hlo.sampling import draw_indices, gather_layouts
from tpugraphs_polynormer.ranking.metrics import rank_candidates
from tpugraphs_polynormer.ranking.program_scorer import ProgramScorer


@dataclass(frozen=True)
class Novelty:
    """The share of a program that the training data does not cover."""

    unseen_opcodes: tuple[str, ...]  # the program's opcodes that no training graph has
    unseen_share: float  # of nodes with such an opcode
    outside_share: float  # of nodes with a feature outside the range of the training nodes

    def __str__(self) -> str:
        unseen = f", with opcodes never trained on: {', '.join(self.unseen_opcodes)}" if self.unseen_opcodes else ""
        return (
            f"{100 * self.outside_share:.1f} % of the program's nodes have features outside the training data's range, "
            f"{100 * self.unseen_share:.1f} % an unseen opcode{unseen}"
        )


@dataclass(frozen=True)
class ProgramRanking:
    """The ranked candidates of a program.

    `candidates` [c, nc, 18] are layouts of the nc config nodes, the compiler's default first. `scores` [c]: higher is
    faster. `order` [c]: candidate indices, predicted fastest first.
    """

    module: Module
    candidates: np.ndarray
    scores: np.ndarray
    order: np.ndarray
    novelty: Novelty

    @property
    def default_rank(self) -> int:
        """The rank of the compiler's default (candidate 0); 1 is the fastest."""
        return int(np.flatnonzero(self.order == 0)[0]) + 1

    def describe(self, most: int) -> str:
        """A text of the best `most` candidates and their differences from the compiler's default."""
        choices = enumerate_choices(self.module)
        spread = float(self.scores.std()) or 1.0
        lines = [f"the compiler's default is predicted at rank {self.default_rank} of {len(self.order)}"]
        for rank, candidate in enumerate(self.order[:most], start=1):
            gain = (self.scores[candidate] - self.scores[0]) / spread
            lines.append(f"{rank}. candidate {candidate}: {gain:+.2f} standard deviations faster than the default")
            changes = describe_candidate(self.module, choices, self.candidates[candidate], reference=self.candidates[0])
            lines += [f"     {change}" for change in changes] or ["     the compiler's default"]
        return "\n".join(lines)


def rank_program(
    run_dirs: Sequence[Path | str] | Path | str,
    module: Module,
    *,
    num_candidates: int = 1000,
    seed: int = 0,
    mode: str = "default",
) -> ProgramRanking:
    """The layout candidates of a program, drawn at random, the compiler's default first, ranked by trained runs.

    Args:
      run_dirs: a run trained on a layout collection, or several, whose scores are averaged.
      module: the program, from `hlo.program.parse_program`, `hlo.from_jax` or `hlo.from_tf`.
      num_candidates, seed, mode: see `hlo.sampling.draw_candidates`.
    """
    paths = [run_dirs] if isinstance(run_dirs, str | Path) else run_dirs
    with ProgramScorer(paths, presume_layouts(module), seed=seed) as scorer:
        indices = draw_indices(scorer.choices, num_candidates, seed=seed, mode=mode)
        scores = scorer.score(indices).mean(axis=0)
        novelty = measure_novelty(scorer.node_feat, scorer.node_opcode, scorer.statistics[0])
    candidates = gather_layouts(scorer.choices, indices)
    return ProgramRanking(module, candidates, scores, rank_candidates(scores), novelty)


def measure_novelty(node_feat: np.ndarray, node_opcode: np.ndarray, statistics: FeatureStatistics | None) -> Novelty:
    """Compares a program's features [n, 140] and opcodes [n] with the statistics of the training data.

    To a cost model without training data (None), nothing is new.
    """
    if statistics is None:
        return Novelty((), 0.0, 0.0)
    unseen = np.array(statistics.opcode_counts)[node_opcode] == 0
    outside = (node_feat < np.array(statistics.minimum)) | (node_feat > np.array(statistics.maximum))
    return Novelty(
        unseen_opcodes=tuple(OPCODE_NAMES[number] for number in np.unique(node_opcode[unseen])),
        unseen_share=float(unseen.mean()),
        outside_share=float(outside.any(axis=1).mean()),
    )

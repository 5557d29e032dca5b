"""The ranking of a program's candidates: what was found, by whom, how far it can be trusted, and this as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.datasets.statistics import FeatureStatistics
from tpugraphs_polynormer.hlo.describe import describe_difference
from tpugraphs_polynormer.hlo.layout_program import LayoutProgram
from tpugraphs_polynormer.hlo.opcodes import OPCODE_NAMES
from tpugraphs_polynormer.hlo.sampling import gather_layouts
from tpugraphs_polynormer.ranking.calibration import LEVEL, Calibration, Gain, estimate_gain
from tpugraphs_polynormer.ranking.reasons import Change, Reasons

TOO_NEW = 1 / 3  # of the nodes outside the training range: a ranking is not to be trusted
_NUM_PRINTED = 8  # changes of a candidate that are printed


@dataclass(frozen=True)
class Novelty:
    """The share of a program that the training data does not cover."""

    unseen_opcodes: tuple[str, ...]  # the program's opcodes that no training graph has
    unseen_share: float  # of nodes with such an opcode
    outside_share: float  # of nodes with a feature outside the range of the training nodes

    @property
    def is_too_new(self) -> bool:
        """Whether a ranking is not to be trusted."""
        return self.outside_share >= TOO_NEW

    def __str__(self) -> str:
        unseen = f", with opcodes never trained on: {', '.join(self.unseen_opcodes)}" if self.unseen_opcodes else ""
        return (
            f"{100 * self.outside_share:.1f} % of the program's nodes have features outside the training data's range, "
            f"{100 * self.unseen_share:.1f} % an unseen opcode{unseen}"
        )


@dataclass(frozen=True)
class Member:
    """A trained run that took part."""

    run: str  # its folder
    collections: tuple[str, ...]  # that it was trained on
    origin: str  # of their runtimes
    calibration: Calibration | None


@dataclass(frozen=True)
class Comparison:
    """One candidate beside another one."""

    difference: float  # of the scores, in standard deviations of the program's candidates; above 0: it is faster
    disagreement: float  # the standard deviation of the difference over members
    gain: Gain | None  # None without a calibration

    @property
    def is_equal(self) -> bool:
        """Whether the two count as equal; without a calibration, if the members disagree on which one is faster."""
        if self.gain is not None:
            return self.gain.is_equal
        return abs(self.difference) <= 1.645 * self.disagreement

    def __str__(self) -> str:
        if self.gain is None:
            spread = f" (members differ by {self.disagreement:.2f})" if self.disagreement else ""
            return f"score {self.difference:+.2f} standard deviations{spread}"
        more = "less" if self.gain.percent >= 0 else "more"
        spread = f", members differ by {self.gain.disagreement:.1f} %" if self.gain.disagreement else ""
        beyond = ", further apart than validation pairs" if self.gain.extrapolated else ""
        low, high = sorted((self.gain.low, self.gain.high))
        return (
            f"{abs(self.gain.percent):.1f} % {more} time ({100 * LEVEL:.0f} % interval of the gain: {low:.1f} to "
            f"{high:.1f} %{spread}{beyond})"
        )


@dataclass(frozen=True)
class RankedCandidate:
    """One of the best candidates, explained."""

    rank: int  # 1 is the fastest
    number: int  # row of the ranking's candidates
    beside_default: Comparison
    beside_best: Comparison  # the best one beside this one
    reasons: Reasons


@dataclass(frozen=True)
class ProgramRanking:
    """The ranked candidates of a program.

    `indices` int16 [c, nc]: distinct candidates as choice numbers, the compiler's default first. `member_scores`
    float64 [m, c]: higher is faster. `order` [c]: candidate numbers, predicted fastest first. `best`: the first ones of
    them, explained.
    """

    program: LayoutProgram
    indices: np.ndarray
    member_scores: np.ndarray
    order: np.ndarray
    novelty: Novelty
    members: tuple[Member, ...]
    best: tuple[RankedCandidate, ...]
    seed: int
    card: str = ""  # what is known of the ranker in the box, if that is who ranked

    @property
    def candidates(self) -> np.ndarray:
        """int8 [c, nc, 18]: the layouts."""
        return gather_layouts(self.program.choices, self.indices)

    @property
    def scores(self) -> np.ndarray:
        """float64 [c]: the mean over members."""
        return self.member_scores.mean(axis=0)

    @property
    def default_rank(self) -> int:
        """The rank of the compiler's default (candidate 0); 1 is the fastest."""
        return int(np.flatnonzero(self.order == 0)[0]) + 1

    @property
    def num_equal_best(self) -> int:
        """The number of explained candidates, from the first on, that are equal to the first within the noise."""
        equal = [each.beside_best.is_equal or each.rank == 1 for each in self.best]
        return equal.index(False) if False in equal else len(equal)

    @property
    def facts(self) -> dict[str, str]:
        """What one has to know before believing the ranking: a sentence by topic."""
        module, choices = self.program.module, self.program.choices
        num_nodes = sum(len(each.instructions) for each in module.computations)
        collections = dict.fromkeys(name for each in self.members for name in each.collections)
        found = {
            "program": f"{module.name}: {num_nodes:,} nodes, {len(choices.node_ids):,} with layouts to choose",
            "default": self.program.provenance,
            "model": self.card or ", ".join(each.run for each in self.members),
            "trained on": ", ".join(collections),
            "runtimes": "; ".join(dict.fromkeys(each.origin for each in self.members)),
            "novelty": str(self.novelty),
            "unit": self._describe_unit(),
            "candidates": f"{len(self.order):,} distinct ones scored; the compiler's default is predicted at rank "
            f"{self.default_rank:,} of {len(self.order):,}",
        }
        if self.novelty.is_too_new:
            found["trust"] = "do not trust this ranking: a third or more of the nodes are unlike the training data"
        return found

    def _describe_unit(self) -> str:
        missing = [each.run for each in self.members if each.calibration is None]
        if missing:
            return (
                "scores only; for percent run `tpugraphs evaluate --datasets DIR --run-dir "
                f"{' '.join(missing)}`, which calibrates on the validation graphs"
            )
        counts = ", ".join(str(each.calibration.num_graphs) for each in self.members)
        return f"percent of time, calibrated on validation graphs of the model's own data ({counts})"

    def describe(self) -> str:
        """The facts, and the best candidates with the reasons for their rank, as text."""
        width = max(map(len, self.facts))
        lines = [f"{topic.ljust(width)}  {sentence}" for topic, sentence in self.facts.items()]
        for each in self.best:
            lines += ["", *self._describe_candidate(each)]
        if self.num_equal_best > 1:
            lines += ["", f"ranks 1 to {self.num_equal_best} are equal within the noise"]
        return "\n".join(lines)

    def _describe_candidate(self, candidate: RankedCandidate) -> list[str]:
        heading = f"{candidate.rank}. candidate {candidate.number}: "
        if candidate.number == 0:
            return [f"{heading}the compiler's default"]
        beside, reasons = candidate.beside_default, candidate.reasons
        equal = "equal to the default within the noise; " if beside.is_equal else ""
        lines = [f"{heading}{equal}{beside} beside the default"]
        nodes = sum(len(change.nodes) for change in reasons.changes)
        counted = "1 node" if nodes == 1 else f"{nodes:,} nodes"
        unit = "of the gain " if beside.difference > 0 else ""
        lines.append(f"   {counted} changed; how much {unit}is lost if one change is undone:")
        lines += [
            f"   {format_share(change, beside)}  {self.describe_change(change)}"
            for change in reasons.changes[:_NUM_PRINTED]
        ]
        if len(reasons.changes) > _NUM_PRINTED:
            rest = reasons.changes[_NUM_PRINTED:]
            lines.append(f"   and {len(rest)} more changes of {sum(len(each.nodes) for each in rest):,} nodes")
        return lines + [f"   {line}" for line in describe_rest(reasons)]

    def describe_change(self, change: Change) -> str:
        """One line: how many nodes, which, their shape, the old layouts beside the new, and where they come from."""
        count = f"{len(change.nodes)} x " if len(change.nodes) > 1 else ""
        nodes = self.program.config_nodes
        name = nodes[change.nodes[0]].name or change.opcode
        more = f" and {len(change.nodes) - 1} more" if count else ""
        source = self.describe_source(change)
        told = f"  ({source})" if source else ""
        layouts = describe_difference(change.old, change.new)
        return f"{count}{change.opcode} {change.shapes[0]}: {layouts}  {name}{more}{told}"

    def describe_source(self, change: Change) -> str:
        """The source line and the operation's name of the first node of a change that has them; empty without."""
        nodes = self.program.config_nodes
        for number in change.nodes:
            metadata = self.program.find_metadata(nodes[number])
            if metadata is not None:
                return ", ".join(filter(None, (metadata.source, metadata.op_name)))
        return ""


def compare_candidates(members: Sequence[Member], differences: np.ndarray, spread: float) -> Comparison:
    """What the differences of scores [m] of two candidates mean; `spread` is the cost model's, of the program."""
    calibrations = [each.calibration for each in members]
    gain = None
    if all(each is not None for each in calibrations) and spread > 0:
        gain = estimate_gain(calibrations, differences.tolist(), spread)
    return Comparison(float(differences.mean()), float(differences.std()), gain)


def format_share(change: Change, beside: Comparison) -> str:
    """A change's contribution, as a share of the candidate's gain if it has one, else as a score."""
    if beside.difference > 0:
        return f"{100 * change.contribution / beside.difference:+5.0f} %"
    return f"{change.contribution:+7.3f}"


def describe_rest(reasons: Reasons) -> list[str]:
    """Lines about the smallest change and the copies."""
    lines = []
    if reasons.smallest is not None and len(reasons.smallest.changes) < len(reasons.changes):
        numbers = ", ".join(str(each + 1) for each in reasons.smallest.changes)
        which = f"change {numbers} alone keeps" if "," not in numbers else f"changes {numbers} alone keep"
        lines.append(f"smallest change: {which} {100 * reasons.smallest.kept_share:.0f} % of the gain")
    if reasons.copies is not None:
        copies = reasons.copies
        lines.append(
            f"copies, by the cost model: {copies.num_vanishing} of the default's {copies.num_default} vanish "
            f"({copies.bytes_vanishing / 1e6:,.1f} MB moved), {copies.num_appearing} appear "
            f"({copies.bytes_appearing / 1e6:,.1f} MB)"
        )
    return lines


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

"""Why a candidate is ranked as it is: what each of its changes contributes, and how few of them are enough.

A contribution is measured, not approximated: the change is undone, everything else stays, and the model scores that.
Contributions need not add up to the gain, because changes work together: of two layouts that agree with each other,
either one alone may be worth nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.hlo.describe import describe_shape
from tpugraphs_polynormer.hlo.layout_program import LayoutProgram
from tpugraphs_polynormer.simulator.copies import ProgramCopies

KEPT_SHARE = 0.9  # of the gain, which the smallest change keeps
Score = Callable[[np.ndarray], np.ndarray]  # choice numbers [c, nc] -> scores [c], higher is faster


@dataclass(frozen=True)
class Change:
    """One change of a candidate at all nodes that are alike: same opcode, shapes, old and new layouts."""

    nodes: tuple[int, ...]  # config nodes, as numbered in the program's choices
    opcode: str
    shapes: tuple[str, ...]  # of the result and of the operands
    old: tuple[int, ...]  # the 18 integers of the default, see hlo/choices.py
    new: tuple[int, ...]  # those of the candidate
    contribution: float  # by how much the score falls if only this change is undone


@dataclass(frozen=True)
class SmallestChange:
    """Few of a candidate's changes that keep most of its gain."""

    changes: tuple[int, ...]  # numbers of `Reasons.changes`, by the order in which they are given there
    indices: np.ndarray  # [nc], the choice numbers of the candidate that has these changes only
    kept_share: float  # of the gain; more than 1 if the other changes did harm


@dataclass(frozen=True)
class CopyChanges:
    """The copies that a candidate has and the default has not, and the reverse, by the analytic cost model."""

    num_default: int  # of the copies that depend on the candidate
    num_appearing: int
    num_vanishing: int
    bytes_appearing: float  # read and written
    bytes_vanishing: float


@dataclass(frozen=True)
class Reasons:
    """What makes a candidate different from the default."""

    changes: tuple[Change, ...]  # by contribution, the largest first
    smallest: SmallestChange | None  # None if the candidate has no gain
    copies: CopyChanges | None  # None if the cost model cannot read the program


def explain_candidate(
    program: LayoutProgram, score: Score, indices: np.ndarray, *, copies: ProgramCopies | None = None
) -> Reasons:
    """The reasons of a candidate with choice numbers [nc].

    Args:
      program: with its choices. score: of the model, or the mean of an ensemble.
      indices: the candidate. copies: of the program.
    """
    kinds = group_changes(program, indices)
    groups = [np.array(each) for each in kinds.values()]
    scores = score(np.stack([indices, np.zeros_like(indices), *(_undo(indices, each) for each in groups)]))
    contributions = scores[0] - scores[2:]
    order = np.argsort(-contributions, kind="stable").tolist()
    described = list(kinds.items())
    changes = tuple(
        Change(tuple(described[number][1]), *described[number][0], float(contributions[number])) for number in order
    )
    smallest = None
    if scores[0] > scores[1] and groups:
        smallest = _find_smallest(score, indices, [groups[number] for number in order], scores[0], scores[1])
    return Reasons(changes, smallest, None if copies is None else compare_copies(copies, indices))


def group_changes(
    program: LayoutProgram, indices: np.ndarray
) -> dict[tuple[str, tuple[str, ...], tuple[int, ...], tuple[int, ...]], list[int]]:
    """The config nodes at which a candidate [nc] differs from the default, by what they have in common.

    The key is (opcode, shapes, old layouts, new layouts), as in `Change`.
    """
    choices, nodes = program.choices, program.config_nodes
    by_id = {each.id: each for computation in program.module.computations for each in computation.instructions}
    found: dict[tuple, list[int]] = {}
    for number in np.flatnonzero(indices).tolist():
        node, start = nodes[number], int(choices.starts[number])
        tensors = (node, *(by_id[operand] for operand in node.operand_ids))
        old, new = (tuple(choices.table[row].tolist()) for row in (start, start + int(indices[number])))
        key = node.opcode, tuple(describe_shape(each.shape) for each in tensors), old, new
        found.setdefault(key, []).append(number)
    return found


def compare_copies(copies: ProgramCopies, indices: np.ndarray) -> CopyChanges:
    """The copies of a candidate [nc] beside those of the default."""
    default, other = copies.measure(np.stack([np.zeros_like(indices), indices]))
    appearing, vanishing = (other > 0) & (default == 0), (default > 0) & (other == 0)
    return CopyChanges(
        num_default=int((default > 0).sum()),
        num_appearing=int(appearing.sum()),
        num_vanishing=int(vanishing.sum()),
        bytes_appearing=float(other[appearing].sum()),
        bytes_vanishing=float(default[vanishing].sum()),
    )


def _find_smallest(
    score: Score, indices: np.ndarray, groups: Sequence[np.ndarray], whole: float, default: float
) -> SmallestChange:
    """Few groups that keep KEPT_SHARE of the gain: the smaller of what is left and of what is needed.

    "Left": changes are taken away, those that contribute least first, as many at a time as the gain allows, until none
    can go. "Needed": changes are put on the default in the order of what each gives alone, until they are enough; and
    then taken away in the same manner.
    """
    needed = default + KEPT_SHARE * (whole - default)
    everything = list(range(len(groups)))

    def build(chosen: Sequence[int]) -> np.ndarray:
        made = np.zeros_like(indices)
        for number in chosen:
            made[groups[number]] = indices[groups[number]]
        return made

    def take_away(chosen: list[int]) -> list[int]:
        while len(chosen) > 1:
            without = score(np.stack([build([each for each in chosen if each != one]) for one in chosen]))
            least = [chosen[position] for position in np.argsort(-without, kind="stable").tolist()]
            rest = [[each for each in chosen if each not in least[:count]] for count in range(1, len(chosen))]
            enough = np.flatnonzero(score(np.stack([build(each) for each in rest])) >= needed)
            if not len(enough):
                break
            chosen = rest[int(enough[-1])]
        return chosen

    alone = score(np.stack([build([each]) for each in everything]))
    gives = np.argsort(-alone, kind="stable").tolist()
    prefixes = [gives[: count + 1] for count in everything]
    enough = np.flatnonzero(score(np.stack([build(each) for each in prefixes])) >= needed)
    starts = [everything] + [prefixes[int(each)] for each in enough[:1]]
    best = min((sorted(take_away(start)) for start in starts), key=len)
    made = build(best)
    kept = (float(score(made[None])[0]) - default) / (whole - default)
    return SmallestChange(tuple(best), made, kept)


def _undo(indices: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    changed = indices.copy()
    changed[nodes] = 0
    return changed

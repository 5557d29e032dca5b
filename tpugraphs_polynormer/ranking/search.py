"""Searches the layout candidates of a program for the best scores: coordinate descent, then evolution.

Coordinate descent tries the changes of one unit of the best candidate at a time: first tied groups, then single nodes,
then a node together with those that are linked to it. The improvements of a block are combined before the next one,
because most units do not depend on each other. Evolution crosses and mutates the best candidates that were scored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.hlo.changes import LayoutChanges
from tpugraphs_polynormer.hlo.choices import Choices
from tpugraphs_polynormer.hlo.sampling import draw_indices

MAX_BLOCK = 256  # candidates that are scored at once
_MIN_BLOCK = 8
_BLOCKS_PER_BUDGET = 16  # a small budget has small blocks, so that the later ones learn from the earlier ones
_DRAWN_PER_BUDGET = 8  # one of so many candidates is drawn at random before the descent, in case the default is bad
_MAX_DRAWN = 64
_DEPTHS = (0, 1, 3)  # links along which neighbours follow a node's change
_POPULATION = 32
_MAX_MUTATIONS = 4
_TRIES_PER_CHILD = 4

Score = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class SearchResult:
    """The scored candidates of a search in the order in which they were scored; all distinct, the default first."""

    indices: np.ndarray  # int16 [c, nc]: choice numbers
    scores: np.ndarray  # float64 [c]: higher is faster

    @property
    def best(self) -> int:
        """The row of the best score, the earliest if several are equal."""
        return int(self.scores.argmax())


def search_layouts(
    score: Score,
    choices: Choices,
    *,
    budget: int,
    seconds: float | None = None,
    starts: np.ndarray | None = None,
    seed: int = 0,
) -> SearchResult:
    """The candidates that a search has scored, until the budget is used or all candidates are scored.

    Args:
      score: choice numbers int16 [c, nc] -> scores [c], higher is faster. It gets at most 256 candidates at once, and
        no candidate twice.
      choices: what each node may choose.
      budget: the most candidates to score, at least 1 (the default).
      seconds: a limit of time as well; it is looked at before each block, and the default is scored in any case.
      starts: choice numbers [k, nc] to begin with besides the default, such as the optimum of a cost model.
      seed: the same seed and budget give the same candidates, unless time runs out.
    """
    if budget < 1:
        raise UserError(f"cannot search with a budget of {budget} candidates; expected at least 1")
    width = len(choices.counts)
    starts = np.zeros((0, width), np.int16) if starts is None else np.asarray(starts, np.int16)
    if starts.ndim != 2 or starts.shape[1] != width or (starts < 0).any() or (starts >= choices.counts).any():
        raise UserError(
            f"the starts of a search have shape {starts.shape}; expected [k, {width}] choice numbers of the program's "
            "config nodes"
        )
    ledger = _Ledger(score, width, budget, seconds)
    _Search(ledger, choices, budget, seed).run(starts)
    return SearchResult(ledger.indices, ledger.scores)


class _ExhaustedError(Exception):
    """The budget is used: there is nothing left to do."""


class _Ledger:
    """The scored candidates; it passes new ones to the score function, within budget and time."""

    def __init__(self, score: Score, num_config_nodes: int, budget: int, seconds: float | None) -> None:
        self._score, self._budget = score, budget
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._row_of: dict[bytes, int] = {}
        self._indices = np.zeros((0, num_config_nodes), np.int16)
        self._scores = np.zeros(0)
        self._used = 0

    @property
    def indices(self) -> np.ndarray:
        """int16 [c, nc], in the order of scoring."""
        return self._indices[: self._used]

    @property
    def scores(self) -> np.ndarray:
        """float64 [c]."""
        return self._scores[: self._used]

    @property
    def left(self) -> int:
        """The number of candidates that may still be scored."""
        return self._budget - self._used

    @property
    def best(self) -> np.ndarray:
        """int16 [nc]: the candidate with the best score, the earliest if several are equal."""
        return self.indices[self.scores.argmax()]

    @property
    def best_score(self) -> float:
        """The score of `best`."""
        return float(self.scores.max())

    def find_best(self, count: int) -> np.ndarray:
        """int16 [at most count, nc]: the best candidates with different scores, best first.

        Equal scores mostly come from changes that make no difference, and a population needs differences.
        """
        _, rows = np.unique(-self.scores, return_index=True)
        return self.indices[rows[:count]]

    def is_new(self, candidate: np.ndarray) -> bool:
        """Whether a candidate [nc] was not scored yet."""
        return candidate.tobytes() not in self._row_of

    def score(self, candidates: np.ndarray) -> np.ndarray:
        """float64 [c]: the scores of candidates int16 [c, nc]; those that are new are scored now.

        Raises:
          _ExhaustedError: the budget is used or time ran out; what could be scored was scored.
        """
        keys = [candidate.tobytes() for candidate in candidates]
        first = {key: row for row, key in reversed(list(enumerate(keys)))}
        new = sorted(row for key, row in first.items() if key not in self._row_of)
        fitting = new[: self.left]
        for start in range(0, len(fitting), MAX_BLOCK):
            rows = fitting[start : start + MAX_BLOCK]
            if self._used and self._deadline is not None and time.monotonic() >= self._deadline:
                raise _ExhaustedError
            self._append(candidates[rows], [keys[row] for row in rows])
        if len(fitting) < len(new) or not self.left:
            raise _ExhaustedError
        return self._scores[[self._row_of[key] for key in keys]]

    def _append(self, block: np.ndarray, keys: list[bytes]) -> None:
        scores = np.asarray(self._score(block), np.float64)
        if scores.shape != (len(block),) or np.isnan(scores).any():
            raise UserError(
                f"the score function of a search returned shape {scores.shape} with {np.isnan(scores).sum()} NaN for "
                f"{len(block)} candidates; expected a number for each"
            )
        end = self._used + len(block)
        if end > len(self._indices):
            more = min(max(end, 2 * len(self._indices)), self._budget) - len(self._indices)
            self._indices = np.concatenate([self._indices, np.zeros((more, block.shape[1]), np.int16)])
            self._scores = np.concatenate([self._scores, np.zeros(more)])
        self._indices[self._used : end], self._scores[self._used : end] = block, scores
        self._row_of.update(zip(keys, range(self._used, end), strict=True))
        self._used = end


class _Search:
    """One search, from the default to the end of the budget."""

    def __init__(self, ledger: _Ledger, choices: Choices, budget: int, seed: int) -> None:
        self._ledger, self._choices, self._budget, self._seed = ledger, choices, budget, seed
        self._rng = np.random.default_rng(seed)
        self._changes = LayoutChanges(choices)
        self._block = min(max(budget // _BLOCKS_PER_BUDGET, _MIN_BLOCK), MAX_BLOCK)

    def run(self, starts: np.ndarray) -> None:
        """Scores candidates until the budget is used or there are no more."""
        try:
            self._ledger.score(np.zeros((1, len(self._choices.counts)), np.int16))
            self._ledger.score(starts)
            if math.prod(self._choices.counts.tolist()) <= self._budget:
                for block in _all_candidates(self._choices.counts):
                    self._ledger.score(block)
                return
            first = 1 + min(self._budget // _DRAWN_PER_BUDGET, _MAX_DRAWN)
            self._ledger.score(draw_indices(self._choices, first, seed=self._seed, mode="random"))
            self._descend()
            while True:
                self._evolve()
        except _ExhaustedError:
            pass

    def _descend(self) -> None:
        """Coordinate descent until no change of a group, of a node, or of a node with its neighbours improves the best.

        The outputs alone come first: they matter most, and a small budget suffices for them.
        """
        groups, nodes = self._changes.groups, self._changes.nodes
        self._sweep(groups, outputs_only=True)
        self._sweep(nodes, outputs_only=True)
        improved = True
        while improved:
            improved = self._sweep(groups)
            for depth in _DEPTHS:
                improved |= self._sweep(nodes, depth=depth)

    def _sweep(self, units: list[np.ndarray], *, depth: int = 0, outputs_only: bool = False) -> bool:
        """Tries the choices of every unit once, small changes first; returns whether the best improved.

        With a depth, the neighbours of a node follow its change.
        """
        best, before = self._ledger.best, self._ledger.best_score
        moves = [
            (distance, nodes, choice)
            for nodes in units
            for distance, choice in self._changes.list_choices(nodes[0], best[nodes[0]], outputs_only=outputs_only)
        ]
        moves = [moves[number] for number in self._rng.permutation(len(moves))]
        moves.sort(key=lambda move: -move[0])
        while moves:
            base, block = self._ledger.best, []
            while moves and len(block) < self._block:
                _, nodes, choice = moves.pop()
                changed = base.copy()
                changed[nodes] = choice
                self._changes.follow(changed, nodes[0], depth=depth)
                if self._ledger.is_new(changed):
                    block.append(changed)
            if block:
                self._score_combined(base, np.stack(block))
        return self._ledger.best_score > before

    def _score_combined(self, base: np.ndarray, block: np.ndarray) -> None:
        """Scores changes [c, nc] of the best [nc], then all improvements in one, the better half of them, and so on."""
        before = self._ledger.best_score
        scores = self._ledger.score(block)
        better = np.flatnonzero(scores > before)
        combined, touched = [base], np.zeros(len(base), bool)
        for row in better[np.argsort(-scores[better], kind="stable")]:
            changed = block[row] != base
            if not touched[changed].any():
                combined.append(np.where(changed, block[row], combined[-1]))
                touched |= changed
        halves = [(len(combined) - 1) >> shift for shift in range(len(combined).bit_length())]
        self._ledger.score(np.stack([combined[size] for size in halves]))

    def _evolve(self) -> None:
        """One generation: a block of new candidates, children of the best."""
        population, block, tries = self._ledger.find_best(_POPULATION), {}, 0
        while len(block) < min(self._block, self._ledger.left):
            # Where children are known already, as in a small space that is nearly used up, any candidate will do.
            child = self._breed(population) if tries < _TRIES_PER_CHILD * self._block else self._draw()
            tries += 1
            if self._ledger.is_new(child):
                block[child.tobytes()] = child
        self._ledger.score(np.stack(list(block.values())))

    def _breed(self, population: np.ndarray) -> np.ndarray:
        """int16 [nc]: a child of one or two candidates of a sorted population, the better ones more often."""
        rng, changes, counts = self._rng, self._changes, self._choices.counts
        first, second = (population[int(len(population) * rng.random() ** 2)] for _ in range(2))
        child, is_crossed = first.copy(), rng.random() < 0.5
        if is_crossed:  # a run of nodes in the program's order, because neighbours depend on each other
            low, high = np.sort(rng.integers(len(child) + 1, size=2))
            child[low:high] = second[low:high]
        for _ in range(int(rng.integers(0 if is_crossed else 1, _MAX_MUTATIONS + 1))):
            units = changes.groups if rng.random() < 0.25 else changes.nodes
            nodes = units[rng.integers(len(units))]
            child[nodes] = rng.integers(counts[nodes[0]])
            if rng.random() < 0.5:
                changes.follow(child, nodes[rng.integers(len(nodes))], depth=int(rng.integers(1, _DEPTHS[-1] + 1)))
        return child

    def _draw(self) -> np.ndarray:
        """int16 [nc]: a candidate of which every choice is equally likely."""
        return self._rng.integers(self._choices.counts).astype(np.int16)


def _all_candidates(counts: np.ndarray) -> Iterator[np.ndarray]:
    """Yields all candidates in blocks int16 [at most 256, nc]; the last node changes first."""
    free = np.flatnonzero(counts > 1)
    total = math.prod(counts.tolist())
    for start in range(0, total, MAX_BLOCK):
        numbers = np.arange(start, min(start + MAX_BLOCK, total))
        block = np.zeros((len(numbers), len(counts)), np.int16)
        if len(free):
            block[:, free] = np.stack(np.unravel_index(numbers, counts[free]), axis=1)
        yield block

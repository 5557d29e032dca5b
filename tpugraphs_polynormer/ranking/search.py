"""Searches the layout candidates of a program for the best scores: coordinate descent, then evolution.

Coordinate descent tries the changes of one unit of the best candidate at a time: first tied groups, then single nodes,
then a node together with those that are linked to it. The improvements of a block are combined before the next one,
because most units do not depend on each other. Evolution crosses and mutates the best candidates that were scored.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.hlo.choices import Choices
from tpugraphs_polynormer.hlo.sampling import LinkAgreement

MAX_BLOCK = 256  # candidates that are scored at once
_MIN_BLOCK = 8
_BLOCKS_PER_BUDGET = 16  # a small budget has small blocks, so that the later ones learn from the earlier ones
_POPULATION = 32
_MOST_CHANGES = 4  # units that a mutation changes

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
    search = _Search(score, choices, budget, seconds, np.random.default_rng(seed))
    none = np.zeros((0, len(choices.counts)), np.int16)
    search.run(none if starts is None else np.asarray(starts, np.int16).reshape(-1, len(choices.counts)))
    return SearchResult(search.ledger.indices, search.ledger.scores)


class _Exhausted(Exception):
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
        """How many candidates may still be scored."""
        return self._budget - self._used

    def is_new(self, candidate: np.ndarray) -> bool:
        """Whether a candidate [nc] was not scored yet."""
        return candidate.tobytes() not in self._row_of

    def score(self, candidates: np.ndarray) -> np.ndarray:
        """float64 [c]: the scores of candidates int16 [c, nc]; those that are new are scored now.

        Raises:
          _Exhausted: the budget does not suffice for all of them, or time ran out; what could be scored was scored.
        """
        keys = [candidate.tobytes() for candidate in candidates]
        new = [row for key, row in dict(zip(reversed(keys), reversed(range(len(keys))), strict=True)).items()
               if key not in self._row_of]  # fmt: skip
        new.sort()
        fitting = new[: self.left]
        for start in range(0, len(fitting), MAX_BLOCK):
            rows = fitting[start : start + MAX_BLOCK]
            if self._used and self._deadline is not None and time.monotonic() >= self._deadline:
                raise _Exhausted
            self._append(candidates[rows], [keys[row] for row in rows])
        if len(fitting) < len(new) or not self.left:
            raise _Exhausted
        return self._scores[[self._row_of[key] for key in keys]]

    def _append(self, block: np.ndarray, keys: list[bytes]) -> None:
        end = self._used + len(block)
        if end > len(self._indices):
            size = min(max(end, 2 * len(self._indices)), self._budget)
            self._indices = np.concatenate([self.indices, np.zeros((size - self._used, block.shape[1]), np.int16)])
            self._scores = np.concatenate([self.scores, np.zeros(size - self._used)])
        self._indices[self._used : end] = block
        self._scores[self._used : end] = self._score(block)
        self._row_of.update(zip(keys, range(self._used, end), strict=True))
        self._used = end


class _Search:
    """One search, from the default to the end of the budget."""

    def __init__(
        self, score: Score, choices: Choices, budget: int, seconds: float | None, rng: np.random.Generator
    ) -> None:
        self._counts, self._rng = choices.counts, rng
        self.ledger = _Ledger(score, len(choices.counts), budget, seconds)
        self._budget = budget
        self._block = min(max(budget // _BLOCKS_PER_BUDGET, _MIN_BLOCK), MAX_BLOCK)
        free = np.flatnonzero(choices.counts > 1)
        self._nodes = [np.array([node]) for node in free]
        groups = [np.flatnonzero(choices.groups == group) for group in np.unique(choices.groups[free])]
        self._groups = [group for group in groups if len(group) > 1]
        self._links = _Links(choices)

    def run(self, starts: np.ndarray) -> None:
        """Scores candidates until the budget is used or there are no more."""
        try:
            default = np.zeros((1, len(self._counts)), np.int16)
            self.ledger.score(default)
            self.ledger.score(starts)
            if math.prod(self._counts.tolist()) <= self._budget:
                for block in _all_candidates(self._counts):
                    self.ledger.score(block)
                return
            self._descend()
            while True:
                self._evolve()
        except _Exhausted:
            pass

    @property
    def _best(self) -> np.ndarray:
        return self.ledger.indices[self.ledger.scores.argmax()]

    def _descend(self) -> None:
        """Coordinate descent until no change of a group, a node or a linked pair improves the best."""
        improved = True
        while improved:
            improved = self._sweep(self._groups, linked=False)
            improved |= self._sweep(self._nodes, linked=False)
            improved |= self._sweep(self._nodes, linked=True)

    def _sweep(self, units: list[np.ndarray], *, linked: bool) -> bool:
        """Tries every choice of every unit once; returns whether the best improved."""
        order = self._rng.permutation(len(units))
        moves = [(units[number], choice) for number in order for choice in range(self._counts[units[number][0]])]
        before = self.ledger.scores.max()
        while moves:
            base, block = self._best, []
            while moves and len(block) < self._block:
                candidate = base.copy()
                nodes, choice = moves.pop(0)
                candidate[nodes] = choice
                if linked:
                    self._links.follow(candidate, nodes[0], depth=1)
                if self.ledger.is_new(candidate):
                    block.append(candidate)
            if block:
                self._combine(base, np.stack(block))
        return bool(self.ledger.scores.max() > before)

    def _combine(self, base: np.ndarray, block: np.ndarray) -> None:
        """Scores changes [c, nc] of a base [nc], then all improvements together, the better half, quarter, ..."""
        scores = self.ledger.score(block)
        base_score = float(self.ledger.score(base[None])[0])
        better = np.flatnonzero(scores > base_score)
        joined, combined = base.copy(), []
        for row in better[np.argsort(-scores[better], kind="stable")]:
            changed = block[row] != base
            if not (joined != base)[changed].any():
                joined = np.where(changed, block[row], joined)
                combined.append(joined)
        sizes = {max(1, len(combined) >> shift) for shift in range(len(combined).bit_length())}
        if sizes:
            self.ledger.score(np.stack([combined[size - 1] for size in sorted(sizes, reverse=True)]))

    def _evolve(self) -> None:
        """One generation: a block of new candidates, children of the best."""
        order = np.argsort(-self.ledger.scores, kind="stable")[:_POPULATION]
        population = self.ledger.indices[order]
        block: dict[bytes, np.ndarray] = {}
        tries = 0
        while len(block) < min(self._block, self.ledger.left):
            child = self._breed(population) if tries < 4 * self._block else self._draw()
            tries += 1
            if self.ledger.is_new(child):
                block.setdefault(child.tobytes(), child)
        self.ledger.score(np.stack(list(block.values())))

    def _breed(self, population: np.ndarray) -> np.ndarray:
        """int16 [nc]: a child of one or two parents, the better ones more often, with a few mutations."""
        rng = self._rng
        first, second = (population[int(len(population) * rng.random() ** 2)] for _ in range(2))
        child = first.copy()
        crossed = rng.random() < 0.5
        if crossed:  # a run of nodes in the program's order, because neighbours depend on each other
            low, high = np.sort(rng.integers(len(child) + 1, size=2))
            child[low:high] = second[low:high]
        for _ in range(int(rng.integers(0 if crossed else 1, _MOST_CHANGES + 1))):
            units = self._groups if self._groups and rng.random() < 0.25 else self._nodes
            nodes = units[rng.integers(len(units))]
            child[nodes] = rng.integers(self._counts[nodes[0]])
            if rng.random() < 0.5:
                self._links.follow(child, nodes[rng.integers(len(nodes))], depth=int(rng.integers(1, 4)))
        return child

    def _draw(self) -> np.ndarray:
        """int16 [nc]: any candidate, when children bring nothing new."""
        return self._rng.integers(self._counts).astype(np.int16)


class _Links:
    """The links of a program, along which a change of one node's layout is followed by its neighbours."""

    def __init__(self, choices: Choices) -> None:
        self._choices, self._agreement = choices, LinkAgreement(choices)
        self._of_node: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for link in choices.links.tolist():
            for node in {link[0], link[2]}:
                self._of_node[node].append(tuple(link))

    def follow(self, candidate: np.ndarray, node: int, *, depth: int) -> None:
        """Changes the nodes linked to one, and those linked to them, up to a depth, so that layouts agree.

        A node keeps as much of its own layouts as it can.
        """
        done, front = {int(node)}, [int(node)]
        for _ in range(depth):
            found = []
            for each in front:
                for consumer, operand, producer in self._of_node[each]:
                    other = producer if consumer == each else consumer
                    if other in done:
                        continue
                    table = self._agreement(consumer, operand, producer)
                    agrees = table[:, candidate[consumer]] if other == producer else table[candidate[producer]]
                    if agrees.any():
                        candidate[other] = self._closest(other, int(candidate[other]), agrees)
                        done.add(other)
                        found.append(other)
            front = found

    def _closest(self, node: int, choice: int, allowed: np.ndarray) -> int:
        """The allowed choice of a node that differs least from its present one."""
        start = self._choices.starts[node]
        rows = self._choices.table[start : start + self._choices.counts[node]]
        distance = (rows != rows[choice]).sum(axis=1)
        return int(np.where(allowed, distance, distance.max() + 1).argmin())


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

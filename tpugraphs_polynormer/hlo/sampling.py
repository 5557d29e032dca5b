"""Random layout candidates of a program: legal ones, a function of the seed, the compiler's default first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.choices import Choices

MODES = ("random", "default", "consistent")
MAX_CANDIDATES = 100_040  # the largest archive of the dataset
# Each block has its own random stream, so a candidate does not depend on how many blocks are drawn at a time.
_BLOCK = 2048


def draw_candidates(choices: Choices, count: int, *, seed: int, mode: str = "default", tied: bool = True) -> np.ndarray:
    """int8 [c, nc, 18]: drawn layout candidates; row 0 is the compiler's default.

    Args:
      choices: what each node may choose.
      count: the number of candidates, including the default; 1..100,040.
      seed: the same seed gives the same candidates; a larger count appends to them.
      mode: "random": all choices are equally likely. "default": mutations of the default, from few to many nodes.
        "consistent": an operand that comes from another config node prefers that node's output layout.
      tied: nodes of one group get the same choice, as in the real archives. Ignored by "consistent".
    """
    return gather_layouts(choices, draw_indices(choices, count, seed=seed, mode=mode, tied=tied))


def draw_indices(choices: Choices, count: int, *, seed: int, mode: str = "default", tied: bool = True) -> np.ndarray:
    """int16 [c, nc]: the choice numbers of `draw_candidates`, 36 times smaller than float32 layouts."""
    return np.concatenate(list(draw_index_blocks(choices, count, seed=seed, mode=mode, tied=tied)))


def draw_index_blocks(
    choices: Choices, count: int, *, seed: int, mode: str = "default", tied: bool = True
) -> Iterator[np.ndarray]:
    """Yields the rows of `draw_indices` in blocks int16 [at most 2048, nc], for large programs."""
    if mode not in MODES:
        raise HloError(f"mode {mode!r} of drawing candidates is unknown; expected one of {', '.join(MODES)}")
    if not 1 <= count <= MAX_CANDIDATES:
        raise HloError(f"cannot draw {count} candidates; expected 1..{MAX_CANDIDATES}")
    for number, start in enumerate(range(0, count, _BLOCK)):
        rng = np.random.default_rng([seed, MODES.index(mode), number])
        block = _draw_consistent(choices, rng) if mode == "consistent" else _draw_units(choices, rng, mode, tied)
        if start == 0:
            block[0] = 0
        yield block[: count - start]


def gather_layouts(choices: Choices, indices: np.ndarray) -> np.ndarray:
    """int8 [c, nc, 18]: the layouts of choice numbers [c, nc]."""
    return choices.table[choices.starts + indices]


def _draw_units(choices: Choices, rng: np.random.Generator, mode: str, tied: bool) -> np.ndarray:
    """int16 [2048, nc]: choice numbers, drawn per group (tied) or per node."""
    units = choices.groups if tied else np.arange(len(choices.node_ids))
    _, first = np.unique(units, return_index=True)
    drawn = rng.integers(choices.counts[first], size=(_BLOCK, len(first)), dtype=np.int64)
    if mode == "default":
        rate = rng.random((_BLOCK, 1))
        drawn = np.where(rng.random(drawn.shape) < rate, drawn, 0)
    return drawn[:, units].astype(np.int16)


def _draw_consistent(choices: Choices, rng: np.random.Generator) -> np.ndarray:
    """int16 [2048, nc]: choice numbers, each drawn among those that agree with the producers of the node's operands.

    If no choice agrees with all producers, every choice is allowed: the compiler must insert a copy anyway.
    """
    agreement = LinkAgreement(choices)
    drawn = np.zeros((_BLOCK, len(choices.node_ids)), dtype=np.int16)
    links: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for consumer, operand_number, producer in choices.links.tolist():
        links[consumer].append((operand_number, producer))
    for node in range(len(choices.node_ids)):
        weights = rng.random((_BLOCK, choices.counts[node]), dtype=np.float32)
        allowed = np.ones(weights.shape, dtype=bool)
        for operand_number, producer in links[node]:
            allowed &= agreement(node, operand_number, producer)[drawn[:, producer]]
        allowed |= ~allowed.any(axis=1, keepdims=True)
        drawn[:, node] = np.where(allowed, weights, -1).argmax(axis=1)
    return drawn


class LinkAgreement:
    """(consumer, operand number, producer) of a link -> bool [producer's choices, consumer's choices].

    True: the operand's layout agrees with the producer's output layout. Links between equal nodes share a table.
    """

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._tables: dict[tuple[int, ...], np.ndarray] = {}

    def __call__(self, consumer: int, operand_number: int, producer: int) -> np.ndarray:
        starts, counts = self._choices.starts, self._choices.counts
        key = (operand_number, *(int(each[node]) for node in (producer, consumer) for each in (starts, counts)))
        if key not in self._tables:
            self._tables[key] = self._compare(*key)
        return self._tables[key]

    def _compare(self, operand_number: int, start: int, count: int, own_start: int, own_count: int) -> np.ndarray:
        outputs = self._choices.table[start : start + count, :6].tolist()
        columns = slice(6 * operand_number, 6 * operand_number + 6)
        operands = self._choices.table[own_start : own_start + own_count, columns].tolist()
        return np.array([[_same_order(output, operand) for operand in operands] for output in outputs])


def _same_order(first: list[int], second: list[int]) -> bool:
    """Whether two layouts, each of which may name only some dims, order the dims that both name in the same way."""
    common = (set(first) & set(second)) - {-1}
    return [dim for dim in first if dim in common] == [dim for dim in second if dim in common]

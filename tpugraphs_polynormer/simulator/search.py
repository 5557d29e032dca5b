"""Candidates of the `random` and the `default` search, as the real archives show them.

Both searches measure the compiler's default about forty times, at random rows (the largest archives have 100,040
candidates: 100,000 and these).

The default search mutates the compiler's default. In the real alexnet and unet files, nodes of one group share their
choice, the layouts of operands vary freely, and the layout of a result (and of a reshape) is the default's for most
groups. The candidates of programs with few groups therefore repeat: a tenth of the rows of a real archive are repeats
in the median, 99 % in the extreme.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tpugraphs_polynormer.hlo.choices import Choices
from tpugraphs_polynormer.hlo.sampling import draw_index_blocks

SEARCHES = ("random", "default")
_BLOCK = 2048
_DEFAULT_REPEATS = 40
_REPEATS_STREAM = 1 << 40  # a random stream apart from those of the blocks
_OUTPUT = slice(0, 6)


def draw_search_blocks(choices: Choices, count: int, *, search: str, seed: int) -> Iterator[np.ndarray]:
    """Yields choice numbers int16 [at most 2048, nc] of `count` candidates, row 0 the compiler's default.

    "random" draws every node's choice uniformly and independently; "default" mutates the default, group by group. The
    default is repeated at random rows: forty times, or at a hundredth of the rows of a small graph.
    """
    rng = np.random.default_rng([seed, _REPEATS_STREAM])
    repeats = np.concatenate([[0], rng.choice(count, min(_DEFAULT_REPEATS, count // 100), replace=False)])
    draw = _draw_mutations(choices, count, seed)
    if search == "random":
        draw = draw_index_blocks(choices, count, seed=seed, mode="random", tied=False)
    start = 0
    for block in draw:
        block[repeats[(repeats >= start) & (repeats < start + len(block))] - start] = 0
        yield block
        start += len(block)


def _draw_mutations(choices: Choices, count: int, seed: int) -> Iterator[np.ndarray]:
    groups, first = np.unique(choices.groups, return_index=True)
    kept = [_choices_with_default_output(choices, int(node)) for node in first]
    for number, start in enumerate(range(0, count, _BLOCK)):
        rng = np.random.default_rng([seed, number])
        rate = rng.random(_BLOCK)  # from candidates close to the default to thoroughly mutated ones
        drawn = np.empty((_BLOCK, len(groups)), dtype=np.int16)
        for group, node in enumerate(first):
            anything = rng.integers(choices.counts[node], size=_BLOCK)
            same_output = kept[group][rng.integers(len(kept[group]), size=_BLOCK)]
            drawn[:, group] = np.where(rng.random(_BLOCK) < rate, anything, same_output)
        yield drawn[: count - start, np.searchsorted(groups, choices.groups)]


def _choices_with_default_output(choices: Choices, node: int) -> np.ndarray:
    """Numbers of a node's choices whose result has the default's layout."""
    start, count = choices.starts[node], choices.counts[node]
    outputs = choices.table[start : start + count, _OUTPUT]
    return np.flatnonzero((outputs == outputs[0]).all(axis=1))

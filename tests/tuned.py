"""Small choices and a small program for the tests of tuning."""

import functools
from collections.abc import Sequence

import numpy as np

from tpugraphs_polynormer.hlo.choices import Choices
from tpugraphs_polynormer.hlo.layout_program import LayoutProgram, presume_layouts
from tpugraphs_polynormer.simulator.programs import draw_program
from tpugraphs_polynormer.simulator.scales import SCALES


def make_choices(counts: Sequence[int], groups: Sequence[int] | None = None) -> Choices:
    """Nodes with up to 8 choices each: two orders of each tensor; bit k is the order of tensor k."""
    table = np.full((8, 18), -1, np.int8)
    for choice in range(8):
        for tensor in range(3):
            table[choice, 6 * tensor : 6 * tensor + 2] = (0, 1) if choice >> tensor & 1 else (1, 0)
    numbers = np.arange(len(counts))
    return Choices(
        node_ids=numbers,
        table=table,
        starts=np.zeros(len(counts), np.int64),
        counts=np.array(counts, np.int64),
        groups=numbers if groups is None else np.array(groups),
        links=np.zeros((0, 3), np.int64),
    )


@functools.cache
def small_program() -> LayoutProgram:
    """A simulated network of 14 config nodes."""
    return presume_layouts(draw_program("plain_cnn", SCALES["tiny"].size, np.random.default_rng(3)))

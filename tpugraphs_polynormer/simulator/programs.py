"""Random programs of the kinds in TpuGraphs: vision, language, recommendation and recurrent networks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tpugraphs_polynormer.hlo.module import Module
from tpugraphs_polynormer.simulator.draw import Draw, Size
from tpugraphs_polynormer.simulator.families.language import recurrent, transformer
from tpugraphs_polynormer.simulator.families.recommendation import recommender
from tpugraphs_polynormer.simulator.families.vision import plain_cnn, residual_cnn, unet, unet_3d

FAMILIES: dict[str, Callable[[Draw], Module]] = {
    family.__name__: family for family in (residual_cnn, unet, unet_3d, plain_cnn, recommender, recurrent, transformer)
}
# The families of a source; a family that is named twice is drawn twice as often.
SOURCES: dict[str, tuple[str, ...]] = {
    "xla": ("residual_cnn", "unet_3d", "recommender", "plain_cnn", "unet_3d", "recurrent", "unet"),
    "nlp": ("transformer",),
}


def draw_program(family: str, size: Size, rng: np.random.Generator, *, lowered: bool = True) -> Module:
    """A random program of a family; the same generator state gives the same program.

    Args:
      family: a name of `FAMILIES`.
      size: the sizes to draw from.
      rng: the source of randomness.
      lowered: as the TPU compiler sees it just before layouts are assigned, which is what archives hold: 64-bit
        integers in words, lookups fused. Otherwise as a frontend writes it, which every XLA compiler accepts.
    """
    return FAMILIES[family](Draw(rng, size, lowered=lowered))

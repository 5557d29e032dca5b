"""The random numbers of one program: its size and its form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.simulator.layers import Layers
from tpugraphs_polynormer.simulator.network import OPTIMIZERS, PRECISIONS, Form


@dataclass(frozen=True)
class Size:
    """The size of the programs of a scale: inclusive ranges (low, high), or values to draw from."""

    blocks: tuple[int, int]  # residual blocks, MLP layers: they decide the length of a program
    layers: tuple[int, int]  # of an encoder
    width: tuple[int, int]  # features of the first stage, as a multiple of 8
    batch: tuple[int, ...]
    image: tuple[int, ...]
    sequence: tuple[int, ...]
    volume: tuple[int, ...] = (16, 32)  # sides of three-dimensional images, multiples of 8


class Draw:
    """The random numbers of one program.

    `lowered` programs are written as the TPU compiler sees them just before it assigns layouts, which is what the
    archives hold; the others as a frontend writes them, which is what the compiler accepts.
    """

    def __init__(self, rng: np.random.Generator, size: Size, *, lowered: bool) -> None:
        self._rng, self.size, self._lowered = rng, size, lowered

    def between(self, low: int, high: int) -> int:
        """An integer in low..high."""
        return int(self._rng.integers(low, high + 1))

    def pick(self, values: tuple) -> object:
        """One of the values."""
        return values[int(self._rng.integers(len(values)))]

    def chance(self, probability: float) -> bool:
        """True with a probability."""
        return bool(self._rng.random() < probability)

    def blocks(self) -> int:
        """The number of blocks."""
        return self._log_uniform(*self.size.blocks)

    def layers(self) -> int:
        """The number of layers of an encoder."""
        return self._log_uniform(*self.size.layers)

    def _log_uniform(self, low: int, high: int) -> int:
        """An integer with a uniform logarithm: many real programs are short, a few are very long."""
        return round(float(np.exp(self._rng.uniform(np.log(low), np.log(high)))))

    def width(self) -> int:
        """The number of features of the first stage."""
        return 8 * self.between(*self.size.width)

    def network(self, kind: str, *, batch: int, blocks: int, width: int, train: float = 0.75) -> Layers:
        """An empty program of a random form; `train` is the probability of a training program."""
        training, precision = self.chance(train), self.pick(("f32", "f32", "bf16"))
        form = Form(
            train=training,
            compute_type=PRECISIONS[precision],
            optimizer=self.pick(OPTIMIZERS),
            tuple_arguments=self.chance(0.9),
            loop=self.chance(0.7) and training,
            replicas=self.chance(0.5) and training,
            masked=self.chance(0.25) and training,
            hashed_dropout=self.chance(0.3),
            clip=self.chance(0.1),
            lowered=self._lowered,
        )
        mode = "train" if training else "test"
        return Layers(f"{kind}_L-{blocks}_H-{width}_batch_size_{batch}_{precision}_{mode}", form)

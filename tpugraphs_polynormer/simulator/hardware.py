"""Public figures of one TPU v3 core, and the padded size of a buffer on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.hlo.features import ELEMENT_TYPE, ELEMENT_TYPE_ORDER

SUBLANES = 8  # a vector register and the native memory tile are 8 x 128
LANES = 128
MEASUREMENT_NOISE = 2.7e-4  # relative, the median difference of one real candidate measured twice

# Bytes of an element, by XLA PrimitiveType number; what is not an array takes none.
_ELEMENT_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 15: 8, 16: 2, 18: 16}


@dataclass(frozen=True)
class TpuCore:
    """One core of a TPU v3: two 128 x 128 systolic arrays, a vector unit and half a chip's HBM."""

    clock: float = 0.94e9  # Hz
    peak_flops: float = 61.5e12  # bf16: 2 arrays x 128 x 128 x 2 x clock
    hbm_bandwidth: float = 450e9  # bytes/s
    vmem_bytes: int = 16 << 20
    # Cost of starting one tile's transfers, about 140 cycles. No public figure: read off the real kernels, whose
    # runtime grows by 40 to 230 ns with each further step.
    step_seconds: float = 150e-9

    @property
    def transpose_rate(self) -> float:
        """Elements per second through the cross-lane unit: one 8 x 128 register per cycle."""
        return SUBLANES * LANES * self.clock


TPU_V3 = TpuCore()


def round_up(value: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


def padded_elements(dims: Sequence[int], minor_to_major: Sequence[int]) -> int:
    """Elements that a buffer occupies: its minor dimension fills whole lanes (128), the next one sublanes (8)."""
    if not dims:
        return 1
    total = math.prod(dims)
    lane = dims[minor_to_major[0]]
    total = total // lane * round_up(lane, LANES) if lane else 0
    if len(dims) > 1 and total:
        sublane = dims[minor_to_major[1]]
        total = total // sublane * round_up(sublane, SUBLANES)
    return total


def element_bytes(node_feat: np.ndarray) -> np.ndarray:
    """int64 [n]: bytes per element of each node's shape, 0 where it is a tuple or token."""
    widths = np.array([_ELEMENT_BYTES.get(number, 0) for number in ELEMENT_TYPE_ORDER], dtype=np.int64)
    return node_feat[:, ELEMENT_TYPE].astype(np.int64) @ widths

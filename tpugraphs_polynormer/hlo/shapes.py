"""The memory of a tensor on a TPU: dimensions padded to the native tile of 8 x 128, and bytes per element."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tpugraphs_polynormer.hlo.features import ELEMENT_TYPE, ELEMENT_TYPE_ORDER

# A vector register and the native memory tile are 8 x 128 elements.
LANES = 128  # the minor-most dimension is padded to a multiple of this
SUBLANES = 8  # and the next one to a multiple of this

# Bytes of an element, by XLA PrimitiveType number; types that are no array are missing and take none.
_ELEMENT_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 15: 8, 16: 2, 18: 16}


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def padded_elements(dims: Sequence[int], minor_to_major: Sequence[int]) -> int:
    """The number of elements that a padded buffer occupies; `minor_to_major` orders its dimensions."""
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

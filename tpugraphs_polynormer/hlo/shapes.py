"""The memory of a tensor on a TPU: dimensions padded to the native tile of 8 x 128, and bytes per element."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tpugraphs_polynormer.hlo.features import ELEMENT_TYPE, ELEMENT_TYPE_ORDER

# A vector register and the native memory tile are 8 x 128 elements.
LANES = 128  # the minor-most dimension is padded to a multiple of this
SUBLANES = 8  # and the next one to a multiple of this, or to 1, 2 or 4 if it is not larger

# Bytes of an element, by XLA PrimitiveType number; types that are no array are missing and take none.
_ELEMENT_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 15: 8, 16: 2, 18: 16}


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def padded_elements(dims: Sequence[int], minor_to_major: Sequence[int], *, filled: int | None = None) -> int:
    """The number of elements that a padded buffer occupies; `minor_to_major` orders its dimensions.

    The dimension `filled` is not padded, because something else fills its tile.
    """
    total = math.prod(dims)
    if not dims or not total:
        return total
    lane = minor_to_major[0]
    if lane != filled:
        total = total // dims[lane] * round_up(dims[lane], LANES)
    if len(dims) > 1 and (row := minor_to_major[1]) != filled:
        # A dimension of one to four rows has a tile of 1, 2 or 4 rows: real programs record T(4,128) and the like.
        total = total // dims[row] * round_up(dims[row], min(SUBLANES, 1 << (dims[row] - 1).bit_length()))
    return total


def element_bytes(node_feat: np.ndarray) -> np.ndarray:
    """int64 [n]: bytes per element of each node's shape, 0 where it is a tuple or token."""
    widths = np.array([_ELEMENT_BYTES.get(number, 0) for number in ELEMENT_TYPE_ORDER], dtype=np.int64)
    return node_feat[:, ELEMENT_TYPE].astype(np.int64) @ widths

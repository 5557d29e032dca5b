"""Element types, and the shapes of arrays with the layouts that real programs give them."""

from __future__ import annotations

from functools import lru_cache

from tpugraphs_polynormer.hlo.module import Shape
from tpugraphs_polynormer.hlo.shapes import padded_elements

PRED, S32, S64, U32, F32, TUPLE, BF16, TOKEN_TYPE = 1, 4, 5, 8, 11, 13, 16, 17  # XLA PrimitiveType numbers
TOKEN = Shape(TOKEN_TYPE)


@lru_cache(maxsize=4096)
def array_shape(dims: tuple[int, ...], element_type: int) -> Shape:
    """An array shape with the last dimension minor."""
    return Shape(element_type, dims, minor_to_major=tuple(range(len(dims) - 1, -1, -1)))


@lru_cache(maxsize=4096)
def argument_shape(dims: tuple[int, ...], element_type: int) -> Shape:
    """The shape of a program's argument: as in real programs, with the two minor dimensions that need least padding.

    Only the last two dimensions of images and convolution kernels change places; smaller tensors take any two.
    """
    rank = len(dims)
    minor = range(rank) if rank <= 3 else range(rank - 2, rank)
    orders = [(first, second) for first in minor for second in minor if first != second] or [tuple(minor)]
    rest = [(*order, *(dim for dim in range(rank - 1, -1, -1) if dim not in order)) for order in sorted(orders)[::-1]]
    best = min(rest, key=lambda order: padded_elements(dims, order) if rank > 1 else 0)
    return Shape(element_type, dims, minor_to_major=best)

"""What a layout does to a tensor: the sizes of its dimensions in the order that a candidate asks for.

A candidate names dimensions (minor first); what it costs depends on their sizes, since a TPU pads the minor one to 128
and the next one to 8. Looking a size up by a dimension's number is hard to learn and easy to compute, so it is given.
"""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.hlo.shapes import LANES, SUBLANES

MAX_RANK = 6
_TILE = (float(LANES), float(SUBLANES))  # what the minor dimension and the next one are padded to
_LOG_UNIT = 4.0  # brings logarithms of sizes near 1
# The tensors that each of a config value's three layouts (output, input, kernel) may be of: 0 is the node's own, 1 and
# 2 are those of its first and last operand. The archives do not say which of the two is the kernel.
TENSORS_OF_LAYOUT = ((0,), (1, 2), (1, 2))
NUM_SIZE_FEATURES = sum(map(len, TENSORS_OF_LAYOUT)) * (MAX_RANK + len(_TILE))


def scaled_logarithm(sizes: tf.Tensor) -> tf.Tensor:
    """log(1 + size), near 1 for most sizes."""
    return tf.math.log1p(sizes) / _LOG_UNIT


def count_elements(dims: tf.Tensor) -> tf.Tensor:
    """[s, 3, 6] dimensions -> [s, 3] float32: the logarithm of each tensor's number of elements; 0 without a tensor."""
    return tf.reduce_sum(tf.math.log(tf.maximum(tf.cast(dims, tf.float32), 1.0)), -1)


def sizes_in_order(
    dims: tf.Tensor, config_values: tf.Tensor, codes: tf.Tensor, *, size_features: str = "log"
) -> tf.Tensor:
    """[s, k, NUM_SIZE_FEATURES] float32: logarithms of sizes, minor first, and of what padding multiplies them by.

    Args:
      dims: [s, 3, 6] of `operand_dims` (datasets/config_graph.py).
      config_values: [v, 18]: three layouts of 6 entries, -1 for none. codes: [s, k].
      size_features: `tiles` adds as many: the two minor sizes in units of 128 and of 8, the whole units and the rest.
    """
    shape = tf.shape(codes)
    layouts = tf.reshape(tf.gather(tf.cast(config_values, tf.int32), codes), [shape[0], shape[1], 3, MAX_RANK])
    sizes = tf.maximum(tf.cast(dims, tf.float32), 0.0)  # a negative one, of a damaged archive, has no logarithm
    sizes = tf.pad(sizes, [[0, 0], [0, 0], [1, 0]])  # [s, 3, 7]: entry -1 has no size
    parts = []
    for layout, tensors in enumerate(TENSORS_OF_LAYOUT):
        for tensor in tensors:
            chosen = tf.gather(sizes[:, tensor], layouts[:, :, layout] + 1, batch_dims=1)  # [s, k, 6]
            minor = tf.maximum(chosen[..., : len(_TILE)], 1.0)
            padded = tf.math.ceil(minor / _TILE) * _TILE
            parts += [scaled_logarithm(chosen), tf.where(chosen[..., :2] > 0, tf.math.log(padded / minor), 0.0)]
            if size_features == "tiles":
                parts += [_in_units(chosen[..., : len(_TILE)], unit) for unit in _TILE]
    return tf.concat(parts, -1)


def _in_units(sizes: tf.Tensor, unit: float) -> tf.Tensor:
    """[..., 2] -> [..., 4]: logarithms of the whole units, and the rest as a share of a unit."""
    whole = tf.floor(sizes / unit)
    return tf.concat([scaled_logarithm(whole), sizes / unit - whole], -1)

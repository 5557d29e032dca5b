"""A candidate as what it does to each dimension: sizes and positions, encoded with weights that dimensions share."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.dense import Linear, build_layers
from tpugraphs_polynormer.layers.registration import Configured, register
from tpugraphs_polynormer.models.ranking.features import positions_in_layouts
from tpugraphs_polynormer.models.ranking.layout_sizes import MAX_RANK, scaled_logarithm

_NUM_POSITIONS = MAX_RANK + 1  # and none


@register
class DimensionEncoder(Configured, tf.keras.layers.Layer):
    """[s, k, units]: for each config node and candidate, the sum of a vector for each dimension, times a matrix.

    The vector of dimension d is relu(a W + p U + b): a has its sizes in the result and in the first and last operand, p
    its position (one-hot) in the candidate's layouts of output, input and kernel. Dimensions that no tensor has and no
    layout names count nothing. W, U and b are those of all dimensions: a size is learned once, not once per dimension.

    Args:
      dim: width of a dimension's vector. units: width of the result.
    """

    def __init__(self, *, dim: int, units: int, **kwargs):
        super().__init__(autocast=False, **kwargs)  # sizes stay float32, whatever the policy
        self.keep_arguments(locals())
        self.from_sizes = Linear(dim, name="from_sizes")
        self.from_positions = Linear(dim, use_bias=False, name="from_positions")
        self.join = Linear(units, use_bias=False, name="join")

    def build(self, shape: tf.TensorShape) -> None:
        build_layers([self.from_sizes], tf.TensorShape([None, 3]))
        build_layers([self.from_positions], tf.TensorShape([None, 3 * _NUM_POSITIONS]))
        build_layers([self.join], tf.TensorShape([None, self.dim]))
        super().build(shape)

    def call(self, dims: tf.Tensor, config_values: tf.Tensor, codes: tf.Tensor) -> tf.Tensor:
        """Args: as those of `sizes_in_order`."""
        sizes = tf.transpose(tf.maximum(tf.cast(dims, tf.float32), 0.0), [0, 2, 1])  # [s, 6, 3]
        positions = tf.reshape(positions_in_layouts(config_values), [-1, 3, MAX_RANK])
        positions = tf.transpose(positions, [0, 2, 1])  # [v, 6, 3]
        one_hot = tf.one_hot(positions + 1, _NUM_POSITIONS, dtype=self.compute_dtype)
        one_hot = tf.reshape(one_hot, [-1, MAX_RANK, 3 * _NUM_POSITIONS])
        of_sizes = self.from_sizes(tf.cast(scaled_logarithm(sizes), self.compute_dtype))  # [s, 6, dim]
        of_positions = tf.gather(self.from_positions(one_hot), codes)  # [s, k, 6, dim]
        is_named = tf.gather(tf.reduce_any(positions >= 0, -1), codes)  # [s, k, 6]
        is_there = is_named | tf.reduce_any(sizes > 0, -1)[:, tf.newaxis]
        vectors = tf.nn.relu(of_sizes[:, tf.newaxis] + of_positions)
        return self.join(tf.reduce_sum(tf.where(is_there[..., tf.newaxis], vectors, 0), 2))

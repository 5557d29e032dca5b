"""Normalisation in float32: layer norm and unit length with lean gradients, batch and graph norm without padding."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.neighbours import ONE_GRAPH, Graphs
from tpugraphs_polynormer.layers.ops.attention import expand_like
from tpugraphs_polynormer.layers.ops.formulation import in_xla
from tpugraphs_polynormer.layers.registration import Configured, register

EPSILON = 1e-5  # the authors'


@tf.custom_gradient
def layer_norm(states: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor):
    """Normalises the last axis; keeps only `states` and two numbers per row for the backward pass."""
    wide = tf.cast(states, tf.float32)
    mean = tf.reduce_mean(wide, -1, keepdims=True)
    centered = wide - mean
    inverse = tf.math.rsqrt(tf.square(_lengths(centered)) / states.shape[-1] + EPSILON)
    scale, offset = tf.cast(scale, tf.float32), tf.cast(offset, tf.float32)
    out = centered * inverse * scale + offset

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        upstream = tf.cast(upstream, tf.float32)
        normalized = (tf.cast(states, tf.float32) - mean) * inverse
        inner = upstream * scale
        along = tf.reduce_mean(inner * normalized, -1, keepdims=True)
        states_gradient = inverse * (inner - tf.reduce_mean(inner, -1, keepdims=True) - normalized * along)
        rows = list(range(states.shape.rank - 1))
        scale_gradient = tf.reduce_sum(upstream * normalized, rows)
        offset_gradient = tf.reduce_sum(upstream, rows)
        return tf.cast(states_gradient, states.dtype), scale_gradient, offset_gradient

    return tf.cast(out, states.dtype), gradient


@tf.custom_gradient
def l2_normalize(states: tf.Tensor):
    """Rows of length 1, zeros where a row is 0; two passes forwards, and nothing kept but the result."""
    wide = tf.cast(states, tf.float32)
    inverse = tf.math.reciprocal_no_nan(_lengths(wide))
    out = wide * inverse

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        upstream = tf.cast(upstream, tf.float32)
        along = tf.reduce_sum(upstream * out, -1, keepdims=True)
        return tf.cast((upstream - out * along) * inverse, states.dtype)

    return tf.cast(out, states.dtype), gradient


def _lengths(rows: tf.Tensor) -> tf.Tensor:
    """[..., 1]: the Euclidean lengths of [..., dim], without an array of squares."""
    if in_xla():  # which fuses the square into the sum, and knows no op for the length
        return tf.sqrt(tf.reduce_sum(tf.square(rows), -1, keepdims=True))
    return tf.math.reduce_euclidean_norm(rows, -1, keepdims=True)


@register
class LayerNorm(tf.keras.layers.Layer):
    """Layer norm over the last axis: [..., dim] -> [..., dim].

    Example:
      >>> tp.layers.LayerNorm()(tf.constant([[1.0, 3.0]])).numpy().round(3).tolist()
      [[-1.0, 1.0]]
    """

    def build(self, shape: tf.TensorShape) -> None:
        dim = tf.TensorShape(shape)[-1]
        self.scale = self.add_weight("scale", [dim], initializer="ones", experimental_autocast=False)
        self.offset = self.add_weight("offset", [dim], initializer="zeros", experimental_autocast=False)
        super().build(shape)

    def call(self, states: tf.Tensor) -> tf.Tensor:
        # As tensors: a custom gradient does not recognize the variables of several replicas among its arguments.
        return layer_norm(states, tf.convert_to_tensor(self.scale), tf.convert_to_tensor(self.offset))


@register
class GraphNorm(tf.keras.layers.Layer):
    """Norm over the real nodes of each graph, per channel and candidate: [num_nodes, (candidates,) dim] -> the same.

    y = x - shift * mean(x); out = y / sqrt(mean(y^2) + epsilon) * scale + offset. The learned shift (it starts at 1)
    says how much of a graph's mean is removed, as in "GraphNorm" (Cai et al., 2021). Padding nodes become 0.

    Example:
      >>> graphs = tp.Graphs(ids=tf.constant([0, 0, 1]), count=2)
      >>> tp.layers.GraphNorm()(tf.constant([[1.0], [3.0], [7.0]]), graphs=graphs).numpy().round(3).tolist()
      [[-1.0], [1.0], [0.0]]
    """

    def build(self, shape: tf.TensorShape) -> None:
        dim = tf.TensorShape(shape)[-1]
        starts = {"shift": "ones", "scale": "ones", "offset": "zeros"}
        for name, start in starts.items():
            setattr(self, name, self.add_weight(name, [dim], initializer=start, experimental_autocast=False))
        super().build(shape)

    def call(self, states: tf.Tensor, *, graphs: Graphs = ONE_GRAPH) -> tf.Tensor:
        graphs, wide = Graphs(*graphs), tf.cast(states, tf.float32)
        shifted = wide - graphs.spread(graphs.mean(wide) * self.shift)
        inverse = tf.math.rsqrt(graphs.mean(tf.square(shifted)) + EPSILON)
        out = shifted * graphs.spread(inverse * self.scale) + self.offset
        if graphs.mask is not None:  # a graph of padding has no deviation to divide by: its states would grow
            out = tf.where(expand_like(graphs.mask, out), out, 0.0)
        return tf.cast(out, states.dtype)


@register
class MaskedBatchNorm(Configured, tf.keras.layers.Layer):
    """Batch norm of [num_nodes, ..., dim] over the real nodes (and candidates).

    `node_mask` [num_nodes] may also hold numbers: how often each node counts.

    Args:
      momentum: share of the old moving statistics kept at each step (torch's default of 0.1 is 0.9 here).

    Example:
      >>> states, mask = tf.constant([[1.0], [3.0], [99.0]]), tf.constant([True, True, False])
      >>> tp.layers.MaskedBatchNorm()(states, node_mask=mask, training=True).numpy()[:2].round(3).tolist()
      [[-1.0], [1.0]]
    """

    def __init__(self, *, momentum: float = 0.9, **kwargs):
        super().__init__(**kwargs)
        self.keep_arguments(locals())

    def build(self, shape: tf.TensorShape) -> None:
        dim = tf.TensorShape(shape)[-1]
        moving = {
            "trainable": False,
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.MEAN,
            "experimental_autocast": False,
        }
        self.scale = self.add_weight("scale", [dim], initializer="ones", experimental_autocast=False)
        self.offset = self.add_weight("offset", [dim], initializer="zeros", experimental_autocast=False)
        self.moving_mean = self.add_weight("moving_mean", [dim], initializer="zeros", **moving)
        self.moving_variance = self.add_weight("moving_variance", [dim], initializer="ones", **moving)
        super().build(shape)

    def call(self, states: tf.Tensor, *, node_mask: tf.Tensor | None = None, training: bool | None = None) -> tf.Tensor:
        wide = tf.cast(states, tf.float32)
        if training:
            mean, variance = self._batch_statistics(wide, node_mask)
        else:
            mean, variance = self.moving_mean, self.moving_variance
        out = (wide - mean) * (tf.math.rsqrt(variance + EPSILON) * self.scale) + self.offset
        return tf.cast(out, states.dtype)

    def _batch_statistics(self, states: tf.Tensor, node_mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and (biased) variance over real rows; moves the averages, the variance unbiased as in torch."""
        weights = tf.ones_like(states[..., :1])
        if node_mask is not None:
            weights *= expand_like(tf.cast(node_mask, tf.float32), states)
        rows = list(range(states.shape.rank - 1))
        count = tf.maximum(tf.reduce_sum(weights), 1.0)
        mean = tf.reduce_sum(states * weights, rows) / count
        variance = tf.reduce_sum(tf.square(states - mean) * weights, rows) / count
        unbiased = variance * count / tf.maximum(count - 1.0, 1.0)
        self.moving_mean.assign(self.momentum * self.moving_mean + (1 - self.momentum) * mean)
        self.moving_variance.assign(self.momentum * self.moving_variance + (1 - self.momentum) * unbiased)
        return mean, variance

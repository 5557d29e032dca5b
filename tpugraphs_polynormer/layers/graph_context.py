"""What a node's state is multiplied by, computed from its graph (SqueezeExcite) or the candidates (CandidateGate)."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.dense import Linear, build_layers
from tpugraphs_polynormer.layers.neighbours import ONE_GRAPH, Graphs
from tpugraphs_polynormer.layers.registration import Configured, register

_MASKED_LOGIT = -1e30


@register
class SqueezeExcite(Configured, tf.keras.layers.Layer):
    """States times a gate for each channel, made of their graph's mean: [num_nodes, (candidates,) dim] -> the same.

    out = x * 2 sigmoid(relu(mean W + b) W' + b'), the mean over the real nodes of the graph, per candidate. The 2 makes
    the gate 1 where the linear map gives 0.

    Args:
      reduction: how many times narrower than the states the hidden layer is.

    Example:
      >>> tp.layers.SqueezeExcite()(tf.ones([3, 8])).shape
      TensorShape([3, 8])
    """

    def __init__(self, *, reduction: int = 4, **kwargs):
        super().__init__(**kwargs)
        self.keep_arguments(locals())

    def build(self, shape: tf.TensorShape) -> None:
        shape = tf.TensorShape(shape)
        hidden = max(1, shape[-1] // self.reduction)
        self.squeeze = Linear(hidden, activation="relu", name="squeeze")
        self.excite = Linear(shape[-1], name="excite")
        build_layers([self.squeeze], shape)
        build_layers([self.excite], shape[:-1].concatenate([hidden]))
        super().build(shape)

    def call(self, states: tf.Tensor, *, graphs: Graphs = ONE_GRAPH) -> tf.Tensor:
        graphs = Graphs(*graphs)
        mean = tf.cast(graphs.mean(states), states.dtype)
        return states * graphs.spread(2 * tf.sigmoid(self.excite(self.squeeze(mean))))


@register
class CandidateGate(tf.keras.layers.Layer):
    """States [num_nodes, candidates, dim], weighted by a softmax over the candidates for each node and channel.

    out_c = x_c * n softmax_c(x_c / temperature) over the n visible candidates, with a learned temperature per channel.
    Where the candidates agree, the factor is 1. It follows the attention across configurations of the contest's first
    place (Khizbullin et al., 2024), whose factor is the softmax itself. Masked candidates are not seen. States without
    candidates are unchanged.

    Example:
      >>> tp.layers.CandidateGate()(tf.constant([[[2.0], [2.0]], [[1.0], [3.0]]])).numpy().round()[..., 0].tolist()
      [[2.0, 2.0], [0.0, 5.0]]
    """

    def build(self, shape: tf.TensorShape) -> None:
        dim = tf.TensorShape(shape)[-1]
        # The logarithm, so that the temperature stays positive.
        self.log_temperature = self.add_weight(
            "log_temperature", [dim], initializer="zeros", experimental_autocast=False
        )
        super().build(shape)

    def call(self, states: tf.Tensor, *, graphs: Graphs = ONE_GRAPH) -> tf.Tensor:
        if states.shape.rank == 2:
            return states
        graphs, wide = Graphs(*graphs), tf.cast(states, tf.float32)
        logits, count = wide * tf.exp(-self.log_temperature), tf.cast(tf.shape(states)[1], tf.float32)
        if graphs.candidate_mask is not None:
            visible = graphs.spread(graphs.candidate_mask)[..., tf.newaxis]  # [num_nodes, candidates, 1]
            logits = tf.where(visible, logits, _MASKED_LOGIT)
            count = tf.reduce_sum(tf.cast(visible, tf.float32), 1, keepdims=True)
        return tf.cast(wide * (count * tf.nn.softmax(logits, 1)), states.dtype)

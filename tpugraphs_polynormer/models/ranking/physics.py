"""How a ranking model uses the analytic cost model (datasets/physics.py): as input, as what it corrects, or alone."""

from __future__ import annotations

import math

import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpugraphs_polynormer.layers.registration import Configured, register

TOTAL = 0  # the column of a candidate's physics that is the cost model's total, higher is slower
_MOST_DEVIATIONS = 8.0  # totals beyond are equal to the hidden layer; the residual keeps their order
_START = math.log(math.e - 1)  # softplus of it is 1


def join_physics(pooled: tf.Tensor, physics: tf.Tensor) -> tf.Tensor:
    """[G, k, dim + features]: the pooled states [G, k, dim] and, beside them, the candidates' physics."""
    bounded = tf.clip_by_value(physics, -_MOST_DEVIATIONS, _MOST_DEVIATIONS)
    return tf.concat([pooled, tf.cast(bounded, pooled.dtype)], -1)


@register
class CostResidual(Configured, tf.keras.layers.Layer):
    """scores [G, k] - scale * total: what the cost model says, with the model's scores as the correction.

    The scale is learned, positive, and starts at 1. The total keeps float32 whatever the policy: it is what ranks.
    """

    def __init__(self, **kwargs):
        super().__init__(**{**kwargs, "autocast": False, "dtype": "float32"})
        self.keep_arguments(locals())

    def build(self, shape: tf.TensorShape) -> None:
        self.raw_scale = self.add_weight("raw_scale", [], initializer=tf.keras.initializers.Constant(_START))
        super().build(shape)

    def call(self, scores: tf.Tensor, physics: tf.Tensor) -> tf.Tensor:
        return scores - tf.nn.softplus(self.raw_scale) * physics[..., TOTAL]


@register
class CostModel(tf.keras.Model):
    """GraphTensor batch -> scores [G, k] of the cost model alone (`model.encoder: none`); nothing is learned."""

    phases = ("local",)
    encoder = None

    def call(self, graph: tfgnn.GraphTensor, *, phase: str | None = None, training: bool | None = None) -> tf.Tensor:
        """Scores [G, k] float32, higher is faster; masked candidates' scores mean nothing."""
        return -graph.context["physics"][..., TOTAL]

"""The gate beta of Polynormer's layers (learned through a sigmoid, learned as it is, or fixed) and its product."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.normalization import expand_like, layer_norm
from tpugraphs_polynormer.layers.registration import Configured, register


@register
class Gate(Configured, tf.keras.layers.Layer):
    """beta of Eqs. 7 and 8, as [dim], or with the Fiedler vector v2 of App. J as v2 beta^T: [num_nodes, (1,) dim].

    Args:
      beta: -1 (any negative number) learns the gate through a sigmoid; otherwise its (initial) value.
      learn_beta: False keeps a non-negative `beta` as a constant, as the authors' large-graph model does.

    Example:
      >>> tp.layers.Gate(beta=0.5, learn_beta=False)(tf.ones([3, 2])).numpy().tolist()
      [0.5, 0.5]
    """

    def __init__(self, *, beta: float = -1.0, learn_beta: bool = True, **kwargs):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        if beta < 0 and not learn_beta:
            raise ValueError(f"beta {beta} asks for a gate learned through a sigmoid, but learn_beta is False")

    def build(self, shape: tf.TensorShape) -> None:
        dim = tf.TensorShape(shape)[-1]
        if self.learn_beta:
            spread = tf.keras.initializers.RandomNormal(stddev=(2 / (1 + dim)) ** 0.5)
            start = spread if self.beta < 0 else tf.keras.initializers.Constant(self.beta)
            self.weight = self.add_weight("beta", [dim], initializer=start)
        super().build(shape)

    def call(self, states: tf.Tensor, *, fiedler: tf.Tensor | None = None) -> tf.Tensor:
        """`states` gives the shape and dtype only; `fiedler` is [num_nodes] or None (v1: the ones vector)."""
        if not self.learn_beta:
            gate = tf.fill([states.shape[-1]], tf.cast(self.beta, states.dtype))
        else:
            gate = tf.sigmoid(self.weight) if self.beta < 0 else tf.convert_to_tensor(self.weight)
        return gate if fiedler is None else expand_like(tf.cast(fiedler, states.dtype), states) * gate


def gated_product(
    factor: tf.Tensor, mixed: tf.Tensor, gate: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
) -> tf.Tensor:
    """(1 - gate) * LayerNorm(factor * mixed) + gate * mixed (Eq. 12); gate [dim], or [num_nodes, (1,) dim]."""
    product = factor * mixed
    if gate.shape.rank > 1:
        return (1 - gate) * layer_norm(product, scale, offset) + gate * mixed
    # One gate for all nodes is multiplied into the norm's scale and offset, which saves passes over the states.
    rest = tf.cast(1 - gate, scale.dtype)
    return layer_norm(product, rest * scale, rest * offset) + gate * mixed

"""Polynormer's base model, with a free weight for every pair of nodes, for the expressivity theorem."""

from __future__ import annotations

import tensorflow as tf


class BaseModel(tf.keras.layers.Layer):
    """States [..., num_nodes, dim] after `num_layers` applications of X <- (W X) * (X + B) (Eq. 4).

    Each layer has free weights W [num_nodes, num_nodes] and B [num_nodes, dim]. L layers represent polynomials of
    degree 2^L in the entries of X (Theorem 3.3).

    Args:
      num_layers: number of applications.
    """

    def __init__(self, *, num_layers: int, **kwargs):
        super().__init__(**kwargs)
        self.num_layers = num_layers

    def build(self, shape: tf.TensorShape) -> None:
        num_nodes, dim = tf.TensorShape(shape)[-2:]
        self.mixing = [
            self.add_weight(f"mixing_{i}", [num_nodes, num_nodes], initializer="glorot_uniform")
            for i in range(self.num_layers)
        ]
        self.offset = [
            self.add_weight(f"offset_{i}", [num_nodes, dim], initializer="ones") for i in range(self.num_layers)
        ]
        super().build(shape)

    def call(self, states: tf.Tensor) -> tf.Tensor:
        for mixing, offset in zip(self.mixing, self.offset, strict=True):
            states = tf.matmul(mixing, states) * (states + offset)
        return states

    def get_config(self) -> dict:
        return {**super().get_config(), "num_layers": self.num_layers}

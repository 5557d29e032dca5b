"""The linear layer that all others are made of, and how a layer builds the layers inside it."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from tpugraphs_polynormer.layers.registration import register


@register
class Linear(tf.keras.layers.Dense):
    """A dense layer that starts as torch's Linear does: weights and biases uniform in +-1/sqrt(input width).

    Example:
      >>> tp.layers.Linear(4)(tf.ones([3, 5])).shape
      TensorShape([3, 4])
    """

    def __init__(self, units: int, **kwargs):
        kwargs.setdefault("kernel_initializer", tf.keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform"))
        super().__init__(units, **kwargs)

    def build(self, shape: tf.TensorShape) -> None:
        limit = tf.TensorShape(shape)[-1] ** -0.5
        self.bias_initializer = tf.keras.initializers.RandomUniform(-limit, limit)
        super().build(shape)

    def call(self, states: tf.Tensor) -> tf.Tensor:
        # As a matrix: TensorFlow then adds the bias within the product, without another pass. The activation stays
        # outside: TensorFlow's fused ReLU turns NaN into 0, which would hide a run that has diverged.
        rows = tf.reshape(states, [-1, states.shape[-1]]) @ tf.cast(self.kernel, self.compute_dtype)
        if self.use_bias:
            rows = tf.nn.bias_add(rows, tf.cast(self.bias, self.compute_dtype))
        return self.activation(tf.reshape(rows, tf.concat([tf.shape(states)[:-1], [self.units]], 0)))


def build_layers(layers: Iterable[tf.keras.layers.Layer | None], shape: tf.TensorShape) -> None:
    """Builds each layer for inputs of `shape`, unless it is None or built already (as after deserialisation).

    Built before the first call, so that checkpoints know every variable from the start.
    """
    for layer in layers:
        if layer is not None and not layer.built:
            with tf.name_scope(layer.name):
                layer.build(shape)

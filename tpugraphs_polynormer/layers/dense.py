"""Builds the layers inside a layer before its first call, so that checkpoints know every variable from the start."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf


def build_layers(layers: Iterable[tf.keras.layers.Layer | None], shape: tf.TensorShape) -> None:
    """Builds each layer for inputs of `shape`, unless it is None or built already (as after deserialisation)."""
    for layer in layers:
        if layer is not None and not layer.built:
            with tf.name_scope(layer.name):
                layer.build(shape)

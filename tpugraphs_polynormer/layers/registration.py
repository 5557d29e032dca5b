"""Registers layers and models with Keras, so that saved models find their classes by name."""

from __future__ import annotations

import tensorflow as tf

register = tf.keras.utils.register_keras_serializable("tpugraphs_polynormer")

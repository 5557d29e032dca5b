"""The linear layer of all models: equal to Keras's dense layer for any rank, and NaN stays NaN."""

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.graphs import random_states
from tpugraphs_polynormer.layers.dense import Linear


@pytest.mark.parametrize("shape", [(5, 8), (2, 5, 8)])
def test_linear_is_dense(shape):
    layer, dense = Linear(4, activation="relu"), tf.keras.layers.Dense(4, activation="relu")
    states = random_states(*shape)
    found = layer(states)
    dense.build(shape)
    dense.set_weights(layer.get_weights())
    assert np.abs(layer.bias).max() > 0
    np.testing.assert_allclose(found, dense(states), atol=1e-6)


@pytest.mark.parametrize("spec", [(5, 8), (None, 8), (2, 5, 8), (None, None, 8)], ids=str)
def test_nan_goes_through_a_compiled_graph(spec):
    """TensorFlow's fused product, bias and ReLU maps NaN to 0, so that training would not notice a NaN."""
    layer = Linear(4, activation="relu")
    states = np.ones([size or 3 for size in spec], np.float32)
    states.reshape(-1)[0] = np.nan
    out = tf.function(layer, input_signature=[tf.TensorSpec(spec)])(states).numpy()
    assert np.isnan(out).sum() == 4

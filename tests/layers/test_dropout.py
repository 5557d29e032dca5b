"""Dropout: rate, scale, independence of calls and layers, saved state, XLA."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpugraphs_polynormer.layers.dropout import Dropout


def test_rate_and_scale() -> None:
    out = Dropout(rate=0.3)(tf.ones([301, 333]), training=True).numpy()
    assert sorted(set(out.ravel().tolist())) == pytest.approx([0.0, 1 / 0.7])
    assert abs((out == 0).mean() - 0.3) < 0.01
    assert np.abs((out == 0).mean(0) - 0.3).max() < 0.2


def test_calls_and_layers_differ_and_the_state_brings_a_mask_back() -> None:
    states, layer, other = tf.ones([50, 40]), Dropout(rate=0.5), Dropout(rate=0.5)
    start = layer.get_weights()
    first, second = (layer(states, training=True).numpy() for _ in range(2))
    assert (first != second).any() and (other(states, training=True).numpy() != first).any()
    other.set_weights(start)
    np.testing.assert_array_equal(other(states, training=True), first)


def test_identity_outside_training_leaves_the_state() -> None:
    layer = Dropout(rate=0.5)
    np.testing.assert_array_equal(layer(tf.ones([3, 3])), np.ones([3, 3]))
    assert layer.state.numpy()[1] == 0


def test_compiles_with_static_shapes_and_moves_on() -> None:
    layer, states = Dropout(rate=0.5), tf.ones([30, 7])
    compiled = tf.function(lambda x: layer(x, training=True), jit_compile=True)
    assert "<=" not in compiled.experimental_get_compiler_ir(states)(stage="hlo")
    assert (compiled(states).numpy() != compiled(states).numpy()).any()


def test_rate_is_checked() -> None:
    with pytest.raises(ValueError, match=r"dropout rate 1 is outside \[0, 1\)"):
        Dropout(rate=1)

"""The checks that every layer must pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

Layer = tf.keras.layers.Layer


def check_layer(create: Callable[[], Layer], states: np.ndarray, *args, tolerance: float = 2e-5, **kwargs) -> None:
    """Checks config, saving, graph mode, XLA with static shapes, gradients and mixed precision of a layer.

    Args:
      create: returns a new layer.
      states: its first input. args, kwargs: the other arguments of the call, such as an EdgeIndex.
      tolerance: largest difference, relative to the largest entry, between two ways to run the same layer in float32.
    """
    tf.keras.utils.set_random_seed(0)  # the error in half precision depends on the weights; the seed makes it repeat
    layer = create()
    args = tuple(arg.as_tensors() if hasattr(arg, "target_offsets") else arg for arg in args)
    states = tf.constant(states)
    expected, gradients = run(layer, states, *args, **kwargs)
    assert np.isfinite(expected.numpy()).all()
    _check_gradients(layer, gradients)
    _check_config_and_weights(layer, expected, states, *args, **kwargs)
    graph = tf.function(lambda x: run(layer, x, *args, **kwargs))(states)
    assert_close([graph[0], *graph[1]], [expected, *gradients], tolerance)
    compiled = tf.function(lambda x: run(layer, x, *args, **kwargs), jit_compile=True)
    assert "<=" not in compiled.experimental_get_compiler_ir(states)(stage="hlo"), "dynamic dimensions under XLA"
    output, compiled_gradients = compiled(states)
    assert_close([output, *compiled_gradients], [expected, *gradients], tolerance)
    for policy in ("mixed_float16", "mixed_bfloat16"):
        _check_mixed_precision(create, policy, layer, expected, states, *args, **kwargs)


def run(layer: Layer, states: tf.Tensor, *args, **kwargs) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
    """The output, and the gradients of a fixed random projection of it with respect to states and weights."""
    with tf.GradientTape() as tape:
        tape.watch(states)
        output = layer(states, *args, **kwargs)
        loss = tf.reduce_sum(tf.cast(output, tf.float32) * projection(output.shape))
    gradients = tape.gradient(loss, [states, *layer.trainable_weights])
    return output, [gradient if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]


def projection(shape: tf.TensorShape) -> np.ndarray:
    """Fixed random weights, from numpy because TensorFlow's stateless random numbers differ under XLA."""
    return np.random.default_rng(12).normal(size=shape).astype(np.float32)


def assert_close(found: list, expected: list, tolerance: float) -> None:
    """Asserts differences of at most `tolerance` times the largest expected entry, or times 0.02 if that is larger.

    The floor of 0.02 is for gradients that are zero in exact arithmetic, such as that of a bias before batch norm.
    """
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
            continue
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        scale = max(np.abs(other).max(initial=0.0), 0.02)
        np.testing.assert_allclose(one / scale, other / scale, rtol=0, atol=tolerance)


def _check_gradients(layer: Layer, gradients: list[tf.Tensor | None]) -> None:
    for weight, gradient in zip(layer.trainable_weights, gradients[1:], strict=True):
        assert gradient is not None, f"no gradient for {weight.name}"
        assert np.isfinite(gradient.numpy()).all(), weight.name
        assert np.abs(gradient.numpy()).max() > 0, f"zero gradient for {weight.name}"


def _check_config_and_weights(layer: Layer, expected: tf.Tensor, states: tf.Tensor, *args, **kwargs) -> None:
    copy = type(layer).from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()
    copy(states, *args, **kwargs)
    copy.set_weights(layer.get_weights())
    np.testing.assert_array_equal(copy(states, *args, **kwargs).numpy(), expected.numpy())


def _check_mixed_precision(
    create: Callable[[], Layer], policy: str, layer: Layer, expected: tf.Tensor, states: tf.Tensor, *args, **kwargs
) -> None:
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        half = create()
        half(states, *args, **kwargs)
        half.set_weights(layer.get_weights())
        output, gradients = run(half, states, *args, **kwargs)
    finally:
        tf.keras.mixed_precision.set_global_policy(before)
    assert half.compute_dtype == policy.removeprefix("mixed_")
    assert output.dtype in (half.compute_dtype, tf.float32)
    assert np.abs(np.asarray(output, np.float64) - expected.numpy()).max() > 0, "computed in float32"
    assert_close([output], [expected], 0.1 if policy == "mixed_bfloat16" else 0.02)
    assert all(np.isfinite(np.asarray(gradient, np.float64)).all() for gradient in gradients if gradient is not None)

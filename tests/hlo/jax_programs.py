"""A small CNN and a two-layer transformer in JAX, as (function, arguments); needs the jax extra."""

import jax
import jax.numpy as jnp


def small_cnn():
    """Two convolutions, pooling, a dense layer."""

    def apply(kernels, dense, images):
        states = images
        for kernel in kernels:
            convolved = jax.lax.conv_general_dilated(
                states, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            states = jax.nn.relu(convolved)
        return states.mean((1, 2)) @ dense

    kernels = [jnp.zeros((3, 3, 3, 16)), jnp.zeros((3, 3, 16, 32))]
    return apply, (kernels, jnp.zeros((32, 10)), jnp.zeros((8, 32, 32, 3)))


def small_transformer():
    """Two layers of self-attention and feed-forward, four heads."""

    def layer(states, weights):
        query, key, value = (
            (states @ weights[name]).reshape(8, 16, 4, 8).transpose(0, 2, 1, 3) for name in ("q", "k", "v")
        )
        scores = jax.nn.softmax(query @ key.swapaxes(-1, -2) / 8**0.5)
        mixed = (scores @ value).transpose(0, 2, 1, 3).reshape(8, 16, 32)
        states = states + mixed @ weights["o"]
        return states + jax.nn.gelu(states @ weights["up"]) @ weights["down"]

    def apply(layers, states):
        for weights in layers:
            states = layer(states, weights)
        return states.sum()

    shapes = {"q": (32, 32), "k": (32, 32), "v": (32, 32), "o": (32, 32), "up": (32, 64), "down": (64, 32)}
    weights = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    return apply, ([weights, weights], jnp.zeros((8, 16, 32)))

"""Adam against torch's update written out in numpy."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.training.optimizers import Adam, TorchAdam


def torch_adam(start: np.ndarray, gradients: list[np.ndarray], rate: float, decay: float) -> np.ndarray:
    value, first, second = start.astype(np.float64), 0.0, 0.0
    for step, gradient in enumerate(gradients, 1):
        gradient = gradient + decay * value
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        root = np.sqrt(second / (1 - 0.999**step)) + 1e-8
        value = value - rate * first / (1 - 0.9**step) / root
    return value


def test_updates_are_torchs_with_l2_in_the_gradient() -> None:
    rng = np.random.default_rng(0)
    start = rng.normal(size=[3, 2]).astype(np.float32)
    gradients = [rng.normal(size=[3, 2]).astype(np.float32) for _ in range(20)]
    variable = tf.Variable(start)
    optimizer = Adam([variable], learning_rate=0.05, weight_decay=0.3)
    for gradient in gradients:
        optimizer.apply([tf.constant(gradient)], [variable])
    np.testing.assert_allclose(variable, torch_adam(start, gradients, 0.05, 0.3), rtol=1e-4, atol=1e-5)


def test_a_variable_without_gradient_stands_still() -> None:
    variables = [tf.Variable(1.0), tf.Variable(1.0)]
    optimizer = Adam(variables, learning_rate=0.1, weight_decay=0.5)
    optimizer.apply([tf.constant(2.0), None], variables)
    # The first step of Adam is the learning rate, whatever the size of the gradient.
    np.testing.assert_allclose([v.numpy() for v in variables], [0.9, 1.0], rtol=1e-6)


def test_steps_are_those_of_the_node_optimizer_in_two_groups() -> None:
    """The second variable joins after three steps, as global layers do."""
    rng = np.random.default_rng(1)
    start = [rng.normal(size=[4, 3]).astype(np.float32) for _ in range(2)]
    gradients = [[tf.constant(rng.normal(size=[4, 3]).astype(np.float32)) for _ in range(2)] for _ in range(12)]
    ours, theirs = ([tf.Variable(each) for each in start] for _ in range(2))
    optimizer = TorchAdam(0.03, l2=0.2)
    optimizer.build(ours)
    groups = [Adam([variable], learning_rate=0.03, weight_decay=0.2) for variable in theirs]

    @tf.function
    def step(number: int) -> None:
        active = 1 if number < 3 else 2
        optimizer.apply_gradients(list(zip(gradients[number], ours, strict=True))[:active])
        for group, gradient, variable in list(zip(groups, gradients[number], theirs, strict=True))[:active]:
            group.apply([gradient], [variable])

    for number in range(12):
        step(number)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())

"""Adam, compared with torch's update in numpy, and the optimizer of a config."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.training.optimizers import TorchAdam, build_optimizer


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
    """The second variable has gradients only after three steps, as global layers have, and its own step count."""
    rng = np.random.default_rng(0)
    starts = [rng.normal(size=[3, 2]).astype(np.float32) for _ in range(2)]
    gradients = [[rng.normal(size=[3, 2]).astype(np.float32) for _ in range(20)] for _ in range(2)]
    variables = [tf.Variable(start) for start in starts]
    optimizer = TorchAdam(0.05, l2=0.3)
    optimizer.build(variables)
    for step in range(20):
        joined = 1 if step < 3 else 2
        pairs = [(tf.constant(gradients[i][step]), variables[i]) for i in range(joined)]
        optimizer.apply_gradients(pairs)
    for i, first in enumerate((0, 3)):
        expected = torch_adam(starts[i], gradients[i][first:], 0.05, 0.3)
        np.testing.assert_allclose(variables[i], expected, rtol=1e-4, atol=1e-5)


def test_a_variable_without_gradient_stands_still() -> None:
    variables = [tf.Variable(1.0), tf.Variable(1.0)]
    optimizer = TorchAdam(0.1, l2=0.5)
    optimizer.build(variables)
    optimizer.apply_gradients([(tf.constant(2.0), variables[0])])
    # The first step of Adam has the size of the learning rate for every gradient.
    np.testing.assert_allclose([v.numpy() for v in variables], [0.9, 1.0], rtol=1e-6)


def test_gradients_are_clipped_before_l2_is_added() -> None:
    variable = tf.Variable([2.0])
    optimizer = TorchAdam(0.1, l2=0.5, global_clipnorm=1.0)
    optimizer.build([variable])
    optimizer.apply_gradients([(tf.constant([-100.0]), variable)])
    optimizer.apply_gradients([(tf.constant([3.0]), variable)])
    # Gradients are clipped to -1 and 1; the L2 term of about 1 cancels the first and doubles the second.
    expected = torch_adam(np.array([2.0]), [np.array([-1.0]), np.array([1.0])], 0.1, 0.5)
    np.testing.assert_allclose(variable, expected, rtol=1e-5)


def test_its_config_builds_it_again() -> None:
    rate = tf.keras.optimizers.schedules.PolynomialDecay(0.0, 10, 0.5)
    again = TorchAdam.from_config(TorchAdam(rate, l2=0.25, global_clipnorm=2.0).get_config())
    assert (again.l2, again.global_clipnorm) == (0.25, 2.0)


@pytest.mark.parametrize("task", ["ranking", "node_classification"])
@pytest.mark.parametrize("name, cls", [("adam", TorchAdam), ("adamw", tf.keras.optimizers.AdamW)])
def test_a_name_means_the_same_in_both_tasks(task, name, cls) -> None:
    overrides = [f"task={task}", f"training.optimizer={name}", "training.schedule=constant", "training.warmup_steps=4"]
    optimizer = build_optimizer(load_config(None, [*overrides, "training.clip_norm=3"]).training, 10)
    assert type(optimizer) is cls and optimizer.global_clipnorm == 3
    variable = tf.Variable(1.0)
    optimizer.build([variable])
    optimizer.apply_gradients([(tf.constant(1.0), variable)])
    assert float(variable) == 1.0, "the learning rate rises from 0"
    optimizer.apply_gradients([(tf.constant(1.0), variable)])
    assert float(variable) < 1.0

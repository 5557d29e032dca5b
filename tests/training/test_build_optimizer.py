"""The optimizer of a config: schedules computed by hand, decay, clipping."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.ranking_data import small_config
from tpugraphs_polynormer.training.optimizers import build_optimizer

STEPS = 40  # of the run: two phases of two epochs of ten steps
PHASES = ("training.local_epochs=2", "training.epochs=2", "training.steps_per_epoch=10")


def build(*overrides: str) -> tf.keras.optimizers.Optimizer:
    config = small_config("tile:xla", *PHASES, "training.learning_rate=0.5", *overrides)
    return build_optimizer(config.training, STEPS)


def rates(*overrides: str) -> list[float]:
    """The learning rate of every step of the run and of the next one; with a gradient of 1, Adam moves by it."""
    optimizer = build("training.optimizer=adam", "training.weight_decay=0", "training.clip_norm=0", *overrides)
    variable, places = tf.Variable(0.0, dtype=tf.float64), [0.0]
    for _ in range(STEPS + 1):
        optimizer.apply_gradients([(tf.constant(1.0, tf.float64), variable)])
        places.append(float(variable))
    return (-np.diff(places)).tolist()


def cosine(share: float) -> float:
    return 0.5 * 0.5 * (1 + math.cos(math.pi * share))


@pytest.mark.parametrize("warmup", [0, 8])
def test_a_cosine_falls_to_zero_at_the_last_step(warmup):
    rising = [0.5 * step / warmup for step in range(warmup)]
    falling = [cosine(step / (STEPS - warmup)) for step in range(STEPS - warmup + 1)]
    found = rates("training.schedule=cosine", f"training.warmup_steps={warmup}")
    assert found == pytest.approx([*rising, *falling], abs=2e-5)


@pytest.mark.parametrize("warmup", [0, 8])
def test_a_constant_rate_is_reached_by_a_line(warmup):
    found = rates("training.schedule=constant", f"training.warmup_steps={warmup}")
    expected = [0.5 * min(1, step / warmup) if warmup else 0.5 for step in range(STEPS + 1)]
    assert found == pytest.approx(expected, abs=2e-5)


def test_adamw_shrinks_weights_that_have_no_gradient():
    optimizer = build("training.optimizer=adamw", "training.weight_decay=0.25", "training.schedule=constant")
    variable = tf.Variable([4.0, -2.0])
    optimizer.apply_gradients([(tf.zeros(2), variable)])
    assert variable.numpy().tolist() == pytest.approx([4 * (1 - 0.5 * 0.25), -2 * (1 - 0.5 * 0.25)])


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_gradients_are_clipped_by_their_norm_over_all_weights(name):
    """Adam's first moment after one step is a tenth of the clipped gradient: (3, 4) and 12 have norm 13."""
    optimizer = build(f"training.optimizer={name}", "training.clip_norm=1.3", "training.weight_decay=0")
    variables = [tf.Variable([0.0, 0.0]), tf.Variable([0.0])]
    optimizer.apply_gradients(zip([tf.constant([3.0, 4.0]), tf.constant([12.0])], variables, strict=True))
    moments = [
        (optimizer._first if name == "adam" else optimizer._momentums)[
            optimizer._index_dict[optimizer._var_key(each)]
        ].numpy()
        for each in variables
    ]
    assert [value for each in moments for value in each] == pytest.approx([0.03, 0.04, 0.12])

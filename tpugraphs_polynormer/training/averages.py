"""An exponential moving average of a model's weights, beside the weights that are trained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf


class WeightAverages:
    """Averages a of the floating-point variables w of a model: a <- a + (1 - d_t) (w - a) after step t.

    d_t = min(decay, (1 + t) / (10 + t)), where t counts the steps of a phase from 0: a warm-up, so that the average of
    a short run, and of layers that a phase begins to train, does not remember their initial values. Statistics of
    batch norm are averaged too, because they belong to the weights.

    Args:
      model: with all its variables.
      decay: share of the average that a step keeps at most.
    """

    def __init__(self, model: tf.keras.Model, decay: float) -> None:
        self._decay = decay
        self._weights = tuple(variable for variable in model.variables if variable.dtype.is_floating)
        first = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
        self.num_steps = tf.Variable(0, dtype=tf.int64, name="num_steps", **first)
        self.values = [
            tf.Variable(weight.read_value(), name=f"average_{i}", **first | _merging(weight))
            for i, weight in enumerate(self._weights)
        ]
        # What is saved. Not the object itself: a checkpoint that found the weights here would name them after it.
        self.state = tf.Module(name="averages")
        self.state.values, self.state.num_steps = self.values, self.num_steps

    def update(self) -> None:
        """Moves the averages by one step; part of the training step."""
        steps = tf.cast(self.num_steps, tf.float32)
        rate = 1.0 - tf.minimum(self._decay, (1.0 + steps) / (10.0 + steps))
        for average, weight in zip(self.values, self._weights, strict=True):
            average.assign_add(tf.cast(rate, average.dtype) * (weight.read_value() - average))
        self.num_steps.assign_add(1)

    def swap(self) -> None:
        """Exchanges the averages and the weights of the model."""
        for average, weight in zip(self.values, self._weights, strict=True):
            trained = weight.numpy()
            weight.assign(average.numpy())
            average.assign(trained)

    @contextlib.contextmanager
    def in_model(self) -> Iterator[None]:
        """The model has the averages within this context, and the trained weights again after it."""
        self.swap()
        try:
            yield
        finally:
            self.swap()


def _merging(weight: tf.Variable) -> dict[str, tf.VariableAggregation]:
    """How replicas agree on an average: they have the same weights after a step, but statistics of their own."""
    is_apart = weight.synchronization == tf.VariableSynchronization.ON_READ
    return {"aggregation": weight.aggregation} if is_apart else {}

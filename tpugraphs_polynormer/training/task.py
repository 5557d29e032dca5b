"""The interface between the trainer and a task: model, phases, batches, loss and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from tpugraphs_polynormer.config.schema import Config, TrainingConfig

Metrics = Mapping[str, Mapping[str, float | None]]  # split -> metric -> value


@dataclass(frozen=True)
class Phase:
    """Consecutive epochs in which the same layers are trained."""

    name: str  # `local` or `global`
    epochs: int


class Task(Protocol):
    """The model and the data of one run.

    All variables of the model exist before training starts, and are created in the scope of the strategy.
    """

    config: Config
    model: tf.keras.Model
    phases: tuple[Phase, ...]
    selects_across_phases: bool  # whether the best epoch is chosen from all phases, or from the current one
    steps_per_epoch: int

    def enter_phase(self, phase: str) -> None:
        """Makes `loss` and `evaluate` use this phase of the model."""

    def make_dataset(self, epoch: int, context: tf.distribute.InputContext) -> tf.data.Dataset:
        """The endless batches of one worker, starting with the first step of an epoch."""

    def loss(self, batch: Any, *, num_replicas: int) -> tf.Tensor:
        """Scalar: the loss of a replica's batch, scaled so that the sum over replicas is the mean loss of the step."""

    def evaluate(self) -> Metrics:
        """The metrics of the current weights, by split."""

    def select(self, metrics: Metrics) -> float:
        """The number by which the best epoch is chosen; higher is better."""


def set_precision(config: TrainingConfig) -> None:
    """Makes layers that are created from now on compute in the config's precision."""
    half = config.precision == "bfloat16"
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16" if half else "float32")


def plan_phases(config: TrainingConfig, names: Sequence[str]) -> tuple[Phase, ...]:
    """The local phase (warm-up), then the global phase; an encoder with one phase trains all epochs in it."""
    if len(names) == 1:
        return (Phase(names[0], config.local_epochs + config.epochs),)
    planned = (Phase(name, epochs) for name, epochs in zip(names, (config.local_epochs, config.epochs), strict=True))
    return tuple(phase for phase in planned if phase.epochs)


def locate_phase(phases: Sequence[Phase], epoch: int) -> tuple[str, int]:
    """The name of an epoch's phase, and the number of completed epochs when that phase ends."""
    end = 0
    for phase in phases:
        end += phase.epochs
        if epoch < end:
            return phase.name, end
    raise ValueError(f"epoch {epoch} is past the last phase, which ends after {end} epochs")

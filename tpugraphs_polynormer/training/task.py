"""What the Trainer asks of a task: a model, its phases, its batches, its loss and how an epoch is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from tpugraphs_polynormer.config.schema import Config, TrainingConfig

Metrics = Mapping[str, Mapping[str, float | None]]  # split -> metric -> value


@dataclass(frozen=True)
class Phase:
    """Some epochs in which the same layers are trained."""

    name: str  # `local` or `global`
    epochs: int


class Task(Protocol):
    """One run's model and data. All variables of the model exist from the start, made in the strategy's scope."""

    config: Config
    model: tf.keras.Model
    phases: tuple[Phase, ...]
    selects_across_phases: bool  # whether the best epoch is that of all phases, or of the last one begun
    steps_per_epoch: int

    def enter_phase(self, phase: str) -> None:
        """From here on `loss` and `evaluate` compute in this phase."""

    def make_dataset(self, epoch: int, context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Endless batches of one worker, from the first step of an epoch on."""

    def loss(self, batch: Any, *, num_replicas: int) -> tf.Tensor:
        """One replica's share of the mean loss of a step."""

    def evaluate(self) -> Metrics:
        """Metrics of the present weights."""

    def select(self, metrics: Metrics) -> float:
        """What the best epoch is chosen by; higher is better."""


def plan_phases(config: TrainingConfig, names: Sequence[str]) -> tuple[Phase, ...]:
    """The local warm-up, then the global phase; an encoder of one phase trains all epochs in that one."""
    if len(names) == 1:
        return (Phase(names[0], config.local_epochs + config.epochs),)
    planned = (Phase(name, epochs) for name, epochs in zip(names, (config.local_epochs, config.epochs), strict=True))
    return tuple(phase for phase in planned if phase.epochs)


def locate_phase(phases: Sequence[Phase], epoch: int) -> tuple[str, int]:
    """The name of the phase that an epoch belongs to, and the number of epochs done when it ends."""
    end = 0
    for phase in phases:
        end += phase.epochs
        if epoch < end:
            return phase.name, end
    raise ValueError(f"epoch {epoch} is past the last phase, which ends after {end} epochs")

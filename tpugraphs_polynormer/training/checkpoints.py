"""Checkpoints of a run: TensorFlow's, kept by name and counted by epoch."""

from __future__ import annotations

import re
import tempfile
from typing import Any

import tensorflow as tf

from tpugraphs_polynormer.training.run_directory import RunDirectory, RunError


class Checkpoints:
    """The latest or the best state of some trackables (model, optimizer, counters) in a folder of a run.

    With several workers all must save (TensorFlow gathers what they hold together), but one writes: the others, with
    `writes` False, save to a folder that is thrown away, and restore from the writer's.
    """

    def __init__(self, run: RunDirectory, name: str, *, writes: bool = True, **trackables: Any) -> None:
        self._folder = run.path / "checkpoints" / name
        self._checkpoint = tf.train.Checkpoint(**trackables)
        self._thrown_away = None if writes else tempfile.TemporaryDirectory()
        folder = str(self._folder) if writes else self._thrown_away.name
        self._manager = tf.train.CheckpointManager(self._checkpoint, folder, max_to_keep=1)

    @property
    def exists(self) -> bool:
        """Whether there is one."""
        return tf.train.latest_checkpoint(str(self._folder)) is not None

    def save(self, number: int) -> None:
        """Saves the present state under a number; the older one goes when the new one is whole."""
        try:
            self._manager.save(checkpoint_number=number)
        except (tf.errors.OpError, OSError) as fault:
            raise RunError(
                f"{self._folder}: the checkpoint of {number} epochs cannot be written ({_first_line(fault)}); is the "
                "disk full? The one before is kept: mend that, then run the same command again"
            ) from fault

    def restore(self) -> int:
        """Restores it and returns its number; every variable must be found."""
        path = tf.train.latest_checkpoint(str(self._folder))
        if path is None:
            raise RunError(f"{self._folder}: no checkpoint; train first")
        try:
            self._checkpoint.restore(path).assert_existing_objects_matched()
        except (tf.errors.OpError, RuntimeError, LookupError, AssertionError, ValueError) as fault:
            reason = f"({_first_line(fault)}); train again, in a new run directory"
            if isinstance(fault, AssertionError | ValueError):
                raise RunError(f"{path}: not a checkpoint of this model {reason}") from fault
            raise RunError(f"{path}: a truncated or damaged checkpoint {reason}") from fault
        return int(path.rsplit("-", 1)[1])


def _first_line(fault: Exception) -> str:
    """The fault in one line, without the name that TensorFlow gives the node."""
    text = re.sub(r"\{\{.*?\}\}\s*", "", str(fault)).strip() or repr(fault)
    return f"{text.splitlines()[0]:.400}"

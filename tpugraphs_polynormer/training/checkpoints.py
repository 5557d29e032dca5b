"""TensorFlow checkpoints of a run, each in a named folder and numbered by epoch."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from typing import Any

import tensorflow as tf

from tpugraphs_polynormer.training.run_directory import RunDirectory, RunError


class Checkpoints:
    """One saved state of trackable objects (model, optimizer), in the folder `checkpoints/<name>` of a run.

    With several workers every worker must call `save`, because TensorFlow gathers distributed variables from all of
    them. Only one worker writes to the run; the others save to a temporary folder. All restore from the run.

    Args:
      run: the run directory.
      name: of the folder, `latest` or `best`.
      writes: whether this process writes to the run.
      trackables: what is saved, by name.
    """

    def __init__(self, run: RunDirectory, name: str, *, writes: bool = True, **trackables: Any) -> None:
        self._folder = run.path / "checkpoints" / name
        self._checkpoint = tf.train.Checkpoint(**trackables)
        folder = str(self._folder)
        if not writes:
            folder = tempfile.mkdtemp()
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._manager = tf.train.CheckpointManager(self._checkpoint, folder, max_to_keep=1)

    @property
    def exists(self) -> bool:
        """Whether the run has this checkpoint."""
        return tf.train.latest_checkpoint(str(self._folder)) is not None

    def save(self, number: int) -> None:
        """Saves the current state under a number, then deletes the previous checkpoint."""
        self._manager.save(checkpoint_number=number)

    def restore(self) -> int:
        """Restores the saved state and returns its number; a variable missing in the checkpoint is an error."""
        path = tf.train.latest_checkpoint(str(self._folder))
        if path is None:
            raise RunError(f"{self._folder}: no checkpoint; train first")
        try:
            self._checkpoint.restore(path).assert_existing_objects_matched()
        except (tf.errors.OpError, AssertionError, ValueError) as fault:
            reason = (str(fault).strip() or repr(fault)).splitlines()[0]
            raise RunError(
                f"{path}: not a checkpoint of this model ({reason:.200}); train again, in a new run directory"
            ) from fault
        return int(path.rsplit("-", 1)[1])

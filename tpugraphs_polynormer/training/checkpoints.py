"""TensorFlow checkpoints of a run, each in a named folder and numbered by epoch."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
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
        try:
            self._manager.save(checkpoint_number=number)
        except (tf.errors.OpError, OSError) as fault:
            raise RunError(
                f"{self._folder}: the checkpoint of {number} epochs cannot be written ({_first_line(fault)}); is the "
                "disk full? The one before is kept: mend that, then run the same command again"
            ) from fault

    def restore(self) -> int:
        """Restores the saved state and returns its number; a variable missing in the checkpoint is an error."""
        path = tf.train.latest_checkpoint(str(self._folder))
        if path is None:
            raise RunError(f"{self._folder}: no checkpoint; train first")
        try:
            found = self._checkpoint.restore(path).assert_existing_objects_matched()
            found.expect_partial()  # weights without the optimizer's state, which TensorFlow would warn about
        except (tf.errors.OpError, RuntimeError, LookupError, AssertionError, ValueError) as fault:
            reason = f"({_first_line(fault)}); train again, in a new run directory"
            if isinstance(fault, AssertionError | ValueError):
                raise RunError(f"{path}: not a checkpoint of this model {reason}") from fault
            raise RunError(f"{path}: a truncated or damaged checkpoint {reason}") from fault
        return int(path.rsplit("-", 1)[1])


def checkpoint_path(run: RunDirectory) -> str:
    """The path prefix of the best checkpoint's files; RunError if there is none."""
    folder = run.path / "checkpoints" / "best"
    path = tf.train.latest_checkpoint(str(folder))
    if path is None:
        raise RunError(f"{folder}: no checkpoint, expected that of the best epoch; let `tpugraphs train` end an epoch")
    return path


def hash_weights(prefix: str) -> str:
    """The sha256 of a checkpoint's weights: not of its file, which counts how often TensorFlow has saved one.

    The optimizer's state and integers (dropout's calls, steps) change no score and are left out.
    """
    try:
        reader = tf.train.load_checkpoint(prefix)
        digest = hashlib.sha256()
        for name, dtype in sorted(reader.get_variable_to_dtype_map().items()):
            if name.startswith("model/") and dtype.is_floating:
                values = reader.get_tensor(name)
                digest.update(f"{name} {values.dtype} {values.shape}\n".encode())
                digest.update(np.ascontiguousarray(values).tobytes())
    except (tf.errors.OpError, RuntimeError, ValueError, IndexError) as fault:  # IndexError: a cut file
        reason = (str(fault).strip() or repr(fault)).splitlines()[0]
        raise RunError(
            f"{prefix}: a truncated or damaged checkpoint ({reason:.200}); train again, in a new run directory"
        ) from None
    return digest.hexdigest()


@contextlib.contextmanager
def keep_counters(variables: Iterable[tf.Variable]) -> Iterator[None]:
    """What is restored within this context does not change integer variables: steps, and the draws of dropout."""
    counters = [(variable, variable.numpy()) for variable in variables if not variable.dtype.is_floating]
    yield
    for variable, value in counters:
        variable.assign(value)


def _first_line(fault: Exception) -> str:
    """The fault in one line, without the name that TensorFlow gives the node."""
    text = re.sub(r"\{\{.*?\}\}\s*", "", str(fault)).strip() or repr(fault)
    return f"{text.splitlines()[0]:.400}"

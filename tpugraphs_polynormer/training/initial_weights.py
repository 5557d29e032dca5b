"""Runs that start from the best weights of another run: which one, recorded in the run directory."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from tpugraphs_polynormer.config.loader import config_differences
from tpugraphs_polynormer.config.schema import Config
from tpugraphs_polynormer.training.checkpoints import Checkpoints, checkpoint_path, hash_weights, keep_counters
from tpugraphs_polynormer.training.run_directory import RESULT_NAME, SOURCE_NAME, RunDirectory, RunError

_OPTION = "--init-from"


def open_source(path: Path | str, config: Config) -> RunDirectory:
    """The run whose weights a run of `config` starts from; RunError if it has none, or another model."""
    source = RunDirectory.open(path)
    if source.config.task != config.task:
        raise RunError(f"{_OPTION} {path}: a run of task {source.config.task}, expected {config.task}")
    differences = config_differences(source.config.model, config.model, "model.")
    if differences:
        raise RunError(
            f"{_OPTION} {path}: another model: {differences[0]} (there != here); use the same model settings; data, "
            "loss and training may differ"
        )
    checkpoint_path(source)
    return source


def record_source(run: RunDirectory, source: RunDirectory | None) -> None:
    """Writes init.json to a new run that starts from a source; RunError if the run was started from other weights."""
    path = run.path / SOURCE_NAME
    present = run.read_json(SOURCE_NAME) if path.exists() else None
    if source is None:
        if present is not None:
            raise RunError(
                f"{run.path}: this run was started from the weights of {present['run']}; give {_OPTION} "
                f"{present['run']} again, or another run directory"
            )
        return
    prefix = checkpoint_path(source)
    epochs = int(prefix.rsplit("-", 1)[1])
    wanted = {"run": str(source.path.resolve()), "epochs": epochs, "sha256": hash_weights(prefix)}
    if present is None:
        if _has_begun(run):
            raise RunError(
                f"{run.path}: this run was started without {_OPTION}; leave it out, or use another run directory"
            )
        run.write_json(SOURCE_NAME, wanted)
    elif present["sha256"] != wanted["sha256"]:
        raise RunError(
            f"{run.path}: this run was started from other weights, of {present['run']}, than those of {source.path} "
            "now; use another run directory"
        )


def load_source(source: RunDirectory, run: RunDirectory, model: tf.keras.Model) -> None:
    """Gives a model with all its variables the best weights of the source, unless the run has a checkpoint already.

    The random states of dropout stay those of the run's own seed.
    """
    if not _has_begun(run):
        with keep_counters(model.variables):
            Checkpoints(source, "best", model=model).restore()


def _has_begun(run: RunDirectory) -> bool:
    latest = tf.train.latest_checkpoint(str(run.path / "checkpoints" / "latest"))
    return latest is not None or (run.path / RESULT_NAME).exists()

"""Trained ranking runs: finds, groups and labels run directories, and restores their best weights."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.config.schema import RankingConfig
from tpugraphs_polynormer.datasets.manifest import parse_record
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.ranking.task import DatasetFacts, RankingTask, open_collection
from tpugraphs_polynormer.training.run_directory import CONFIG_NAME, FACTS_NAME, RunDirectory, RunError
from tpugraphs_polynormer.training.trainer import restore_best


def load_ranker(run_dir: Path | str, data_dir: Path | str) -> RankingTask:
    """The task of a run, with the best weights and their phase, on the dataset of its collection below `data_dir`.

    Features are scaled as in training: by the statistics that the run directory has, not by those of the dataset.
    """
    run = open_ranking_run(run_dir)
    return restore_task(run, read_facts(run), open_collection(run.config, data_dir))


def read_facts(run: RunDirectory) -> DatasetFacts:
    """The kind and the feature statistics of a run's training data, as stored in the run directory."""
    return parse_record(DatasetFacts, run.read_json(FACTS_NAME), str(run.path / FACTS_NAME))


def restore_task(run: RunDirectory, facts: DatasetFacts, collection: RankingDataset) -> RankingTask:
    """The task of a run, with the best weights and their phase, on any dataset of the same kind."""
    checkpoint_path(run)
    task = RankingTask(run.config, collection, facts=facts)
    restore_best(task, run)
    return task


def open_ranking_run(run_dir: Path | str) -> RunDirectory:
    """An existing run; RunError if it is not of the ranking task."""
    run = RunDirectory.open(run_dir)
    if not isinstance(run.config, RankingConfig):
        raise RunError(f"{run.path}: a run of task {run.config.task}, expected ranking")
    return run


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


def expand_runs(run_dirs: Sequence[Path | str]) -> list[Path]:
    """The run directories; a folder of runs by seed (`seed-0`, `seed-1`, ...) is replaced by those runs."""
    runs: list[Path] = []
    for path in map(Path, run_dirs):
        seeds = sorted(path.glob("seed-*"), key=lambda seed: (len(seed.name), seed.name))
        runs += [path] if (path / CONFIG_NAME).exists() or not seeds else seeds
    repeated = [str(path) for path in dict.fromkeys(runs) if runs.count(path) > 1]
    if repeated:
        raise RunError(f"{', '.join(repeated)}: given more than once; name each run directory once")
    return runs


def group_runs(run_dirs: Sequence[Path | str]) -> dict[str, list[RunDirectory]]:
    """The runs, grouped by collection; several runs of one collection form an ensemble."""
    groups: dict[str, list[RunDirectory]] = {}
    for path in expand_runs(run_dirs):
        run = open_ranking_run(path)
        groups.setdefault(run.config.data.collection, []).append(run)
    return groups


def label_runs(runs: Sequence[Path]) -> list[str]:
    """A label for each run: its folder's name, preceded by the parent's name if two folders have the same name."""
    names = [run.resolve().name for run in runs]
    labels = [
        f"{run.resolve().parent.name}-{name}" if names.count(name) > 1 else name
        for run, name in zip(runs, names, strict=True)
    ]
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise RunError(f"several run directories end in {', '.join(repeated)}; rename them, or give them one by one")
    return labels

"""Trained ranking runs on disk: opened, grouped, named, and restored with their best weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from tpugraphs_polynormer.config.schema import RankingConfig
from tpugraphs_polynormer.datasets.manifest import parse_record
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.ranking.task import (
    FACTS_NAME,
    DatasetFacts,
    RankingTask,
    open_collection,
)
from tpugraphs_polynormer.training.run_directory import CONFIG_NAME, RunDirectory, RunError
from tpugraphs_polynormer.training.trainer import restore_best


def load_ranker(run_dir: Path | str, data_dir: Path | str) -> RankingTask:
    """The task of a run with its best weights (and their phase) restored.

    Features are scaled as they were in training, by the statistics that the run keeps, not by those of the dataset.
    """
    run = open_ranking_run(run_dir)
    return restore_task(run, read_facts(run), open_collection(run.config, data_dir))


def read_facts(run: RunDirectory) -> DatasetFacts:
    """What a run keeps of the data it was trained on."""
    return parse_record(DatasetFacts, run.read_json(FACTS_NAME), str(run.path / FACTS_NAME))


def restore_task(run: RunDirectory, facts: DatasetFacts, collection: RankingDataset) -> RankingTask:
    """The task of a run on any collection of its kind, with the best weights and their phase restored."""
    checkpoint_path(run)
    task = RankingTask(run.config, collection, facts=facts)
    restore_best(task, run)
    return task


def open_ranking_run(run_dir: Path | str) -> RunDirectory:
    """An existing run that ranks candidates."""
    run = RunDirectory.open(run_dir)
    if not isinstance(run.config, RankingConfig):
        raise RunError(f"{run.path}: a run of task {run.config.task}, expected ranking")
    return run


def checkpoint_path(run: RunDirectory) -> str:
    """The prefix of the best checkpoint's files; RunError where there is none."""
    folder = run.path / "checkpoints" / "best"
    path = tf.train.latest_checkpoint(str(folder))
    if path is None:
        raise RunError(f"{folder}: no checkpoint, expected that of the best epoch; let `tpugraphs train` end an epoch")
    return path


def expand_runs(run_dirs: Sequence[Path | str]) -> list[Path]:
    """The run directories; a folder of runs by seed (`seed-0`, `seed-1`, ...) stands for all of them."""
    runs: list[Path] = []
    for path in map(Path, run_dirs):
        seeds = sorted(path.glob("seed-*"), key=lambda seed: (len(seed.name), seed.name))
        runs += [path] if (path / CONFIG_NAME).exists() or not seeds else seeds
    repeated = [str(path) for path in dict.fromkeys(runs) if runs.count(path) > 1]
    if repeated:
        raise RunError(f"{', '.join(repeated)}: given more than once; name each run directory once")
    return runs


def group_runs(run_dirs: Sequence[Path | str]) -> dict[str, list[RunDirectory]]:
    """The runs by the collection that they were trained on; several of one collection are an ensemble."""
    groups: dict[str, list[RunDirectory]] = {}
    for path in expand_runs(run_dirs):
        run = open_ranking_run(path)
        groups.setdefault(run.config.data.collection, []).append(run)
    return groups


def label_runs(runs: Sequence[Path]) -> list[str]:
    """A short name for each: the folder's, with that of its parent where two would be the same."""
    names = [run.resolve().name for run in runs]
    labels = [
        f"{run.resolve().parent.name}-{name}" if names.count(name) > 1 else name
        for run, name in zip(runs, names, strict=True)
    ]
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise RunError(f"several run directories end in {', '.join(repeated)}; rename them, or give them one by one")
    return labels

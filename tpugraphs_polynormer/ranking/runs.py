"""Trained ranking runs: finds, groups and labels run directories, and restores their best weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tpugraphs_polynormer.config.schema import RankingConfig
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.ranking.task import DatasetFacts, RankingTask, open_named
from tpugraphs_polynormer.training.checkpoints import checkpoint_path
from tpugraphs_polynormer.training.run_directory import CONFIG_NAME, RunDirectory, RunError
from tpugraphs_polynormer.training.trainer import restore_best


def load_ranker(run_dir: Path | str, data_dir: Path | str, *, collection: str | None = None) -> RankingTask:
    """The task of a run, with the best weights and their phase, on the dataset of a collection below `data_dir`.

    Features are scaled as in training: by the statistics that the run directory has, not by those of the dataset.

    Args:
      run_dir, data_dir: the run directory, and the folder of all datasets.
      collection: which one to score, of the run's kind; by default the (first) one that the run was trained on.
    """
    run = open_ranking_run(run_dir)
    facts, dataset = DatasetFacts.read(run), open_named(collection or run.config.data.names[0], data_dir)
    if dataset.manifest.kind != facts.kind:
        raise RunError(f"{run.path}: a run on {facts.kind} collections, found {collection}, which is not one")
    return restore_task(run, facts, dataset)


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
    """The runs, grouped by collection; several runs of one collection form an ensemble.

    A run that was trained on several collections is in the group of each.
    """
    groups: dict[str, list[RunDirectory]] = {}
    for path in expand_runs(run_dirs):
        run = open_ranking_run(path)
        for name in run.config.data.names:
            groups.setdefault(name, []).append(run)
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

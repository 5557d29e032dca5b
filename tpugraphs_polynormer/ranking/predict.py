"""Writes one prediction file per graph with the models of one or several runs; resumable."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from tpugraphs_polynormer.catalog import find_collection
from tpugraphs_polynormer.checksums import CHECKSUMS_NAME, write_checksums
from tpugraphs_polynormer.config.loader import dump_config
from tpugraphs_polynormer.datasets.manifest import MANIFEST_NAME, DatasetError
from tpugraphs_polynormer.datasets.reader import RankingDataset, RankingSplit
from tpugraphs_polynormer.files import hash_file, only_writer, write_text, writing
from tpugraphs_polynormer.progress import Progress
from tpugraphs_polynormer.ranking.runs import group_runs, load_ranker
from tpugraphs_polynormer.ranking.submission import RECIPE_NAME, prediction_path, read_prediction, write_prediction
from tpugraphs_polynormer.ranking.submission_rules import SubmissionError
from tpugraphs_polynormer.ranking.task import open_named
from tpugraphs_polynormer.training.checkpoints import checkpoint_path, hash_weights
from tpugraphs_polynormer.training.run_directory import RunDirectory, RunError


def average_scores(scores: Sequence[np.ndarray], how: str) -> np.ndarray:
    """[c]: the mean over models of their ranks (`how` "rank") or standardized scores ("score"); higher is faster.

    The scores [c] of a single model are returned unchanged.
    """
    if len(scores) == 1:
        return scores[0]
    if how == "rank":
        return np.mean([rankdata(each) for each in scores], 0)
    spreads = [np.std(each) or 1.0 for each in scores]
    return np.mean([(each - np.mean(each)) / spread for each, spread in zip(scores, spreads, strict=True)], 0)


class Ensemble:
    """The models of one or several runs of a collection; their scores are averaged.

    Args:
      run_dirs: the runs. data_dir: the folder of all datasets.
      average: see `average_scores`.
      collection: which one is scored; by default the (first) one of each run.
    """

    def __init__(
        self, run_dirs: Sequence[Path | str], data_dir: Path | str, average: str, *, collection: str | None = None
    ) -> None:
        self._scorers = [load_ranker(path, data_dir, collection=collection).make_scorer() for path in run_dirs]
        self._average = average

    def score_source(self, split: RankingSplit, number: int) -> np.ndarray:
        """float32 [c]: the scores of a graph's candidates, in the order of its archive."""
        entry = split.graphs[number]
        if entry.num_candidates != entry.num_source_candidates:
            raise DatasetError(f"{entry.name}: its repeated candidates were collapsed; predict the valid or test split")
        averaged = average_scores([each.score_graph(split, number) for each in self._scorers], self._average)
        scores = np.empty(len(averaged), np.float32)
        scores[split.read_column(number, "rows")] = averaged
        return scores


@dataclass(frozen=True)
class PendingGraph:
    """One graph of a prediction job."""

    collection: str
    number: int
    id: str
    num_candidates: int


@dataclass(frozen=True)
class PredictionPlan:
    """A prediction job: runs, data, output and graphs. All values are plain, so that Beam can send it to workers."""

    runs: dict[str, tuple[str, ...]]  # collection -> run directories
    data_dir: str
    output: str
    split: str
    average: str
    tasks: tuple[PendingGraph, ...]

    def is_done(self, task: PendingGraph) -> bool:
        """Whether the graph has a readable prediction file of the right length."""
        path = prediction_path(self.output, task.id)
        if not path.exists():
            return False
        try:
            return all(len(each) == task.num_candidates for each in read_prediction(path))
        except SubmissionError:
            return False

    def pending(self) -> list[PendingGraph]:
        """The graphs without a finished prediction."""
        return [task for task in self.tasks if not self.is_done(task)]

    def list_checksums(self, scored: Sequence[PendingGraph]) -> None:
        """Writes checksums.json beside the predictions of each collection, once all are there; see `verify`."""
        for collection in self.runs:
            folder = Path(self.output) / find_collection(collection).folder
            if (folder / CHECKSUMS_NAME).exists() and not any(task.collection == collection for task in scored):
                continue  # listed before, and nothing has changed
            paths = [prediction_path(self.output, task.id) for task in self.tasks if task.collection == collection]
            write_checksums(folder, [*paths, folder / RECIPE_NAME])

    def open_split(self, collection: str) -> RankingSplit:
        """The split of a collection that is predicted."""
        return RankingDataset(Path(self.data_dir) / find_collection(collection).folder).split(self.split)

    def load_ensemble(self, collection: str) -> Ensemble:
        """The models of a collection's runs."""
        return Ensemble(self.runs[collection], self.data_dir, self.average, collection=collection)

    def count_done(self) -> int:
        """The number of prediction files that exist; their content is not read."""
        return sum(prediction_path(self.output, task.id).exists() for task in self.tasks)


def plan_predictions(
    run_dirs: Sequence[Path | str], data_dir: Path | str, output: Path | str, *, split: str, average: str
) -> PredictionPlan:
    """The prediction job of a split.

    Writes recipe.json to the output: config and hash of the weights, and hash of the dataset's manifest. RunError if
    the output has predictions of another recipe.
    """
    groups = group_runs(run_dirs)
    tasks: list[PendingGraph] = []
    for collection, runs in groups.items():
        opened = open_named(collection, data_dir)
        _keep_recipe(Path(output), find_collection(collection).folder, _describe(runs, opened, split, average))
        tasks += [
            PendingGraph(collection, number, f"{collection}:{entry.name}", entry.num_candidates)
            for number, entry in enumerate(opened.split(split).graphs)
        ]
    paths = {collection: tuple(str(run.path.resolve()) for run in runs) for collection, runs in groups.items()}
    places = {"data_dir": str(Path(data_dir).resolve()), "output": str(Path(output).resolve())}
    return PredictionPlan(runs=paths, **places, split=split, average=average, tasks=tuple(tasks))


def predict(plan: PredictionPlan) -> int:
    """Writes the missing predictions and returns their number. After a kill, the same call resumes."""
    with only_writer(plan.output):
        pending = plan.pending()
        with Progress(len(pending), "predict", "graph") as progress:
            for task, scores in _score(plan, pending):
                write_prediction(plan.output, task.id, scores)
                progress.update()
        plan.list_checksums(pending)
    return len(pending)


def _score(plan: PredictionPlan, tasks: Sequence[PendingGraph]) -> Iterator[tuple[PendingGraph, np.ndarray]]:
    for collection in dict.fromkeys(task.collection for task in tasks):
        ensemble, split = plan.load_ensemble(collection), plan.open_split(collection)
        for task in tasks:
            if task.collection == collection:
                yield task, ensemble.score_source(split, task.number)
        split.close()


def _describe(runs: Sequence[RunDirectory], collection: RankingDataset, split: str, average: str) -> dict[str, Any]:
    """The recipe of a collection's predictions: everything they depend on, without paths."""
    weights = []
    for run in runs:
        prefix = checkpoint_path(run)
        epochs = int(prefix.rsplit("-", 1)[1])  # decide the phase in which the model computes
        weights.append({"config": dump_config(run.config), "epochs": epochs, "sha256": hash_weights(prefix)})
    how = {"split": split, "average": average if len(runs) > 1 else None}
    return {**how, "dataset_sha256": hash_file(collection.folder / MANIFEST_NAME), "runs": weights}


def _keep_recipe(output: Path, name: str, recipe: Mapping[str, Any]) -> None:
    folder = output / name
    path = folder / RECIPE_NAME
    try:
        # Of two jobs that start at once, the second finds the recipe of the first.
        with writing(folder), only_writer(output):
            folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and json.loads(path.read_text()) != recipe:
                raise RunError(f"{folder}: holds predictions of other runs, data or settings; choose another --output")
            write_text(path, json.dumps(recipe, indent=1) + "\n")
    except json.JSONDecodeError:
        raise RunError(f"{path}: not readable; delete the folder {folder} and predict again") from None

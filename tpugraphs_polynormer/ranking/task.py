"""Ranking candidates as a task: the data, the model and the loss of a config, and how runs of it are trained."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpugraphs_polynormer.archives.indices import find_indices
from tpugraphs_polynormer.catalog import find_collection
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.config.schema import Config, RankingConfig
from tpugraphs_polynormer.datasets.input_pipeline import Shard, iterate_blocks, make_training_dataset
from tpugraphs_polynormer.datasets.manifest import DatasetError, Manifest
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.datasets.statistics import FeatureStatistics
from tpugraphs_polynormer.models.encoder_registry import check_encoder
from tpugraphs_polynormer.models.ranking.model import RankingModel
from tpugraphs_polynormer.ranking.metrics import summarize
from tpugraphs_polynormer.ranking.scorer import Scorer, choose_candidates, evaluate_split
from tpugraphs_polynormer.training.distribution import is_chief
from tpugraphs_polynormer.training.losses import build_loss
from tpugraphs_polynormer.training.run_directory import RunDirectory
from tpugraphs_polynormer.training.task import Metrics, plan_phases
from tpugraphs_polynormer.training.trainer import train_many, train_run

FACTS_NAME = "dataset.json"


@dataclass(frozen=True)
class DatasetFacts:
    """What a model must know of the data it was trained on; kept in the run directory, so that it can travel alone."""

    collection: str
    kind: str
    statistics: FeatureStatistics

    @staticmethod
    def of(manifest: Manifest) -> DatasetFacts:
        """The facts of a preprocessed collection."""
        if manifest.statistics is None:
            raise DatasetError(f"{manifest.collection}: no train split, so no feature statistics; preprocess it too")
        return DatasetFacts(manifest.collection, manifest.kind, manifest.statistics)


class RankingTask:
    """What training, evaluation and prediction share.

    Args:
      config: of the model. collection: what is trained on, or scored.
      facts: of the data that scales the features; by default the collection's own.
      indices_dir: folder of the official index files, by which validation candidates are chosen.
    """

    selects_across_phases = False  # the warm-up's model is another one

    def __init__(
        self,
        config: RankingConfig,
        collection: RankingDataset,
        *,
        facts: DatasetFacts | None = None,
        indices_dir: Path | str | None = None,
    ) -> None:
        half = config.training.precision == "bfloat16"
        tf.keras.mixed_precision.set_global_policy("mixed_bfloat16" if half else "float32")
        self.config, self.collection = config, collection
        self.model = build_ranking_model(config, facts or DatasetFacts.of(collection.manifest))
        self.phases = plan_phases(config.training, self.model.phases)
        self.phase: str | None = None  # of the encoders; None for the last
        self.steps_per_epoch = config.training.steps_per_epoch
        self._loss = build_loss(asdict(config.loss))
        self._indices = find_indices(indices_dir, config.data.collection)
        self._create_variables()
        self._scorer = self.make_scorer()

    def enter_phase(self, phase: str) -> None:
        """From here on the model computes in this phase."""
        self.phase = phase
        self._scorer = self.make_scorer()

    def make_dataset(self, epoch: int, context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Endless batches of one worker, from the first step of an epoch on."""
        start = {"seed": self.config.seed, "start_step": epoch * self.steps_per_epoch}
        dataset = make_training_dataset(self.collection, self.config.data, **start, shard=Shard.from_context(context))
        # Not known to be endless, it would be asked for a last, empty batch, which a GraphTensor cannot be.
        return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    def loss(self, graph: tfgnn.GraphTensor, *, num_replicas: int) -> tf.Tensor:
        """One replica's share of the mean over graphs."""
        scores = self.model(graph, phase=self.phase, training=True)
        costs, mask = graph.context["costs"], graph.context["candidate_mask"]
        return tf.reduce_sum(self._loss(costs, scores, mask)) / (self.config.data.graphs_per_batch * num_replicas)

    def evaluate(self) -> Metrics:
        """Means over the validation graphs."""
        split, candidates = self.validation
        graphs = evaluate_split(self._scorer, split, collection=self.config.data.collection, candidates=candidates)
        return {"valid": summarize(graphs)["overall"]}

    def select(self, metrics: Metrics) -> float:
        """The contest's score on the validation graphs."""
        value = metrics["valid"]["contest_score"]
        return -math.inf if value is None or math.isnan(value) else value

    @functools.cached_property
    def validation(self) -> tuple[Any, Sequence[np.ndarray]]:
        """The validation split, and which candidates of each graph are judged."""
        split = self.collection.split("valid")
        most = self.config.training.validation_candidates
        return split, choose_candidates(split, most=most, seed=0, indices=self._indices)

    def make_scorer(self) -> Scorer:
        """Scores whole graphs with the task's model, in its present phase."""
        group = self.config.data.candidates_per_graph
        return Scorer(self.model, self.collection, phase=self.phase, candidates_per_group=group, seed=self.config.seed)

    def _create_variables(self) -> None:
        """One forward pass on a small block, so that optimizers and checkpoints know every variable from the start."""
        for name in self.collection.manifest.splits:
            split = self.collection.split(name)
            if len(split):
                block = next(iterate_blocks(self.collection, split, 0, 2, np.zeros(1, np.int64)))
                self.model(block.graph, training=False)
                return
        raise DatasetError(f"{self.collection.folder}: no graphs in any split; preprocess again")


def open_collection(config: RankingConfig, data_dir: Path | str) -> RankingDataset:
    """The preprocessed collection that the config names, below the folder of all datasets."""
    collection = RankingDataset(Path(data_dir) / find_collection(config.data.collection).folder)
    found = collection.manifest.collection
    if found != config.data.collection:
        raise DatasetError(
            f"{collection.folder}: found a dataset of {found}, expected one of {config.data.collection}; move it to "
            f"{Path(data_dir) / find_collection(found).folder}, or preprocess again"
        )
    return collection


def build_ranking_model(config: RankingConfig, facts: DatasetFacts) -> RankingModel:
    """The model of a config, for a dataset's kind and statistics."""
    return RankingModel(kind=facts.kind, config=config.model, statistics=facts.statistics, name="ranking")


def train_ranking(
    config: Config,
    data_dir: Path | str,
    run_dir: Path | str,
    *,
    strategy: tf.distribute.Strategy,
    seeds: Sequence[int] | None = None,
    indices_dir: Path | str | None = None,
) -> dict[str, Any]:
    """Trains (or resumes) the config's model; returns result.json, or with seeds summary.json.

    With seeds, each has its run in `<run_dir>/seed-<n>`.
    """
    _check(config, strategy)

    def job(path: Path, seed: int) -> tuple[RunDirectory, Any]:
        run = RunDirectory.start(path, dataclasses.replace(config, seed=seed))
        return run, functools.partial(_make_task, run, data_dir, indices_dir, is_chief(strategy))

    with _reader_errors():
        if seeds:
            jobs = [job(Path(run_dir) / f"seed-{seed}", seed) for seed in seeds]
            return train_many(jobs, run_dir, strategy=strategy)
        run, make_task = job(Path(run_dir), config.seed)
        return train_run(make_task, run, strategy=strategy)


def _check(config: Config, strategy: tf.distribute.Strategy) -> None:
    if not isinstance(config, RankingConfig):
        raise ConfigError(f"task: found {config.task}, expected ranking; use `tpugraphs benchmark` for the other")
    has_accelerators = any(device.device_type != "CPU" for device in tf.config.list_logical_devices())
    if config.training.jit_compile and strategy.num_replicas_in_sync > 1 and not has_accelerators:
        raise ConfigError(
            "training.jit_compile: XLA cannot join CPU devices; train on one, or set training.jit_compile=false"
        )
    check_encoder(config.model)


def _make_task(run: RunDirectory, data_dir: Path | str, indices_dir: Path | str | None, writes: bool) -> RankingTask:
    tf.keras.utils.set_random_seed(run.config.seed)
    collection = open_collection(run.config, data_dir)
    if writes:
        run.write_json(FACTS_NAME, asdict(DatasetFacts.of(collection.manifest)))
    task = RankingTask(run.config, collection, indices_dir=indices_dir)
    _ = task.validation  # a wrong index file is told now, not after the first epoch
    return task


@contextlib.contextmanager
def _reader_errors() -> Iterator[None]:
    """Raises the DatasetError of a reader inside tf.data, which passes on no more than its text."""
    try:
        yield
    except tf.errors.OpError as fault:
        found = re.search(rf"{DatasetError.__name__}: (.*)", fault.message)
        if found:
            raise DatasetError(found[1]) from None
        raise

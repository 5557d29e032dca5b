"""The ranking task of a config: data, model, loss and metrics; and the training of its runs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpugraphs_polynormer.archives.estimated import UNKNOWN
from tpugraphs_polynormer.archives.indices import find_indices
from tpugraphs_polynormer.catalog import find_collection
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.config.schema import Config, RankingConfig, RankingDataConfig
from tpugraphs_polynormer.datasets.batch_plan import describe_batches, measure_graphs
from tpugraphs_polynormer.datasets.input_pipeline import Shard, iterate_blocks, make_training_dataset
from tpugraphs_polynormer.datasets.joined import JoinedDataset
from tpugraphs_polynormer.datasets.manifest import DatasetError, Manifest, parse_record
from tpugraphs_polynormer.datasets.reader import RankingDataset, RankingSplit
from tpugraphs_polynormer.datasets.statistics import FeatureStatistics
from tpugraphs_polynormer.models.encoder_registry import check_encoder
from tpugraphs_polynormer.models.ranking.model import RankingModel
from tpugraphs_polynormer.models.ranking.physics import CostModel
from tpugraphs_polynormer.ranking.baselines import CostScorer
from tpugraphs_polynormer.ranking.metrics import summarize
from tpugraphs_polynormer.ranking.scorer import Scorer, choose_candidates, evaluate_split
from tpugraphs_polynormer.ranking.static_scoring import StaticScorer
from tpugraphs_polynormer.training.distribution import is_chief
from tpugraphs_polynormer.training.initial_weights import load_source, open_source, record_source
from tpugraphs_polynormer.training.losses import build_loss
from tpugraphs_polynormer.training.run_directory import FACTS_NAME, RunDirectory, RunError
from tpugraphs_polynormer.training.task import Metrics, Phase, plan_phases, set_precision
from tpugraphs_polynormer.training.trainer import train_many, train_run

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DatasetFacts:
    """The properties of the training data that a model needs.

    The run directory has a copy (FACTS_NAME), so that a model can be used without its training data.
    """

    collection: str  # the first one, of several
    kind: str
    statistics: FeatureStatistics | None  # None only where nothing is learned: without a train split
    origin: str = UNKNOWN  # of the runtimes, see archives/estimated.py

    @staticmethod
    def of(manifest: Manifest, *, learns: bool = True) -> DatasetFacts:
        """The facts of a preprocessed collection; a model that learns needs statistics."""
        if manifest.statistics is None and learns:
            raise DatasetError(f"{manifest.collection}: no train split, so no feature statistics; preprocess it too")
        return DatasetFacts(manifest.collection, manifest.kind, manifest.statistics, manifest.origin)

    @staticmethod
    def read(run: RunDirectory) -> DatasetFacts:
        """The facts that a run directory has."""
        return parse_record(DatasetFacts, run.read_json(FACTS_NAME), str(run.path / FACTS_NAME))


class RankingTask:
    """The model of a config and a dataset, for training, evaluation and prediction (a `training.task.Task`).

    Args:
      config: the experiment.
      collection: the dataset to train on, or to score; it may be a JoinedDataset.
      facts: of the training data, whose statistics scale the features; by default those of `collection`.
      indices_dir: folder of the official index files, which name the validation candidates.
    """

    selects_across_phases = False  # the weights of the warm-up belong to the model without global attention

    def __init__(
        self,
        config: RankingConfig,
        collection: RankingDataset,
        *,
        facts: DatasetFacts | None = None,
        indices_dir: Path | str | None = None,
    ) -> None:
        set_precision(config.training)
        self.config, self.collection = config, collection
        self._strategy = tf.distribute.get_strategy()
        learns = config.model.learns
        self.model = build_ranking_model(config, facts or DatasetFacts.of(collection.manifest, learns=learns))
        self.phases = plan_phases(config.training, self.model.phases) if learns else (Phase("local", 1),)
        self.phase: str | None = None  # of the encoder; None for its last phase
        self.steps_per_epoch = config.training.steps_per_epoch
        self._loss = build_loss(config.loss.weights, score_spread=config.loss.score_spread)
        names = [part.manifest.collection for part in collection.parts]
        self._indices = {name: find_indices(indices_dir, name) for name in names}
        self._create_variables()
        self._scorer = self.make_scorer()

    def enter_phase(self, phase: str) -> None:
        """Makes `loss`, `evaluate` and `make_scorer` use this phase of the model."""
        self.phase = phase
        self._scorer = self.make_scorer()

    def make_dataset(self, epoch: int, context: tf.distribute.InputContext) -> tf.data.Dataset:
        """The endless batches of one worker, starting with the first step of an epoch."""
        start = {"seed": self.config.seed, "start_step": epoch * self.steps_per_epoch}
        how = {"shard": Shard.from_context(context), "physics": self.config.model.reads_physics}
        dataset = make_training_dataset(self.collection, self.config.data, **start, **how)
        # Without this, tf.distribute asks for an empty batch at the end of the dataset; GraphTensor has no such batch.
        return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    def loss(self, graph: tfgnn.GraphTensor, *, num_replicas: int) -> tf.Tensor:
        """Scalar: the sum of a replica's losses, divided by the number of graphs of all replicas."""
        scores = self.model(graph, phase=self.phase, training=True)
        return mean_loss(self.config.data, self._loss, graph, scores, num_replicas=num_replicas)

    def evaluate(self) -> Metrics:
        """The mean metrics over the validation graphs; of several collections their mean, and those of each."""
        graphs = [
            graph
            for name, split, candidates in self.validation
            for graph in evaluate_split(self._scorer, split, collection=name, candidates=candidates)
        ]
        summary = summarize(graphs)
        each = {f"valid/{name}": means for name, means in summary["collections"].items()}
        return {"valid": summary["overall"]} | (each if len(each) > 1 else {})

    def select(self, metrics: Metrics) -> float:
        """The contest score on the validation graphs (the mean over collections), by which the best epoch is chosen."""
        value = metrics["valid"]["contest_score"]
        return -math.inf if value is None or math.isnan(value) else value

    @functools.cached_property
    def validation(self) -> list[tuple[str, RankingSplit, Sequence[np.ndarray]]]:
        """Each collection, its validation split, and the indices of the candidates to evaluate, per graph."""
        splits = {part.manifest.collection: part.split("valid") for part in self.collection.parts}
        most = self.config.training.validation_candidates
        return [
            (name, split, choose_candidates(split, most=most, seed=0, indices=self._indices[name]))
            for name, split in splits.items()
        ]

    def make_scorer(self) -> Scorer | CostScorer:
        """A scorer with the model in its current phase, compiled where training is: with static shapes, by XLA.

        It computes on the devices of the strategy in whose scope the task was created.
        """
        if not self.config.model.learns:
            return CostScorer()
        static, jit_compile = None, self.config.training.jit_compile
        is_compiled = jit_compile or isinstance(self._strategy, tf.distribute.TPUStrategy)
        if self.config.data.static_shapes and is_compiled:
            compiled = {"jit_compile": jit_compile, "strategy": self._strategy}
            static = StaticScorer(self.model, self.collection, phase=self.phase, **compiled)
        group = {"candidates_per_group": self.config.data.candidates_per_graph, "seed": self.config.seed}
        return Scorer(self.model, self.collection, phase=self.phase, **group, static=static)

    def _create_variables(self) -> None:
        """Runs the model once on two candidates: optimizers and checkpoints need all variables before training."""
        reads = self.config.model.reads_physics
        for name, entry in self.collection.manifest.splits.items():
            if entry.num_graphs:
                split = self.collection.split(name)
                block = next(iterate_blocks(self.collection, split, 0, 2, np.zeros(1, np.int64), physics=reads))
                self.model(block.graph, training=False)
                return
        raise DatasetError(f"{self.collection.folder}: no graphs in any split; preprocess again")


def mean_loss(
    config: RankingDataConfig, loss: Callable, graph: tfgnn.GraphTensor, scores: tf.Tensor, *, num_replicas: int
) -> tf.Tensor:
    """Scalar: the sum of the losses of a replica's graphs, divided by the number of graphs of all replicas."""
    costs, mask = graph.context["costs"], graph.context["candidate_mask"]
    num_graphs: float | tf.Tensor = config.graphs_per_batch * num_replicas
    if config.batch_nodes:  # batches differ in their number of graphs
        num_graphs = tf.reduce_sum(tf.cast(tf.reduce_any(mask, 1), tf.float32))
        if num_replicas > 1:
            replica = tf.distribute.get_replica_context()
            num_graphs = replica.all_reduce(tf.distribute.ReduceOp.SUM, num_graphs)
    return tf.reduce_sum(loss(costs, scores, mask)) / num_graphs


def open_collection(config: RankingConfig, data_dir: Path | str) -> RankingDataset:
    """The dataset of the config's collection, or of all its collections, below the folder of all datasets."""
    parts = [open_named(name, data_dir) for name in config.data.names]
    return JoinedDataset(parts) if len(parts) > 1 else parts[0]


def open_named(name: str, data_dir: Path | str) -> RankingDataset:
    """The dataset of a collection, below the folder of all datasets."""
    collection = RankingDataset(Path(data_dir) / find_collection(name).folder)
    found = collection.manifest.collection
    if found != name:
        raise DatasetError(
            f"{collection.folder}: found a dataset of {found}, expected one of {name}; move it to "
            f"{Path(data_dir) / find_collection(found).folder}, or preprocess again"
        )
    return collection


def build_ranking_model(config: RankingConfig, facts: DatasetFacts) -> RankingModel | CostModel:
    """The model of a config, for the kind and statistics of the training data."""
    if not config.model.learns:
        return CostModel(name="ranking")
    return RankingModel(kind=facts.kind, config=config.model, statistics=facts.statistics, name="ranking")


def train_ranking(
    config: Config,
    data_dir: Path | str,
    run_dir: Path | str,
    *,
    strategy: tf.distribute.Strategy,
    seeds: Sequence[int] | None = None,
    indices_dir: Path | str | None = None,
    init_from: Path | str | None = None,
) -> dict[str, Any]:
    """The result.json of a config's run, after training or resuming it; with seeds the summary.json of their runs.

    Args:
      config: the experiment; ConfigError if it is not of the ranking task.
      data_dir: the folder of all datasets.
      run_dir: the run directory; with seeds, the runs are in `<run_dir>/seed-<n>`.
      strategy: of tf.distribute.
      seeds: one run per seed, which replaces that of the config.
      indices_dir: see `RankingTask`.
      init_from: a run of the same model config, whose best weights and feature statistics training starts from.
    """
    _check(config, strategy)
    source = _open_source(init_from, config) if init_from is not None else None

    def job(path: Path, seed: int) -> tuple[RunDirectory, Any]:
        run = RunDirectory.start(path, dataclasses.replace(config, seed=seed))
        record_source(run, source)
        places = {"data_dir": data_dir, "indices_dir": indices_dir}
        return run, functools.partial(_make_task, run, **places, source=source, writes=is_chief(strategy))

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


def _open_source(path: Path | str, config: RankingConfig) -> RunDirectory:
    """The run whose weights a run starts from; RunError if its model is another one, or of another kind."""
    source = open_source(path, config)
    if source.config.data.kind != config.data.kind:
        kinds = f"a run on {source.config.data.kind} collections, expected {config.data.kind}"
        raise RunError(f"--init-from {path}: {kinds}: the two kinds have different models")
    return source


def _make_task(
    run: RunDirectory,
    *,
    data_dir: Path | str,
    indices_dir: Path | str | None,
    source: RunDirectory | None,
    writes: bool,
) -> RankingTask:
    tf.keras.utils.set_random_seed(run.config.seed)
    collection = open_collection(run.config, data_dir)
    facts = DatasetFacts.of(collection.manifest, learns=run.config.model.learns)
    if run.config.model.operand_features and not any(each.has_operands for each in collection.split("train").graphs):
        raise DatasetError(
            f"{collection.folder}: model.operand_features: found no train graph with operands; make the archives with "
            "--operands and preprocess again, or set model.operand_features=false"
        )
    if source is not None:  # weights fit features only as they were scaled
        facts = dataclasses.replace(facts, statistics=DatasetFacts.read(source).statistics)
    if writes:
        run.write_json(FACTS_NAME, asdict(facts))
    if run.config.data.static_shapes and writes:
        sizes = measure_graphs(collection.split("train").graphs)
        _logger.info("%s: batches of %s", run.path, describe_batches(sizes, run.config.data, run.config.seed))
    task = RankingTask(run.config, collection, facts=facts, indices_dir=indices_dir)
    _ = task.validation  # a wrong index file is an error now, not after the first epoch
    if source is not None:
        load_source(source, run, task.model)
        _logger.info("%s: starts from the best weights of %s", run.path, source.path)
    return task


@contextlib.contextmanager
def _reader_errors() -> Iterator[None]:
    """Raises the DatasetError of a reader inside tf.data again; tf.data only passes on its text."""
    try:
        yield
    except tf.errors.OpError as fault:
        found = re.search(rf"{DatasetError.__name__}: (.*)", fault.message)
        if found:
            raise DatasetError(found[1]) from None
        raise

"""Training a ranking model: Keras fit under any strategy, validated, checkpointed, resumable to the same weights."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn
from tqdm import tqdm

from tpugraphs_polynormer.archives.indices import find_indices
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.config.schema import Config
from tpugraphs_polynormer.datasets.input_pipeline import Shard, make_training_dataset
from tpugraphs_polynormer.datasets.manifest import DatasetError
from tpugraphs_polynormer.ranking.metrics import MetricError, summarize, summarize_seeds
from tpugraphs_polynormer.ranking.scorer import choose_candidates, evaluate_split
from tpugraphs_polynormer.ranking.task import (
    FACTS_NAME,
    DatasetFacts,
    RankingTask,
    build_ranking_task,
    open_collection,
)
from tpugraphs_polynormer.training.checkpoints import Checkpoints
from tpugraphs_polynormer.training.distribution import is_chief, wait_for_workers
from tpugraphs_polynormer.training.event_log import EventLog
from tpugraphs_polynormer.training.optimizers import build_optimizer
from tpugraphs_polynormer.training.run_directory import RunDirectory, RunError

RESULT_NAME = "result.json"
_logger = logging.getLogger(__name__)


def train(
    config: Config,
    data_dir: Path | str,
    run_dir: Path | str,
    *,
    strategy: tf.distribute.Strategy,
    indices_dir: Path | str | None = None,
) -> dict[str, Any]:
    """Trains (or goes on training) the config's model; returns and writes result.json: best epoch and its metrics."""
    if config.task != "ranking":
        raise ConfigError(f"task: found {config.task}, expected ranking; use `tpugraphs benchmark` for the other")
    if not config.training.local_epochs + config.training.epochs:
        raise ConfigError("training.epochs: found 0, and training.local_epochs too; expected at least one epoch")
    if config.training.jit_compile and strategy.num_replicas_in_sync > 1 and not _has_accelerators():
        raise ConfigError(
            "training.jit_compile: XLA cannot join CPU devices; train on one, or set training.jit_compile=false"
        )
    run = RunDirectory.start(run_dir, config)
    if (run.path / RESULT_NAME).exists():
        _logger.info("%s: already trained", run.path)
        return run.read_json(RESULT_NAME)
    tf.keras.utils.set_random_seed(config.seed)
    collection = open_collection(config, data_dir)
    if is_chief(strategy):
        run.write_json(FACTS_NAME, dataclasses.asdict(DatasetFacts.of(collection.manifest)))
    with strategy.scope():
        task = build_ranking_task(config, collection)
        learner = Learner(task, strategy.num_replicas_in_sync)
        learner.compile(
            optimizer=build_optimizer(config.training),
            jit_compile=config.training.jit_compile,
            steps_per_execution=min(config.training.steps_per_execution, config.training.steps_per_epoch),
        )
        _create_variables(learner, task)
    session = _Session(run, task, learner, strategy, indices_dir)
    try:
        session.run()
    except tf.errors.OpError as fault:
        _raise_dataset_error(fault)
        raise
    return session.finish()


def train_seeds(
    config: Config, seeds: list[int], data_dir: Path | str, run_dir: Path | str, **arguments: Any
) -> dict[str, Any]:
    """One run per seed in `<run_dir>/seed-<n>`; their mean and spread."""
    results = [
        train(dataclasses.replace(config, seed=seed), data_dir, Path(run_dir) / f"seed-{seed}", **arguments)
        for seed in seeds
    ]
    summary = {"seeds": seeds, "summary": summarize_seeds([result["valid"] for result in results])}
    RunDirectory(Path(run_dir), config).write_json("seeds.json", summary)
    return summary


class Learner(tf.keras.Model):
    """The training step: one gradient of the mean ranking loss over the graphs of all replicas."""

    def __init__(self, task: RankingTask, num_replicas: int) -> None:
        super().__init__(name="learner")
        self.ranker = task.model
        self._loss = task.loss
        self._num_graphs = task.config.data.graphs_per_batch * num_replicas
        training = task.config.training
        self._l2 = training.weight_decay if training.optimizer == "adam" else 0.0
        self.bad_step = self.add_weight(
            "bad_step",
            shape=[],
            dtype=tf.int64,
            trainable=False,
            initializer=tf.keras.initializers.Constant(-1),
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self._mean_loss = tf.keras.metrics.Mean(name="loss")

    def call(self, graph: tfgnn.GraphTensor, training: bool | None = None) -> tf.Tensor:
        """Scores [G, k]."""
        return self.ranker(graph, training=training)

    @tf.autograph.experimental.do_not_convert  # no Python branch depends on a tensor; converting takes seconds
    def train_step(self, graph: tfgnn.GraphTensor) -> dict[str, tf.Tensor]:
        """Each replica's loss is its share of the mean, so that summed gradients are those of the whole batch."""
        with tf.GradientTape() as tape:
            scores = self.ranker(graph, training=True)
            costs, mask = graph.context["costs"], graph.context["candidate_mask"]
            loss = tf.reduce_sum(self._loss(costs, scores, mask)) / self._num_graphs
        variables = self.ranker.trainable_variables
        gradients = [
            (tf.convert_to_tensor(gradient) + self._l2 * variable, variable)
            for gradient, variable in zip(tape.gradient(loss, variables), variables, strict=True)
            if gradient is not None  # the other phase's variables rest
        ]
        self.optimizer.apply_gradients(gradients)
        replica = tf.distribute.get_replica_context()
        total = replica.all_reduce(tf.distribute.ReduceOp.SUM, loss) if replica.num_replicas_in_sync > 1 else loss
        is_first_bad = (self.bad_step < 0) & ~tf.math.is_finite(total)
        self.bad_step.assign(tf.where(is_first_bad, self.optimizer.iterations - 1, self.bad_step))
        self._mean_loss.update_state(total)
        return {"loss": self._mean_loss.result()}


def _create_variables(learner: Learner, task: RankingTask) -> None:
    """One forward pass on a small batch, so that checkpoints and the optimizer know every variable from the start."""
    data = dataclasses.replace(task.config.data, graphs_per_batch=1, candidates_per_graph=2, static_shapes=False)
    graph = next(iter(make_training_dataset(task.collection, data, seed=0)))
    learner(graph, training=False)
    learner.optimizer.build(learner.ranker.trainable_variables)


class _Session:
    """One process's part in a run: where it resumes, what happens after each epoch, when it stops."""

    def __init__(
        self,
        run: RunDirectory,
        task: RankingTask,
        learner: Learner,
        strategy: tf.distribute.Strategy,
        indices_dir: Path | str | None,
    ) -> None:
        self._run, self._task, self._learner, self._strategy = run, task, learner, strategy
        self._config = task.config.training
        self._writes = is_chief(strategy)
        state = {"model": task.model, "optimizer": learner.optimizer}
        self._latest = Checkpoints(run, "latest", writes=self._writes, **state)
        self._best = Checkpoints(run, "best", writes=self._writes, model=task.model)
        # Apart from `best`, which the global phase's first epoch replaces before that epoch counts as done.
        self._best_local = Checkpoints(run, "best_local", writes=self._writes, model=task.model)
        self._events = EventLog(run) if self._writes else None
        # Each worker's own: all compute the same, and none waits for the file that one of them writes.
        self._records: list[dict[str, Any]] = []
        self._valid = task.collection.split("valid")
        self._scorer = task.make_scorer()
        name = task.config.data.collection
        indices = find_indices(indices_dir, name)
        self._candidates = choose_candidates(
            self._valid, most=self._config.validation_candidates, seed=0, indices=indices
        )
        self._total_epochs = self._config.local_epochs + self._config.epochs

    def run(self) -> None:
        """Trains from the latest checkpoint to the last epoch, or until patience ends; phase by phase."""
        start = self._latest.restore() if self._latest.exists else 0
        self._records = self._run.read_metrics()[:start]
        if self._writes:
            self._run.keep_metrics(start)
        while start < self._total_epochs and not self._is_exhausted():
            phase = self._enter_phase(start)
            end = self._config.local_epochs if phase == "local" else self._total_epochs
            dataset = self._make_dataset(start * self._config.steps_per_epoch)
            callback = _AfterEpoch(self, self._config.steps_per_epoch, shows_progress=self._writes)
            self._learner.make_train_function(force=True)  # the phase is read when the step is traced
            self._learner.fit(
                dataset,
                initial_epoch=start,
                epochs=end,
                steps_per_epoch=self._config.steps_per_epoch,
                callbacks=[callback],
                verbose=0,
            )
            start = callback.next_epoch

    def finish(self) -> dict[str, Any]:
        """Writes result.json: the best epoch's validation metrics."""
        best = max(self._phase_records(), key=_selection)
        result = {"best_epoch": best["epoch"], "epochs": len(self._records), "valid": best["valid"]}
        if self._writes:
            self._run.write_json(RESULT_NAME, result)
        return result

    def _make_dataset(self, start_step: int) -> tf.data.Dataset:
        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            dataset = make_training_dataset(
                self._task.collection,
                self._task.config.data,
                seed=self._task.config.seed,
                start_step=start_step,
                shard=Shard.from_context(context),
            )
            # Not known to be endless, it would be asked for a last, empty batch, which a GraphTensor cannot be.
            return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

        return self._strategy.distribute_datasets_from_function(make)

    def _enter_phase(self, epoch: int) -> str:
        """Sets the encoders' phase; the global one starts from the best weights of the local warm-up."""
        encoders = self._task.model.phased_encoders
        phase = "local" if epoch < self._config.local_epochs else "global"
        if encoders and phase == "global" and epoch == self._config.local_epochs and epoch:
            wait_for_workers(self._strategy)
            self._best_local.restore()
        for encoder in encoders:
            encoder.phase = phase
        self._scorer = self._task.make_scorer()
        return phase

    def _phase_records(self) -> list[dict[str, Any]]:
        """The records of the phase that counts: the last one begun."""
        local = self._config.local_epochs
        return self._records[local:] if len(self._records) > local else self._records

    def _is_exhausted(self) -> bool:
        """Whether patience has ended; the warm-up always runs its course."""
        records = self._records[self._config.local_epochs :]
        if not self._config.patience or not records:
            return False
        best = max(range(len(records)), key=lambda place: _selection(records[place]))
        return len(records) - 1 - best >= self._config.patience

    def after_epoch(self, epoch: int, loss: float, seconds: float) -> bool:
        """Validates, logs, saves; True when training should stop. After a non-finite loss nothing is saved."""
        bad_step = int(self._learner.bad_step.numpy())
        if bad_step >= 0:
            raise RunError(
                f"{self._run.path}: the loss became non-finite at step {bad_step}; the last good checkpoint is kept. "
                "Lower training.learning_rate, or clip with training.clip_norm, in a new run directory"
            )
        valid = self._validate()
        record = {"epoch": epoch, "loss": loss, "seconds": round(seconds, 3), "valid": valid}
        starts_phase = epoch in (0, self._config.local_epochs)
        if starts_phase or _selection(record) > max(map(_selection, self._phase_records())):
            self._best.save(epoch + 1)
            if epoch < self._config.local_epochs:
                self._best_local.save(epoch + 1)
        self._records.append(record)
        if self._writes:
            self._run.append_metrics(record)
            self._events.add(record)
        self._latest.save(epoch + 1)
        _logger.info("epoch %d: loss %.4f, %s", epoch, loss, _format(valid["overall"]))
        return self._is_exhausted()

    def _validate(self) -> dict[str, dict]:
        name = self._task.config.data.collection
        try:
            return summarize(evaluate_split(self._scorer, self._valid, collection=name, candidates=self._candidates))
        except MetricError as fault:  # the epoch's last update can break the weights without a bad loss to show for it
            step = int(self._learner.optimizer.iterations.numpy()) - 1
            raise RunError(
                f"{self._run.path}: validation after step {step} failed: {fault}; the last good checkpoint is kept"
            ) from fault


class _AfterEpoch(tf.keras.callbacks.Callback):
    """Shows an epoch's progress on a terminal and hands its end to the session."""

    def __init__(self, session: _Session, steps_per_epoch: int, *, shows_progress: bool) -> None:
        super().__init__()
        self._session = session
        self._steps = steps_per_epoch
        self._disable = None if shows_progress else True  # None: where stderr is no terminal
        self._supports_tf_logs = True  # Keras then copies no loss to the host between epochs
        self.next_epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Starts the clock and the bar."""
        self._started = time.monotonic()
        self._bar = tqdm(total=self._steps, desc=f"epoch {epoch}", unit="step", leave=False, disable=self._disable)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Moves the bar; `batch` is the last step of one execution."""
        self._bar.update(batch + 1 - self._bar.n)

    def on_epoch_end(self, epoch: int, logs: dict[str, tf.Tensor]) -> None:
        """Validates, logs, saves, and stops when told."""
        self.next_epoch = epoch + 1
        self._bar.close()
        if self._session.after_epoch(epoch, float(logs["loss"]), time.monotonic() - self._started):
            self.model.stop_training = True


def _raise_dataset_error(fault: tf.errors.OpError) -> None:
    """Raises the DatasetError of a reader inside tf.data, which passes on no more than its text, if there was one."""
    found = re.search(rf"{DatasetError.__name__}: (.*)", fault.message)
    if found:
        raise DatasetError(found[1]) from None


def _has_accelerators() -> bool:
    return any(device.device_type != "CPU" for device in tf.config.list_logical_devices())


def _selection(record: dict[str, Any]) -> float:
    """What the best epoch is chosen by: the contest's score on the validation graphs."""
    value = record["valid"]["overall"]["contest_score"]
    return -math.inf if value is None or np.isnan(value) else value


def _format(metrics: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items() if isinstance(value, float))

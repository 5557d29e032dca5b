"""The training loop of every task: Keras `fit` under any strategy; a resumed run ends with the same weights."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import only_writer
from tpugraphs_polynormer.progress import Progress
from tpugraphs_polynormer.training.averages import WeightAverages
from tpugraphs_polynormer.training.checkpoints import Checkpoints, keep_counters
from tpugraphs_polynormer.training.distribution import is_chief, wait_for_workers
from tpugraphs_polynormer.training.event_log import EventLog
from tpugraphs_polynormer.training.optimizers import build_optimizer
from tpugraphs_polynormer.training.run_directory import RESULT_NAME, RunDirectory, RunError
from tpugraphs_polynormer.training.task import Task, locate_phase

SUMMARY_NAME = "summary.json"
FORMAT_VERSION = 1
_LOG_SECONDS = 10  # minimum time between two log lines of a phase
_DIVERGED, _HUGE_LOSS = 10.0, 1e6  # a last loss of so many times the lowest one, or above this, is told
_logger = logging.getLogger(__name__)


class Learner(tf.keras.Model):
    """A Keras model whose training step applies the gradient of a task's mean loss over all replicas."""

    def __init__(self, task: Task, num_replicas: int) -> None:
        super().__init__(name="learner")
        self.task, self._num_replicas = task, num_replicas
        decay = task.config.training.ema_decay
        self.averages = WeightAverages(task.model, decay) if decay else None
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.bad_step = tf.Variable(-1, trainable=False, dtype=tf.int64, aggregation=first)
        self._mean_loss = tf.keras.metrics.Mean(name="loss")

    @tf.autograph.experimental.do_not_convert  # no Python branch depends on a tensor; converting takes seconds
    def train_step(self, batch: Any) -> dict[str, tf.Tensor]:
        """The mean loss of the epoch so far. A replica's loss is its share of the mean; gradients are summed."""
        variables = self.task.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.task.loss(batch, num_replicas=self._num_replicas)
        gradients = [
            (tf.convert_to_tensor(gradient), variable)
            for gradient, variable in zip(tape.gradient(loss, variables), variables, strict=True)
            if gradient is not None  # variables that only the other phase uses
        ]
        self.optimizer.apply_gradients(gradients)
        if self.averages is not None:
            self.averages.update()
        replica = tf.distribute.get_replica_context()
        total = replica.all_reduce(tf.distribute.ReduceOp.SUM, loss) if replica.num_replicas_in_sync > 1 else loss
        is_first_bad = (self.bad_step < 0) & ~tf.math.is_finite(total)
        self.bad_step.assign(tf.where(is_first_bad, self.optimizer.iterations - 1, self.bad_step))
        self._mean_loss.update_state(total)
        return {"loss": self._mean_loss.result()}


class Trainer:
    """Trains a task in a run directory: resumes, evaluates, saves checkpoints, stops early.

    Writes metrics.jsonl (a record per evaluated epoch), checkpoints/latest and checkpoints/best (model and optimizer),
    tensorboard/ and result.json. After the last epoch of a phase, `latest` contains the state from which the next phase
    starts: the weights, statistics and moments of the best epoch so far. Integer counters (optimizer steps, calls of
    dropout) are not reset, so that no dropout mask is drawn twice. With several workers, each process has a Trainer.

    With `ema_decay`, the averages of the weights are evaluated, and both are in the checkpoints: `latest` has the
    trained weights in `model` and the averages in `averages`; in `best` the two are exchanged, so that its `model` is
    what was evaluated.

    Args:
      task: the task, created in the strategy's scope.
      run: the run directory, opened with the task's config.
      strategy: of tf.distribute; by default the one in scope.
    """

    def __init__(self, task: Task, run: RunDirectory, *, strategy: tf.distribute.Strategy | None = None) -> None:
        self.task, self.run = task, run
        self._strategy = strategy or tf.distribute.get_strategy()
        self._config = config = task.config.training
        self._num_epochs = sum(phase.epochs for phase in task.phases)
        with self._strategy.scope():
            self.learner = Learner(task, self._strategy.num_replicas_in_sync)
            optimizer = build_optimizer(config, self._num_epochs * task.steps_per_epoch)
            steps = min(config.steps_per_execution, task.steps_per_epoch)
            self.learner.compile(optimizer=optimizer, jit_compile=config.jit_compile, steps_per_execution=steps)
            optimizer.build(task.model.trainable_variables)
        self._writes = is_chief(self._strategy)
        state = {"writes": self._writes, "model": task.model, "optimizer": optimizer}
        if self.learner.averages is not None:
            state["averages"] = self.learner.averages.state
        self._latest, self._best = (Checkpoints(run, name, **state) for name in ("latest", "best"))
        # Workers must save in the same epochs, but their clocks differ: with several, every epoch is saved.
        is_alone = not isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self._checkpoint_seconds = config.checkpoint_seconds if is_alone else 0.0
        self._events = EventLog(run) if self._writes else None
        # Every worker keeps the records itself; they are equal, so none has to wait for the file of the chief.
        self._records: list[dict[str, Any]] = []

    def train(self) -> dict[str, Any]:
        """Trains from the latest checkpoint to the last epoch, or until patience is exhausted; returns result.json."""
        epoch = self._resume()
        self._saved_at = self._logged_at = time.monotonic()
        steps, name = self.task.steps_per_epoch, f"train {self.run.path.name}"
        total = self._num_epochs * steps
        with Progress(total, name, "step", done=epoch * steps, hidden=not self._writes) as progress:
            while epoch < self._num_epochs and not self._is_exhausted():
                epoch = self._train_phase(epoch, progress)
        self._tell_end(epoch)
        best = best_record(self._records, across_phases=self.task.selects_across_phases)
        result = {"format_version": FORMAT_VERSION, "task": self.task.config.task, "best": best, "epochs": epoch}
        if self._writes:
            self.run.finish(result)
        return result

    def restore_best(self) -> str:
        """Restores the weights of the best epoch; returns the phase of that epoch."""
        return restore_best(self.task, self.run)

    def _resume(self) -> int:
        """Restores the latest checkpoint, if any, drops later records, and returns the number of completed epochs."""
        done = self._latest.restore() if self._latest.exists else 0
        self._records = [record for record in self.run.read_metrics() if record["epoch"] < done]
        if self._writes:
            self.run.keep_metrics(len(self._records))
        if done:
            _logger.info("%s: resuming after epoch %d", self.run.path, done - 1)
            self.task.enter_phase(locate_phase(self.task.phases, done - 1)[0])
        return done

    def _tell_end(self, epoch: int) -> None:
        """Says what a user should know of how the training ended: early, or with a loss that grew."""
        if epoch < self._num_epochs:
            _logger.info(
                "%s: ended after %d of %d epochs: training.patience=%d evaluations without a better one",
                *(self.run.path, epoch, self._num_epochs, self._config.patience),
            )
        last = self._records[-1]
        losses = [record["loss"] for record in self._records if record["phase"] == last["phase"]]
        has_grown = last["loss"] > max(losses[0], _DIVERGED * min(losses))
        if has_grown or last["loss"] > _HUGE_LOSS:
            _logger.warning(
                "%s: the run diverged: its last epoch's loss is %.4g, its lowest %.4g; lower training.learning_rate, "
                "or clip with training.clip_norm, in a new run directory",
                *(self.run.path, last["loss"], min(losses)),
            )

    def _train_phase(self, start: int, progress: Progress) -> int:
        """Trains to the end of the phase of epoch `start`, or until patience is exhausted; returns completed epochs."""
        task, steps = self.task, self.task.steps_per_epoch
        phase, end = locate_phase(task.phases, start)
        task.enter_phase(phase)
        if not task.model.trainable_variables:  # nothing to learn: an epoch is its evaluation
            while start < end and not self._after_epoch(start, 0.0, 0.0):
                start += 1
            return end
        self.learner.make_train_function(force=True)  # trace again: the phase is a Python value of the traced step
        dataset = self._strategy.distribute_datasets_from_function(lambda context: task.make_dataset(start, context))
        progress.name = f"train {self.run.path.name}, {phase} phase"
        callback = _AfterEpoch(self._after_epoch, progress, start, steps)
        epochs = {"initial_epoch": start, "epochs": end, "steps_per_epoch": steps}
        self.learner.fit(dataset, **epochs, callbacks=[callback], verbose=0)
        return callback.done

    def _after_epoch(self, epoch: int, loss: float, seconds: float) -> bool:
        """Evaluates, logs and saves; returns whether training stops. Raises before saving if a loss was not finite."""
        bad_step = int(self.learner.bad_step.numpy())
        if bad_step >= 0:
            raise RunError(
                f"{self.run.path}: the run diverged: the loss became non-finite at step {bad_step}; "
                f"{self._tell_kept()}. Lower training.learning_rate, or clip with training.clip_norm, in a new run "
                "directory"
            )
        phase, end = locate_phase(self.task.phases, epoch)
        ends_phase = epoch + 1 == end
        if ends_phase or (epoch + 1) % self._config.epochs_per_evaluation == 0:
            with self._averaged():
                record = {"epoch": epoch, "phase": phase, "loss": loss, "train_seconds": round(seconds, 4)}
                self._judge(record, ends_phase)
        stops = self._is_exhausted()
        if ends_phase and end < self._num_epochs:
            self._return_to_best()
        if ends_phase or stops or time.monotonic() - self._saved_at >= self._checkpoint_seconds:
            self._latest.save(epoch + 1)
            self._saved_at = time.monotonic()
        return stops

    def _judge(self, record: dict[str, Any], ends_phase: bool) -> None:
        """Evaluates an epoch, completes and logs its record, and saves the weights if they are the best."""
        started = time.monotonic()
        try:
            metrics = self.task.evaluate()
        except UserError as fault:  # the last update of an epoch can make weights non-finite after the last loss
            where = f"{self.run.path}: the run diverged: validation after epoch {record['epoch']}"
            raise RunError(f"{where} failed: {fault}; {self._tell_kept()}") from fault
        value = self.task.select(metrics)
        record["evaluation_seconds"] = round(time.monotonic() - started, 4)
        record |= {"metrics": metrics, "selection": value if math.isfinite(value) else None}
        across_phases = self.task.selects_across_phases
        rivals = [each for each in self._records if across_phases or each["phase"] == record["phase"]]
        if not rivals or _selection(record) > max(map(_selection, rivals)):
            self._best.save(record["epoch"] + 1)
        self._records.append(record)
        if self._writes:
            self.run.append_metrics(record)
            self._events.add(record)
        if ends_phase or time.monotonic() - self._logged_at >= _LOG_SECONDS:
            self._logged_at = time.monotonic()
            pairs = [(f"{split} {name}", each) for split in metrics for name, each in metrics[split].items()]
            shown = ", ".join(f"{name} {each:.4f}" for name, each in pairs if isinstance(each, float))
            _logger.info("epoch %d: loss %.4f, %s", record["epoch"], record["loss"], shown)

    def _averaged(self) -> contextlib.AbstractContextManager:
        """The model has the averages of its weights within this context, if the config asks for them."""
        averages = self.learner.averages
        return averages.in_model() if averages is not None else contextlib.nullcontext()

    def _tell_kept(self) -> str:
        return "the last good checkpoint is kept" if self._latest.exists else "no checkpoint was saved before"

    def _is_exhausted(self) -> bool:
        """Whether the last phase has had `patience` evaluations without improvement; a warm-up never stops early."""
        records = [record for record in self._records if record["phase"] == self.task.phases[-1].name]
        if not self._config.patience or not records:
            return False
        best = max(range(len(records)), key=lambda position: _selection(records[position]))
        return len(records) - 1 - best >= self._config.patience

    def _return_to_best(self) -> None:
        """Restores the floating-point variables of the best epoch so far; integer counters keep their values."""
        wait_for_workers(self._strategy)
        with keep_counters([*self.task.model.variables, *self.learner.optimizer.variables]):
            self._best.restore()
        if self.learner.averages is not None:  # exchanged with the weights there
            self.learner.averages.swap()
            self.learner.averages.num_steps.assign(0)


class _AfterEpoch(tf.keras.callbacks.Callback):
    """Counts the steps, and calls the trainer after each epoch, which may stop training."""

    def __init__(
        self, after_epoch: Callable[[int, float, float], bool], progress: Progress, done: int, steps: int
    ) -> None:
        super().__init__()
        self._after_epoch, self._progress, self.done, self._steps = after_epoch, progress, done, steps
        self._supports_tf_logs = True  # Keras then copies no loss to the host between epochs

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Starts the clock."""
        self._started = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Counts the steps; `batch` is the last step of one execution."""
        self._progress.advance_to(self.done * self._steps + batch + 1)

    def on_epoch_end(self, epoch: int, logs: dict[str, tf.Tensor]) -> None:
        """Calls the trainer, and stops if it says so."""
        self.done = epoch + 1
        if self._after_epoch(epoch, float(logs["loss"]), time.monotonic() - self._started):
            self.model.stop_training = True


def train_run(
    make_task: Callable[[], Task], run: RunDirectory, *, strategy: tf.distribute.Strategy | None = None
) -> dict[str, Any]:
    """The result.json of a run, after training what is left of it; a finished run does not create the task."""
    if (run.path / RESULT_NAME).exists():
        _logger.info("%s: already trained", run.path)
        return run.read_json(RESULT_NAME)
    strategy = strategy or tf.distribute.get_strategy()
    with _only_trainer(run) if is_chief(strategy) else contextlib.nullcontext():
        if (run.path / RESULT_NAME).exists():  # another process has finished it meanwhile
            return run.read_json(RESULT_NAME)
        with strategy.scope():
            task = make_task()
        return Trainer(task, run, strategy=strategy).train()


@contextlib.contextmanager
def _only_trainer(run: RunDirectory) -> Iterator[None]:
    """Holds a run, and checks its config again: of two trainings that start at once, both may have written theirs."""
    with only_writer(run.path):
        RunDirectory.start(run.path, run.config)
        yield


def train_many(
    jobs: Sequence[tuple[RunDirectory, Callable[[], Task]]],
    folder: Path | str,
    *,
    strategy: tf.distribute.Strategy | None = None,
) -> dict[str, Any]:
    """The summary.json of several runs that differ in seed or split, after training them; written to `folder`.

    `metrics` has, for each metric of the best epochs, mean, sample standard deviation (None for one run) and number of
    runs; `runs` has the best record of each run.
    """
    runs = [{"run": run.path.name, **train_run(make_task, run, strategy=strategy)["best"]} for run, make_task in jobs]
    metrics = {
        split: {name: _spread([run["metrics"][split][name] for run in runs]) for name in names}
        for split, names in runs[0]["metrics"].items()
    }
    task = jobs[0][0].config.task
    summary = {"format_version": FORMAT_VERSION, "task": task, "metrics": metrics, "runs": runs}
    if is_chief(strategy or tf.distribute.get_strategy()):
        RunDirectory(folder, jobs[0][0].config).write_json(SUMMARY_NAME, summary)
    return summary


def restore_best(task: Task, run: RunDirectory) -> str:
    """Restores the weights of the best epoch of a run, enters the phase of that epoch, and returns its name."""
    done = Checkpoints(run, "best", model=task.model).restore()
    phase, _ = locate_phase(task.phases, done - 1)
    task.enter_phase(phase)
    return phase


def best_record(records: Sequence[dict[str, Any]], *, across_phases: bool) -> dict[str, Any]:
    """The first record with the highest selection, of all phases or of the phase of the last record."""
    counted = [record for record in records if across_phases or record["phase"] == records[-1]["phase"]]
    return max(counted, key=_selection)


def _selection(record: dict[str, Any]) -> float:
    return -math.inf if record["selection"] is None else record["selection"]


def _spread(values: Sequence[float | None]) -> dict[str, float | int | None]:
    defined = [value for value in values if value is not None and math.isfinite(value)]
    return {
        "mean": math.fsum(defined) / len(defined) if defined else None,
        "std": float(np.std(defined, ddof=1)) if len(defined) > 1 else None,
        "num_runs": len(defined),
    }

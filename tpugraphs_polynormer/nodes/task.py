"""Two-phase training of a node classifier on one split, resumable after a kill at any moment."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tpugraphs_polynormer.config.schema import Config
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.layers.edge_index import EdgeIndex, build_edge_index, unknown_edges
from tpugraphs_polynormer.nodes.chunked_forward import ChunkedForward
from tpugraphs_polynormer.nodes.datasets import NodeDataset
from tpugraphs_polynormer.nodes.fiedler import compute_fiedler
from tpugraphs_polynormer.nodes.metrics import evaluate_nodes
from tpugraphs_polynormer.nodes.models import build_classifier
from tpugraphs_polynormer.nodes.partitions import iterate_subgraphs, partition_nodes
from tpugraphs_polynormer.training.checkpoints import Checkpoints
from tpugraphs_polynormer.training.optimizers import Adam
from tpugraphs_polynormer.training.run_directory import RunDirectory

_logger = logging.getLogger(__name__)


class NodeTrainingError(UserError):
    """Training that cannot go on: names the split, the epoch and what was found."""


@dataclass(frozen=True)
class NodeInputs:
    """A data set as the model takes it; made once, shared by the runs over its splits."""

    dataset: NodeDataset
    edges: EdgeIndex  # numpy
    fiedler: np.ndarray | None  # float32 [num_nodes], for version 2 only

    @staticmethod
    def make(dataset: NodeDataset, config: Config) -> NodeInputs:
        """Sorts the edges both ways and, for Polynormer-v2, computes the Fiedler vector."""
        source, target = dataset.edges[:, 0], dataset.edges[:, 1]
        needs_fiedler = config.model.equivariance == "v2" and "polynormer" in config.model.encoder
        fiedler = compute_fiedler(source, target, dataset.num_nodes) if needs_fiedler else None
        return NodeInputs(dataset, build_edge_index(source, target, dataset.num_nodes), fiedler)


def node_loss(kind: str, logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Mean over nodes of weight 1: `nll` of the label, or `bce` of every class against the one-hot label.

    Logits [num_nodes, num_classes], labels int [num_nodes] (any value where the weight is 0), weights [num_nodes].
    """
    labels = tf.maximum(labels, 0)
    if kind == "nll":
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    else:
        one_hot = tf.one_hot(labels, logits.shape[-1])
        each = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(one_hot, logits), -1)
    return tf.math.divide_no_nan(tf.reduce_sum(each * weights), tf.reduce_sum(weights))


class NodeTrainer:
    """Trains one split: local warm-up, then from its best weights and moments the global phase.

    A model without phases (baselines, Polynormer-Local, local-and-global) trains all epochs in its one phase. Each
    epoch is followed by an evaluation on the whole graph; the result is the test score of the epoch with the best
    validation score, over both phases, as the authors count it.

    Args:
      config: with the seed of this run.
      inputs: the graph. split: number of the official split.
      run: directory of this split's metrics and checkpoints.
    """

    def __init__(self, config: Config, inputs: NodeInputs, split: int, run: RunDirectory):
        self.config = config
        self.inputs = inputs
        self.split = split
        self.run = run
        dataset = inputs.dataset
        self.parts = dataset.splits[split]
        self.weights = np.zeros(dataset.num_nodes, np.float32)
        self.weights[self.parts.train] = 1
        self.model = build_classifier(
            config.model, feature_dim=dataset.features.shape[1], num_classes=dataset.num_classes, seed=config.seed
        )
        self._has_phases = self.model.global_head is not None
        self._groups = self._group_variables()
        rates = {"learning_rate": config.training.learning_rate, "weight_decay": config.training.weight_decay}
        self._optimizers = [Adam(group, **rates) for group in self._groups]
        self._best = [tf.Variable(variable, trainable=False) for variable in self._learned()]
        self._checkpoints = Checkpoints(run, "latest", model=self.model, optimizers=self._optimizers, best=self._best)
        self._graph = self._make_graph()
        self._make_functions()

    @property
    def num_epochs(self) -> int:
        """Epochs of both phases."""
        return self.config.training.local_epochs + self.config.training.epochs

    def train(self) -> list[dict[str, Any]]:
        """Trains from where the run directory stands to the end; returns one record per evaluated epoch."""
        done = self._resume()
        saved_at = time.monotonic()
        progress = tqdm(total=self.num_epochs, initial=done, desc=f"split {self.split}", disable=None, leave=False)
        for epoch in range(done, self.num_epochs):
            if self._has_phases and epoch == self.config.training.local_epochs:
                self._start_global_phase(epoch)
            self._run_epoch(epoch)
            progress.update()
            progress.set_postfix(best=f"{self._best_valid:.4f}")
            is_last = epoch + 1 == self.num_epochs
            if is_last or time.monotonic() - saved_at >= self.config.training.checkpoint_seconds:
                self._checkpoints.save(epoch + 1)
                saved_at = time.monotonic()
        progress.close()
        return self.run.read_metrics()

    def restore_best(self) -> None:
        """Puts the model back to the epoch with the best validation score, its phase included."""
        if self._has_phases:
            self.model.phase = best_record(self.run.read_metrics())["phase"]
        self._copy(self._best, self._learned())
        self._make_functions()

    def predict(self) -> np.ndarray:
        """Logits [num_nodes, num_classes] of the whole graph with the present weights."""
        return self._forward()

    def _run_epoch(self, epoch: int) -> None:
        """Trains one epoch; if it is to be evaluated, scores it, keeps it if it is the best, and logs it."""
        started = time.perf_counter()
        loss = self.train_epoch(epoch)
        trained = time.perf_counter()
        if not math.isfinite(loss):
            raise NodeTrainingError(
                f"{self.run.path}: the loss of epoch {epoch} is {loss}, expected a finite number; "
                "lower training.learning_rate and start in another run directory"
            )
        if not self._is_evaluated(epoch):
            return
        record = {"epoch": epoch, "phase": self.model.phase, "loss": loss, **self._score()}
        record |= {"train_seconds": trained - started, "evaluation_seconds": time.perf_counter() - trained}
        if record["valid"] > self._best_valid:
            self._best_valid = record["valid"]
            self._copy(self._learned(), self._best)
        self.run.append_metrics(record)

    def _is_evaluated(self, epoch: int) -> bool:
        """Every so many epochs, and at the end of each phase, which needs a best epoch to start from."""
        last = (self.config.training.local_epochs, self.num_epochs)
        return (epoch + 1) % self.config.training.epochs_per_evaluation == 0 or epoch + 1 in last

    def train_epoch(self, epoch: int) -> float:
        """Trains on every node once; returns the mean loss."""
        if not self.config.training.nodes_per_batch:
            return float(self._step(*self._graph))
        losses = [float(self._step(*batch)) * count for batch, count in self._batches(epoch)]
        return sum(losses) / len(self.parts.train)

    def _batches(self, epoch: int) -> Iterator[tuple[tuple[Any, ...], float]]:
        """The inputs of each step of an epoch, and how many training nodes it holds; those without any are skipped."""
        dataset, edges = self.inputs.dataset, self.inputs.edges
        seed = (self.config.seed, epoch)
        batches = partition_nodes(dataset.num_nodes, self.config.training.nodes_per_batch, seed)
        for sub in iterate_subgraphs(edges, batches):
            count = float(self.weights[sub.nodes].sum())
            if count:
                yield self._pack(sub.nodes, sub.edges), count

    def _pack(self, nodes: np.ndarray | slice, edges: EdgeIndex) -> tuple[Any, ...]:
        """The arguments of the training step for some nodes."""
        dataset, fiedler = self.inputs.dataset, self.inputs.fiedler
        vector = np.zeros(0, np.float32) if fiedler is None else fiedler[nodes]
        return dataset.features[nodes], dataset.labels[nodes], self.weights[nodes], vector, *edges[:-1]  # no mask

    def _score(self) -> dict[str, float]:
        logits, labels = self.predict(), self.inputs.dataset.labels
        parts = {"train": self.parts.train, "valid": self.parts.valid, "test": self.parts.test}
        metric = self.inputs.dataset.metric
        return {name: evaluate_nodes(metric, logits[nodes], labels[nodes]) for name, nodes in parts.items()}

    def _start_global_phase(self, epoch: int) -> None:
        if epoch:
            self._copy(self._best, self._learned())
        self.model.phase = "global"
        self._make_functions()

    def _resume(self) -> int:
        """Restores the last checkpoint, if any, and drops what was logged after it; returns the epochs done."""
        done = self._checkpoints.restore() if self._checkpoints.exists else 0
        self.run.keep_metrics(sum(record["epoch"] < done for record in self.run.read_metrics()))
        if done:
            _logger.info("%s: resuming after epoch %d", self.run.path, done - 1)
            self._make_functions()
        records = self.run.read_metrics()
        self._best_valid = best_record(records)["valid"] if records else -math.inf
        return done

    def _group_variables(self) -> list[list[tf.Variable]]:
        """Trainable variables that the local phase trains, and those that only the global phase does."""
        model, encoder = self.model, self.model.encoder
        late: list[tf.Variable] = []
        if self._has_phases:
            layers = [*encoder.global_layers, encoder.norm, encoder.project, model.global_head]
            late = [variable for layer in layers for variable in layer.trainable_variables]
        names = {variable.ref() for variable in late}
        return [[variable for variable in model.trainable_variables if variable.ref() not in names], late]

    def _learned(self) -> list[tf.Variable]:
        """Weights, moving statistics and moments; not the dropout counters, so that no mask is drawn twice."""
        weights = [variable for variable in self.model.variables if variable.dtype.is_floating]
        return weights + [variable for optimizer in self._optimizers for variable in optimizer.state]

    @staticmethod
    def _copy(sources: list[tf.Variable], targets: list[tf.Variable]) -> None:
        for source, target in zip(sources, targets, strict=True):
            target.assign(source)

    def _make_graph(self) -> tuple[Any, ...] | None:
        """The whole graph as tensors, unless it is only ever visited in pieces."""
        if self.config.training.nodes_per_batch and self.config.training.chunk_nodes:
            return None
        return tuple(tf.convert_to_tensor(array) for array in self._pack(slice(None), self.inputs.edges))

    def _make_functions(self) -> None:
        """Traces anew: the phase is read when a function is traced."""
        signature = self._batch_signature() if self.config.training.nodes_per_batch else None
        self._step = tf.function(self._train_step, input_signature=signature, autograph=False)
        chunk = self.config.training.chunk_nodes
        if chunk:
            forward = ChunkedForward(self.model, self.inputs.edges, chunk_nodes=chunk, fiedler=self.inputs.fiedler)
            self._forward = lambda: forward(self.inputs.dataset.features)
        else:
            call = tf.function(self._call_model, autograph=False)
            self._forward = lambda: call(self._graph[0], *self._graph[3:], training=False).numpy()

    def _batch_signature(self) -> list[tf.TensorSpec]:
        """Batches differ in nodes and edges, and must not be traced one by one."""
        feature_dim = self.inputs.dataset.features.shape[1]
        per_node = [([None, feature_dim], tf.float32), ([None], tf.int64), ([None], tf.float32), ([None], tf.float32)]
        return [tf.TensorSpec(shape, dtype) for shape, dtype in per_node] + unknown_edges()

    def _call_model(self, features: tf.Tensor, fiedler: tf.Tensor, *edges: tf.Tensor, training: bool) -> tf.Tensor:
        vector = fiedler if self.inputs.fiedler is not None else None
        return self.model(features, EdgeIndex(*edges), fiedler=vector, training=training)

    def _train_step(
        self, features: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, fiedler: tf.Tensor, *edges: tf.Tensor
    ) -> tf.Tensor:
        active = self._groups if self.model.phase == "global" else self._groups[:1]
        with tf.GradientTape() as tape:
            logits = self._call_model(features, fiedler, *edges, training=True)
            loss = node_loss(self.config.training.loss, logits, labels, weights)
        gradients = tape.gradient(loss, active)
        for optimizer, group, some in zip(self._optimizers, active, gradients, strict=False):
            optimizer.apply(some, group)
        return loss


def best_record(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The first record with the best validation score."""
    return max(records, key=lambda record: record["valid"])

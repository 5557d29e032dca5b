"""The node-classification task: a data set, one of its splits, and the classifier of a config."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.config.schema import NodeConfig, NodeModelConfig
from tpugraphs_polynormer.layers.directed_edges import DirectedEdges
from tpugraphs_polynormer.layers.edge_index import EdgeIndex, build_edge_index, unknown_edges
from tpugraphs_polynormer.models.encoder_registry import build_encoder
from tpugraphs_polynormer.models.node_classifier import NodeClassifier
from tpugraphs_polynormer.nodes.chunked_forward import ChunkedForward
from tpugraphs_polynormer.nodes.datasets import NodeDataset
from tpugraphs_polynormer.nodes.fiedler import compute_fiedler
from tpugraphs_polynormer.nodes.metrics import evaluate_nodes
from tpugraphs_polynormer.nodes.partitions import iterate_subgraphs, partition_nodes
from tpugraphs_polynormer.training.task import Metrics, plan_phases, set_precision


@dataclass(frozen=True)
class NodeInputs:
    """The input of the model, which the runs of all splits share."""

    dataset: NodeDataset
    edges: EdgeIndex | DirectedEdges  # numpy
    fiedler: np.ndarray | None  # float32 [num_nodes], for Polynormer-v2 only

    @staticmethod
    def make(dataset: NodeDataset, config: NodeConfig) -> NodeInputs:
        """The edge index of a data set, with directions for a directed model; for Polynormer-v2 the Fiedler vector."""
        (source, target), count = dataset.edges.T, dataset.num_nodes
        fiedler = compute_fiedler(source, target, count) if config.model.version == 2 else None
        edges = build_edge_index(source, target, count)
        if config.model.directed:
            if dataset.is_along is None:
                raise ValueError(f"{dataset.name}: model.directed needs directions; read it with directed=True")
            first, last = source[dataset.is_along], target[dataset.is_along]
            edges = DirectedEdges(edges, build_edge_index(first, last, count), build_edge_index(last, first, count))
        return NodeInputs(dataset, edges, fiedler)


def node_loss(kind: str, logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Scalar: the mean loss over nodes of weight 1.

    Args:
      kind: `nll`, the negative log-likelihood of the label, or `bce`, the binary cross-entropy of every class against
        the one-hot label.
      logits: [num_nodes, num_classes].
      labels: int [num_nodes], any value where the weight is 0.
      weights: [num_nodes], 0 or 1.
    """
    labels = tf.maximum(labels, 0)
    if kind == "nll":
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    else:
        one_hot = tf.one_hot(labels, logits.shape[-1])
        each = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(one_hot, logits), -1)
    return tf.math.divide_no_nan(tf.reduce_sum(each * weights), tf.reduce_sum(weights))


def node_entropy(kind: str, logits: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Scalar: the mean entropy, in nats, of the predictions for nodes of weight 1; it reads no label.

    A prediction is the softmax of the logits with `nll`; with `bce` it is the sigmoid of each, and a node's entropy is
    the mean over classes. The arguments are those of `node_loss`.
    """
    if kind == "nll":
        each = -tf.reduce_sum(tf.nn.softmax(logits) * tf.nn.log_softmax(logits), -1)
    else:
        each = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.sigmoid(logits), logits), -1)
    return tf.math.divide_no_nan(tf.reduce_sum(each * weights), tf.reduce_sum(weights))


def build_classifier(config: NodeModelConfig, *, feature_dim: int, num_classes: int, seed: int) -> NodeClassifier:
    """The classifier of a config with initial weights; the layers of both phases are built."""
    tf.keras.utils.set_random_seed(seed)
    model = NodeClassifier(
        encoder=build_encoder(config),
        num_classes=num_classes,
        input_dim=config.hidden_dim if config.project_inputs else None,
        input_dropout_rate=config.input_dropout_rate,
        dropout_rate=config.dropout_rate,
        edge_dropout_rate=config.edge_dropout_rate,
    )
    model.build([None, feature_dim])
    return model


class NodeTask:
    """The classifier of a config on one split of a data set (a `training.task.Task`); an epoch uses every node once.

    Args:
      config: with the seed of this run.
      inputs: the graph.
      split: number of the official split.
    """

    selects_across_phases = True  # as in the authors' code

    def __init__(self, config: NodeConfig, inputs: NodeInputs, split: int) -> None:
        set_precision(config.training)
        self.config, self.inputs = config, inputs
        dataset = inputs.dataset
        self.parts = dataset.splits[split]
        self.model = build_classifier(
            config.model, feature_dim=dataset.features.shape[1], num_classes=dataset.num_classes, seed=config.seed
        )
        self.phases = plan_phases(config.training, self.model.encoder.phases)
        self._batch_size = config.training.nodes_per_batch
        self.steps_per_epoch = -(-dataset.num_nodes // self._batch_size) if self._batch_size else 1
        self._weights = np.zeros(dataset.num_nodes, np.float32)  # 1 for nodes in the loss
        self._weights[self.parts.train] = 1
        self._graph = self._phase = None
        if not (self._batch_size and config.training.chunk_nodes):  # otherwise no step needs the whole graph
            self._graph = tuple(tf.convert_to_tensor(array) for array in self._pack(slice(None), inputs.edges))

    def enter_phase(self, phase: str) -> None:
        """Makes `loss`, `evaluate` and `predict` use this phase of the model."""
        self._phase = phase
        chunk = self.config.training.chunk_nodes
        if chunk:
            forward = ChunkedForward(self.model, self.inputs.edges, chunk_nodes=chunk, fiedler=self.inputs.fiedler)
            self._forward = lambda: forward(self.inputs.dataset.features, phase=phase)
        else:  # trace again: the phase is a Python value of the traced function
            call = tf.function(self._call_model, autograph=False)
            self._forward = lambda: call(self._graph[0], *self._graph[3:], training=False).numpy()

    def make_dataset(self, epoch: int, context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Endless batches: the whole graph, or the subgraphs of a random partition, a new one for each epoch."""
        if not self._batch_size:
            return tf.data.Dataset.from_tensors(self._graph).repeat()
        feature_dim = self.inputs.dataset.features.shape[1]
        per_node = [([None, feature_dim], tf.float32), ([None], tf.int64), ([None], tf.float32), ([None], tf.float32)]
        signature = (*(tf.TensorSpec(shape, dtype) for shape, dtype in per_node), *unknown_edges())
        return tf.data.Dataset.from_generator(lambda: self._batches(epoch), output_signature=signature).prefetch(1)

    def loss(self, batch: tuple[tf.Tensor, ...], *, num_replicas: int) -> tf.Tensor:
        """Scalar: the mean loss over the batch's training nodes, divided by the number of replicas.

        With `entropy_weight`, the mean entropy of the predictions for the batch's other nodes is added.
        """
        features, labels, weights, fiedler, *edges = batch
        training = self.config.training
        logits = self._call_model(features, fiedler, *edges, training=True)
        loss = node_loss(training.loss, logits, labels, weights)
        if training.entropy_weight:
            loss += training.entropy_weight * node_entropy(training.loss, logits, 1.0 - weights)
        return loss / num_replicas

    def evaluate(self) -> Metrics:
        """The benchmark's metric on the training, validation and test nodes, computed on the whole graph."""
        logits, labels = self.predict(), self.inputs.dataset.labels
        metric = self.inputs.dataset.metric
        parts = {"train": self.parts.train, "valid": self.parts.valid, "test": self.parts.test}
        return {name: {metric: evaluate_nodes(metric, logits[nodes], labels[nodes])} for name, nodes in parts.items()}

    def select(self, metrics: Metrics) -> float:
        """The metric on the validation nodes, by which the best epoch is chosen."""
        return metrics["valid"][self.inputs.dataset.metric]

    def predict(self) -> np.ndarray:
        """Logits [num_nodes, num_classes] of the whole graph with the current weights."""
        return self._forward()

    def _batches(self, epoch: int) -> Iterator[tuple[Any, ...]]:
        for number in itertools.count(epoch):
            batches = partition_nodes(self.inputs.dataset.num_nodes, self._batch_size, (self.config.seed, number))
            for sub in iterate_subgraphs(self.inputs.edges, batches):
                yield self._pack(sub.nodes, sub.edges)

    def _pack(self, nodes: np.ndarray | slice, edges: EdgeIndex | DirectedEdges) -> tuple[Any, ...]:
        """The batch for `loss` of some nodes and the edges between them: features, labels, weights, Fiedler, edges."""
        dataset, fiedler = self.inputs.dataset, self.inputs.fiedler
        vector = np.zeros(0, np.float32) if fiedler is None else fiedler[nodes]
        fields = edges.both[:-1] + edges.along[:-1] + edges.against[:-1] if self.config.model.directed else edges[:-1]
        return dataset.features[nodes], dataset.labels[nodes], self._weights[nodes], vector, *fields  # no masks

    def _call_model(self, features: tf.Tensor, fiedler: tf.Tensor, *edges: tf.Tensor, training: bool) -> tf.Tensor:
        vector = fiedler if self.inputs.fiedler is not None else None
        size = len(EdgeIndex._fields) - 1  # without the mask
        parts = [EdgeIndex(*edges[first : first + size]) for first in range(0, len(edges), size)]
        near = DirectedEdges(*parts) if self.config.model.directed else parts[0]
        return self.model(features, near, phase=self._phase, fiedler=vector, training=training)

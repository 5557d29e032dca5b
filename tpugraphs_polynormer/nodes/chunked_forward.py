"""The whole graph through a classifier: in one call, or layer by layer within bounded memory.

Layer by layer, three arrays [num_nodes, width] live in host memory (states, aggregated messages, the sum of the local
layers); everything else is done for a slice at a time. Two facts make that exact:

- columns of an aggregation are independent (heads, for attention), so messages are aggregated a few columns at a time;
- all else is per node, except two sums over all nodes in global attention, which are gathered in a first pass.

Slicing the edges by target instead would not bound anything: on a graph of mean degree 50 the sources of a small share
of the targets are already most of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.layers.convolutions import GraphAttention, GraphConvolution, SageConvolution
from tpugraphs_polynormer.layers.edge_index import EdgeIndex, as_tensors
from tpugraphs_polynormer.layers.global_attention import GlobalAttention
from tpugraphs_polynormer.layers.local_attention import LocalAttention, gated_product
from tpugraphs_polynormer.layers.ops.aggregation import aggregate, attend
from tpugraphs_polynormer.models.node_classifier import NodeClassifier
from tpugraphs_polynormer.models.polynormer import Polynormer

# Columns aggregated at a time when they are not heads.
COLUMNS = 32

NodeFunction = Callable[..., tf.Tensor]


class ChunkedForward:
    """`NodeClassifier.call` outside training for one graph: equal to rounding, memory bounded by `chunk_nodes`.

    Args:
      model: the classifier; its phase is read at each call.
      edges: of the whole graph.
      chunk_nodes: nodes whose inner activations exist at a time.
      fiedler: [num_nodes], for an encoder of version 2.
    """

    def __init__(self, model: NodeClassifier, edges: EdgeIndex, *, chunk_nodes: int, fiedler: np.ndarray | None = None):
        self.model = model
        self.edges = as_tensors(edges)
        self.chunk_nodes = chunk_nodes
        self.fiedler = fiedler

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Features [num_nodes, feature_dim] -> logits [num_nodes, num_classes]."""
        model, encoder = self.model, self.model.encoder
        states = features if model.project_inputs is None else self._map(model.project_inputs, features)
        if isinstance(encoder, Polynormer):
            states = self._run_polynormer(encoder, states)
        else:
            for convolution in encoder.convolutions:
                states = self._map(tf.nn.relu, self._convolve(convolution, states))
        head = model.local_head if model.phase == "local" else model.global_head
        return self._map(head, states)

    def _run_polynormer(self, encoder: Polynormer, states: np.ndarray) -> np.ndarray:
        total = np.zeros([len(states), encoder.output_dim], np.float32)
        for layer in encoder.local_layers:
            joint = isinstance(layer, GlobalAttention)
            states = self._run_joint(layer, states) if joint else self._run_local(layer, states)
            total += states
        if encoder.phase == "local" or not encoder.global_layers:
            return total
        states = self._map(encoder.norm, total)
        for layer in encoder.global_layers:
            states = self._run_global(layer, encoder, states)
        return states

    def _run_local(self, layer: LocalAttention, states: np.ndarray) -> np.ndarray:
        activation = tf.nn.relu if layer.relu else tf.identity
        before = layer.norm_before or tf.identity

        def combine(rows: tf.Tensor, messages: tf.Tensor, fiedler: tf.Tensor | None) -> tf.Tensor:
            rows = before(rows)
            mixed = messages + layer.linear(rows)
            if layer.norm_after is not None:
                mixed = layer.norm_after(mixed, training=False)
            mixed = activation(mixed)
            gate = layer.gate(mixed, fiedler=fiedler)
            return gated_product(activation(layer.factor(rows)), mixed, gate, layer.norm.scale, layer.norm.offset)

        messages = self._convolve(layer.convolve, states, before=before)
        return self._map(combine, states, messages, with_fiedler=True)

    def _run_global(self, layer: GlobalAttention, encoder: Polynormer, states: np.ndarray) -> np.ndarray:
        attend_rows = self._global_attention(layer, states)
        activation = tf.nn.relu if encoder.relu else tf.identity

        def combine(rows: tf.Tensor, fiedler: tf.Tensor | None) -> tf.Tensor:
            attended = attend_rows(rows)
            gate = layer.gate(attended, fiedler=fiedler)
            return activation(encoder.project(layer.norm(attended) * (layer.factor(rows) + gate)))

        return self._map(combine, states, with_fiedler=True)

    def _run_joint(self, layer: GlobalAttention, states: np.ndarray) -> np.ndarray:
        attend_rows = self._global_attention(layer, states)
        activation = tf.nn.relu if layer.relu else tf.identity

        def combine(rows: tf.Tensor, messages: tf.Tensor, fiedler: tf.Tensor | None) -> tf.Tensor:
            mixed = layer.norm(attend_rows(rows) + messages)
            return activation(mixed * (layer.factor(rows) + layer.gate(mixed, fiedler=fiedler)))

        messages = self._convolve(layer.convolve, states)
        return self._map(combine, states, messages, with_fiedler=True)

    def _global_attention(self, layer: GlobalAttention, states: np.ndarray) -> NodeFunction:
        """Sums key^T value and key over all nodes, then gives the attention as a function of some nodes' states."""

        def split(array: tf.Tensor) -> tf.Tensor:
            return tf.reshape(array, [-1, layer.head_dim, layer.num_heads])  # heads last, as the layer views them

        products, sums = 0.0, 0.0
        for first in range(0, len(states), self.chunk_nodes):
            rows = tf.convert_to_tensor(states[first : first + self.chunk_nodes])
            key, value = split(tf.sigmoid(layer.key(rows))), split(layer.value(rows))
            products += tf.einsum("ndh,nmh->hdm", key, value)
            sums += tf.reduce_sum(key, 0)

        def attend_rows(rows: tf.Tensor) -> tf.Tensor:
            query = split(tf.sigmoid((layer.query or layer.key)(rows)))
            numerator = tf.einsum("ndh,hdm->nmh", query, products)
            denominator = tf.einsum("ndh,dh->nh", query, sums)[:, tf.newaxis]
            return tf.reshape(tf.math.divide_no_nan(numerator, denominator), [-1, layer.head_dim * layer.num_heads])

        return attend_rows

    def _convolve(
        self, layer: tf.keras.layers.Layer, states: np.ndarray, *, before: NodeFunction = tf.identity
    ) -> np.ndarray:
        """A convolution of layers/convolutions.py on before(states), a few columns at a time."""
        if isinstance(layer, SageConvolution):
            pooled = np.concatenate(
                [self._aggregate(tf.convert_to_tensor(part), layer.how).numpy() for part in _column_slices(states)], 1
            )
            return self._map(lambda rows, near: layer.from_neighbors(near) + layer.from_self(rows), states, pooled)
        kernel = layer.project.kernel
        step = layer.head_dim if isinstance(layer, GraphAttention) else COLUMNS
        out = np.empty([len(states), kernel.shape[1]], np.float32)
        for first in range(0, kernel.shape[1], step):
            part = kernel[:, first : first + step]
            projected = tf.convert_to_tensor(self._map(lambda rows, part=part: tf.matmul(before(rows), part), states))
            if isinstance(layer, GraphConvolution):
                messages = self._aggregate(projected, "gcn") + layer.bias[first : first + step]
            else:
                head = first // step
                messages = self._attend(projected, layer.source_weight[head], layer.target_weight[head])
            out[:, first : first + step] = messages.numpy()
        return out

    def _aggregate(self, values: tf.Tensor, how: str) -> tf.Tensor:
        return aggregate(values, self.edges, how=how, formulation="fused")

    def _attend(self, values: tf.Tensor, source_weight: tf.Tensor, target_weight: tf.Tensor) -> tf.Tensor:
        """Attention of one head: values [num_nodes, head_dim], weights [head_dim]; by targets, which bounds edges."""
        sent, received = (tf.linalg.matvec(values, weight)[:, tf.newaxis] for weight in (source_weight, target_weight))
        parts = []
        for first in range(0, len(values), self.chunk_nodes):
            targets = slice(first, first + self.chunk_nodes)
            edges = self._edges_into(first, min(first + self.chunk_nodes, len(values)))
            parts.append(attend(sent, received[targets], values[:, tf.newaxis], edges, formulation="fused")[:, 0])
        return tf.concat(parts, 0)

    def _edges_into(self, first: int, last: int) -> EdgeIndex:
        """The edges into nodes first to last, which count from 0; without the orders that only gradients read."""
        splits = self.edges.target_offsets[first : last + 1]
        along = slice(splits[0], splits[-1])
        nothing = self.edges.source_order[:0]
        return EdgeIndex(
            source=self.edges.source[along],
            target=self.edges.target[along] - first,
            source_order=nothing,
            target_offsets=splits - splits[0],
            source_offsets=nothing,
            mask=None if self.edges.mask is None else self.edges.mask[along],
        )

    def _map(self, function: NodeFunction, *arrays: np.ndarray, with_fiedler: bool = False) -> np.ndarray:
        """A function of nodes' rows, chunk by chunk."""
        out = None
        for first in range(0, len(arrays[0]), self.chunk_nodes):
            chunk = slice(first, first + self.chunk_nodes)
            extra = {}
            if with_fiedler:
                extra["fiedler"] = None if self.fiedler is None else tf.convert_to_tensor(self.fiedler[chunk])
            rows = function(*(tf.convert_to_tensor(array[chunk]) for array in arrays), **extra).numpy()
            if out is None:
                out = np.empty([len(arrays[0]), rows.shape[1]], np.float32)
            out[chunk] = rows
        return out


def _column_slices(states: np.ndarray) -> Iterator[np.ndarray]:
    for first in range(0, states.shape[1], COLUMNS):
        yield np.ascontiguousarray(states[:, first : first + COLUMNS])

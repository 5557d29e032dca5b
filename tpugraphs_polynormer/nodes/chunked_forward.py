"""The forward pass of a classifier on a large graph, one layer and one chunk of nodes at a time.

Four arrays [num_nodes, width] are in memory: the states, their projection, the aggregated projections, and the sum of
the local layers. All other activations exist for one chunk of nodes. The result equals that of a single call up to
rounding, because `project` and `combine` of a layer treat each node alone, `aggregate` accepts a range of targets, and
the sums of global attention over chunks can be added.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.layers.convolutions import Convolution
from tpugraphs_polynormer.layers.directed_edges import DirectedEdges
from tpugraphs_polynormer.layers.edge_index import EdgeIndex
from tpugraphs_polynormer.layers.global_attention import GlobalAttention, KeySums
from tpugraphs_polynormer.layers.local_attention import LocalAttention
from tpugraphs_polynormer.models.gnn import GraphNetwork
from tpugraphs_polynormer.models.node_classifier import NodeClassifier
from tpugraphs_polynormer.models.polynormer import Polynormer


class ChunkedForward:
    """`NodeClassifier.call` with `training=False` on one graph, in chunks of nodes that bound memory.

    Args:
      model: the classifier.
      edges: of the whole graph.
      chunk_nodes: number of nodes per chunk.
      fiedler: float32 [num_nodes], for an encoder of version 2.
    """

    def __init__(
        self,
        model: NodeClassifier,
        edges: EdgeIndex | DirectedEdges,
        *,
        chunk_nodes: int,
        fiedler: np.ndarray | None = None,
    ):
        if model.encoder.graph_norm or model.encoder.squeeze_excite:
            raise ValueError("graph_norm and squeeze_excite read all nodes at once: evaluate without chunks")
        self.model = model
        self.edges = edges.as_tensors()
        self.chunk_nodes = chunk_nodes
        self.fiedler = fiedler

    def __call__(self, features: np.ndarray, *, phase: str | None = None) -> np.ndarray:
        """Logits [num_nodes, num_classes] of the features [num_nodes, feature_dim]."""
        encoder = self.model.encoder
        states = self._map(self.model.begin, features)
        if isinstance(encoder, Polynormer):
            states = self._run_polynormer(encoder, states, encoder.check_phase(phase))
        else:
            states = self._run_network(encoder, states)
        return self._map(functools.partial(self.model.classify, phase=phase), states)

    def _run_network(self, encoder: GraphNetwork, states: np.ndarray) -> np.ndarray:
        total = np.zeros([len(states), encoder.output_dim], np.float32) if encoder.jumping_sum else None
        for number, convolution in enumerate(encoder.convolutions):
            if encoder.pre_norm:
                states = self._map(functools.partial(encoder.normalize, number), states)
            finish = functools.partial(encoder.finish, number, near=self.edges)
            states = self._map(finish, states, self._convolve(convolution, states))
            if total is not None:
                total += states
        return states if total is None else total

    def _run_polynormer(self, encoder: Polynormer, states: np.ndarray, phase: str) -> np.ndarray:
        total = np.zeros([len(states), encoder.output_dim], np.float32)
        for layer in encoder.local_layers:
            if encoder.attention == "local_and_global":
                states = self._run_global(layer, states, self._convolve(layer.convolve, states))
            else:
                states = self._run_local(layer, states)
            total += states
        if phase == "local":
            return total
        states = self._map(encoder.norm, total)
        for layer in encoder.global_layers:
            states = self._run_global(layer, states, close=encoder.close_global)
        return states

    def _run_local(self, layer: LocalAttention, states: np.ndarray) -> np.ndarray:
        if layer.pre_norm:
            states = self._map(layer.normalize, states)
        aggregated = self._aggregate(layer, states)

        def combine(rows: tf.Tensor, received: tf.Tensor, fiedler: tf.Tensor | None) -> tf.Tensor:
            return layer.combine(rows, received, self.edges, fiedler=fiedler)

        return self._map(combine, states, aggregated, with_fiedler=True)

    def _run_global(
        self, layer: GlobalAttention, states: np.ndarray, *received: np.ndarray, close: Callable = tf.identity
    ) -> np.ndarray:
        """A layer of global attention; what a joint layer receives from neighbours is added to it."""
        sums = self._sum_keys(layer, states)

        def attend(rows: tf.Tensor, *near: tf.Tensor, fiedler: tf.Tensor | None) -> tf.Tensor:
            attended = sum(near, start=layer.attend(layer.project(rows), sums))
            return close(layer.combine(rows, attended, fiedler=fiedler))

        return self._map(attend, states, *received, with_fiedler=True)

    def _convolve(self, layer: Convolution, states: np.ndarray) -> np.ndarray:
        combine = functools.partial(layer.combine, near=self.edges)
        return self._map(combine, states, self._aggregate(layer, states))

    def _aggregate(self, layer: Convolution | LocalAttention, states: np.ndarray) -> np.ndarray:
        """The aggregated projections of each node's neighbours; all nodes are projected first."""
        projected = self._map(layer.project, states)
        projected = tf.nest.map_structure(tf.convert_to_tensor, projected)
        ranges = (self.edges.into(chunk.start, chunk.stop) for chunk in self._chunks(len(states)))
        return np.concatenate([layer.aggregate(projected, near).numpy() for near in ranges])

    def _sum_keys(self, layer: GlobalAttention, states: np.ndarray) -> KeySums:
        chunks = (tf.cast(states[chunk], self.model.compute_dtype) for chunk in self._chunks(len(states)))
        return functools.reduce(KeySums.plus, (layer.sum_keys(layer.project(rows)) for rows in chunks))

    def _chunks(self, count: int) -> Iterator[slice]:
        for first in range(0, count, self.chunk_nodes):
            yield slice(first, min(first + self.chunk_nodes, count))

    def _map(self, function: Callable[..., Any], *arrays: np.ndarray, with_fiedler: bool = False) -> Any:
        """The result of a function of nodes, applied to chunks of the arrays' rows; it may be a tuple of arrays."""
        out = None
        for chunk in self._chunks(len(arrays[0])):
            extra = {}
            if with_fiedler:
                extra["fiedler"] = None if self.fiedler is None else tf.convert_to_tensor(self.fiedler[chunk])
            rows = function(*(tf.cast(array[chunk], self.model.compute_dtype) for array in arrays), **extra)
            if out is None:
                count = len(arrays[0])
                out = tf.nest.map_structure(lambda each, n=count: np.empty([n, *each.shape[1:]], np.float32), rows)
            for whole, part in zip(tf.nest.flatten(out), tf.nest.flatten(rows), strict=True):
                whole[chunk] = part.numpy()
        return out

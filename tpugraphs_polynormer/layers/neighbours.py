"""What layers ask of edges and graphs: which rows feed which, and which rows belong together.

A layer's input and output are matrices of rows. With an EdgeIndex a row is a node. With SharedStates (see
shared_states.py) a row is a node, or a node under one candidate, and a layer's output has other rows than its input.
Layers are written against `Neighbours`, so they serve both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf


class Graphs(NamedTuple):
    """The graphs of a batch: which graph each node belongs to, and which nodes are real.

    The default is one graph without padding.

    Example:
      >>> graphs = tp.Graphs(ids=tf.constant([0, 0, 1]), count=2)  # nodes 0 and 1 are one graph, node 2 another
      >>> layer = tp.layers.GlobalAttention(num_heads=1, head_dim=4)
      >>> layer(tf.ones([3, 5]), graphs=graphs).shape
      TensorShape([3, 4])
    """

    ids: tf.Tensor | None = None  # [num_nodes] int, the graph of each node; None for one graph
    count: int | tf.Tensor = 1  # number of graphs
    mask: tf.Tensor | None = None  # [num_nodes] bool, False for padding; None if all nodes are real
    is_sorted: bool = True  # whether the ids are non-decreasing
    candidate_mask: tf.Tensor | None = None  # [count, candidates] bool, False for padding; None if all are real

    @property
    def is_single(self) -> bool:
        """Whether there is known to be one graph."""
        return self.ids is None or (isinstance(self.count, int) and self.count == 1)

    def sum(self, values: tf.Tensor, weights: tf.Tensor | None = None) -> tf.Tensor:
        """[num_nodes, ...] -> [count, ...] float32: the sum over the nodes of each graph, as one product of matrices.

        Args:
          weights: [num_nodes, 1] float32, what each node counts; by default real nodes count 1, padding 0.
        """
        shape = tf.shape(values)
        width = values.shape[1:].num_elements() or tf.reduce_prod(shape[1:])
        members = tf.ones([shape[0], 1]) if self.ids is None else tf.one_hot(self.ids, self.count)
        if weights is None and self.mask is not None:
            weights = tf.cast(self.mask, tf.float32)[:, tf.newaxis]
        if weights is not None:
            members *= weights
        summed = tf.matmul(members, tf.reshape(tf.cast(values, tf.float32), [shape[0], width]), transpose_a=True)
        return tf.reshape(summed, tf.concat([[self.count], shape[1:]], 0))

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        """[num_nodes, ...] -> [count, ...] float32: the mean over the real nodes of each graph, 0 without any."""
        counts = tf.maximum(self.sum(tf.ones([tf.shape(values)[0], 1])), 1.0)
        return self.sum(values) / tf.reshape(counts, [-1] + [1] * (values.shape.rank - 1))

    def spread(self, per_graph: tf.Tensor) -> tf.Tensor:
        """[count, ...] -> [num_nodes, ...], or [1, ...] for one graph: what each node's graph has."""
        return per_graph if self.ids is None else tf.gather(per_graph, self.ids)


ONE_GRAPH = Graphs()


class Neighbours(Protocol):
    """The edges that one layer reads: from rows of its input to rows of its output."""

    def aggregate(self, values: tf.Tensor, *, how: str, formulation: str = "auto") -> tf.Tensor:
        """The sum, mean or GCN sum of values [input rows, ...] over the neighbours of each output row."""

    def attend(
        self, source_logits: tf.Tensor, target_logits: tf.Tensor, values: tf.Tensor, *, formulation: str = "auto"
    ) -> tf.Tensor:
        """GAT attention with logits [input rows, ..., heads] over values [input rows, ..., heads, dim].

        Returns [output rows, ..., heads, dim].
        """

    def expand(self, rows: tf.Tensor) -> tf.Tensor:
        """Rows of the layer's input, repeated so that there is one for each row of its output."""

    def add_first(self, rows: tf.Tensor, added: tf.Tensor) -> tf.Tensor:
        """Input rows plus what candidates add to them."""

    def row_weights(self, mask: tf.Tensor | None) -> tf.Tensor | None:
        """How often each output row counts in a mean over nodes and candidates; 0 for padding, None for once each."""


class PlainRows:
    """The part of `Neighbours` and `NeighbourSteps` that is trivial where a row is a node, in every layer."""

    def expand(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows themselves."""
        return rows

    def add_first(self, rows: tf.Tensor, added: tf.Tensor) -> tf.Tensor:
        """rows + added, for every node."""
        return rows + added

    def row_weights(self, mask: tf.Tensor | None) -> tf.Tensor | None:
        """The mask itself."""
        return mask

    def steps(self, num_layers: int) -> list[PlainRows]:
        """The same edges for each layer."""
        return [self] * num_layers

    def parts(self, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """One part: all nodes."""
        return (rows,)

    def part_graphs(self, graphs: Graphs) -> tuple[Graphs, ...]:
        """The graphs of all nodes."""
        return (graphs,)

    def join(self, parts: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """The only part."""
        return parts[0]


class NeighbourSteps(Protocol):
    """The edges that an encoder reads, layer by layer, and the parts that its result comes in."""

    def steps(self, num_layers: int) -> Sequence[Neighbours]:
        """The edges of each of `num_layers` layers."""

    def parts(self, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The last layer's rows as arrays [nodes, (candidates,) dim]."""

    def part_graphs(self, graphs: Graphs) -> tuple[Graphs, ...]:
        """The graphs of the nodes of each part."""

    def join(self, parts: tuple[tf.Tensor, ...]) -> tf.Tensor | tuple[tf.Tensor, ...]:
        """What the encoder returns: the only part itself, or all of them."""

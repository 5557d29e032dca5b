"""Edges that know their direction: those along the flow of data, those against it, and both together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tpugraphs_polynormer.layers.edge_index import (
    EdgeIndex,
    build_undirected_edge_tensors,
    count_offsets,
    lexicographic_order,
)
from tpugraphs_polynormer.layers.neighbours import PlainRows
from tpugraphs_polynormer.layers.static_edges import StaticEdges, build_static_edges

Edges = EdgeIndex | StaticEdges


class _DirectedFields(NamedTuple):
    both: Edges  # both directions, and a loop at each node
    along: Edges  # as given, and a loop at each node
    against: Edges  # reversed, and a loop at each node


class DirectedEdges(PlainRows, _DirectedFields):
    """What a layer with weights for each direction reads; for other layers it is `Neighbours` in both directions."""

    __slots__ = ()

    @property
    def num_nodes(self) -> int | tf.Tensor:
        """As that of the edges."""
        return self.both.num_nodes

    def as_tensors(self) -> DirectedEdges:
        """The same edges with every field a tensor, if each direction is an EdgeIndex."""
        return DirectedEdges(*(each.as_tensors() for each in self))

    def into(self, first: int, last: int) -> DirectedEdges:
        """The edges of each direction into the nodes first, ..., last - 1, if each direction is an EdgeIndex."""
        return DirectedEdges(*(each.into(first, last) for each in self))

    def degrees(self) -> tf.Tensor:
        """[num_nodes, 1] float32: the number of neighbours in both directions, loops included."""
        return self.both.degrees()

    def aggregate(self, values: tf.Tensor, *, how: str, formulation: str = "auto") -> tf.Tensor:
        """Over the neighbours in both directions."""
        return self.both.aggregate(values, how=how, formulation=formulation)

    def attend(
        self, source_logits: tf.Tensor, target_logits: tf.Tensor, values: tf.Tensor, *, formulation: str = "auto"
    ) -> tf.Tensor:
        """To the neighbours in both directions."""
        return self.both.attend(source_logits, target_logits, values, formulation=formulation)


def map_directions(function: Callable[[Edges], Edges], edges: Edges | DirectedEdges) -> Edges | DirectedEdges:
    """The function of the edges, or of each direction if they have directions."""
    return DirectedEdges(*map(function, edges)) if isinstance(edges, DirectedEdges) else function(edges)


def build_directed_edge_tensors(
    source: tf.Tensor, target: tf.Tensor, num_nodes: int | tf.Tensor, *, mask: tf.Tensor | None = None
) -> DirectedEdges:
    """The edges of `build_undirected_edge_tensors`, and each direction of them: num_edges + num_nodes edges each.

    Example:
      >>> edges = tp.layers.build_directed_edge_tensors([0, 1], [1, 2], 3)
      >>> edges.along.aggregate(tf.constant([[1.0], [2.0], [4.0]]), how="sum").numpy()[:, 0].tolist()
      [1.0, 3.0, 6.0]
      >>> edges.against.aggregate(tf.constant([[1.0], [2.0], [4.0]]), how="sum").numpy()[:, 0].tolist()
      [3.0, 6.0, 4.0]
    """
    both = build_undirected_edge_tensors(source, target, num_nodes, mask=mask)
    loops = tf.range(num_nodes, dtype=tf.int32)
    ends = [tf.concat([tf.cast(each, tf.int32), loops], 0) for each in (source, target)]
    order = lexicographic_order(*ends, num_nodes)
    source, target = (tf.gather(each, order) for each in ends)
    same = (source[1:] == source[:-1]) & (target[1:] == target[:-1])
    keep = tf.concat([tf.ones_like(source[:1], tf.bool), ~same], 0)
    if mask is not None:
        keep &= tf.gather(tf.concat([mask, tf.ones_like(loops, tf.bool)], 0), order)
    along = EdgeIndex(
        source=source,
        target=target,
        source_order=tf.argsort(source, stable=True),
        target_offsets=count_offsets(target, num_nodes),
        source_offsets=count_offsets(source, num_nodes),
        mask=keep,
    )
    return DirectedEdges(both, along, along.reversed())


def build_directed_static_edges(
    source: tf.Tensor, target: tf.Tensor, num_nodes: int, *, mask: tf.Tensor
) -> DirectedEdges:
    """The edges of `build_static_edges`, and each direction of them."""
    both = build_static_edges(source, target, num_nodes, mask=mask)
    (first, second), (keep, _) = tf.split(both.source, 2), tf.split(both.mask, 2)
    return DirectedEdges(
        both,
        both._replace(source=first, target=second, mask=keep),
        both._replace(source=second, target=first, mask=keep),
    )

"""A segment of each graph's nodes to learn from, as the official layout baseline draws it."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.directed_edges import DirectedEdges, Edges, map_directions
from tpugraphs_polynormer.layers.dropout import SeededLayer
from tpugraphs_polynormer.layers.neighbours import Graphs
from tpugraphs_polynormer.layers.registration import register


@register
class NodeSegments(SeededLayer):
    """Draws one segment of each graph: [num_nodes] bool, True for its nodes.

    A graph's nodes are cut, in their order, into segments of `num_nodes`; each segment is as likely as another.

    Args:
      num_nodes: nodes in a segment; the last one of a graph may be shorter.
    """

    def __init__(self, *, num_nodes: int, **kwargs):
        super().__init__(**kwargs)
        self.keep_arguments(locals())

    def call(self, graphs: Graphs) -> tf.Tensor:
        ids = graphs.ids
        sizes = tf.math.unsorted_segment_sum(tf.ones_like(ids), ids, graphs.count)
        counts = (sizes + self.num_nodes - 1) // self.num_nodes
        drawn = tf.random.stateless_uniform(tf.shape(sizes), self.draw_seed())
        chosen = tf.minimum(tf.cast(drawn * tf.cast(counts, tf.float32), ids.dtype), counts - 1)
        positions = tf.range(tf.shape(ids)[0], dtype=ids.dtype) - tf.gather(tf.cumsum(sizes, exclusive=True), ids)
        return positions // self.num_nodes == tf.gather(chosen, ids)


def keep_within(edges: Edges | DirectedEdges, selected: tf.Tensor) -> Edges | DirectedEdges:
    """The edges with both ends among the selected nodes; the others are masked."""

    def keep(edges: Edges) -> Edges:
        inside = tf.gather(selected, edges.source) & tf.gather(selected, edges.target)
        return edges._replace(mask=inside if edges.mask is None else edges.mask & inside)

    return map_directions(keep, edges)

"""Edges for programs of static shape, which XLA compiles for TPUs: in any order, self-loops apart.

A TPU sorts slowly, and moves rows by computed indices slowly. So nothing is sorted here, and what a node receives from
itself is computed without indices: a third of all edges are loops in programs of TpuGraphs.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tpugraphs_polynormer.hlo.shapes import LANES
from tpugraphs_polynormer.layers.neighbours import PlainRows
from tpugraphs_polynormer.layers.ops.attention import attend_columns, attend_unsorted, merge_columns


class _StaticFields(NamedTuple):
    source: tf.Tensor  # [num_edges] int32
    target: tf.Tensor  # [num_edges] int32
    mask: tf.Tensor  # [num_edges] bool
    loops: tf.Tensor  # [num_nodes, 1] float32: 1 where a node has a self-loop, which is not among the edges


class StaticEdges(PlainRows, _StaticFields):
    """Directed edges `source -> target`, and self-loops; `Neighbours` with the same numbers as EdgeIndex."""

    __slots__ = ()

    @property
    def num_nodes(self) -> int:
        """Known when the program is traced."""
        return self.loops.shape[0]

    def degrees(self) -> tf.Tensor:
        """[num_nodes, 1] float32: the number of real incoming edges, loops included."""
        counts = tf.math.unsorted_segment_sum(tf.cast(self.mask, tf.float32), self.target, self.num_nodes)
        return counts[:, tf.newaxis] + self.loops

    def aggregate(self, values: tf.Tensor, *, how: str, formulation: str = "auto") -> tf.Tensor:
        """The sum, mean or GCN sum over neighbours (see layers/ops/aggregation.py); the formulation is `unsorted`."""
        flat = tf.cast(tf.reshape(values, [values.shape[0], values.shape[1:].num_elements()]), tf.float32)
        inverse = tf.math.reciprocal_no_nan(self.degrees()) if how != "sum" else 1.0
        if how == "gcn":
            flat *= tf.sqrt(inverse)
        messages = tf.gather(flat, self.source) * tf.cast(self.mask, tf.float32)[:, tf.newaxis]
        summed = tf.math.unsorted_segment_sum(messages, self.target, self.num_nodes) + flat * self.loops
        summed *= tf.sqrt(inverse) if how == "gcn" else inverse
        return tf.cast(tf.reshape(summed, values.shape), values.dtype)

    def attend(
        self, source_logits: tf.Tensor, target_logits: tf.Tensor, values: tf.Tensor, *, formulation: str = "auto"
    ) -> tf.Tensor:
        """GAT attention (see layers/ops/attention.py); the formulation is `unsorted`."""
        loops = self.loops[:, 0]
        is_repeated = source_logits.shape.num_elements() == values.shape.num_elements()
        if is_repeated and source_logits.shape[-1] % LANES == 0:  # they fill the lanes: candidates may stay apart
            flat = tf.reshape(values, source_logits.shape)
            attended = attend_columns(source_logits, target_logits, flat, self, loops=loops)
        else:
            attended = attend_unsorted(*merge_columns(source_logits, target_logits, values), self, loops=loops)
        return tf.reshape(attended, values.shape)


def build_static_edges(source: tf.Tensor, target: tf.Tensor, num_nodes: int, *, mask: tf.Tensor) -> StaticEdges:
    """Both directions of each edge, once, and a loop at every node, as `build_undirected_edge_tensors` makes them.

    Args:
      source, target: [num_edges], sorted by target, then source, so that equal edges are neighbours; no edge is there
        in both directions. mask: [num_edges] bool, False for padding.
    """
    source, target = tf.cast(source, tf.int32), tf.cast(target, tf.int32)
    is_new = tf.concat([[True], (source[1:] != source[:-1]) | (target[1:] != target[:-1])], 0)
    keep = mask & is_new & (source != target)
    return StaticEdges(
        source=tf.concat([source, target], 0),
        target=tf.concat([target, source], 0),
        mask=tf.concat([keep, keep], 0),
        loops=tf.ones([num_nodes, 1]),
    )

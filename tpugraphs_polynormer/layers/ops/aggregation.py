"""Sums, means and GCN sums along edges, in formulations for CPU, GPU and XLA (see ops/formulation.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from tpugraphs_polynormer.layers.ops.formulation import choose_formulation, fill_rows

if TYPE_CHECKING:  # edge_index imports this module
    from tpugraphs_polynormer.layers.edge_index import EdgeIndex

AGGREGATES = ("sum", "mean", "gcn")

# Up to so many nodes (one tile kernel) a sum along edges is a product of dense matrices: about four times faster.
_FEW_NODES = 128


def aggregate(
    values: tf.Tensor,
    edges: EdgeIndex,
    *,
    how: str,
    formulation: str = "auto",
    source_degrees: tf.Tensor | None = None,
) -> tf.Tensor:
    """Sums values[j] over incoming edges j -> i: plainly, averaged, or with GCN's symmetric degree normalisation.

    Args:
      values: [num_nodes, ...].
      edges: masked edges neither send nor count in the degree.
      how: `sum`, `mean` or `gcn` (1 / sqrt(degree[i] degree[j]), in-degrees, self-loops as given).
      formulation: one of FORMULATIONS.
      source_degrees: [num_sources, 1], for `gcn` where the sources are not the targets.

    Returns:
      [num_nodes, ...] in the dtype of `values`; zeros for a node without incoming edges.
    """
    if how not in AGGREGATES:
        raise ValueError(f"unknown aggregate {how!r}, expected one of {', '.join(AGGREGATES)}")
    edges = edges.as_tensors()
    shape = tf.shape(values)
    flat = tf.reshape(values, [shape[0], values.shape[1:].num_elements() or tf.reduce_prod(shape[1:])])
    chosen = choose_formulation(formulation)
    if how == "sum":
        summed = _sum(flat, edges, chosen)
    elif how == "mean":
        summed = _sum(flat, edges, chosen) * tf.cast(inverse_degree(edges), flat.dtype)
    else:
        root = tf.cast(tf.sqrt(inverse_degree(edges)), flat.dtype)
        source_root = root
        if source_degrees is not None:
            source_root = tf.cast(tf.sqrt(tf.math.reciprocal_no_nan(source_degrees)), flat.dtype)
        summed = _sum(flat * source_root, edges, chosen) * root
    return tf.reshape(summed, tf.concat([[edges.num_nodes], shape[1:]], 0))


def sum_edges(values: tf.Tensor, edges: EdgeIndex, *, formulation: str = "auto") -> tf.Tensor:
    """[num_sources, width] -> [num_targets, width]: the adjacency matrix times the values, however many the nodes."""
    chosen = choose_formulation(formulation)
    if chosen == "unsorted":
        messages = tf.cast(tf.gather(values, edges.source), tf.float32)
        if edges.mask is not None:
            messages *= tf.cast(edges.mask, tf.float32)[:, tf.newaxis]
        return tf.cast(tf.math.unsorted_segment_sum(messages, edges.target, edges.num_nodes), values.dtype)
    return _sum_sorted(values, edges, _sum_segments if chosen == "segments" else _sum_fused)


def _sum(values: tf.Tensor, edges: EdgeIndex, formulation: str) -> tf.Tensor:
    """The same, on CPUs by a dense matrix where there are few nodes."""
    if formulation != "fused":
        return sum_edges(values, edges, formulation=formulation)
    sizes = edges.num_nodes, values.shape[0] or tf.shape(values)[0]
    ways = (lambda: _sum_dense(values, edges)), (lambda: sum_edges(values, edges, formulation=formulation))
    if not any(map(tf.is_tensor, sizes)):
        return ways[0 if max(sizes) <= _FEW_NODES else 1]()
    return tf.cond(tf.reduce_max(tf.stack(sizes)) <= _FEW_NODES, *ways)


def _sum_dense(values: tf.Tensor, edges: EdgeIndex) -> tf.Tensor:
    """A product of dense matrices: it reads each value once, where a sparse one reads it for each edge."""
    counts = tf.ones_like(edges.source, tf.float32) if edges.mask is None else tf.cast(edges.mask, tf.float32)
    indices = tf.stack([edges.target, edges.source], 1)
    matrix = tf.scatter_nd(indices, counts, tf.stack([edges.num_nodes, tf.shape(values)[0]]))
    return tf.cast(tf.matmul(matrix, tf.cast(values, tf.float32)), values.dtype)


def _sum_sorted(values: tf.Tensor, edges: EdgeIndex, one_way: Callable[[tf.Tensor, EdgeIndex], tf.Tensor]) -> tf.Tensor:
    """`one_way` along the edges; its gradient is `one_way` along the reversed edges."""

    @tf.custom_gradient
    def summed(values: tf.Tensor):
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return tf.cast(one_way(tf.cast(upstream, tf.float32), edges.reversed()), values.dtype)

        return tf.cast(one_way(tf.cast(values, tf.float32), edges), values.dtype), gradient

    return summed(values)


def _sum_segments(values: tf.Tensor, edges: EdgeIndex) -> tf.Tensor:
    messages = tf.gather(values, edges.source)
    if edges.mask is not None:
        messages *= tf.cast(edges.mask, tf.float32)[:, tf.newaxis]
    return fill_rows(tf.math.segment_sum(messages, edges.target), edges.num_nodes)


def _sum_fused(values: tf.Tensor, edges: EdgeIndex) -> tf.Tensor:
    """Gathers and sums in one op, so that messages never exist; masked edges read an added row of zeros."""
    source = edges.source
    if edges.mask is not None:
        source = tf.where(edges.mask, source, tf.shape(values)[0])
        values = tf.pad(values, [[0, 1], [0, 0]])
    return tf.raw_ops.SparseSegmentSumWithNumSegments(
        data=values, indices=source, segment_ids=edges.target, num_segments=edges.num_nodes
    )


def degrees(edges: EdgeIndex) -> tf.Tensor:
    """[num_nodes, 1] float32: the number of real incoming edges."""
    if edges.mask is None:
        counts = edges.target_offsets[1:] - edges.target_offsets[:-1]
    else:
        counts = tf.math.unsorted_segment_sum(tf.cast(edges.mask, tf.int32), edges.target, edges.num_nodes)
    return tf.cast(counts, tf.float32)[:, tf.newaxis]


def inverse_degree(edges: EdgeIndex) -> tf.Tensor:
    """[num_nodes, 1]: one over the number of real incoming edges, zero where there is none."""
    return tf.math.reciprocal_no_nan(degrees(edges))

"""Neighbourhood aggregation: attention, sum, mean and GCN, each in formulations for CPU, GPU and XLA.

All formulations give the same numbers and gradients; they differ in what they materialise and where they run:

- `segments`: gather, then sorted segment ops over all edges at once. Few ops, needs [edges, width] memory.
- `chunked`: the same arithmetic over node-aligned, cache-sized chunks of the sorted edges; never [edges, width].
- `unsorted`: unsorted segment ops with static shapes; the only one that compiles under XLA (TPU).
- `matmul` (sum, mean, GCN only): sparse-dense matrix product.

Sums are accumulated in float32 whatever the dtype of the values.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tpugraphs_polynormer.models.edges import Edges, as_tensors

FORMULATIONS = ("auto", "segments", "chunked", "unsorted")
AGGREGATE_FORMULATIONS = (*FORMULATIONS, "matmul")
AGGREGATES = ("sum", "mean", "gcn")

# Message elements per chunk: small enough to stay near a core, large enough to pay for the ops that handle it.
CHUNK_ELEMENTS = 1 << 19
# Of batches whose size is not known when traced: so narrow, a loop over chunks costs more than it saves.
_NARROW = 128
# Far below any score, far above float32's minimum, so that differences of two stay finite.
_MASKED_SCORE = -1e30


def attend(
    source_scores: tf.Tensor,
    target_scores: tf.Tensor,
    values: tf.Tensor,
    edges: Edges,
    *,
    negative_slope: float = 0.2,
    formulation: str = "auto",
) -> tf.Tensor:
    """GAT attention along edges j -> i.

    out[i] = sum_j softmax_j(leaky_relu(source_scores[j] + target_scores[i])) values[j].

    Args:
      source_scores: [num_nodes, slots]; a slot is a head, or a (candidate, head) pair.
      target_scores: [num_nodes, slots].
      values: [num_nodes, slots, dim].
      edges: real edges take part, masked ones do not; a node without incoming edges gets zeros.
      negative_slope: of the leaky ReLU.
      formulation: one of FORMULATIONS; `auto` is `unsorted` under XLA, `segments` on GPU or when small (or of unknown
        size, but narrow), else `chunked`.

    Returns:
      [num_nodes, slots, dim] in the dtype of `values`.
    """
    edges = as_tensors(edges)
    chosen = _choose(formulation, FORMULATIONS, edges, values)
    arguments = (tf.cast(source_scores, tf.float32), tf.cast(target_scores, tf.float32), values)
    if chosen == "unsorted":
        return _attend_unsorted(*arguments, edges, negative_slope)
    return _attend_sorted(edges, negative_slope, chunked=chosen == "chunked")(*arguments)


def aggregate(values: tf.Tensor, edges: Edges, *, how: str, formulation: str = "auto") -> tf.Tensor:
    """Sums values[j] over incoming edges j -> i: plainly, averaged, or with GCN's symmetric degree normalisation.

    Args:
      values: [num_nodes, ...].
      edges: masked edges neither send nor count in the degree.
      how: `sum`, `mean` or `gcn` (1 / sqrt(degree[i] degree[j]), in-degrees, self-loops as given).
      formulation: one of AGGREGATE_FORMULATIONS.

    Returns:
      [num_nodes, ...] in the dtype of `values`; zeros for a node without incoming edges.
    """
    if how not in AGGREGATES:
        raise ValueError(f"unknown aggregate {how!r}, expected one of {', '.join(AGGREGATES)}")
    edges = as_tensors(edges)
    shape = tf.shape(values)
    flat = tf.reshape(values, [shape[0], values.shape[1:].num_elements() or tf.reduce_prod(shape[1:])])
    chosen = _choose(formulation, AGGREGATE_FORMULATIONS, edges, flat)
    if how == "sum":
        summed = _sum(flat, edges, chosen)
    elif how == "mean":
        summed = _sum(flat, edges, chosen) * tf.cast(inverse_degree(edges), flat.dtype)
    else:
        root = tf.cast(tf.sqrt(inverse_degree(edges)), flat.dtype)
        summed = _sum(flat * root, edges, chosen) * root
    return tf.reshape(summed, tf.concat([[edges.num_nodes], shape[1:]], 0))


def in_xla() -> bool:
    """Whether the code being traced will be compiled by XLA."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def _choose(formulation: str, allowed: tuple[str, ...], edges: Edges, values: tf.Tensor) -> str:
    if formulation not in allowed:
        raise ValueError(f"unknown formulation {formulation!r}, expected one of {', '.join(allowed)}")
    if formulation != "auto":
        return formulation
    if in_xla():
        return "unsorted"
    num_edges, width = edges.source.shape[0], values.shape[1:].num_elements()
    if num_edges is None or width is None:
        small = width is not None and width <= _NARROW
    else:
        small = num_edges * width <= CHUNK_ELEMENTS
    return "segments" if small or tf.config.list_logical_devices("GPU") else "chunked"


# Attention, unsorted: differentiated by TensorFlow itself.


def _attend_unsorted(
    source_scores: tf.Tensor, target_scores: tf.Tensor, values: tf.Tensor, edges: Edges, slope: float
) -> tf.Tensor:
    num_nodes = edges.num_nodes
    scores = tf.gather(source_scores, edges.source) + tf.gather(target_scores, edges.target)
    scores = _mask_scores(tf.nn.leaky_relu(scores, slope), edges.mask)  # [num_edges, slots]
    highest = tf.stop_gradient(tf.math.unsorted_segment_max(scores, edges.target, num_nodes))
    weights = _mask_weights(tf.exp(scores - tf.gather(highest, edges.target)), edges.mask)
    total = tf.math.unsorted_segment_sum(weights, edges.target, num_nodes)  # [num_nodes, slots]
    messages = weights[..., tf.newaxis] * tf.cast(tf.gather(values, edges.source), tf.float32)
    summed = tf.math.unsorted_segment_sum(messages, edges.target, num_nodes)
    return tf.cast(tf.math.divide_no_nan(summed, total[..., tf.newaxis]), values.dtype)


# Attention, sorted: forward by target, backward by source, over the whole edge list or chunk by chunk.


def _attend_sorted(edges: Edges, slope: float, *, chunked: bool):
    """The attention as a function of (source_scores, target_scores, values) with its own gradient."""

    @tf.custom_gradient
    def attention(source_scores: tf.Tensor, target_scores: tf.Tensor, values: tf.Tensor):
        def forward(nodes: slice, along: slice) -> tuple[tf.Tensor, tf.Tensor]:
            return _forward_block(source_scores, target_scores, values, edges, slope, nodes, along)

        shapes = [values.shape[1:], source_scores.shape[1:]]
        out, normalizer = _run(forward, edges.target_splits, shapes, _width(values), chunked)

        def gradient(out_gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            upstream = tf.cast(out_gradient, tf.float32)
            shift = tf.reduce_sum(upstream * out, -1)
            # One table, so that one gather per edge brings all that a target knows: [num_nodes, 3, slots].
            at_target = tf.stack([target_scores, normalizer, shift], 1)

            def backward(nodes: slice, along: slice) -> tuple[tf.Tensor, ...]:
                return _backward_block(source_scores, at_target, values, upstream, edges, slope, nodes, along)

            slots = source_scores.shape[1:]
            by_source = _run(backward, edges.source_splits, [values.shape[1:], slots, slots], _width(values), chunked)
            values_gradient, source_gradient, edge_gradient = by_source
            edge_gradient = tf.gather(edge_gradient, edges.target_order)
            target_gradient = _fill_rows(tf.math.segment_sum(edge_gradient, edges.target), edges.num_nodes)
            return source_gradient, target_gradient, tf.cast(values_gradient, values.dtype)

        return tf.cast(out, values.dtype), gradient

    return attention


def _forward_block(
    source_scores: tf.Tensor,
    target_scores: tf.Tensor,
    values: tf.Tensor,
    edges: Edges,
    slope: float,
    nodes: slice,
    along: slice,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Attention of the targets `nodes` with edges `along`: [nodes, slots, dim], and log-normalisers [nodes, slots]."""
    sources, local = edges.source[along], edges.target[along] - nodes.start
    mask = None if edges.mask is None else edges.mask[along]
    count = nodes.stop - nodes.start
    scores = tf.gather(source_scores, sources) + tf.gather(target_scores[nodes], local)
    scores = _mask_scores(tf.nn.leaky_relu(scores, slope), mask)
    highest = _fill_rows(tf.math.segment_max(scores, local), count)
    weights = _mask_weights(tf.exp(scores - tf.gather(highest, local)), mask)
    total = _fill_rows(tf.math.segment_sum(weights, local), count)
    messages = weights[..., tf.newaxis] * tf.cast(tf.gather(values, sources), tf.float32)
    summed = _fill_rows(tf.math.segment_sum(messages, local), count)
    out = tf.math.divide_no_nan(summed, total[..., tf.newaxis])
    return out, tf.where(total > 0, highest + tf.math.log(total), 0.0)


def _backward_block(
    source_scores: tf.Tensor,
    at_target: tf.Tensor,
    values: tf.Tensor,
    upstream: tf.Tensor,
    edges: Edges,
    slope: float,
    nodes: slice,
    along: slice,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gradients of the sources `nodes`, whose edges are `along` in source order: values, source scores, edge scores."""
    order = edges.source_order[along]
    targets, local = tf.gather(edges.target, order), tf.gather(edges.source, order) - nodes.start
    count = nodes.stop - nodes.start
    target_scores, normalizer, shift = tf.unstack(tf.gather(at_target, targets), axis=1)  # each [edges, slots]
    raw = tf.gather(source_scores[nodes], local) + target_scores
    weights = tf.exp(tf.nn.leaky_relu(raw, slope) - normalizer)
    weights = _mask_weights(weights, None if edges.mask is None else tf.gather(edges.mask, order))
    received = tf.gather(upstream, targets)  # [edges, slots, dim]
    sent = tf.cast(tf.gather(values[nodes], local), tf.float32)
    values_gradient = _fill_rows(tf.math.segment_sum(weights[..., tf.newaxis] * received, local), count)
    activated_gradient = weights * (tf.reduce_sum(received * sent, -1) - shift)
    edge_gradient = tf.raw_ops.LeakyReluGrad(gradients=activated_gradient, features=raw, alpha=slope)
    return values_gradient, _fill_rows(tf.math.segment_sum(edge_gradient, local), count), edge_gradient


def _run(block, splits: tf.Tensor, shapes: list[tf.TensorShape], width: tf.Tensor, chunked: bool) -> list[tf.Tensor]:
    """Applies `block(nodes, edges)` to all nodes at once, or to node-aligned chunks, and joins the results."""
    num_nodes, num_edges = tf.shape(splits)[0] - 1, splits[-1]
    if not chunked:
        return list(block(slice(0, num_nodes), slice(0, num_edges)))
    bounds = _chunk_bounds(splits, width)
    num_chunks = tf.shape(bounds)[0] - 1
    element_shapes = [tf.TensorShape([None]).concatenate(shape) for shape in shapes]
    arrays = [
        tf.TensorArray(tf.float32, num_chunks, infer_shape=False, element_shape=element_shape)
        for element_shape in element_shapes
    ]

    def body(i: tf.Tensor, arrays: list[tf.TensorArray]):
        first, last = bounds[i], bounds[i + 1]
        results = block(slice(first, last), slice(splits[first], splits[last]))
        return i + 1, [array.write(i, result) for array, result in zip(arrays, results, strict=True)]

    _, arrays = tf.while_loop(lambda i, _: i < num_chunks, body, (0, arrays), parallel_iterations=16)
    return [array.concat() for array in arrays]


def _chunk_bounds(splits: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Node ids [num_chunks + 1] that cut the nodes into runs with about CHUNK_ELEMENTS messages each."""
    num_nodes, num_edges = tf.shape(splits)[0] - 1, tf.cast(splits[-1], tf.int64)
    num_chunks = num_edges * tf.cast(width, tf.int64) // CHUNK_ELEMENTS + 1
    goals = tf.range(1, num_chunks, dtype=tf.int64) * num_edges // num_chunks
    inner = tf.searchsorted(splits, tf.cast(goals, splits.dtype), side="left")
    return tf.concat([[0], inner, [num_nodes]], 0)


# Sum, mean, GCN.


def _sum(values: tf.Tensor, edges: Edges, formulation: str) -> tf.Tensor:
    """[num_nodes, width] -> [num_nodes, width]: the adjacency matrix times the values."""
    if formulation == "unsorted":
        messages = tf.cast(tf.gather(values, edges.source), tf.float32)
        if edges.mask is not None:
            messages *= tf.cast(edges.mask, tf.float32)[:, tf.newaxis]
        return tf.cast(tf.math.unsorted_segment_sum(messages, edges.target, edges.num_nodes), values.dtype)
    one_way = {"segments": _sum_segments, "chunked": _sum_fused, "matmul": _sum_matmul}[formulation]

    @tf.custom_gradient
    def summed(values: tf.Tensor):
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return tf.cast(one_way(tf.cast(upstream, tf.float32), _reverse(edges)), values.dtype)

        return tf.cast(one_way(tf.cast(values, tf.float32), edges), values.dtype), gradient

    return summed(values)


def _sum_segments(values: tf.Tensor, edges: Edges) -> tf.Tensor:
    messages = tf.gather(values, edges.source)
    if edges.mask is not None:
        messages *= tf.cast(edges.mask, tf.float32)[:, tf.newaxis]
    return _fill_rows(tf.math.segment_sum(messages, edges.target), edges.num_nodes)


def _sum_fused(values: tf.Tensor, edges: Edges) -> tf.Tensor:
    """Gathers and sums in one op, so that messages never exist; masked edges read an added row of zeros."""
    source = edges.source
    if edges.mask is not None:
        source = tf.where(edges.mask, source, edges.num_nodes)
        values = tf.pad(values, [[0, 1], [0, 0]])
    return tf.raw_ops.SparseSegmentSumWithNumSegments(
        data=values, indices=source, segment_ids=edges.target, num_segments=edges.num_nodes
    )


def _sum_matmul(values: tf.Tensor, edges: Edges) -> tf.Tensor:
    shape = tf.cast(tf.stack([edges.num_nodes, tf.shape(values)[0]]), tf.int64)
    weights = tf.ones_like(edges.source, tf.float32) if edges.mask is None else tf.cast(edges.mask, tf.float32)
    indices = tf.cast(tf.stack([edges.target, edges.source], -1), tf.int64)
    return tf.sparse.sparse_dense_matmul(tf.SparseTensor(indices, weights, shape), values)


def _reverse(edges: Edges) -> Edges:
    """The edges turned round, again sorted by (new) target."""
    order = edges.source_order
    return Edges(
        source=tf.gather(edges.target, order),
        target=tf.gather(edges.source, order),
        source_order=edges.target_order,
        target_order=order,
        target_splits=edges.source_splits,
        source_splits=edges.target_splits,
        mask=None if edges.mask is None else tf.gather(edges.mask, order),
    )


def inverse_degree(edges: Edges) -> tf.Tensor:
    """[num_nodes, 1]: one over the number of real incoming edges, zero where there is none."""
    if edges.mask is None:
        degree = edges.target_splits[1:] - edges.target_splits[:-1]
    else:
        degree = tf.math.unsorted_segment_sum(tf.cast(edges.mask, tf.int32), edges.target, edges.num_nodes)
    return tf.math.reciprocal_no_nan(tf.cast(degree, tf.float32))[:, tf.newaxis]


def _mask_scores(scores: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    return scores if mask is None else tf.where(mask[:, tf.newaxis], scores, _MASKED_SCORE)


def _mask_weights(weights: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    return weights if mask is None else tf.where(mask[:, tf.newaxis], weights, 0.0)


def _fill_rows(rows: tf.Tensor, count: tf.Tensor | int) -> tf.Tensor:
    """Sorted segment ops stop at the last node with an edge: the nodes after it get zeros."""
    missing = count - tf.shape(rows)[0]
    return tf.pad(rows, [[0, missing]] + [[0, 0]] * (rows.shape.rank - 1))


def _width(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_prod(tf.shape(values)[1:])

"""GAT attention along edges, in formulations for CPU, GPU and XLA (see ops/formulation.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tpugraphs_polynormer.hlo.shapes import LANES
from tpugraphs_polynormer.layers.ops.formulation import choose_formulation, fill_rows, on_cpu

if TYPE_CHECKING:  # they import this module
    from tpugraphs_polynormer.layers.edge_index import EdgeIndex
    from tpugraphs_polynormer.layers.static_edges import StaticEdges

    UnsortedEdges = EdgeIndex | StaticEdges

# Elements per run of edges: small enough to stay near a core, large enough to pay for the ops that handle it.
CHUNK_ELEMENTS = 1 << 19
# Columns of one sparse product: from 32 on TensorFlow takes another path, which is six times slower per column.
_SPARSE_COLUMNS = 16
# Sparse matrices that the columns of an attention take turns in.
_MATRICES = 8
# Far below any logit, far above float32's minimum, so that differences of two stay finite.
_MASKED_LOGIT = -1e30


def attend(
    source_logits: tf.Tensor,
    target_logits: tf.Tensor,
    values: tf.Tensor,
    edges: EdgeIndex,
    *,
    negative_slope: float = 0.2,
    formulation: str = "auto",
) -> tf.Tensor:
    """GAT attention along edges j -> i.

    out[i] = sum_j softmax_j(leaky_relu(source_logits[j] + target_logits[i])) values[j].

    Args:
      source_logits: [num_nodes, columns]; a column is a head, or a (candidate, head) pair. For `unsorted` also
        [num_nodes, columns * dim], each logit repeated `dim` times (see `repeats_logits`).
      target_logits: as source_logits.
      values: [num_nodes, columns, dim].
      edges: real edges take part, masked ones do not; a node without incoming edges gets zeros.
      negative_slope: of the leaky ReLU.
      formulation: one of FORMULATIONS; `auto` is `unsorted` under XLA, `segments` with a GPU, else `fused`.

    Returns:
      [num_nodes, columns, dim] in the dtype of `values`.
    """
    edges = edges.as_tensors()
    chosen = choose_formulation(formulation)
    arguments = (tf.cast(source_logits, tf.float32), tf.cast(target_logits, tf.float32), values)
    if chosen == "unsorted":
        return attend_unsorted(*arguments, edges, negative_slope=negative_slope)
    return _attend_sorted(edges, negative_slope, fused=chosen == "fused")(*arguments)


def merge_columns(
    source_logits: tf.Tensor, target_logits: tf.Tensor, values: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The arguments of `attend`, of arrays with any axes between the rows and the values' dims: heads, candidates."""
    shape = tf.shape(values)
    columns = values.shape[1:-1].num_elements() or tf.reduce_prod(shape[1:-1])
    per_row = source_logits.shape[1:].num_elements() or tf.reduce_prod(tf.shape(source_logits)[1:])
    logits = (tf.reshape(each, [-1, per_row]) for each in (source_logits, target_logits))
    return *logits, tf.reshape(values, [shape[0], columns, values.shape[-1]])


# Attention, unsorted: one flat array per side, as wide as the lanes of a TPU like it.


def repeats_logits(formulation: str) -> bool:
    """Whether `attend` is fastest with logits that are repeated for each number of their column's values."""
    return choose_formulation(formulation) == "unsorted"


def attend_unsorted(
    source_logits: tf.Tensor,
    target_logits: tf.Tensor,
    values: tf.Tensor,
    edges: UnsortedEdges,
    *,
    negative_slope: float = 0.2,
    loops: tf.Tensor | None = None,
) -> tf.Tensor:
    """`attend` on [rows, columns * dim] arrays, each number with a weight of its own; edges in any order.

    A TPU pads the last axis to 128: [edges, 8, 16] would occupy eight times its size, and [edges, 8] sixteen times.

    Args:
      loops: [num_nodes] float32, 1 for nodes that also attend to themselves, besides their edges; None for none.
    """
    shape, dim = tf.shape(values), values.shape[2]
    flat = tf.reshape(values, [shape[0], (values.shape[1] or shape[1]) * dim])
    logits = source_logits, target_logits
    if source_logits.shape[1] is None or source_logits.shape[1] != flat.shape[1]:
        times = tf.shape(flat)[1] // tf.shape(source_logits)[1]  # 1 or dim
        logits = (tf.repeat(each, times, axis=1) for each in logits)
    attended = attend_columns(*logits, flat, edges, negative_slope=negative_slope, loops=loops)
    return tf.reshape(attended, tf.concat([[edges.num_nodes], shape[1:]], 0))


def attend_columns(
    source_logits: tf.Tensor,
    target_logits: tf.Tensor,
    values: tf.Tensor,
    edges: UnsortedEdges,
    *,
    negative_slope: float = 0.2,
    loops: tf.Tensor | None = None,
) -> tf.Tensor:
    """`attend_unsorted` of three arrays of equal shape, [rows, (candidates,) width]: each number has its own logits."""
    arrays = (tf.cast(each, tf.float32) for each in (source_logits, target_logits, values))
    return tf.cast(_attend_flat(edges, negative_slope, loops)(*arrays), values.dtype)


def _attend_flat(edges: UnsortedEdges, slope: float, loops: tf.Tensor | None):
    """Attention of (source_logits, target_logits, values), of equal shapes [rows, (candidates,) width].

    Gathers and sums are few and wide: what goes along an edge in one direction goes in one array.
    """

    def weigh(sent: tf.Tensor, received: tf.Tensor, reference: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Weights exp(logit - reference), and the slope of the leaky ReLU at each logit."""
        raw = sent + received
        return tf.exp(tf.minimum(tf.nn.leaky_relu(raw, slope) - reference, 0.0)), tf.where(raw > 0, 1.0, slope)

    @tf.custom_gradient
    def attention(source_logits: tf.Tensor, target_logits: tf.Tensor, values: tf.Tensor):
        num_targets, num_sources = edges.num_nodes, source_logits.shape[0] or tf.shape(source_logits)[0]
        keep = 1.0 if edges.mask is None else expand_like(tf.cast(edges.mask, tf.float32), values)
        own_loops = None if loops is None else expand_like(loops, values)
        sent, sent_values = _gather_rows([source_logits, values], edges.source)
        # The leaky ReLU never falls, so the highest logit is that of the highest source.
        counted = sent if edges.mask is None else tf.where(keep > 0, sent, _MASKED_LOGIT)
        highest = tf.maximum(tf.math.unsorted_segment_max(counted, edges.target, num_targets), _MASKED_LOGIT)
        if own_loops is not None:
            highest = tf.maximum(highest, tf.where(own_loops > 0, source_logits, _MASKED_LOGIT))
        reference = tf.nn.leaky_relu(highest + target_logits, slope)
        weights, _ = weigh(sent, *_gather_rows([target_logits, reference], edges.target))
        weights *= keep
        summed, total = _sum_rows([weights * sent_values, weights], edges.target, num_targets)
        if own_loops is not None:
            own, _ = weigh(source_logits, target_logits, reference)
            summed, total = summed + own_loops * own * values, total + own_loops * own
        out = tf.math.divide_no_nan(summed, total)
        normalizer = tf.where(total > 0, reference + tf.math.log(total), 0.0)

        scope = tf.get_current_name_scope()

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            with tf.name_scope(f"gradient/{scope}/"):  # a profile then names the layer
                return differentiate(upstream)

        def differentiate(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            sent, sent_values = _gather_rows([source_logits, values], edges.source)
            at_target = [target_logits, normalizer, upstream, out]
            received, reference, arriving, attended = _gather_rows(at_target, edges.target)
            weights, slopes = weigh(sent, received, reference)
            of_values = weights * keep * arriving
            of_logits = of_values * (sent_values - attended) * slopes
            source_gradient, values_gradient = _sum_rows([of_logits, of_values], edges.source, num_sources)
            target_gradient = tf.math.unsorted_segment_sum(of_logits, edges.target, num_targets)
            if own_loops is None:
                return source_gradient, target_gradient, values_gradient
            weights, slopes = weigh(source_logits, target_logits, normalizer)
            of_values = weights * own_loops * upstream
            of_logits = of_values * (values - out) * slopes
            return source_gradient + of_logits, target_gradient + of_logits, values_gradient + of_values

        return out, gradient

    return attention


def _gather_rows(arrays: Sequence[tf.Tensor], rows: tf.Tensor) -> list[tf.Tensor]:
    """The rows of arrays [n, ..., width], by one gather for as many arrays as fit the lanes of a TPU together."""
    return [part for group in _group(arrays) for part in _split(tf.gather(tf.concat(group, -1), rows), len(group))]


def _sum_rows(arrays: Sequence[tf.Tensor], segments: tf.Tensor, count: tf.Tensor | int) -> list[tf.Tensor]:
    """The sums of arrays [num_edges, ..., width] by segment, [count, ..., width]; grouped as in `_gather_rows`."""
    sums = ((tf.math.unsorted_segment_sum(tf.concat(group, -1), segments, count), group) for group in _group(arrays))
    return [part for summed, group in sums for part in _split(summed, len(group))]


def _group(arrays: Sequence[tf.Tensor]) -> list[Sequence[tf.Tensor]]:
    size = max(1, LANES // (arrays[0].shape[-1] or LANES))
    return [arrays[start : start + size] for start in range(0, len(arrays), size)]


def _split(array: tf.Tensor, count: int) -> list[tf.Tensor]:
    return tf.split(array, count, -1) if count > 1 else [array]


# Attention, sorted: with its own gradient, which keeps nothing per edge.


def _attend_sorted(edges: EdgeIndex, slope: float, *, fused: bool):
    """The attention as a function of (source_logits, target_logits, values) with its own gradient."""
    weighted_sum = _weighted_sum_fused if fused else _weighted_sum_segments
    sum_at_sources = _sum_at_sources_fused if fused else _sum_at_sources_segments

    def score(source_logits: tf.Tensor, target_logits: tf.Tensor) -> tf.Tensor:
        return tf.gather(source_logits, edges.source) + tf.gather(target_logits, edges.target)  # [num_edges, columns]

    @tf.custom_gradient
    def attention(source_logits: tf.Tensor, target_logits: tf.Tensor, values: tf.Tensor):
        num_targets, num_sources = edges.num_nodes, tf.shape(values)[0]
        logits = _mask_logits(tf.nn.leaky_relu(score(source_logits, target_logits), slope), edges.mask)
        highest = fill_rows(tf.math.segment_max(logits, edges.target), num_targets)
        weights = _mask_weights(tf.exp(logits - tf.gather(highest, edges.target)), edges.mask)
        total = fill_rows(tf.math.segment_sum(weights, edges.target), num_targets)
        weights *= tf.gather(tf.math.reciprocal_no_nan(total), edges.target)
        out = weighted_sum(weights, tf.cast(values, tf.float32), edges, num_targets, to_sources=False)
        normalizer = tf.where(total > 0, highest + tf.math.log(total), 0.0)

        def gradient(out_gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            upstream = tf.cast(out_gradient, tf.float32)
            raw = score(source_logits, target_logits)
            weights = tf.exp(tf.nn.leaky_relu(raw, slope) - tf.gather(normalizer, edges.target))
            weights = _mask_weights(weights, edges.mask)
            values_gradient = weighted_sum(weights, upstream, edges, num_sources, to_sources=True)
            shift = _sum_last(upstream * out)
            dots = _dots(upstream, tf.cast(values, tf.float32), edges) - tf.gather(shift, edges.target)
            edge_gradient = tf.raw_ops.LeakyReluGrad(gradients=weights * dots, features=raw, alpha=slope)
            target_gradient = fill_rows(tf.math.segment_sum(edge_gradient, edges.target), num_targets)
            source_gradient = sum_at_sources(edge_gradient, edges, num_sources)
            return source_gradient, target_gradient, tf.cast(values_gradient, values.dtype)

        return tf.cast(out, values.dtype), gradient

    return attention


def _weighted_sum_segments(
    weights: tf.Tensor, values: tf.Tensor, edges: EdgeIndex, count: tf.Tensor | int, *, to_sources: bool
) -> tf.Tensor:
    """out[i] = sum of weights[e] values[j] over edges e from j to i, [count, columns, dim] float32.

    Args:
      weights: [num_edges, columns]. values: [num_nodes, columns, dim]. count: how many nodes receive.
      to_sources: from targets to sources, instead of along the edges.
    """
    if to_sources:
        weights, edges = tf.gather(weights, edges.source_order), edges.reversed()
    messages = weights[..., tf.newaxis] * tf.gather(values, edges.source)
    return fill_rows(tf.math.segment_sum(messages, edges.target), count)


def _weighted_sum_fused(
    weights: tf.Tensor, values: tf.Tensor, edges: EdgeIndex, count: tf.Tensor | int, *, to_sources: bool
) -> tf.Tensor:
    """The same as products of sparse matrices (or their transposes) with dense ones: no message ever exists."""
    dim, columns = values.shape[2], values.shape[1] or tf.shape(values)[1]
    num_values = tf.shape(values)[0]
    indices = tf.cast(tf.stack([edges.target, edges.source], 1), tf.int64)
    shape = tf.cast(tf.stack([num_values, count] if to_sources else [count, num_values]), tf.int64)
    # Columns with a matrix of their own share its indices, and cores share the matrices; groups of columns are nodes.
    own = _matrices_of(columns)
    if tf.is_tensor(columns) or columns > own:
        groups = tf.cast(columns // own, tf.int64)
        indices = tf.reshape(indices[:, tf.newaxis] * groups + tf.range(groups)[:, tf.newaxis], [-1, 2])
        shape *= groups
    of_columns = tf.unstack(tf.transpose(tf.reshape(weights, [-1, own])), own)
    matrices = [tf.SparseTensor(indices, each, shape) for each in of_columns]
    width = _largest_divisor(dim, _SPARSE_COLUMNS)
    pieces = tf.transpose(tf.reshape(values, [-1, own * dim // width, width]), [1, 0, 2])
    sums = [
        tf.sparse.sparse_dense_matmul(matrices[number * width // dim], piece, adjoint_a=to_sources)
        for number, piece in enumerate(tf.unstack(pieces, own * dim // width))
    ]
    return tf.reshape(tf.concat(sums, -1), [count, columns, dim])


def _matrices_of(columns: int | tf.Tensor) -> int:
    """How many of the columns have a matrix of their own."""
    return 1 if tf.is_tensor(columns) else _largest_divisor(columns, _MATRICES)


def _largest_divisor(number: int, most: int) -> int:
    return max(divisor for divisor in range(1, most + 1) if number % divisor == 0)


def _sum_at_sources_segments(values: tf.Tensor, edges: EdgeIndex, count: tf.Tensor | int) -> tf.Tensor:
    """[num_edges, columns] -> [count, columns]: the sums over the edges that leave each node."""
    return fill_rows(tf.math.segment_sum(tf.gather(values, edges.source_order), edges.reversed().target), count)


def _sum_at_sources_fused(values: tf.Tensor, edges: EdgeIndex, count: tf.Tensor | int) -> tf.Tensor:
    """The same, of few columns as a sparse product, which asks for no order of the edges."""
    columns = values.shape[1]
    if columns is None or columns > _SPARSE_COLUMNS:
        return _sum_at_sources_segments(values, edges, count)
    num_edges = tf.shape(edges.source)[0]
    indices = tf.cast(tf.stack([edges.source, tf.range(num_edges)], 1), tf.int64)
    matrix = tf.SparseTensor(indices, tf.ones([num_edges]), tf.cast(tf.stack([count, num_edges]), tf.int64))
    return tf.sparse.sparse_dense_matmul(matrix, values)


def _dots(at_target: tf.Tensor, at_source: tf.Tensor, edges: EdgeIndex) -> tf.Tensor:
    """Inner products over the last axis along each edge, [num_edges, columns], in blocks of edges that fit a cache."""

    def dot(along: slice) -> tf.Tensor:
        received, sent = tf.gather(at_target, edges.target[along]), tf.gather(at_source, edges.source[along])
        return _sum_last(received * sent)

    num_edges, width = edges.source.shape[0], at_source.shape[1:].num_elements()
    if num_edges is not None and width is not None and num_edges * width <= CHUNK_ELEMENTS:
        return dot(slice(None))
    num_edges = tf.shape(edges.source)[0]
    length = tf.maximum(CHUNK_ELEMENTS // tf.reduce_prod(tf.shape(at_source)[1:]), 1)
    num_chunks = (num_edges + length - 1) // length
    element_shape = tf.TensorShape([None, at_source.shape[1]])
    dots = tf.TensorArray(tf.float32, num_chunks, infer_shape=False, element_shape=element_shape)

    def body(i: tf.Tensor, dots: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        return i + 1, dots.write(i, dot(slice(i * length, tf.minimum((i + 1) * length, num_edges))))

    _, dots = tf.while_loop(lambda i, _: i < num_chunks, body, (0, dots), parallel_iterations=4)
    return dots.concat()


def _sum_last(values: tf.Tensor) -> tf.Tensor:
    """[rows, columns, dim] -> [rows, columns]; on CPUs as a product of matrices, faster than sums of few numbers."""
    columns, dim = values.shape[1:]
    if columns is None or not on_cpu():
        return tf.reduce_sum(values, -1)
    own = _matrices_of(columns)
    sums = tf.reshape(values, [-1, own * dim]) @ tf.repeat(tf.eye(own), dim, 0)
    return tf.reshape(sums, [-1, columns])


def expand_like(per_row: tf.Tensor, array: tf.Tensor) -> tf.Tensor:
    """[rows] -> [rows, 1, ...] with the rank of `array`."""
    return tf.reshape(per_row, [-1] + [1] * (array.shape.rank - 1))


def _mask_logits(logits: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    return logits if mask is None else tf.where(mask[:, tf.newaxis], logits, _MASKED_LOGIT)


def _mask_weights(weights: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    return weights if mask is None else tf.where(mask[:, tf.newaxis], weights, 0.0)

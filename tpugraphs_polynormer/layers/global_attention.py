"""Polynormer's global layer: sigmoid-kernel attention over all nodes of a graph, in linear time."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tpugraphs_polynormer.layers.dense import Linear, build_layers
from tpugraphs_polynormer.layers.edge_index import invert_order
from tpugraphs_polynormer.layers.gate import Gate
from tpugraphs_polynormer.layers.neighbours import ONE_GRAPH, Graphs
from tpugraphs_polynormer.layers.normalization import LayerNorm, expand_like
from tpugraphs_polynormer.layers.registration import Configured, register

# Nodes per block when several graphs share the batch; blocks hold nodes of one graph only.
BLOCK_NODES = 256
_LEAST_TOTAL = 1e-18


class QueryKeyValue(NamedTuple):
    """What global attention needs of each node, [num_nodes, (candidates,) head_dim * num_heads] each, heads last."""

    query: tf.Tensor  # non-negative
    key: tf.Tensor  # non-negative
    value: tf.Tensor


class KeySums(NamedTuple):
    """Sums over the real nodes of each graph, float32. The sums of several parts of a graph add up."""

    products: tf.Tensor  # [graphs, (candidates,) width, width]: key^T value
    keys: tf.Tensor  # [graphs, (candidates,) width]

    def plus(self, other: KeySums) -> KeySums:
        """The sums over both parts."""
        return KeySums(self.products + other.products, self.keys + other.keys)


@register
class GlobalAttention(Configured, tf.keras.layers.Layer):
    """Global equivariant attention (Eqs. 6 and 8): out = LayerNorm(attention(q, k, v)) * (states W_h + b + beta).

    attention_i = s(q_i) sum_j s(k_j)^T v_j / (s(q_i) . sum_j s(k_j)), j over the real nodes of i's graph, s = sigmoid.

    States [num_nodes, dim] or [num_nodes, candidates, dim] -> the same with num_heads * head_dim (heads last, as the
    authors view it). With candidates, each graph attends per candidate. The authors' closing projection is shared by
    all their global layers, so it belongs to the encoder.

    Args:
      num_heads, head_dim: the output width is their product.
      beta, learn_beta: see Gate.
      share_query_key: q = k, as in the authors' model.
      block_nodes: with several graphs, each graph's nodes are padded to a multiple of this; a number near the size of a
        small graph wastes least.

    Example:
      >>> layer = tp.layers.GlobalAttention(num_heads=2, head_dim=4)
      >>> layer(tf.ones([3, 5])).shape
      TensorShape([3, 8])
    """

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        beta: float = -1.0,
        learn_beta: bool = True,
        share_query_key: bool = True,
        block_nodes: int = BLOCK_NODES,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        units = num_heads * head_dim
        self.factor = Linear(units, name="factor")
        self.query = None if share_query_key else Linear(units, name="query")
        self.key = Linear(units, name="key")
        self.value = Linear(units, name="value")
        self.gate = Gate(beta=beta, learn_beta=learn_beta, name="gate")
        self.norm = LayerNorm(name="norm")

    def build(self, shape: tf.TensorShape) -> None:
        shape = tf.TensorShape(shape)
        build_layers([self.factor, self.query, self.key, self.value], shape)
        out_shape = shape[:-1].concatenate([self.num_heads * self.head_dim])
        build_layers([self.gate, self.norm], out_shape)
        super().build(shape)

    def project(self, states: tf.Tensor) -> QueryKeyValue:
        """Queries, keys and values; the first two went through the sigmoid."""
        key = tf.sigmoid(self.key(states))
        query = key if self.query is None else tf.sigmoid(self.query(states))
        return QueryKeyValue(query, key, self.value(states))

    def sum_keys(self, projected: QueryKeyValue, graphs: Graphs = ONE_GRAPH) -> KeySums:
        """sum_j key_j^T value_j and sum_j key_j over the real nodes of each graph."""
        key, value = (tf.cast(array, tf.float32) for array in projected[1:])
        if graphs.mask is not None:
            # Keys as well as values: a padding key of 0.5 would grow every denominator.
            real = expand_like(tf.cast(graphs.mask, tf.float32), value)
            key, value = key * real, value * real
        blocks = _lay_out(graphs, self.block_nodes)
        key, value = (_swap_candidates(blocks.cut(array)) for array in (key, value))
        return KeySums(blocks.sum(tf.matmul(key, value, transpose_a=True)), blocks.sum(tf.reduce_sum(key, -2)))

    def attend(self, projected: QueryKeyValue, sums: KeySums, graphs: Graphs = ONE_GRAPH) -> tf.Tensor:
        """query_i (sum_j key_j^T value_j) / (query_i . sum_j key_j) per graph, head and candidate.

        All heads go through one product of full width whose foreign-head entries are 0: more arithmetic than a product
        per head, but no array of nodes is transposed, and that costs more.

        Args:
          projected: only its queries are read, [num_nodes, (candidates or 1,) width].
          sums: of `sum_keys`. graphs: of the queries.

        Returns:
          [num_nodes, (candidates,) width] in the dtype of the values; zeros for a graph without real nodes.
        """
        query = tf.cast(projected.query, tf.float32)
        blocks = _lay_out(graphs, self.block_nodes)
        to_head = tf.one_hot(tf.range(query.shape[-1]) % self.num_heads, self.num_heads)  # [width, heads], heads last
        products = blocks.spread(sums.products * tf.matmul(to_head, to_head, transpose_b=True))
        keys = blocks.spread(sums.keys[..., tf.newaxis] * to_head)  # [blocks, (candidates,) width, heads]
        if query.shape.rank == 3 and query.shape[1] == 1:  # one state for all candidates
            rows = blocks.cut(query[:, 0])  # [blocks, nodes, width]
            attended, total = _matmul_all(rows, products), _matmul_all(rows, keys)
        else:
            rows = _swap_candidates(blocks.cut(query))
            attended, total = _swap_candidates(tf.matmul(rows, products)), _swap_candidates(tf.matmul(rows, keys))
        # Divided after `join`: where the cast directly follows the gather, the TPU compiler aborts (v5p, bfloat16).
        attended, total = blocks.join(attended), blocks.join(total)
        # Below the floor the gradient -1 / total^2 overflows, and 0 times it is NaN: such a node attends to nothing.
        inverse = tf.math.reciprocal_no_nan(tf.where(total > _LEAST_TOTAL, total, 0.0))
        attended *= tf.tile(inverse, [1] * (inverse.shape.rank - 1) + [self.head_dim])
        return tf.cast(attended, projected.value.dtype)

    def attention_weights(self, projected: QueryKeyValue, sums: KeySums) -> tf.Tensor:
        """[i, j] float32: the share of node i's attention that node j gets, the mean over heads.

        Args:
          projected: of some nodes of one graph, [num_nodes, width]. sums: over all nodes of that graph.
        """
        shape = [-1, self.head_dim, self.num_heads]  # heads last
        query, key, total = (
            tf.reshape(tf.cast(array, tf.float32), shape) for array in (projected.query, projected.key, sums.keys)
        )
        weights = tf.einsum("idh,jdh->hij", query, key)
        weights /= tf.einsum("idh,ndh->hi", query, total)[..., tf.newaxis]  # n is 1: one graph
        return tf.reduce_mean(weights, 0)

    def aggregate(self, projected: QueryKeyValue, graphs: Graphs = ONE_GRAPH) -> tf.Tensor:
        """The attention before norm and gate."""
        return self.attend(projected, self.sum_keys(projected, graphs), graphs)

    def combine(self, states: tf.Tensor, aggregated: tf.Tensor, *, fiedler: tf.Tensor | None = None) -> tf.Tensor:
        """Norm and gate, row by row."""
        return self.norm(aggregated) * (self.factor(states) + self.gate(aggregated, fiedler=fiedler))

    def call(self, states: tf.Tensor, *, graphs: Graphs = ONE_GRAPH, fiedler: tf.Tensor | None = None) -> tf.Tensor:
        return self.combine(states, self.aggregate(self.project(states), Graphs(*graphs)), fiedler=fiedler)


class _Blocks(NamedTuple):
    """Where nodes are in blocks of equal length, each of which holds nodes of one graph only.

    Every graph gets whole blocks, which keeps the work linear and every shape static. A single graph is one block.
    """

    positions: tf.Tensor | None  # [num_nodes], in the blocks laid end to end; None for one graph
    graphs: tf.Tensor | None  # [num_blocks], the graph of each block
    num_graphs: int | tf.Tensor
    length: int  # nodes in a block

    def cut(self, array: tf.Tensor) -> tf.Tensor:
        """[num_nodes, ...] -> [num_blocks, length, ...], zeros where there is no node."""
        if self.positions is None:
            return array[tf.newaxis]
        num_blocks, tail = tf.shape(self.graphs)[0], tf.shape(array)[1:]
        placed = tf.scatter_nd(self.positions[:, tf.newaxis], array, tf.concat([[num_blocks * self.length], tail], 0))
        return tf.reshape(placed, tf.concat([[num_blocks, self.length], tail], 0))

    def join(self, blocks: tf.Tensor) -> tf.Tensor:
        """[num_blocks, length, ...] -> [num_nodes, ...]."""
        if self.positions is None:
            return blocks[0]
        flat = tf.reshape(blocks, tf.concat([[-1], tf.shape(blocks)[2:]], 0))
        return tf.gather(flat, self.positions)

    def sum(self, per_block: tf.Tensor) -> tf.Tensor:
        """[num_blocks, ...] -> [num_graphs, ...]."""
        if self.positions is None:
            return per_block
        return tf.math.unsorted_segment_sum(per_block, self.graphs, self.num_graphs)

    def spread(self, per_graph: tf.Tensor) -> tf.Tensor:
        """[num_graphs, ...] -> [num_blocks, ...]."""
        return per_graph if self.positions is None else tf.gather(per_graph, self.graphs)


def _lay_out(graphs: Graphs, length: int) -> _Blocks:
    """Blocks of `length` nodes for the nodes of some graphs."""
    if graphs.is_single:
        return _Blocks(None, None, 1, length)
    ids = tf.cast(graphs.ids, tf.int32)
    order = None if graphs.is_sorted else tf.argsort(ids, stable=True)
    sorted_ids = ids if order is None else tf.gather(ids, order)
    num_nodes = ids.shape[0] if ids.shape[0] is not None else tf.shape(ids)[0]
    sizes = tf.math.unsorted_segment_sum(tf.ones_like(ids), ids, graphs.count)
    counts = (sizes + length - 1) // length
    first_block, first_node = tf.cumsum(counts, exclusive=True), tf.cumsum(sizes, exclusive=True)
    positions = tf.range(num_nodes) + tf.gather(first_block * length - first_node, sorted_ids)
    if order is not None:
        positions = tf.gather(positions, invert_order(order))
    blocks = tf.range(num_nodes // length + graphs.count)
    # Unused blocks at the end hold zeros, so their graph does not matter.
    ends = first_block + counts
    block_graphs = tf.reduce_sum(tf.cast(blocks[:, tf.newaxis] >= ends[tf.newaxis, :], tf.int32), 1)
    return _Blocks(positions, tf.minimum(block_graphs, graphs.count - 1), graphs.count, length)


def _swap_candidates(blocks: tf.Tensor) -> tf.Tensor:
    """[blocks, nodes, candidates, width] <-> [blocks, candidates, nodes, width]; no change without candidates."""
    return tf.transpose(blocks, [0, 2, 1, 3]) if blocks.shape.rank == 4 else blocks


def _matmul_all(rows: tf.Tensor, matrices: tf.Tensor) -> tf.Tensor:
    """[blocks, nodes, width] times each of [blocks, candidates, width, w]: [blocks, nodes, candidates, w]."""
    shape = tf.shape(matrices)
    side_by_side = tf.reshape(tf.transpose(matrices, [0, 2, 1, 3]), [shape[0], shape[2], shape[1] * shape[3]])
    product = tf.matmul(rows, side_by_side)
    return tf.reshape(product, [shape[0], tf.shape(rows)[1], shape[1], matrices.shape[-1]])

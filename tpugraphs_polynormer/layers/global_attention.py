"""Polynormer's global layer: sigmoid-kernel attention over all nodes of a graph, in linear time."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from tpugraphs_polynormer.layers.convolutions import Linear
from tpugraphs_polynormer.layers.dense import build_layers
from tpugraphs_polynormer.layers.gate import Gate
from tpugraphs_polynormer.layers.normalization import LayerNorm, expand_like

# Nodes per block when several graphs share the batch; blocks hold nodes of one graph only.
BLOCK_NODES = 256


class GlobalAttention(tf.keras.layers.Layer):
    """Global equivariant attention (Eqs. 6 and 8): out = LayerNorm(attention(q, k, v)) * (states W_h + b + beta).

    attention_i = s(q_i) sum_j s(k_j)^T v_j / (s(q_i) . sum_j s(k_j)), j over the real nodes of i's graph, s = sigmoid.

    States [num_nodes, dim] or [num_nodes, candidates, dim] -> the same with num_heads * head_dim (heads last, as the
    authors view it). With candidates, each graph attends per candidate. The authors' closing projection is shared by
    all their global layers, so it belongs to the encoder.

    Args:
      num_heads, head_dim: the output width is their product.
      beta, learn_beta: see Gate.
      share_query_key: q = k, as in the authors' model.
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
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.beta = beta
        self.learn_beta = learn_beta
        self.share_query_key = share_query_key
        self.block_nodes = block_nodes
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

    def call(
        self,
        states: tf.Tensor,
        *,
        component_ids: tf.Tensor | None = None,
        num_components: int | tf.Tensor = 1,
        node_mask: tf.Tensor | None = None,
        fiedler: tf.Tensor | None = None,
    ) -> tf.Tensor:
        attended = self.attend(states, component_ids=component_ids, num_components=num_components, node_mask=node_mask)
        return self.combine(states, attended, fiedler=fiedler)

    def combine(self, states: tf.Tensor, attended: tf.Tensor, *, fiedler: tf.Tensor | None = None) -> tf.Tensor:
        """Norm and gate, row by row."""
        return self.norm(attended) * (self.factor(states) + self.gate(attended, fiedler=fiedler))

    def project(self, states: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Queries, keys and values, the first two non-negative."""
        key = tf.sigmoid(self.key(states))
        query = key if self.query is None else tf.sigmoid(self.query(states))
        return query, key, self.value(states)

    def attend(
        self,
        states: tf.Tensor,
        *,
        component_ids: tf.Tensor | None,
        num_components: int | tf.Tensor,
        node_mask: tf.Tensor | None,
    ) -> tf.Tensor:
        """The attention alone, before norm and gate."""
        return linear_attention(
            *self.project(states),
            num_heads=self.num_heads,
            component_ids=component_ids,
            num_components=num_components,
            node_mask=node_mask,
            block_nodes=self.block_nodes,
        )

    def get_config(self) -> dict:
        names = ("num_heads", "head_dim", "beta", "learn_beta", "share_query_key", "block_nodes")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def linear_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    *,
    num_heads: int,
    component_ids: tf.Tensor | None = None,
    num_components: int | tf.Tensor = 1,
    node_mask: tf.Tensor | None = None,
    block_nodes: int = BLOCK_NODES,
) -> tf.Tensor:
    """query_i (sum_j key_j^T value_j) / (query_i . sum_j key_j) per graph, head and candidate, summed in float32.

    Args:
      query, key, value: [num_nodes, (candidates,) head_dim * num_heads], heads last; query and key non-negative.
      num_heads: heads.
      component_ids: [num_nodes] int, non-decreasing; None for a single graph.
      num_components: number of graphs.
      node_mask: [num_nodes] bool, False for padding.
      block_nodes: each graph's nodes are padded to a multiple of this; near a small graph's size wastes least.

    Returns:
      Shape and dtype of `value`; zeros for a graph without real nodes.
    """
    shape = tf.shape(value)
    wide = [tf.cast(array, tf.float32) for array in (query, key, value)]
    if node_mask is not None:
        # Keys as well as values: a padding key of 0.5 would grow every denominator.
        real = expand_like(tf.cast(node_mask, tf.float32), value)
        wide[1:] = [array * real for array in wide[1:]]
    if component_ids is None or is_single(num_components):
        attended = _attend_blocks(*(array[tf.newaxis] for array in wide), num_heads=num_heads)
    else:
        positions, block_components = block_layout(component_ids, num_components, block_nodes)
        blocks = [to_blocks(array, positions, tf.shape(block_components)[0], block_nodes) for array in wide]
        share = functools.partial(_sum_per_component, components=block_components, num_components=num_components)
        attended = _attend_blocks(*blocks, num_heads=num_heads, share=share)
        attended = tf.gather(tf.reshape(attended, tf.concat([[-1], shape[1:]], 0)), positions)
    return tf.cast(tf.reshape(attended, shape), value.dtype)


def is_single(num_graphs: int | tf.Tensor) -> bool:
    """Whether there is known to be one graph: then it needs no blocks of its own."""
    return isinstance(num_graphs, int) and num_graphs == 1


def _attend_blocks(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    *,
    num_heads: int,
    share: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
) -> tf.Tensor:
    """[blocks, nodes, (candidates,) width] each; `share` adds up [blocks, ...] over the blocks of each graph.

    All heads go through one product of full width whose foreign-head entries are then dropped: more arithmetic than a
    product per head, but no array of nodes is ever transposed, and that costs more.
    """
    if value.shape.rank == 4:
        query, key, value = (tf.transpose(array, [0, 2, 1, 3]) for array in (query, key, value))
    head_of = tf.range(value.shape[-1]) % num_heads  # heads last
    to_head = tf.one_hot(head_of, num_heads)  # [width, num_heads]
    products = share(tf.matmul(key, value, transpose_a=True)) * tf.matmul(to_head, to_head, transpose_b=True)
    sums = share(tf.reduce_sum(key, -2))[..., tf.newaxis] * to_head  # [blocks, (candidates,) width, num_heads]
    inverse = tf.math.reciprocal_no_nan(tf.matmul(query, sums))  # [blocks, (candidates,) nodes, num_heads]
    repeats = [1] * (inverse.shape.rank - 1) + [value.shape[-1] // num_heads]
    attended = tf.matmul(query, products) * tf.tile(inverse, repeats)
    return tf.transpose(attended, [0, 2, 1, 3]) if value.shape.rank == 4 else attended


def _sum_per_component(arrays: tf.Tensor, components: tf.Tensor, num_components: int | tf.Tensor) -> tf.Tensor:
    """Sums over the blocks of each graph and hands every block its graph's sum."""
    return tf.gather(tf.math.unsorted_segment_sum(arrays, components, num_components), components)


def block_layout(
    component_ids: tf.Tensor, num_components: int | tf.Tensor, block_nodes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Gives each graph whole blocks of `block_nodes`, which keeps the work linear and every shape static.

    Returns:
      positions: [num_nodes], the place of each node in the blocks laid end to end.
      block_components: [num_nodes // block_nodes + num_components], the graph of each block.
    """
    ids = tf.cast(component_ids, tf.int32)
    num_nodes = ids.shape[0] if ids.shape[0] is not None else tf.shape(ids)[0]
    sizes = tf.math.unsorted_segment_sum(tf.ones_like(ids), ids, num_components)
    counts = (sizes + block_nodes - 1) // block_nodes
    first_block = tf.cumsum(counts, exclusive=True)
    first_node = tf.cumsum(sizes, exclusive=True)
    positions = tf.range(num_nodes) + tf.gather(first_block * block_nodes - first_node, ids)
    blocks = tf.range(num_nodes // block_nodes + num_components)
    ends = first_block + counts
    # Unused blocks at the end hold zeros, so their graph does not matter.
    components = tf.reduce_sum(tf.cast(blocks[:, tf.newaxis] >= ends[tf.newaxis, :], tf.int32), 1)
    return positions, tf.minimum(components, num_components - 1)


def to_blocks(array: tf.Tensor, positions: tf.Tensor, num_blocks: tf.Tensor, block_nodes: int) -> tf.Tensor:
    """[num_nodes, ...] -> [num_blocks, block_nodes, ...], zeros where no node stands."""
    tail = tf.shape(array)[1:]
    placed = tf.scatter_nd(positions[:, tf.newaxis], array, tf.concat([[num_blocks * block_nodes], tail], 0))
    return tf.reshape(placed, tf.concat([[num_blocks, block_nodes], tail], 0))

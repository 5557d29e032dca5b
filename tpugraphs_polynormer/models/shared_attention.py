"""Global attention and pooling over the two parts of a frontier: nodes that vary by candidate, and nodes that do not.

A part is [num_nodes, candidates or 1, dim]. Keys and values of shared nodes are summed once for all candidates; since
every node sees these sums, every node varies from then on.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tpugraphs_polynormer.layers.global_attention import GlobalAttention, block_layout, is_single, to_blocks
from tpugraphs_polynormer.layers.shared_states import SharedStates
from tpugraphs_polynormer.models.ranking.heads import pool


class _Blocks(NamedTuple):
    """Where a part's nodes stand in blocks that hold nodes of one graph each."""

    positions: tf.Tensor | None  # [num_nodes], None for a single graph: one block as long as the part
    graphs: tf.Tensor  # [num_blocks]
    nodes: int  # in a block

    def cut(self, part: tf.Tensor) -> tf.Tensor:
        """[num_nodes, ...] -> [num_blocks, nodes, ...]."""
        if self.positions is None:
            return part[tf.newaxis]
        return to_blocks(part, self.positions, tf.shape(self.graphs)[0], self.nodes)

    def join(self, blocks: tf.Tensor) -> tf.Tensor:
        """[num_blocks, nodes, ...] -> [num_nodes, ...]."""
        if self.positions is None:
            return blocks[0]
        tail = tf.shape(blocks)[2:]
        return tf.gather(tf.reshape(blocks, tf.concat([[-1], tail], 0)), self.positions)


def attend_parts(
    layer: GlobalAttention, parts: tuple[tf.Tensor, ...], frontier: SharedStates, num_graphs: int | tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """The global layer on (varying, shared) -> the same two parts, both [nodes, candidates, dim]."""
    layouts = [
        _lay_out(graphs, num_graphs, layer.block_nodes) for graphs in frontier.split_nodes(frontier.reach.graphs)
    ]
    projected = [layer.project(part) for part in parts]
    masks = frontier.split_nodes(tf.cast(frontier.reach.node_mask, tf.float32))
    products, sums = 0.0, 0.0
    for layout, (_, key, value), mask in zip(layouts, projected, masks, strict=True):
        more_products, more_sums = _sum_keys(key, value, mask, layout, num_graphs)
        products, sums = products + more_products, sums + more_sums
    head_of = tf.one_hot(tf.range(products.shape[-1]) % layer.num_heads, layer.num_heads)  # [width, heads], heads last
    products *= tf.matmul(head_of, head_of, transpose_b=True)
    sums = sums[..., tf.newaxis] * head_of  # [graphs, candidates, width, heads]
    results = []
    for part, (query, _, _), layout in zip(parts, projected, layouts, strict=True):
        read = _read_shared if part.shape[1] == 1 else _read_varying
        attended = read(tf.cast(query, tf.float32), products, sums, layout)
        results.append(layer.combine(part, tf.cast(attended, part.dtype)))
    return tuple(results)


def pool_parts(
    parts: tuple[tf.Tensor, ...], frontier: SharedStates, weights: tf.Tensor, num_graphs: int | tf.Tensor
) -> tf.Tensor:
    """Parts and the weights of each node [num_nodes, 1 or dim] -> [graphs, candidates, dim]: sums over each graph."""
    of_parts = (frontier.split_nodes(weights), frontier.split_nodes(frontier.reach.graphs))
    varying, shared = (
        pool(part, part_weights, graphs, num_graphs)
        for part, part_weights, graphs in zip(parts, *of_parts, strict=True)
    )
    return varying + shared


def _lay_out(graphs: tf.Tensor, num_graphs: int | tf.Tensor, block_nodes: int) -> _Blocks:
    if is_single(num_graphs):
        return _Blocks(None, tf.zeros([1], tf.int32), block_nodes)
    # Blocks are laid out for sorted graphs; a part is sorted by hops first.
    order = tf.argsort(graphs, stable=True)
    positions, block_graphs = block_layout(tf.gather(graphs, order), num_graphs, block_nodes)
    return _Blocks(tf.gather(positions, tf.math.invert_permutation(order)), block_graphs, block_nodes)


def _sum_keys(
    key: tf.Tensor, value: tf.Tensor, mask: tf.Tensor, layout: _Blocks, num_graphs: int | tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Over each graph's real nodes: key^T value [graphs, candidates, width, width], key [graphs, candidates, width]."""
    real = mask[:, tf.newaxis, tf.newaxis]
    key, value = (tf.transpose(layout.cut(tf.cast(part, tf.float32) * real), [0, 2, 1, 3]) for part in (key, value))
    products = tf.matmul(key, value, transpose_a=True)
    sums = tf.reduce_sum(key, 2)
    return tuple(tf.math.unsorted_segment_sum(each, layout.graphs, num_graphs) for each in (products, sums))


def _read_varying(query: tf.Tensor, products: tf.Tensor, sums: tf.Tensor, layout: _Blocks) -> tf.Tensor:
    """Queries [nodes, candidates, width], each against its graph's and its candidate's sums."""
    blocks = tf.transpose(layout.cut(query), [0, 2, 1, 3])  # [blocks, candidates, nodes, width]
    inverse = tf.math.reciprocal_no_nan(tf.matmul(blocks, tf.gather(sums, layout.graphs)))
    attended = tf.matmul(blocks, tf.gather(products, layout.graphs))
    attended *= tf.tile(inverse, [1, 1, 1, products.shape[-1] // sums.shape[-1]])
    return layout.join(tf.transpose(attended, [0, 2, 1, 3]))


def _read_shared(query: tf.Tensor, products: tf.Tensor, sums: tf.Tensor, layout: _Blocks) -> tf.Tensor:
    """Queries [nodes, 1, width] against the sums of all candidates: one product, and nothing large is transposed."""
    blocks = layout.cut(query[:, 0])  # [blocks, nodes, width]
    inverse = tf.math.reciprocal_no_nan(_matmul_all(blocks, tf.gather(sums, layout.graphs)))
    attended = _matmul_all(blocks, tf.gather(products, layout.graphs))
    return layout.join(attended * tf.tile(inverse, [1, 1, 1, products.shape[-1] // sums.shape[-1]]))


def _matmul_all(rows: tf.Tensor, matrices: tf.Tensor) -> tf.Tensor:
    """[blocks, nodes, width] times each of [blocks, candidates, width, w]: [blocks, nodes, candidates, w]."""
    shape = tf.shape(matrices)
    side_by_side = tf.reshape(tf.transpose(matrices, [0, 2, 1, 3]), [shape[0], shape[2], shape[1] * shape[3]])
    product = tf.matmul(rows, side_by_side)
    return tf.reshape(product, [shape[0], tf.shape(rows)[1], shape[1], matrices.shape[-1]])

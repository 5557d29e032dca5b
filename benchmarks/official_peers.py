"""The official layout and tile baselines with the operations of their code, the peers of benchmarks/ranking_step.py.

The code is our own, written after reading theirs. As in theirs, every candidate has its own copy of every node; the
product with an adjacency matrix gathers along edges and uses an unsorted segment sum; the product with its transpose
reverses all axes of the states before and after; states are divided by the roots of degrees before and after each
product. In training, the layout model runs twice, on all edges and on those of a sampled segment, and uses the second
result for the nodes of the segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tpugraphs_polynormer.layers.ops.formulation import in_xla

if TYPE_CHECKING:
    from tpugraphs_polynormer.models.ranking.batch import Batch

SEGMENT_NODES = 1000  # of the training segment, the official default
_NUM_OPCODES = 121
_TILE_BOUNDS = 24


def _dense_layers(widths: list[int], *, use_bias: bool = True) -> tf.keras.Sequential:
    """Dense layers with leaky ReLUs between them."""
    layers = []
    for number, width in enumerate(widths):
        if number:
            layers.append(tf.keras.layers.Activation("leaky_relu"))
        layers.append(tf.keras.layers.Dense(width, use_bias=use_bias))
    return tf.keras.Sequential(layers)


class _Operands:
    """The matrix with a 1 for each operand (consumer, producer) and its transpose, which multiply states [n, ...]."""

    def __init__(
        self, producers: tf.Tensor, consumers: tf.Tensor, num_ops: tf.Tensor, kept: tf.Tensor | None = None
    ) -> None:
        self.producers, self.consumers, self.num_ops = producers, consumers, num_ops
        if kept is not None:  # of static shape: an operand that is left out adds to a row that does not exist
            self.consumers, self.producers = (tf.where(kept, ends, -1) for ends in (consumers, producers))

    def apply(self, states: tf.Tensor) -> tf.Tensor:
        sent = tf.gather(states, tf.maximum(self.producers, 0))
        return tf.math.unsorted_segment_sum(sent, self.consumers, self.num_ops)

    def apply_transposed(self, states: tf.Tensor) -> tf.Tensor:
        states = tf.transpose(tf.transpose(states))
        sent = tf.gather(states, tf.maximum(self.consumers, 0))
        summed = tf.math.unsorted_segment_sum(sent, self.producers, self.num_ops)
        return tf.transpose(tf.transpose(summed))

    def apply_normalized(self, states: tf.Tensor) -> tf.Tensor:
        """The product with the symmetrically normalized matrix: both directions and self-loops."""

        def mix(states: tf.Tensor) -> tf.Tensor:
            itself = tf.einsum("i,i...->i...", tf.ones([self.num_ops]), states)
            return tf.add_n([self.apply(states), self.apply_transposed(states), itself])

        root = tf.math.rsqrt(mix(tf.ones([self.num_ops])))
        return tf.einsum("i,i...->i...", root, mix(tf.einsum("i,i...->i...", root, states)))


class _Peer(tf.keras.Model):
    """A model whose `encode` does nothing and whose `score` [1, k] computes everything for every candidate."""

    def __init__(self, opcode_dim: int) -> None:
        super().__init__()
        self.opcodes = tf.keras.layers.Embedding(_NUM_OPCODES, opcode_dim)

    def encode(self, batch: Batch, *, training: bool) -> tf.Tensor:
        return tf.zeros([])

    def operands(self, batch: Batch) -> _Operands:
        return _Operands(batch.producers, batch.consumers, tf.shape(batch.features)[0])


class OfficialLayoutPeer(_Peer):
    """The layout baseline: two dense layers, residual layers with the candidate as input, three poolings."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__(opcode_dim=32)
        self.prenet = _dense_layers([width, width])
        self.layers_of_graph = [_dense_layers([width, width]) for _ in range(num_layers)]
        self.postnet = _dense_layers([width, 1], use_bias=False)

    def score(self, batch: Batch, encoded: tf.Tensor, *, training: bool) -> tf.Tensor:
        nodes = tf.concat([batch.features, self.opcodes(batch.opcodes)], -1)
        config_values, operands = tf.gather(batch.config_values, batch.codes), self.operands(batch)
        states = self._run(tf.stop_gradient(nodes), config_values, operands, batch)
        if training:
            selected = tf.range(operands.num_ops) < SEGMENT_NODES
            kept = tf.gather(selected, batch.producers) & tf.gather(selected, batch.consumers)
            ends = batch.producers, batch.consumers
            if in_xla():
                inside = _Operands(*ends, operands.num_ops, kept)
            else:
                inside = _Operands(*(tf.boolean_mask(each, kept) for each in ends), operands.num_ops)
            segment = self._run(nodes, config_values, inside, batch)
            states = tf.where(selected[:, tf.newaxis, tf.newaxis], segment, states)
        pooled = [
            tf.reduce_mean(states, 0),
            tf.nn.l2_normalize(tf.reduce_sum(states, 0), -1),
            tf.nn.l2_normalize(tf.reduce_sum(tf.gather(states, batch.nconfig_ops), 0), -1),
        ]
        return -tf.squeeze(self.postnet(tf.concat(pooled, -1)), -1)[tf.newaxis]

    def _run(self, nodes: tf.Tensor, config_values: tf.Tensor, operands: _Operands, batch: Batch) -> tf.Tensor:
        joined = 100 * tf.math.unsorted_segment_sum(config_values, batch.nconfig_ops, operands.num_ops)  # [n, k, 18]
        states = tf.repeat(nodes[:, tf.newaxis], tf.shape(config_values)[1], 1)
        states = tf.nn.leaky_relu(self.prenet(tf.concat([joined, states], -1)))
        for layer in self.layers_of_graph:
            mixed = operands.apply_normalized(tf.concat([joined, states], -1))
            states += tf.nn.leaky_relu(layer(mixed))
        return states


class OfficialTilePeer(_Peer):
    """The tile baseline: GraphSAGE with sums; the input of every node contains the candidate's bounds."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__(opcode_dim=64)
        self.layers_of_graph = [_dense_layers([width]) for _ in range(num_layers)]
        self.postnet = _dense_layers([width, width, 1])

    def score(self, batch: Batch, encoded: tf.Tensor, *, training: bool) -> tf.Tensor:
        operands, num_candidates = self.operands(batch), tf.shape(batch.codes)[1]
        bounds = tf.transpose(tf.gather(batch.config_values, batch.codes), [1, 0, 2])
        bounds = tf.reshape(bounds, [1, num_candidates, _TILE_BOUNDS])
        parts = [self.opcodes(batch.opcodes), tf.gather(bounds, batch.op_graph_ids), batch.features]
        states = tf.concat(
            [part if part.shape.rank == 3 else tf.repeat(part[:, tf.newaxis], num_candidates, 1) for part in parts], -1
        )
        for layer in self.layers_of_graph:
            mixed = tf.add_n([operands.apply(states), operands.apply_transposed(states)])
            states = tf.nn.l2_normalize(tf.nn.leaky_relu(layer(tf.concat([mixed, states], -1))), -1)
        return -tf.squeeze(self.postnet(tf.reduce_sum(states, 0)), -1)[tf.newaxis]

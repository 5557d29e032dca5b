"""How candidates meet node states after the encoder, and how node states become one vector per candidate."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tpugraphs_polynormer.layers.dense import Linear, build_layers
from tpugraphs_polynormer.layers.dropout import Dropout
from tpugraphs_polynormer.layers.neighbours import Graphs
from tpugraphs_polynormer.layers.normalization import l2_normalize
from tpugraphs_polynormer.layers.registration import Configured, register


class Pool(NamedTuple):
    """One way to sum a graph's nodes into a vector."""

    weights: tf.Tensor  # [n, 1 or dim] float32
    unit_length: bool = False  # whether the sums are brought to length 1


def join_pools(sums: Iterable[tf.Tensor], pools: Sequence[Pool]) -> tf.Tensor:
    """The sums [G, k, dim] of each pool, one beside the other: [G, k, pools * dim]."""
    joined = [l2_normalize(each) if how.unit_length else each for each, how in zip(sums, pools, strict=True)]
    return tf.concat(joined, -1) if len(joined) > 1 else joined[0]


def pool(states: tf.Tensor, weights: tf.Tensor, graphs: Graphs) -> tf.Tensor:
    """[s, k, dim] of nodes, weighted by [s, 1 or dim] -> sums [G, k, dim] of graphs, as one product of matrices."""
    if weights.shape[-1] == 1:  # cheaper to multiply than the states
        return tf.cast(graphs.sum(states, weights), states.dtype)
    weighted = tf.cast(states, tf.float32) * weights[:, tf.newaxis]
    return tf.cast(graphs._replace(mask=None).sum(weighted), states.dtype)


def pool_parts(parts: Sequence[tf.Tensor], weights: Sequence[tf.Tensor], graphs: Sequence[Graphs]) -> tf.Tensor:
    """The sum of `pool` over the parts of a batch: [nodes, k or 1, dim] each -> [G, k, dim]."""
    first, *others = (pool(*part) for part in zip(parts, weights, graphs, strict=True))
    return sum(others, start=first)


def pool_max(parts: Sequence[tf.Tensor], counted: Sequence[tf.Tensor], graphs: Sequence[Graphs]) -> tf.Tensor:
    """Parts [nodes, k or 1, dim] -> [G, k, dim]: the maxima over the nodes where `counted` [nodes] is True, or 0."""
    lowest = parts[0].dtype.min
    highest = (
        tf.math.unsorted_segment_max(tf.where(counts[:, tf.newaxis, tf.newaxis], part, lowest), each.ids, each.count)
        for part, counts, each in zip(parts, counted, graphs, strict=True)
    )
    result = functools.reduce(tf.maximum, highest)
    return tf.where(result > lowest, result, tf.zeros([], result.dtype))


def pool_weights(graphs: Graphs, how: str) -> tf.Tensor:
    """[s, 1] float32: what each node counts in its graph's pool; "sum" divides by sqrt(nodes), "mean" by nodes.

    Runtimes add up over nodes, so sums are what ranks; the root keeps graphs of all sizes in one range.
    """
    weights = tf.cast(graphs.mask, tf.float32)
    counts = tf.math.unsorted_segment_sum(weights, graphs.ids, graphs.count)
    scale = tf.math.rsqrt(tf.maximum(counts, 1.0)) if how == "sum" else 1 / tf.maximum(counts, 1.0)
    return (weights * tf.gather(scale, graphs.ids))[:, tf.newaxis]


def softmax_weights(logits: tf.Tensor, graphs: Graphs) -> tf.Tensor:
    """[s, dim] float32: the softmax of logits [s, dim] over the real nodes of each graph, channel by channel.

    A program's time is spent in few of its nodes: sizes, whose logarithms the states hold, span orders of magnitude,
    and so do these weights.
    """
    real = graphs.mask[:, tf.newaxis]
    logits = tf.where(real, tf.cast(logits, tf.float32), -1e30)
    highest = tf.stop_gradient(tf.math.unsorted_segment_max(logits, graphs.ids, graphs.count))
    weights = tf.where(real, tf.exp(logits - tf.gather(highest, graphs.ids)), 0.0)
    total = tf.math.unsorted_segment_sum(weights, graphs.ids, graphs.count)
    return weights * tf.gather(tf.math.reciprocal_no_nan(total), graphs.ids)


@register
class FusionHead(Configured, tf.keras.layers.Layer):
    """States of config nodes [s, dim] and the candidates' config_states [s, k, dim] -> fused states [s, k, dim].

    fused = relu(states W + config_states), then dense layers with residuals.
    """

    def __init__(self, *, dim: int, num_layers: int, dropout_rate: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        self.join = Linear(dim, name="join")
        self.layers = [Linear(dim, activation="relu", name=f"dense_{i}") for i in range(num_layers)]
        self.dropout = Dropout(rate=dropout_rate)

    def build(self, shape: tf.TensorShape) -> None:
        build_layers([self.join, *self.layers], tf.TensorShape([None, self.dim]))
        super().build(shape)

    def call(self, states: tf.Tensor, config_states: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        fused = tf.nn.relu(self.join(states)[:, tf.newaxis] + config_states)
        for layer in self.layers:
            fused += layer(self.dropout(fused, training=training))
        return fused


@register
class CandidateAttention(Configured, tf.keras.layers.Layer):
    """Softmax attention among the candidates of a graph, [G, k, dim] -> [G, k, dim]; masked candidates are not seen."""

    def __init__(self, *, dim: int, num_heads: int, **kwargs):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        self.attention = tf.keras.layers.MultiHeadAttention(num_heads, dim // num_heads, name="attention")
        self.norm = tf.keras.layers.LayerNormalization(epsilon=1e-5, name="norm")

    def call(self, states: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        normed = self.norm(states)
        return states + self.attention(normed, normed, attention_mask=mask[:, tf.newaxis, :])

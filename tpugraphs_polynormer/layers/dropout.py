"""Dropout whose random state is a saved variable, so that a resumed run draws what the killed one would have drawn."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.directed_edges import DirectedEdges, Edges, map_directions
from tpugraphs_polynormer.layers.registration import Configured, register

_LEVELS = 1 << 16


class SeededLayer(Configured, tf.keras.layers.Layer):
    """A layer that draws random numbers from a state that is saved with its weights.

    The state is a pair (seed of this layer, number of draws). The seed is drawn at creation, so that
    tf.keras.utils.set_random_seed governs it. Replicas draw different numbers.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.state = self.add_weight(
            "state",
            shape=[2],
            dtype=tf.int64,
            trainable=False,
            initializer=_start_state,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def draw_seed(self) -> tf.Tensor:
        """[2] int64, a new seed for tf.random.stateless_*; counts the draw."""
        context = tf.distribute.get_replica_context()
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64) if context else tf.constant(0, tf.int64)
        seed = self.state + tf.stack([replica * (1 << 32), tf.zeros_like(replica)])
        self.state.assign_add(tf.constant([0, 1], tf.int64))  # a list fails with several replicas
        return seed


@register
class Dropout(SeededLayer):
    """Zeroes each element with probability `rate` in training and scales the others by 1 / (1 - rate).

    Example:
      >>> layer = tp.layers.Dropout(rate=0.5)
      >>> sorted(set(layer(tf.ones([1000]), training=True).numpy().tolist()))
      [0.0, 2.0]
    """

    def __init__(self, *, rate: float, **kwargs):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        if not 0 <= rate < 1:
            raise ValueError(f"dropout rate {rate} is outside [0, 1)")

    def call(self, states: tf.Tensor, *, training: bool | None = None) -> tf.Tensor:
        if not training or self.rate == 0:
            return states
        keep = _random_levels(tf.shape(states), self.draw_seed()) >= round(self.rate * _LEVELS)
        scale = tf.cast(1 / (1 - self.rate), states.dtype)
        return tf.where(keep, states * scale, tf.zeros([], states.dtype))


@register
class EdgeDropout(SeededLayer):
    """Drops each edge with probability `rate`, both directions of an edge together, never a self-loop (DropEdge).

    Every node draws a random word, and a hash of the sum of its ends' words decides about an edge. So the two
    directions agree wherever they are in the list, and nothing is sorted or searched. What is left is not scaled:
    means, attention and GCN sums divide by what is left anyway.

    Args:
      rate: the share that is dropped.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> kept = tp.layers.EdgeDropout(rate=0.5).thin(edges, training=True)
      >>> kept.source.shape == edges.source.shape  # the shapes stay, the mask changes
      True
    """

    def __init__(self, *, rate: float, **kwargs):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        if not 0 <= rate < 1:
            raise ValueError(f"edge dropout rate {rate} is outside [0, 1)")

    def thin(self, edges: Edges | DirectedEdges, *, training: bool | None = None) -> Edges | DirectedEdges:
        """The edges with dropped ones masked in training, the same in each direction; otherwise as they are."""
        if not training or self.rate == 0:
            return edges
        seed = self.draw_seed()
        words = tf.random.stateless_uniform([edges.num_nodes], seed, minval=None, maxval=None, dtype=tf.uint32)

        def mask_dropped(each: Edges) -> Edges:
            keep = self._keeps(words, each.source, each.target)
            return each._replace(mask=keep if each.mask is None else each.mask & keep)

        return map_directions(mask_dropped, edges)

    def _keeps(self, words: tf.Tensor, source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """[num_edges] bool: which of the edges with these ends [num_edges] are kept."""
        hashed = _hash_words(tf.gather(words, source) + tf.gather(words, target))
        levels = tf.cast(_shift_right(hashed, 16), tf.int32)
        return (levels >= round(self.rate * _LEVELS)) | (source == target)


def _hash_words(words: tf.Tensor) -> tf.Tensor:
    """uint32 -> uint32, a bijection in which every bit changes the others (the finalizer of MurmurHash3)."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        words = (words ^ _shift_right(words, shift)) * tf.constant(factor, tf.uint32)
    return words


def _shift_right(words: tf.Tensor, by: int) -> tf.Tensor:
    return tf.bitwise.right_shift(words, tf.constant(by, tf.uint32))


def _start_state(shape: tf.TensorShape, dtype: tf.DType | None = None) -> tf.Tensor:
    return tf.concat([tf.random.uniform([1], maxval=1 << 31, dtype=tf.int64), tf.zeros([1], tf.int64)], 0)


def _random_levels(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Uniform uint16, two from each random word: drawing is the larger part of dropout's cost."""
    count = tf.reduce_prod(shape)
    words = tf.random.stateless_uniform([(count + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32)
    levels = tf.cast(tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:count], tf.int32)
    return tf.reshape(levels, shape)

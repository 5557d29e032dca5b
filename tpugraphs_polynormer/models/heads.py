"""How candidates meet node states after the trunk, and how node states become one vector per candidate."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.models.convolutions import Linear
from tpugraphs_polynormer.models.dropout import Dropout
from tpugraphs_polynormer.models.global_attention import GlobalAttention

_SLOT_BLOCK = 32  # graphs have tens to hundreds of slots


def pool(states: tf.Tensor, graphs: tf.Tensor, mask: tf.Tensor, num_graphs: int | tf.Tensor, how: str) -> tf.Tensor:
    """[s, k, dim] of nodes -> [G, k, dim] of graphs without the masked; "sum" divides by sqrt(nodes), "mean" by nodes.

    Runtimes add up over nodes, so sums are what ranks; the root keeps graphs of all sizes in one range.
    """
    weights = pool_weights(graphs, mask, num_graphs, how)
    weighted = tf.cast(states, tf.float32) * weights[:, tf.newaxis, tf.newaxis]
    return tf.cast(tf.math.unsorted_segment_sum(weighted, graphs, num_graphs), states.dtype)


def pool_weights(graphs: tf.Tensor, mask: tf.Tensor, num_graphs: int | tf.Tensor, how: str) -> tf.Tensor:
    """[s] float32: what each node counts in its graph's pool."""
    weights = tf.cast(mask, tf.float32)
    counts = tf.math.unsorted_segment_sum(weights, graphs, num_graphs)
    scale = tf.math.rsqrt(tf.maximum(counts, 1.0)) if how == "sum" else 1 / tf.maximum(counts, 1.0)
    return weights * tf.gather(scale, graphs)


class FusionHead(tf.keras.layers.Layer):
    """Slot states [s, dim] and the candidates' choices [s, k, dim] -> fused states [s, k, dim].

    fused = relu(states W + choices), dense layers with residuals, then (optionally) linear attention among the slots of
    a graph, per candidate: what one slot's choice costs depends on the others'.
    """

    def __init__(
        self, *, dim: int, num_heads: int, num_layers: int, slot_attention: bool, dropout_rate: float = 0.0, **kwargs
    ):
        super().__init__(**kwargs)
        self.dim = dim
        self.num_heads = num_heads
        self.num_layers = num_layers
        self.slot_attention = slot_attention
        self.dropout_rate = dropout_rate
        self.join = Linear(dim, name="join")
        self.layers = [Linear(dim, activation="relu", name=f"dense_{i}") for i in range(num_layers)]
        self.dropout = Dropout(rate=dropout_rate)
        self.attention = None
        if slot_attention:
            self.attention = GlobalAttention(
                num_heads=num_heads, head_dim=dim // num_heads, block_nodes=_SLOT_BLOCK, name="attention"
            )

    def build(self, shape: tf.TensorShape) -> None:
        shape = tf.TensorShape([None, self.dim])
        for layer in (self.join, *self.layers):
            layer.build(shape)
        if self.attention is not None:
            self.attention.build(shape)
        super().build(shape)

    def call(
        self,
        states: tf.Tensor,
        choices: tf.Tensor,
        graphs: tf.Tensor,
        mask: tf.Tensor,
        num_graphs: int | tf.Tensor,
        training: bool | None = None,
    ) -> tf.Tensor:
        fused = tf.nn.relu(self.join(states)[:, tf.newaxis] + choices)
        for layer in self.layers:
            fused += layer(self.dropout(fused, training=training))
        if self.attention is not None:
            fused += self.attention(fused, component_ids=graphs, num_components=num_graphs, node_mask=mask)
        return fused

    def get_config(self) -> dict:
        names = ("dim", "num_heads", "num_layers", "slot_attention", "dropout_rate")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


class CandidateAttention(tf.keras.layers.Layer):
    """Softmax attention among the candidates of a graph, [G, k, dim] -> [G, k, dim]; masked candidates are not seen."""

    def __init__(self, *, dim: int, num_heads: int, **kwargs):
        super().__init__(**kwargs)
        self.dim = dim
        self.num_heads = num_heads
        self.attention = tf.keras.layers.MultiHeadAttention(num_heads, dim // num_heads, name="attention")
        self.norm = tf.keras.layers.LayerNormalization(epsilon=1e-5, name="norm")

    def call(self, states: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        normed = self.norm(states)
        return states + self.attention(normed, normed, attention_mask=mask[:, tf.newaxis, :])

    def get_config(self) -> dict:
        return {**super().get_config(), "dim": self.dim, "num_heads": self.num_heads}

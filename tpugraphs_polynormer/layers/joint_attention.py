"""The local-and-global layer of the paper's ablation: local and linear attention added inside one product."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.dense import build_layers
from tpugraphs_polynormer.layers.dropout import Dropout
from tpugraphs_polynormer.layers.edge_index import EdgeIndex
from tpugraphs_polynormer.layers.global_attention import GlobalAttention
from tpugraphs_polynormer.layers.local_attention import build_convolution


class JointAttention(GlobalAttention):
    """App. F: out = LayerNorm(A V + linear attention) * (states W_h + b + beta), normalised as GlobalAttention is.

    Arguments of GlobalAttention, and:
      conv: `gat` or `gcn`, for A V.
      relu: ReLU on the result. dropout_rate: after it. formulation: see layers/ops.
    """

    def __init__(
        self,
        *,
        conv: str = "gat",
        relu: bool = True,
        dropout_rate: float = 0.0,
        formulation: str = "auto",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.conv = conv
        self.relu = relu
        self.dropout_rate = dropout_rate
        self.formulation = formulation
        self.convolve = build_convolution(
            conv, num_heads=self.num_heads, head_dim=self.head_dim, formulation=formulation
        )
        self.dropout = Dropout(rate=dropout_rate)

    def build(self, shape: tf.TensorShape) -> None:
        build_layers([self.convolve], tf.TensorShape(shape))
        super().build(shape)

    def call(
        self,
        states: tf.Tensor,
        edges: EdgeIndex,
        *,
        component_ids: tf.Tensor | None = None,
        num_components: int | tf.Tensor = 1,
        node_mask: tf.Tensor | None = None,
        fiedler: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        attended = self.attend(states, component_ids=component_ids, num_components=num_components, node_mask=node_mask)
        mixed = self.norm(attended + self.convolve(states, edges))
        out = mixed * (self.factor(states) + self.gate(mixed, fiedler=fiedler))
        return self.dropout(tf.nn.relu(out) if self.relu else out, training=training)

    def get_config(self) -> dict:
        names = ("conv", "relu", "dropout_rate", "formulation")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}

"""The local-and-global layer of the paper's ablation: local and linear attention added inside one product."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.dense import build_layers
from tpugraphs_polynormer.layers.dropout import Dropout
from tpugraphs_polynormer.layers.global_attention import GlobalAttention
from tpugraphs_polynormer.layers.local_attention import build_convolution
from tpugraphs_polynormer.layers.neighbours import ONE_GRAPH, Graphs, Neighbours
from tpugraphs_polynormer.layers.registration import register


@register
class JointAttention(GlobalAttention):
    """App. F: out = LayerNorm(A V + linear attention) * (states W_h + b + beta), normalised as GlobalAttention is.

    Its steps are those of GlobalAttention, and the steps of `convolve` beside them.

    Args: those of GlobalAttention, and
      conv: `gat` or `gcn`, for A V.
      relu: ReLU on the result. dropout_rate: after it. formulation: see layers/ops. directed: see LocalAttention.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> tp.layers.JointAttention(num_heads=2, head_dim=4)(tf.ones([3, 5]), edges).shape
      TensorShape([3, 8])
    """

    def __init__(
        self,
        *,
        conv: str = "gat",
        relu: bool = True,
        directed: bool = False,
        dropout_rate: float = 0.0,
        formulation: str = "auto",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        self.convolve = build_convolution(
            conv, num_heads=self.num_heads, head_dim=self.head_dim, formulation=formulation, directed=directed
        )
        self.dropout = Dropout(rate=dropout_rate)

    def build(self, shape: tf.TensorShape) -> None:
        build_layers([self.convolve], tf.TensorShape(shape))
        super().build(shape)

    def combine(
        self,
        states: tf.Tensor,
        aggregated: tf.Tensor,
        *,
        fiedler: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """Norm, gate, ReLU and dropout, row by row; `aggregated` is the sum of both attentions."""
        out = super().combine(states, aggregated, fiedler=fiedler)
        return self.dropout(tf.nn.relu(out) if self.relu else out, training=training)

    def call(
        self,
        states: tf.Tensor,
        near: Neighbours,
        *,
        graphs: Graphs = ONE_GRAPH,
        fiedler: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        aggregated = self.aggregate(self.project(states), Graphs(*graphs)) + self.convolve(states, near)
        return self.combine(states, aggregated, fiedler=fiedler, training=training)

"""Polynormer's local layer: a graph convolution multiplied by a linear map of the same states."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.convolutions import Convolution, DirectedConvolution, GraphAttention, GraphConvolution
from tpugraphs_polynormer.layers.dense import Linear, build_layers
from tpugraphs_polynormer.layers.dropout import Dropout
from tpugraphs_polynormer.layers.edge_index import as_neighbours
from tpugraphs_polynormer.layers.gate import Gate, gated_product
from tpugraphs_polynormer.layers.neighbours import ONE_GRAPH, Graphs, Neighbours
from tpugraphs_polynormer.layers.normalization import LayerNorm, MaskedBatchNorm
from tpugraphs_polynormer.layers.registration import Configured, register

CONVOLUTIONS = ("gat", "gcn")


@register
class LocalAttention(Configured, tf.keras.layers.Layer):
    """Local equivariant attention (Eq. 7, as implemented in Eq. 12).

    h = relu(states W_h); x = relu(conv(states) + states W + b); out = (1 - beta) * LayerNorm(h * x) + beta * x.

    States [num_nodes, dim] or [num_nodes, candidates, dim] -> the same with num_heads * head_dim. Padding nodes change
    nothing as long as padding edges join padding nodes (or are masked); batch norm reads the mask of `graphs`.

    Args:
      num_heads, head_dim: the output width is their product.
      conv: `gat` (attention) or `gcn`.
      beta, learn_beta: see Gate.
      pre_norm: layer norm before everything else. post_norm: batch norm after conv + linear.
      relu: Polynormer-r; False leaves the pure polynomial.
      directed: weights of their own along and against the edges, which must know their direction.
      dropout_rate: after the activation.
      formulation: see layers/ops.
      recompute: recompute the gated product in the backward pass instead of keeping it.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> layer = tp.layers.LocalAttention(num_heads=2, head_dim=4, dropout_rate=0.1)
      >>> layer(tf.ones([3, 5]), edges, training=True).shape
      TensorShape([3, 8])
      >>> layer(tf.ones([3, 6, 5]), edges).shape  # six candidates
      TensorShape([3, 6, 8])
    """

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        conv: str = "gat",
        beta: float = -1.0,
        learn_beta: bool = True,
        pre_norm: bool = False,
        post_norm: bool = False,
        relu: bool = True,
        directed: bool = False,
        dropout_rate: float = 0.0,
        formulation: str = "auto",
        recompute: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        units = num_heads * head_dim
        self.convolve = build_convolution(
            conv, num_heads=num_heads, head_dim=head_dim, formulation=formulation, directed=directed
        )
        self.linear = Linear(units, name="linear")
        self.factor = Linear(units, name="factor")
        self.gate = Gate(beta=beta, learn_beta=learn_beta, name="gate")
        self.norm = LayerNorm(name="norm")
        self.norm_before = LayerNorm(name="norm_before") if pre_norm else None
        self.norm_after = MaskedBatchNorm(name="norm_after") if post_norm else None
        self.dropout = Dropout(rate=dropout_rate)

    def build(self, shape: tf.TensorShape) -> None:
        shape = tf.TensorShape(shape)
        out_shape = shape[:-1].concatenate([self.num_heads * self.head_dim])
        build_layers([self.norm_before, self.convolve, self.linear, self.factor], shape)
        build_layers([self.norm_after, self.gate, self.norm], out_shape)
        super().build(shape)

    def normalize(self, states: tf.Tensor) -> tf.Tensor:
        """The states that the three steps take: normalised if `pre_norm`, else as they are."""
        return states if self.norm_before is None else self.norm_before(states)

    def project(self, states: tf.Tensor) -> tf.Tensor | tuple[tf.Tensor, ...]:
        """The convolution's projection of normalised states."""
        return self.convolve.project(states)

    def aggregate(self, projected: tf.Tensor | tuple[tf.Tensor, ...], near: Neighbours) -> tf.Tensor:
        """The convolution's sum over neighbours."""
        return self.convolve.aggregate(projected, near)

    def combine(
        self,
        states: tf.Tensor,
        aggregated: tf.Tensor,
        near: Neighbours,
        *,
        node_mask: tf.Tensor | None = None,
        fiedler: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """Linear parts, norms, ReLU, dropout and gate (Eq. 12), row by row; `states` as `normalize` gives them."""
        activation = tf.nn.relu if self.relu else tf.identity
        factor = near.expand(activation(self.factor(states)))
        mixed = self.convolve.combine(states, aggregated, near) + near.expand(self.linear(states))
        if self.norm_after is not None:
            mixed = self.norm_after(mixed, node_mask=near.row_weights(node_mask), training=training)
        mixed = self.dropout(activation(mixed), training=training)
        gated = tf.recompute_grad(gated_product) if self.recompute else gated_product
        gate = self.gate(mixed, fiedler=fiedler)
        return gated(factor, mixed, gate, tf.identity(self.norm.scale), tf.identity(self.norm.offset))

    def call(
        self,
        states: tf.Tensor,
        near: Neighbours,
        *,
        graphs: Graphs = ONE_GRAPH,
        fiedler: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        near, states = as_neighbours(near), self.normalize(states)
        aggregated = self.aggregate(self.project(states), near)
        return self.combine(
            states, aggregated, near, node_mask=Graphs(*graphs).mask, fiedler=fiedler, training=training
        )


def build_convolution(
    conv: str, *, num_heads: int, head_dim: int, formulation: str, directed: bool = False, name: str = "convolve"
) -> Convolution:
    """The `gat` or `gcn` layer of width num_heads * head_dim; if directed, one for each direction."""
    settings = {"num_heads": num_heads, "head_dim": head_dim, "formulation": formulation}
    if directed:
        parts = {each: build_convolution(conv, **settings, name=each) for each in ("along", "against")}
        return DirectedConvolution(**parts, name=name)
    if conv == "gat":
        return GraphAttention(**settings, name=name)
    if conv == "gcn":
        return GraphConvolution(units=num_heads * head_dim, formulation=formulation, name=name)
    raise ValueError(f"unknown conv {conv!r}, expected one of {', '.join(CONVOLUTIONS)}")

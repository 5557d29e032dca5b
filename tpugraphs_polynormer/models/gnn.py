"""Baseline encoders with Polynormer's interface: GCN, GraphSAGE, GAT and MLP."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.convolutions import (
    Convolution,
    DirectedConvolution,
    GraphAttention,
    GraphConvolution,
    SageConvolution,
)
from tpugraphs_polynormer.layers.dense import Linear, build_layers
from tpugraphs_polynormer.layers.dropout import Dropout
from tpugraphs_polynormer.layers.edge_index import as_neighbours
from tpugraphs_polynormer.layers.neighbours import ONE_GRAPH, Graphs, Neighbours, NeighbourSteps
from tpugraphs_polynormer.layers.normalization import LayerNorm, MaskedBatchNorm
from tpugraphs_polynormer.layers.registration import register
from tpugraphs_polynormer.models.encoder import Encoder


class GraphNetwork(Encoder):
    """Convolutions, each with an activation and dropout: [num_nodes, (candidates,) dim] -> [..., hidden_dim].

    A layer is dropout(activation(norm(convolution(x) + x W + b))) with x = norm(states); both norms and x W + b are
    options, off by default.

    Args:
      hidden_dim: width of every layer. num_layers: convolutions. dropout_rate: after each.
      residual: x W + b. With it a GAT has separate weights for a node and for its neighbours, as GraphSAGE always has.
      pre_norm: layer norm of the states. post_norm: batch norm of the sum, over real nodes. post_layer_norm: layer
        norm of the sum, instead.
      jumping_sum: the result is the sum of all layers' outputs, not the last one.
      formulation: see layers/ops. Others: see Encoder.
    """

    def __init__(
        self,
        *,
        hidden_dim: int,
        num_layers: int,
        dropout_rate: float = 0.0,
        residual: bool = False,
        pre_norm: bool = False,
        post_norm: bool = False,
        post_layer_norm: bool = False,
        jumping_sum: bool = False,
        formulation: str = "auto",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        if post_norm and post_layer_norm:
            raise ValueError("post_norm and post_layer_norm normalise the same sum: choose one")
        self.dropout = Dropout(rate=dropout_rate)
        self.convolutions = [self._create_layer(f"convolution_{i}") for i in range(num_layers)]
        layers = range(num_layers)
        self.norms_before = [LayerNorm(name=f"norm_before_{i}") for i in layers] if pre_norm else []
        self.residuals = [Linear(hidden_dim, name=f"residual_{i}") for i in layers] if residual else []
        norm = LayerNorm if post_layer_norm else MaskedBatchNorm
        self.norms_after = [norm(name=f"norm_after_{i}") for i in layers] if post_norm or post_layer_norm else []
        self.create_context(num_layers)

    def _create_layer(self, name: str) -> Convolution:
        if not self.directed:
            return self.create_convolution(name)
        parts = {each: self.create_convolution(each) for each in ("along", "against")}
        return DirectedConvolution(**parts, name=name)

    def create_convolution(self, name: str) -> Convolution:
        """The layer that tells one baseline from another."""
        raise NotImplementedError(f"{type(self).__name__} does not say which convolution it is made of")

    @property
    def output_dim(self) -> int:
        """Width of the result."""
        return self.hidden_dim

    @property
    def num_hops(self) -> int:
        """How far a difference between nodes travels."""
        return self.num_layers

    def build(self, shape: tf.TensorShape) -> None:
        shape = tf.TensorShape(shape)
        out_shape = shape[:-1].concatenate([self.hidden_dim])
        build_layers(self.convolutions[:1], shape)
        build_layers(self.convolutions[1:], out_shape)
        build_layers([*self.norms_before[:1], *self.residuals[:1]], shape)
        build_layers([*self.norms_before[1:], *self.residuals[1:], *self.norms_after], out_shape)
        self.build_context(shape, out_shape)
        super().build(shape)

    def call(
        self,
        states: tf.Tensor,
        near: NeighbourSteps,
        *,
        graphs: Graphs = ONE_GRAPH,
        phase: str | None = None,
        fiedler: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor | tuple[tf.Tensor, ...]:
        """Polynormer's signature."""
        self.check_phase(phase)
        near, graphs = as_neighbours(near), Graphs(*graphs)
        total = None
        for i, (convolution, step) in enumerate(zip(self.convolutions, near.steps(self.num_layers), strict=True)):
            entered = self.normalize(i, self.enter(i, states, graphs))
            mixed = convolution(entered, step)
            closed = self.finish(i, entered, mixed, step, node_mask=graphs.mask, training=training)
            states = self.leave(i, closed, graphs)
            if self.jumping_sum:
                total = states if total is None else step.expand(total) + states
        return near.join(near.parts(total if self.jumping_sum else states))

    def normalize(self, number: int, states: tf.Tensor) -> tf.Tensor:
        """The states that a layer's convolution and residual take: normalised if `pre_norm`, else as they are."""
        return self.norms_before[number](states) if self.norms_before else states

    def finish(
        self,
        number: int,
        states: tf.Tensor,
        convolved: tf.Tensor,
        near: Neighbours,
        *,
        node_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """What follows a layer's convolution, row by row: residual, norm, activation, dropout.

        Args:
          number: of the layer. states: as `normalize` gives them. convolved: the convolution's result.
          node_mask: [num_nodes] bool, the real nodes, which batch norm counts.
        """
        if self.residuals:
            convolved += near.expand(self.residuals[number](states))
        if self.post_layer_norm:
            convolved = self.norms_after[number](convolved)
        elif self.post_norm:
            weights = near.row_weights(node_mask)
            convolved = self.norms_after[number](convolved, node_mask=weights, training=training)
        return self.close(convolved, training=training)

    def close(self, states: tf.Tensor, *, training: bool | None = None) -> tf.Tensor:
        """Activation and dropout, which end each layer."""
        return self.dropout(self.activation(states), training=training)


@register
class GCN(GraphNetwork):
    """Graph convolutional network.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> tp.models.GCN(hidden_dim=8, num_layers=2)(tf.ones([3, 5]), edges).shape
      TensorShape([3, 8])
    """

    def create_convolution(self, name: str) -> GraphConvolution:
        return GraphConvolution(units=self.hidden_dim, formulation=self.formulation, name=name)


@register
class GraphSAGE(GraphNetwork):
    """GraphSAGE with mean pooling.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> tp.models.GraphSAGE(hidden_dim=8, num_layers=2)(tf.ones([3, 5]), edges).shape
      TensorShape([3, 8])
    """

    def create_convolution(self, name: str) -> SageConvolution:
        return SageConvolution(units=self.hidden_dim, formulation=self.formulation, name=name)


@register
class GAT(GraphNetwork):
    """Graph attention network; `num_heads` must divide `hidden_dim`.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> tp.models.GAT(hidden_dim=8, num_layers=2, num_heads=2)(tf.ones([3, 5]), edges).shape
      TensorShape([3, 8])
    """

    def __init__(self, *, hidden_dim: int, num_heads: int = 8, **kwargs):
        if hidden_dim % num_heads:
            raise ValueError(f"GAT's hidden_dim {hidden_dim} is not a multiple of its num_heads {num_heads}")
        self.num_heads = num_heads  # before the base class, which creates the convolutions
        super().__init__(hidden_dim=hidden_dim, **kwargs)

    def create_convolution(self, name: str) -> GraphAttention:
        head_dim = self.hidden_dim // self.num_heads
        return GraphAttention(num_heads=self.num_heads, head_dim=head_dim, formulation=self.formulation, name=name)


@register
class NodeLinear(Convolution):
    """A convolution that looks at no neighbour: states W + b."""

    def __init__(self, *, units: int, **kwargs):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        self.linear = Linear(units, name="linear")

    def build_messages(self, shape: tf.TensorShape) -> None:
        """Creates W and b."""
        build_layers([self.linear], shape)

    def project(self, states: tf.Tensor) -> tf.Tensor:
        """states W + b."""
        return self.linear(states)

    def aggregate(self, projected: tf.Tensor, near: Neighbours) -> tf.Tensor:
        """Each row's own projection."""
        return near.expand(projected)


@register
class MLP(GraphNetwork):
    """No graph at all: what a model gains by edges is measured against this.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> tp.models.MLP(hidden_dim=8, num_layers=2)(tf.ones([3, 5]), edges).shape
      TensorShape([3, 8])
    """

    num_hops = 0

    def create_convolution(self, name: str) -> NodeLinear:
        return NodeLinear(units=self.hidden_dim, name=name)

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
from tpugraphs_polynormer.layers.registration import register
from tpugraphs_polynormer.models.encoder import Encoder


class GraphNetwork(Encoder):
    """Convolutions, each with an activation and dropout: [num_nodes, (candidates,) dim] -> [..., hidden_dim].

    Args:
      hidden_dim: width of every layer. num_layers: convolutions. dropout_rate: after each.
      formulation: see layers/ops. Others: see Encoder.
    """

    def __init__(
        self, *, hidden_dim: int, num_layers: int, dropout_rate: float = 0.0, formulation: str = "auto", **kwargs
    ):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        self.dropout = Dropout(rate=dropout_rate)
        self.convolutions = [self._create_layer(f"convolution_{i}") for i in range(num_layers)]
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
        for i, (convolution, step) in enumerate(zip(self.convolutions, near.steps(self.num_layers), strict=True)):
            closed = self.close(convolution(self.enter(i, states, graphs), step), training=training)
            states = self.leave(i, closed, graphs)
        return near.join(near.parts(states))

    def close(self, states: tf.Tensor, *, training: bool | None = None) -> tf.Tensor:
        """Activation and dropout: what follows each convolution."""
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

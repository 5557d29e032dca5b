"""The official baselines' encoders, one for layouts and one for tiles, without what their code computes twice.

They were published as GraphSAGE. The sums are the official ones, in another order: a linear map of concatenated inputs
is the sum of two linear maps, so the node's part is computed once for all candidates, and states are projected before
they are summed over neighbours. Edges are those of this package: both ways, a loop at each node, no duplicates.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tpugraphs_polynormer.layers.convolutions import SageConvolution
from tpugraphs_polynormer.layers.dense import Linear, build_layers
from tpugraphs_polynormer.layers.edge_index import EdgeIndex, as_neighbours
from tpugraphs_polynormer.layers.neighbours import ONE_GRAPH, Graphs, NeighbourSteps
from tpugraphs_polynormer.layers.normalization import l2_normalize
from tpugraphs_polynormer.layers.registration import register
from tpugraphs_polynormer.models.gnn import GCN, GraphNetwork


@tf.custom_gradient
def leaky_relu(values: tf.Tensor):
    """tf.nn.leaky_relu, which keeps its result for the backward pass, as a dense layer after it does, not its input."""
    result = tf.nn.leaky_relu(values)

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.LeakyReluGrad(gradients=upstream, features=result)  # reads nothing but signs

    return result, gradient


@register
class TpuGraphsLayoutBaseline(GCN):
    """A dense layer, then residual layers: x + f(f(A [c, x] W + b) W' + b'), f the leaky ReLU, c the config_states.

    A is the adjacency matrix with loops, divided by the root of the degrees at both ends. [c, x] W = c U + x V, and the
    model passes c U as `config_states`. Without them (late fusion) c U is 0.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> tp.models.TpuGraphsLayoutBaseline(hidden_dim=8, num_layers=2)(tf.ones([3, 5]), edges).shape
      TensorShape([3, 8])
    """

    activation = staticmethod(leaky_relu)

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        if self.norms_before or self.residuals or self.norms_after or self.jumping_sum:
            raise ValueError("TpuGraphsLayoutBaseline has the official layers: no norms, residuals or jumping_sum")
        self.prenet = Linear(self.hidden_dim, name="prenet")
        self.dense = [Linear(self.hidden_dim, name=f"dense_{i}") for i in range(self.num_layers)]

    @property
    def num_rejoins(self) -> int:
        """Each layer sees the config_states again."""
        return self.num_layers

    def build(self, shape: tf.TensorShape) -> None:
        build_layers([self.prenet], shape)
        out_shape = tf.TensorShape(shape)[:-1].concatenate([self.hidden_dim])
        build_layers(self.dense, out_shape)
        super().build(out_shape)

    def call(
        self,
        states: tf.Tensor,
        near: NeighbourSteps,
        *,
        config_states: Sequence[tf.Tensor | None] = (),
        graphs: Graphs = ONE_GRAPH,
        phase: str | None = None,
        training: bool | None = None,
    ) -> tf.Tensor | tuple[tf.Tensor, ...]:
        """Polynormer's signature, and `config_states`: for each layer c U, [num_nodes, candidates, hidden_dim].

        With SharedStates c U is that of the nodes that candidates decide, [reach.sizes[0], candidates, hidden_dim].
        """
        self.check_phase(phase)
        near, graphs = as_neighbours(near), Graphs(*graphs)
        states = self.activation(self.prenet(states))
        rounds = zip(
            self.convolutions,
            self.dense,
            near.steps(self.num_layers),
            config_states or [None] * self.num_layers,
            strict=True,
        )
        for i, (convolution, dense, step, joined) in enumerate(rounds):
            mixed = self.activation(convolution(self.enter(i, states, graphs), step, added=joined))
            states = step.expand(states) + self.leave(i, self.close(dense(mixed), training=training), graphs)
        return near.join(near.parts(states))


@register
class TpuGraphsTileBaseline(GraphNetwork):
    """Layers x <- l2(f(A x W + x W' + b)), A the adjacency matrix (with loops, which W' can make up for), f leaky ReLU.

    `begin` is a layer too, on the projected inputs of the nodes and the projected bounds of the candidate:
    sum_j (u_j + c) W + (u_i + c) W' takes one sum over neighbours for all candidates, and the degree for c.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> tp.models.TpuGraphsTileBaseline(hidden_dim=8, num_layers=2)(tf.ones([3, 5]), edges).shape
      TensorShape([3, 8])
    """

    def create_convolution(self, name: str) -> SageConvolution:
        return SageConvolution(units=self.hidden_dim, how="sum", formulation=self.formulation, name=name)

    @staticmethod
    def activation(mixed: tf.Tensor) -> tf.Tensor:
        """The leaky ReLU, brought to unit length."""
        return l2_normalize(leaky_relu(mixed))

    @property
    def join_dim(self) -> int:
        """Two halves: to the neighbours, to the node itself."""
        return 2 * self.hidden_dim

    def begin(
        self,
        encoded: tf.Tensor,
        near: EdgeIndex,
        config_states: tf.Tensor | None = None,
        graph_ids: tf.Tensor | None = None,
    ) -> tf.Tensor:
        to_neighbors, to_self = tf.split(encoded, 2, -1)
        mixed = near.aggregate(to_neighbors, how="sum", formulation=self.formulation) + to_self
        if config_states is not None:
            num_graphs, k = (config_states.shape[axis] or tf.shape(config_states)[axis] for axis in (0, 1))
            member = tf.one_hot(graph_ids, num_graphs, dtype=config_states.dtype)
            counts = tf.concat([member * tf.cast(near.degrees(), config_states.dtype), member], 1)  # [n, 2 graphs]
            halves = tf.reshape(tf.concat(tf.split(config_states, 2, -1), 0), [2 * num_graphs, k * self.hidden_dim])
            of_candidates = tf.reshape(counts @ halves, [-1, k, self.hidden_dim])
            mixed = mixed[:, tf.newaxis] + of_candidates
        return self.activation(mixed)

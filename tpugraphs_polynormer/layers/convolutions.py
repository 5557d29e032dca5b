"""One round of message passing: GAT, GCN and GraphSAGE convolutions.

Each is three steps. `project` works on each node alone, `aggregate` is the only step that reads neighbours, `combine`
again works on each node alone. `call` composes them.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tpugraphs_polynormer.layers.dense import Linear, build_layers
from tpugraphs_polynormer.layers.edge_index import as_neighbours
from tpugraphs_polynormer.layers.neighbours import Neighbours
from tpugraphs_polynormer.layers.ops.attention import repeats_logits
from tpugraphs_polynormer.layers.registration import Configured, register


class Convolution(Configured, tf.keras.layers.Layer):
    """A layer of three steps: states [rows, (candidates,) dim] -> [output rows, (candidates,) units]."""

    def build_messages(self, shape: tf.TensorShape) -> None:
        """Creates the weights of `project` and `aggregate`."""
        raise NotImplementedError(f"{type(self).__name__} does not define build_messages")

    def build_own(self, shape: tf.TensorShape) -> None:
        """Creates the weights of `combine`."""

    def build(self, shape: tf.TensorShape) -> None:
        self.build_messages(shape)
        self.build_own(shape)
        super().build(shape)

    def project(self, states: tf.Tensor) -> tf.Tensor | tuple[tf.Tensor, ...]:
        """What neighbours need to know of each row."""
        raise NotImplementedError(f"{type(self).__name__} does not define project")

    def aggregate(self, projected: tf.Tensor | tuple[tf.Tensor, ...], near: Neighbours) -> tf.Tensor:
        """What each output row receives from its neighbours."""
        raise NotImplementedError(f"{type(self).__name__} does not define aggregate")

    def combine(self, states: tf.Tensor, aggregated: tf.Tensor, near: Neighbours) -> tf.Tensor:
        """The result, from the input states and what was received."""
        return aggregated

    def call(self, states: tf.Tensor, near: Neighbours) -> tf.Tensor:
        near = as_neighbours(near)
        return self.combine(states, self.aggregate(self.project(states), near), near)


class AttentionInputs(NamedTuple):
    """What GraphAttention's neighbours need of each row."""

    values: tf.Tensor  # [rows, (candidates,) heads, head_dim]
    source_logits: tf.Tensor  # [rows, (candidates,) heads], or repeated: [rows, (candidates,) heads * head_dim]
    target_logits: tf.Tensor  # as source_logits


@register
class GraphAttention(Convolution):
    """GAT: per head h, out_i = sum_j softmax_j(leaky_relu(a_source.x_j + a_target.x_i)) x_j with x = states W.

    States [num_nodes, (candidates,) dim] -> [num_nodes, (candidates,) num_heads * head_dim], heads first. Without
    self-loops (the edges bring them) and without bias. With candidates, each attends by its own logits.

    Args:
      num_heads, head_dim: the output width is their product.
      formulation: see layers/ops.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> tp.layers.GraphAttention(num_heads=2, head_dim=4)(tf.ones([3, 5]), edges).shape
      TensorShape([3, 8])
    """

    def __init__(self, *, num_heads: int, head_dim: int, formulation: str = "auto", **kwargs):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        self.linear = Linear(num_heads * head_dim, use_bias=False, kernel_initializer="glorot_uniform", name="linear")

    def build_messages(self, shape: tf.TensorShape) -> None:
        """Creates W, a_source and a_target."""
        build_layers([self.linear], shape)
        limit = (6 / (self.num_heads + self.head_dim)) ** 0.5
        shape_per_head = [self.num_heads, self.head_dim]
        # Two initialisers: one, used twice, would draw the same numbers twice.
        starts = [tf.keras.initializers.RandomUniform(-limit, limit) for _ in range(2)]
        self.source_weight = self.add_weight("source_weight", shape_per_head, initializer=starts[0])
        self.target_weight = self.add_weight("target_weight", shape_per_head, initializer=starts[1])

    def project(self, states: tf.Tensor) -> AttentionInputs:
        """The values of each head, and a_source.x and a_target.x as one product of matrices."""
        values = self.linear(states)
        own_head = tf.repeat(tf.eye(self.num_heads, dtype=values.dtype), self.head_dim, 0)  # [width, num_heads]
        if repeats_logits(self.formulation):
            own_head = tf.repeat(own_head, self.head_dim, 1)  # [width, width]
        weights = [tf.cast(weight, values.dtype) for weight in (self.source_weight, self.target_weight)]
        matrix = tf.concat([own_head * tf.reshape(weight, [-1, 1]) for weight in weights], 1)
        logits = tf.split(tf.reshape(values, [-1, matrix.shape[0]]) @ matrix, 2, -1)
        leading = tf.shape(states)[:-1]
        heads = (tf.reshape(each, tf.concat([leading, [own_head.shape[1]]], 0)) for each in logits)
        return AttentionInputs(tf.reshape(values, tf.concat([leading, [self.num_heads, self.head_dim]], 0)), *heads)

    def aggregate(self, projected: AttentionInputs, near: Neighbours) -> tf.Tensor:
        """[output rows, (candidates,) num_heads * head_dim]."""
        values, *logits = projected
        attended = near.attend(*logits, values, formulation=self.formulation)
        return tf.reshape(attended, tf.concat([tf.shape(attended)[:-2], [self.num_heads * self.head_dim]], 0))


@register
class GraphConvolution(Convolution):
    """GCN: out = D^-1/2 A D^-1/2 states W + bias; [num_nodes, (candidates,) dim] -> [..., units].

    Args:
      units: the output width.
      formulation: see layers/ops.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> tp.layers.GraphConvolution(units=4)(tf.ones([3, 5]), edges).shape
      TensorShape([3, 4])
    """

    def __init__(self, *, units: int, formulation: str = "auto", **kwargs):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        self.linear = Linear(units, use_bias=False, kernel_initializer="glorot_uniform", name="linear")

    def build_messages(self, shape: tf.TensorShape) -> None:
        """Creates W."""
        build_layers([self.linear], shape)

    def build_own(self, shape: tf.TensorShape) -> None:
        """Creates the bias."""
        self.bias = self.add_weight("bias", [self.units], initializer="zeros")

    def project(self, states: tf.Tensor) -> tf.Tensor:
        """states W."""
        return self.linear(states)

    def aggregate(self, projected: tf.Tensor, near: Neighbours) -> tf.Tensor:
        """The sum over neighbours, each divided by the root of both degrees."""
        return near.aggregate(projected, how="gcn", formulation=self.formulation)

    def combine(self, states: tf.Tensor, aggregated: tf.Tensor, near: Neighbours) -> tf.Tensor:
        """The bias added."""
        return aggregated + self.bias

    def call(self, states: tf.Tensor, near: Neighbours, added: tf.Tensor | None = None) -> tf.Tensor:
        """`added` joins the projected states of all nodes, or with SharedStates of the first ones."""
        near, projected = as_neighbours(near), self.project(states)
        if added is not None:
            projected = near.add_first(projected, added)
        return self.combine(states, self.aggregate(projected, near), near)


@register
class SageConvolution(Convolution):
    """GraphSAGE: out_i = mean_j(states_j) W_neighbor + b + states_i W_self; shapes as in GraphConvolution.

    Args:
      units: the output width.
      how: `mean` or `sum` over neighbours.
      formulation: see layers/ops.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> tp.layers.SageConvolution(units=4)(tf.ones([3, 5]), edges).shape
      TensorShape([3, 4])
    """

    def __init__(self, *, units: int, how: str = "mean", formulation: str = "auto", **kwargs):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        self.from_neighbors = Linear(units, use_bias=False, name="from_neighbors")
        self.from_self = Linear(units, name="from_self")

    def build_messages(self, shape: tf.TensorShape) -> None:
        """Creates W_neighbor."""
        build_layers([self.from_neighbors], shape)

    def build_own(self, shape: tf.TensorShape) -> None:
        """Creates W_self and the bias."""
        build_layers([self.from_self], shape)

    def project(self, states: tf.Tensor) -> tf.Tensor:
        """states W_neighbor: before the mean, which allows it, because the result is rarely wider."""
        return self.from_neighbors(states)

    def aggregate(self, projected: tf.Tensor, near: Neighbours) -> tf.Tensor:
        """The mean or sum over neighbours."""
        return near.aggregate(projected, how=self.how, formulation=self.formulation)

    def combine(self, states: tf.Tensor, aggregated: tf.Tensor, near: Neighbours) -> tf.Tensor:
        """The row's own part added."""
        return aggregated + near.expand(self.from_self(states))


@register
class DirectedConvolution(Convolution):
    """Two convolutions with weights of their own, along and against the edges; their messages are summed.

    What a row adds for itself (a bias, W_self) is that of `along`: it has no direction.

    Args:
      along, against: two equal convolutions without weights yet.

    Example:
      >>> edges = tp.layers.build_directed_edge_tensors([0, 1], [1, 2], 3)
      >>> along, against = (tp.layers.GraphConvolution(units=4) for _ in range(2))
      >>> tp.layers.DirectedConvolution(along=along, against=against)(tf.ones([3, 5]), edges).shape
      TensorShape([3, 4])
    """

    def __init__(self, *, along: Convolution, against: Convolution, **kwargs):
        super().__init__(**kwargs)
        self.keep_arguments(locals())

    def build_messages(self, shape: tf.TensorShape) -> None:
        """Creates the weights of both messages."""
        build_layers([self.along], shape)
        with tf.name_scope(self.against.name):
            self.against.build_messages(shape)

    def project(self, states: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """What neighbours in each direction need to know."""
        return self.along.project(states), self.against.project(states)

    def aggregate(self, projected: tuple[tf.Tensor, tf.Tensor], near: Neighbours) -> tf.Tensor:
        """The sum of what each row receives from both directions."""
        if not hasattr(near, "against"):
            raise ValueError(
                f"a directed convolution was called with a {type(near).__name__}, whose edges have no direction; build "
                "them with build_directed_edge_tensors"
            )
        along, against = projected
        return self.along.aggregate(along, near.along) + self.against.aggregate(against, near.against)

    def combine(self, states: tf.Tensor, aggregated: tf.Tensor, near: Neighbours) -> tf.Tensor:
        """The row's own part added, once."""
        return self.along.combine(states, aggregated, near)

    def call(self, states: tf.Tensor, near: Neighbours, added: tf.Tensor | None = None) -> tf.Tensor:
        """`added` as in GraphConvolution, for both directions."""
        near, projected = as_neighbours(near), self.project(states)
        if added is not None:
            projected = tuple(near.add_first(each, added) for each in projected)
        return self.combine(states, self.aggregate(projected, near), near)

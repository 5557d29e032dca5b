"""One round of message passing: GAT, GCN and GraphSAGE convolutions, and the linear layer they are made of."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.dense import build_layers
from tpugraphs_polynormer.layers.edge_index import EdgeIndex
from tpugraphs_polynormer.layers.ops.aggregation import aggregate, attend
from tpugraphs_polynormer.layers.shared_states import SharedStep, aggregate_hop, attend_hop


class Linear(tf.keras.layers.Dense):
    """A dense layer that starts as torch's Linear does: weights and biases uniform in +-1/sqrt(input width)."""

    def __init__(self, units: int, **kwargs):
        kwargs.setdefault("kernel_initializer", tf.keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform"))
        super().__init__(units, **kwargs)

    def build(self, shape: tf.TensorShape) -> None:
        limit = tf.TensorShape(shape)[-1] ** -0.5
        self.bias_initializer = tf.keras.initializers.RandomUniform(-limit, limit)
        super().build(shape)

    def call(self, states: tf.Tensor) -> tf.Tensor:
        # As a matrix: TensorFlow then adds the bias within the product, without another pass. Not the activation too:
        # its fused ReLU turns NaN into 0, and a run that went wrong would look like one that goes well.
        rows = tf.reshape(states, [-1, states.shape[-1]]) @ tf.cast(self.kernel, self.compute_dtype)
        if self.use_bias:
            rows = tf.nn.bias_add(rows, tf.cast(self.bias, self.compute_dtype))
        return self.activation(tf.reshape(rows, tf.concat([tf.shape(states)[:-1], [self.units]], 0)))


class GraphAttention(tf.keras.layers.Layer):
    """GAT: per head h, out_i = sum_j softmax_j(leaky_relu(a_source.x_j + a_target.x_i)) x_j with x = states W.

    States [num_nodes, (candidates,) dim] -> [num_nodes, (candidates,) num_heads * head_dim], heads first. Without
    self-loops (the edges bring them) and without bias. With candidates, each attends by its own scores.
    """

    def __init__(self, *, num_heads: int, head_dim: int, formulation: str = "auto", **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.formulation = formulation
        self.project = Linear(num_heads * head_dim, use_bias=False, kernel_initializer="glorot_uniform", name="project")

    def build(self, shape: tf.TensorShape) -> None:
        build_layers([self.project], shape)
        limit = (6 / (self.num_heads + self.head_dim)) ** 0.5
        shape_per_head = [self.num_heads, self.head_dim]
        # Two initialisers: one, used twice, would draw the same numbers twice.
        starts = [tf.keras.initializers.RandomUniform(-limit, limit) for _ in range(2)]
        self.source_weight = self.add_weight("source_weight", shape_per_head, initializer=starts[0])
        self.target_weight = self.add_weight("target_weight", shape_per_head, initializer=starts[1])
        super().build(shape)

    def call(self, states: tf.Tensor, edges: EdgeIndex | SharedStep) -> tf.Tensor:
        projected = self.project(states)
        if isinstance(edges, SharedStep):
            return self._attend_hop(projected, edges)
        shape = tf.shape(projected)
        # A (candidate, head) pair is one column of the kernel: candidates cost no loop.
        columns = self.num_heads * (states.shape[1:-1].num_elements() or -1)
        columns = columns if columns > 0 else self.num_heads * shape[1]
        source_logits, target_logits = self._score(projected)
        attended = attend(
            tf.reshape(source_logits, [shape[0], columns]),
            tf.reshape(target_logits, [shape[0], columns]),
            tf.reshape(projected, [shape[0], columns, self.head_dim]),
            edges,
            formulation=self.formulation,
        )
        return tf.reshape(attended, shape)

    def _attend_hop(self, projected: tf.Tensor, hop: SharedStep) -> tf.Tensor:
        heads = tf.reshape(projected, [-1, self.num_heads, self.head_dim])
        attended = attend_hop(*self._score(projected), heads, hop, formulation=self.formulation)
        return tf.reshape(attended, [-1, self.num_heads * self.head_dim])

    def _score(self, projected: tf.Tensor) -> list[tf.Tensor]:
        """a_source.x and a_target.x of each head, [rows, num_heads] each, as one product of matrices."""
        own_head = tf.repeat(tf.eye(self.num_heads, dtype=projected.dtype), self.head_dim, 0)  # [width, num_heads]
        weights = [tf.cast(weight, projected.dtype) for weight in (self.source_weight, self.target_weight)]
        matrix = tf.concat([own_head * tf.reshape(weight, [-1, 1]) for weight in weights], 1)
        rows = tf.reshape(projected, [-1, self.num_heads * self.head_dim])
        return tf.split(rows @ matrix, 2, -1)

    def get_config(self) -> dict:
        own = {"num_heads": self.num_heads, "head_dim": self.head_dim, "formulation": self.formulation}
        return {**super().get_config(), **own}


class GraphConvolution(tf.keras.layers.Layer):
    """GCN: out = D^-1/2 A D^-1/2 states W + bias; [num_nodes, (candidates,) dim] -> [..., units]."""

    def __init__(self, *, units: int, formulation: str = "auto", **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.formulation = formulation
        self.project = Linear(units, use_bias=False, kernel_initializer="glorot_uniform", name="project")

    def build(self, shape: tf.TensorShape) -> None:
        build_layers([self.project], shape)
        self.bias = self.add_weight("bias", [self.units], initializer="zeros")
        super().build(shape)

    def call(self, states: tf.Tensor, edges: EdgeIndex | SharedStep, added: tf.Tensor | None = None) -> tf.Tensor:
        """`added` joins the projected states: like them, or with a SharedStep those of its first nodes."""
        on_rows = isinstance(edges, SharedStep)
        projected = self.project(states)
        if added is not None:
            projected = edges.add_first(projected, added) if on_rows else projected + added
        combine = aggregate_hop if on_rows else aggregate
        return combine(projected, edges, how="gcn", formulation=self.formulation) + self.bias

    def get_config(self) -> dict:
        return {**super().get_config(), "units": self.units, "formulation": self.formulation}


class SageConvolution(tf.keras.layers.Layer):
    """GraphSAGE: out_i = mean_j(states_j) W_neighbor + b + states_i W_self; shapes as in GCN. `how`: mean or sum."""

    def __init__(self, *, units: int, how: str = "mean", formulation: str = "auto", **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.how = how
        self.formulation = formulation
        self.from_neighbors = Linear(units, name="from_neighbors")
        self.from_self = Linear(units, use_bias=False, name="from_self")

    def build(self, shape: tf.TensorShape) -> None:
        build_layers([self.from_neighbors, self.from_self], shape)
        super().build(shape)

    def call(self, states: tf.Tensor, edges: EdgeIndex | SharedStep) -> tf.Tensor:
        if isinstance(edges, SharedStep):
            return self._convolve_hop(states, edges)
        pooled = aggregate(states, edges, how=self.how, formulation=self.formulation)
        return self.from_neighbors(pooled) + self.from_self(states)

    def _convolve_hop(self, states: tf.Tensor, hop: SharedStep) -> tf.Tensor:
        # Projected first, as means and sums allow: the input has fewer rows than the output.
        projected = states @ tf.cast(self.from_neighbors.kernel, states.dtype)
        pooled = aggregate_hop(projected, hop, how=self.how, formulation=self.formulation)
        own = tf.nn.bias_add(self.from_self(states), tf.cast(self.from_neighbors.bias, states.dtype))
        return pooled + hop.expand(own)

    def get_config(self) -> dict:
        return {**super().get_config(), "units": self.units, "how": self.how, "formulation": self.formulation}

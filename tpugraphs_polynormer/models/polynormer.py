"""The Polynormer encoder: local attention layers whose outputs are summed, then global attention layers."""

from __future__ import annotations

import functools

import tensorflow as tf

from tpugraphs_polynormer.layers.dense import Linear, build_layers
from tpugraphs_polynormer.layers.dropout import Dropout
from tpugraphs_polynormer.layers.edge_index import as_neighbours
from tpugraphs_polynormer.layers.global_attention import BLOCK_NODES, GlobalAttention, KeySums
from tpugraphs_polynormer.layers.joint_attention import JointAttention
from tpugraphs_polynormer.layers.local_attention import LocalAttention
from tpugraphs_polynormer.layers.neighbours import ONE_GRAPH, Graphs, NeighbourSteps
from tpugraphs_polynormer.layers.normalization import LayerNorm
from tpugraphs_polynormer.layers.registration import register
from tpugraphs_polynormer.models.encoder import Encoder

ATTENTIONS = ("local", "local_to_global", "local_and_global")


@register
class Polynormer(Encoder):
    """Polynormer: node states [num_nodes, (candidates,) dim] -> [num_nodes, (candidates,) num_heads * head_dim].

    X_local is the sum of the local layers' outputs. In phase `local` (the warm-up) it is the result; in phase `global`
    the global layers follow: X = dropout(relu(GlobalAttention(X) W_out)), W_out shared by all of them. The phase is an
    argument of `call`.

    Args:
      num_heads, head_dim: the width is their product.
      num_local_layers, num_global_layers: layers of each kind; the latter counts only for `local_to_global`.
      attention: `local` (Polynormer-Local), `local_to_global`, or `local_and_global` (App. F; no phases).
      conv: `gat` or `gcn`.
      beta, learn_beta: see Gate; the authors' large-graph model is beta=0.9, learn_beta=False.
      pre_norm, post_norm: see LocalAttention.
      relu: Polynormer-r; False leaves the pure polynomial.
      share_query_key: q = k in global attention.
      version: 1, or 2 to multiply the gates by the Fiedler vector (App. J), which `call` then requires.
      dropout_rate, global_dropout_rate: after each local and each global layer.
      formulation: see layers/ops. recompute: see LocalAttention. block_nodes: see GlobalAttention. Others: see Encoder.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> encoder = tp.Polynormer(num_heads=2, head_dim=4, num_local_layers=3, num_global_layers=2)
      >>> encoder(tf.ones([3, 5]), edges).shape  # phase="local" for the warm-up
      TensorShape([3, 8])
    """

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        num_local_layers: int,
        num_global_layers: int = 0,
        attention: str = "local_to_global",
        conv: str = "gat",
        beta: float = -1.0,
        learn_beta: bool = True,
        pre_norm: bool = False,
        post_norm: bool = False,
        relu: bool = True,
        share_query_key: bool = True,
        version: int = 1,
        dropout_rate: float = 0.0,
        global_dropout_rate: float = 0.0,
        formulation: str = "auto",
        recompute: bool = False,
        block_nodes: int = BLOCK_NODES,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        if attention not in ATTENTIONS:
            raise ValueError(f"unknown attention {attention!r}, expected one of {', '.join(ATTENTIONS)}")
        if version not in (1, 2):
            raise ValueError(f"unknown Polynormer version {version!r}, expected 1 or 2")
        self._create_layers()

    def _create_layers(self) -> None:
        joint = self.attention == "local_and_global"
        create = self._create_joint_layer if joint else self._create_local_layer
        self.local_layers = [create(f"local_{i}") for i in range(self.num_local_layers)]
        self.global_layers = []
        if self.attention == "local_to_global":
            self.global_layers = [self._create_global_layer(f"global_{i}") for i in range(self.num_global_layers)]
            self.norm = LayerNorm(name="norm")
            self.global_projection = Linear(self.output_dim, name="global_projection")
            self.global_dropout = Dropout(rate=self.global_dropout_rate)
        self.create_context(self.num_local_layers + len(self.global_layers))

    def _shared_arguments(self) -> dict:
        names = ("num_heads", "head_dim", "beta", "learn_beta")
        return {name: getattr(self, name) for name in names}

    def _create_local_layer(self, name: str) -> LocalAttention:
        names = ("conv", "pre_norm", "post_norm", "relu", "directed", "dropout_rate", "formulation", "recompute")
        own = {setting: getattr(self, setting) for setting in names}
        return LocalAttention(**self._shared_arguments(), **own, name=name)

    def _create_joint_layer(self, name: str) -> JointAttention:
        names = ("conv", "relu", "directed", "dropout_rate", "formulation", "share_query_key")
        return JointAttention(**self._shared_arguments(), **{key: getattr(self, key) for key in names}, name=name)

    def _create_global_layer(self, name: str) -> GlobalAttention:
        own = {"share_query_key": self.share_query_key, "block_nodes": self.block_nodes}
        return GlobalAttention(**self._shared_arguments(), **own, name=name)

    @property
    def output_dim(self) -> int:
        """Width of the result."""
        return self.num_heads * self.head_dim

    @property
    def phases(self) -> tuple[str, ...]:
        """`local`, and `global` if there are global layers."""
        return ("local", "global") if self.global_layers else ("local",)

    @property
    def needs_all_states(self) -> bool:
        """Also with global attention in each layer."""
        return self.attention == "local_and_global" or super().needs_all_states

    @property
    def num_hops(self) -> int:
        """How far a difference between nodes travels before the global layers."""
        return self.num_local_layers

    def build(self, shape: tf.TensorShape) -> None:
        """Builds the layers of both phases, so that checkpoints and optimizers know all variables from the start."""
        shape = tf.TensorShape(shape)
        out_shape = shape[:-1].concatenate([self.output_dim])
        build_layers(self.local_layers[:1], shape)
        build_layers(self.local_layers[1:], out_shape)
        if self.global_layers:
            build_layers([*self.global_layers, self.norm, self.global_projection], out_shape)
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
        """Args:
        states: [num_nodes, dim], or [num_nodes, candidates, dim]: all candidates share the edges.
        near: edges among the nodes. With SharedStates the states are its rows, and the result comes in its two parts.
        graphs: the graph of each node, and which nodes are real; one graph by default.
        phase: `local` or `global`; by default the last that there is.
        fiedler: [num_nodes], required by version 2 only.
        """
        near, graphs = as_neighbours(near), Graphs(*graphs)
        states = self.run_local(states, near, graphs=graphs, fiedler=fiedler, training=training)
        if self.check_phase(phase) == "local":
            return near.join(near.parts(states))
        return self.run_global(self.norm(states), near, graphs=graphs, fiedler=fiedler, training=training)

    def run_local(
        self,
        states: tf.Tensor,
        near: NeighbourSteps,
        *,
        graphs: Graphs = ONE_GRAPH,
        fiedler: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """X_local, the sum of the local layers' outputs, as rows of the last layer."""
        if (fiedler is not None) != (self.version == 2):
            raise ValueError(
                f"Polynormer version {self.version} was called {'without' if fiedler is None else 'with'} a Fiedler "
                "vector; pass one to version 2 and none to version 1 (see nodes/fiedler.py)"
            )
        total = None
        for i, (layer, step) in enumerate(zip(self.local_layers, near.steps(self.num_local_layers), strict=True)):
            states = layer(self.enter(i, states, graphs), step, graphs=graphs, fiedler=fiedler, training=training)
            states = self.leave(i, states, graphs)
            total = states if total is None else step.expand(total) + states
        return total

    def run_global(
        self,
        states: tf.Tensor,
        near: NeighbourSteps,
        *,
        graphs: Graphs = ONE_GRAPH,
        fiedler: tf.Tensor | None = None,
        training: bool | None = None,
        num_layers: int | None = None,
    ) -> tf.Tensor | tuple[tf.Tensor, ...]:
        """The global layers (or the first `num_layers` of them) on `norm` of X_local.

        With SharedStates, keys and values of shared nodes are summed once for all candidates. Since every node sees
        these sums, every node varies from then on.
        """
        parts, part_graphs = near.parts(states), near.part_graphs(graphs)
        for i, layer in enumerate(self.global_layers[:num_layers], self.num_local_layers):
            parts = [self.enter(i, each, ids) for each, ids in zip(parts, part_graphs, strict=True)]
            projected = [layer.project(part) for part in parts]
            sums = [layer.sum_keys(each, ids) for each, ids in zip(projected, part_graphs, strict=True)]
            total = functools.reduce(KeySums.plus, sums)
            attended = [layer.attend(each, total, ids) for each, ids in zip(projected, part_graphs, strict=True)]
            combined = (layer.combine(*pair, fiedler=fiedler) for pair in zip(parts, attended, strict=True))
            closed = (self.close_global(each, training=training) for each in combined)
            parts = tuple(self.leave(i, each, ids) for each, ids in zip(closed, part_graphs, strict=True))
        return near.join(parts)

    def close_global(self, states: tf.Tensor, *, training: bool | None = None) -> tf.Tensor:
        """dropout(relu(states W_out)): what follows each global layer, W_out shared by all of them."""
        states = self.global_projection(states)
        return self.global_dropout(tf.nn.relu(states) if self.relu else states, training=training)

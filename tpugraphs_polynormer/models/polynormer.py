"""The Polynormer encoder: local attention layers whose outputs are summed, then global attention layers."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.convolutions import Linear
from tpugraphs_polynormer.layers.dense import build_layers
from tpugraphs_polynormer.layers.dropout import Dropout
from tpugraphs_polynormer.layers.edge_index import EdgeIndex
from tpugraphs_polynormer.layers.global_attention import BLOCK_NODES, GlobalAttention
from tpugraphs_polynormer.layers.joint_attention import JointAttention
from tpugraphs_polynormer.layers.local_attention import LocalAttention
from tpugraphs_polynormer.layers.normalization import LayerNorm
from tpugraphs_polynormer.layers.shared_states import SharedStates, expand, layer_edges
from tpugraphs_polynormer.models.encoder import Encoder
from tpugraphs_polynormer.models.shared_attention import attend_parts

ATTENTIONS = ("local", "local_to_global", "local_and_global")
PHASES = ("local", "global")

_ARGUMENTS = (
    "num_heads",
    "head_dim",
    "num_local_layers",
    "num_global_layers",
    "attention",
    "conv",
    "beta",
    "learn_beta",
    "pre_norm",
    "post_norm",
    "relu",
    "share_query_key",
    "version",
    "dropout_rate",
    "global_dropout_rate",
    "formulation",
    "recompute",
    "block_nodes",
)


class Polynormer(Encoder):
    """Polynormer: node states [num_nodes, (candidates,) dim] -> [num_nodes, (candidates,) num_heads * head_dim].

    X_local is the sum of the local layers' outputs. In phase `local` (the warm-up) it is the result; in phase `global`
    the global layers follow: X = dropout(relu(GlobalAttention(X) W_out)), W_out shared by all of them.

    The phase is part of the saved state: a checkpoint restores it. It is read when a tf.function is traced, so make
    (or re-make) the training function after setting or restoring it.

    Args:
      num_heads, head_dim: the width is their product.
      num_local_layers, num_global_layers: layers of each kind; the latter counts only for `local_to_global`.
      attention: `local` (Polynormer-Local), `local_to_global`, or `local_and_global` (App. F; no phases).
      phase: `local` or `global`, the one to start in.
      conv: `gat` or `gcn`.
      beta, learn_beta: see Gate; the authors' large-graph model is beta=0.9, learn_beta=False.
      pre_norm, post_norm: see LocalAttention.
      relu: Polynormer-r; False leaves the pure polynomial.
      share_query_key: q = k in global attention.
      version: 1, or 2 to multiply the gates by the Fiedler vector (App. J), which `call` then requires.
      dropout_rate, global_dropout_rate: after each local and each global layer.
      formulation: see layers/ops. recompute: see LocalAttention. block_nodes: see attend_globally.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        num_local_layers: int,
        num_global_layers: int = 0,
        attention: str = "local_to_global",
        phase: str = "local",
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
        if attention not in ATTENTIONS:
            raise ValueError(f"unknown attention {attention!r}, expected one of {', '.join(ATTENTIONS)}")
        if version not in (1, 2):
            raise ValueError(f"unknown Polynormer version {version!r}, expected 1 or 2")
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_local_layers = num_local_layers
        self.num_global_layers = num_global_layers
        self.attention = attention
        self.conv = conv
        self.beta = beta
        self.learn_beta = learn_beta
        self.pre_norm = pre_norm
        self.post_norm = post_norm
        self.relu = relu
        self.share_query_key = share_query_key
        self.version = version
        self.dropout_rate = dropout_rate
        self.global_dropout_rate = global_dropout_rate
        self.formulation = formulation
        self.recompute = recompute
        self.block_nodes = block_nodes
        self._phase = self.add_weight(
            "phase",
            shape=[],
            dtype=tf.int32,
            trainable=False,
            initializer="zeros",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self.phase = phase
        self._create_layers()

    def _create_layers(self) -> None:
        joint = self.attention == "local_and_global"
        create = self._create_joint_layer if joint else self._create_local_layer
        self.local_layers = [create(f"local_{i}") for i in range(self.num_local_layers)]
        self.global_layers = []
        if self.attention == "local_to_global":
            self.global_layers = [self._create_global_layer(f"global_{i}") for i in range(self.num_global_layers)]
            self.norm = LayerNorm(name="norm")
            self.project = Linear(self.output_dim, name="project")
            self.global_dropout = Dropout(rate=self.global_dropout_rate)

    def _shared_arguments(self) -> dict:
        names = ("num_heads", "head_dim", "beta", "learn_beta")
        return {name: getattr(self, name) for name in names}

    def _create_local_layer(self, name: str) -> LocalAttention:
        names = ("conv", "pre_norm", "post_norm", "relu", "dropout_rate", "formulation", "recompute")
        own = {setting: getattr(self, setting) for setting in names}
        return LocalAttention(**self._shared_arguments(), **own, name=name)

    def _create_joint_layer(self, name: str) -> JointAttention:
        names = ("conv", "relu", "dropout_rate", "formulation", "share_query_key")
        return JointAttention(**self._shared_arguments(), **{key: getattr(self, key) for key in names}, name=name)

    def _create_global_layer(self, name: str) -> GlobalAttention:
        own = {"share_query_key": self.share_query_key, "block_nodes": self.block_nodes}
        return GlobalAttention(**self._shared_arguments(), **own, name=name)

    @property
    def output_dim(self) -> int:
        """Width of the result."""
        return self.num_heads * self.head_dim

    @property
    def num_hops(self) -> int:
        """How far a difference between nodes travels before the global layers."""
        return self.num_local_layers

    @property
    def phase(self) -> str:
        """`local` or `global`."""
        with tf.init_scope():
            return PHASES[int(self._phase.numpy())]

    @phase.setter
    def phase(self, phase: str) -> None:
        allowed = PHASES if self.attention == "local_to_global" else PHASES[:1]
        if phase not in allowed:
            raise ValueError(
                f"phase {phase!r} does not exist with attention {self.attention!r}, expected {' or '.join(allowed)}"
            )
        self._phase.assign(PHASES.index(phase))

    def build(self, shape: tf.TensorShape) -> None:
        """Builds the layers of both phases, so that checkpoints and optimizers know all variables from the start."""
        shape = tf.TensorShape(shape)
        out_shape = shape[:-1].concatenate([self.output_dim])
        build_layers(self.local_layers[:1], shape)
        build_layers(self.local_layers[1:], out_shape)
        if self.global_layers:
            build_layers([*self.global_layers, self.norm, self.project], out_shape)
        super().build(shape)

    def call(
        self,
        states: tf.Tensor,
        edges: EdgeIndex | SharedStates,
        *,
        component_ids: tf.Tensor | None = None,
        num_components: int | tf.Tensor = 1,
        node_mask: tf.Tensor | None = None,
        fiedler: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        """Args:
        states: [num_nodes, dim], or [num_nodes, candidates, dim]: all candidates share the edges.
        edges: among the nodes. With a SharedStates the states are its rows, and the result comes in its two parts.
        component_ids: [num_nodes] non-decreasing graph ids, None for one graph. num_components: number of graphs.
        node_mask: [num_nodes] bool, False for padding.
        fiedler: [num_nodes], required by version 2 only.
        """
        if (fiedler is not None) != (self.version == 2):
            raise ValueError(
                f"Polynormer version {self.version} was called {'without' if fiedler is None else 'with'} a Fiedler "
                "vector; pass one to version 2 and none to version 1 (see nodes/fiedler.py)"
            )
        graphs = {"component_ids": component_ids, "num_components": num_components, "node_mask": node_mask}
        states = self._call_local(states, edges, graphs, fiedler, training)
        if self.global_layers and self.phase == "global":
            states = self.norm(states)
        parts = edges.split(states) if isinstance(edges, SharedStates) else (states,)
        if self.phase == "global":
            for layer in self.global_layers:
                if isinstance(edges, SharedStates):
                    parts = attend_parts(layer, parts, edges, num_components)
                else:
                    parts = (layer(*parts, **graphs, fiedler=fiedler),)
                parts = tuple(self._finish_global(part, training) for part in parts)
        return parts if isinstance(edges, SharedStates) else parts[0]

    def _finish_global(self, states: tf.Tensor, training: bool | None) -> tf.Tensor:
        states = self.project(states)
        return self.global_dropout(tf.nn.relu(states) if self.relu else states, training=training)

    def _call_local(
        self,
        states: tf.Tensor,
        edges: EdgeIndex | SharedStates,
        graphs: dict,
        fiedler: tf.Tensor | None,
        training: bool | None,
    ) -> tf.Tensor:
        joint = self.attention == "local_and_global"
        arguments = graphs if joint else {"node_mask": graphs["node_mask"]}
        total = None
        for layer, along in zip(self.local_layers, layer_edges(edges, self.num_local_layers), strict=True):
            states = layer(states, along, **arguments, fiedler=fiedler, training=training)
            total = states if total is None else expand(total, along) + states
        return total

    def get_config(self) -> dict:
        own = {name: getattr(self, name) for name in _ARGUMENTS}
        return {**super().get_config(), **own, "phase": self.phase}

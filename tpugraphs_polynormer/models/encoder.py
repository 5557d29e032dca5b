"""What a model asks of any encoder: phases, and where and how candidates join it."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.dense import build_layers
from tpugraphs_polynormer.layers.graph_context import CandidateGate, SqueezeExcite
from tpugraphs_polynormer.layers.neighbours import Graphs, Neighbours
from tpugraphs_polynormer.layers.normalization import GraphNorm
from tpugraphs_polynormer.layers.registration import Configured


class Encoder(Configured, tf.keras.layers.Layer):
    """A graph encoder: states [num_nodes, (candidates,) dim] -> [num_nodes, (candidates,) output_dim].

    The model projects nodes and config values linearly to `join_dim`; `begin` makes the encoder's first states of them.

    Args:
      graph_norm: GraphNorm before each layer.
      squeeze_excite: SqueezeExcite after each layer.
      cross_candidates: `nodes` for a CandidateGate after each layer; any other value for none.
      directed: layers have weights of their own along and against the edges, which must then know their direction.
    """

    activation = staticmethod(tf.nn.relu)  # of the first, joined states, and of a baseline's layers
    num_rejoins = 0  # layers that see the candidates' config_states again
    phases: tuple[str, ...] = ("local",)  # in the order of training; the last is the whole encoder

    def __init__(
        self,
        *,
        graph_norm: bool = False,
        squeeze_excite: bool = False,
        cross_candidates: str = "none",
        directed: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.keep_arguments(locals())

    def create_context(self, num_layers: int) -> None:
        """Creates what `enter` and `leave` of `num_layers` layers apply."""
        kinds = {
            GraphNorm: ("graph_norm", self.graph_norm),
            SqueezeExcite: ("squeeze_excite", self.squeeze_excite),
            CandidateGate: ("candidate_gate", self.cross_candidates == "nodes"),
        }
        self.graph_norms, self.squeezes, self.candidate_gates = (
            [kind(name=f"{name}_{i}") for i in range(num_layers)] if is_used else []
            for kind, (name, is_used) in kinds.items()
        )

    def build_context(self, first_shape: tf.TensorShape, shape: tf.TensorShape) -> None:
        """Builds them for states of `first_shape` before the first layer, and of `shape` elsewhere."""
        build_layers(self.graph_norms[:1], first_shape)
        build_layers([*self.graph_norms[1:], *self.squeezes, *self.candidate_gates], shape)

    def enter(self, number: int, states: tf.Tensor, graphs: Graphs) -> tf.Tensor:
        """The states that a layer takes."""
        return self.graph_norms[number](states, graphs=graphs) if self.graph_norms else states

    def leave(self, number: int, states: tf.Tensor, graphs: Graphs) -> tf.Tensor:
        """What becomes of the states that a layer gives."""
        for layers in (self.squeezes, self.candidate_gates):
            states = layers[number](states, graphs=graphs) if layers else states
        return states

    @property
    def needs_all_states(self) -> bool:
        """Whether a layer needs every node's state for every candidate, so that none can be shared by candidates."""
        return self.graph_norm or self.squeeze_excite or self.cross_candidates == "nodes"

    @property
    def output_dim(self) -> int:
        """Width of the result."""
        raise NotImplementedError(f"{type(self).__name__} does not say how wide its result is")

    @property
    def join_dim(self) -> int:
        """Width of the projections that `begin` takes."""
        return self.output_dim

    def begin(
        self,
        encoded: tf.Tensor,
        near: Neighbours,
        config_states: tf.Tensor | None = None,
        graph_ids: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """The encoder's first states, [num_nodes, dim] or [num_nodes, candidates, dim].

        Args:
          encoded: [num_nodes, join_dim], projected nodes. near: edges among them.
          config_states: [graphs, candidates, join_dim], added to every node of a graph (tile kernels).
          graph_ids: [num_nodes], the graph of each node; needed with config_states.
        """
        if config_states is not None:
            encoded = encoded[:, tf.newaxis] + tf.gather(config_states, graph_ids)
        return self.activation(encoded)

    def check_phase(self, phase: str | None) -> str:
        """The phase, by default the last; ValueError for one that the encoder does not have."""
        if phase is not None and phase not in self.phases:
            raise ValueError(f"{type(self).__name__} has no phase {phase!r}, expected {' or '.join(self.phases)}")
        return phase or self.phases[-1]

"""What a model asks of any encoder: phases, and where and how candidates join it."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.neighbours import Neighbours
from tpugraphs_polynormer.layers.registration import Configured


class Encoder(Configured, tf.keras.layers.Layer):
    """A graph encoder: states [num_nodes, (candidates,) dim] -> [num_nodes, (candidates,) output_dim].

    The model projects nodes and config values linearly to `join_dim`; `begin` makes the encoder's first states of them.
    """

    activation = staticmethod(tf.nn.relu)  # of the first, joined states, and of a baseline's layers
    num_rejoins = 0  # layers that see the candidates' config_states again
    phases: tuple[str, ...] = ("local",)  # in the order of training; the last is the whole encoder

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

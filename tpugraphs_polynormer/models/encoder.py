"""What a ranking model asks of any encoder: where and how candidates join it."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.edge_index import EdgeIndex


class Encoder(tf.keras.layers.Layer):
    """A graph encoder: states [num_nodes, (candidates,) dim] -> [num_nodes, (candidates,) output_dim].

    The model projects nodes and config values linearly to `join_dim`; what that makes of them is the encoder's `begin`.
    """

    activation = staticmethod(tf.nn.relu)  # of the first, joined states, and of a baseline's layers
    num_rejoins = 0  # layers that see the candidates' config_states again

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
        edges: EdgeIndex,
        config_states: tf.Tensor | None = None,
        graphs: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """The encoder's first states, [num_nodes, dim] or [num_nodes, candidates, dim].

        Args:
          encoded: [num_nodes, join_dim], projected nodes. edges: among them.
          config_states: [graphs, candidates, join_dim], added to every node of a graph (tile kernels).
          graphs: [num_nodes], the graph of each node; needed with config_states.
        """
        if config_states is not None:
            encoded = encoded[:, tf.newaxis] + tf.gather(config_states, graphs)
        return self.activation(encoded)

"""Polynormer as a TF-GNN graph update: a GraphTensor in, a GraphTensor with new node states out."""

from __future__ import annotations

import tensorflow as tf
import tensorflow_gnn as tfgnn

from tpugraphs_polynormer.layers.edge_index import build_undirected_edge_tensors
from tpugraphs_polynormer.layers.neighbours import Graphs
from tpugraphs_polynormer.layers.registration import register
from tpugraphs_polynormer.models.polynormer import Polynormer


@register
class PolynormerGraphUpdate(tf.keras.layers.Layer):
    """Replaces the states of one node set by Polynormer's: [num_nodes, dim] -> [num_nodes, num_heads * head_dim].

    The edges of one edge set within that node set count both ways, once each, with a self-loop at every node. Each
    component is a graph of its own, so padding by TF-GNN, which adds a component, changes nothing (with `post_norm`,
    whose statistics are over all nodes, it does).

    Args:
      node_set_name, edge_set_name: which sets of the GraphTensor.
      feature_name: the feature that is read and replaced.
      **encoder_arguments: of Polynormer.

    Example:
      >>> graph = tfgnn.homogeneous(tf.constant([0, 1]), tf.constant([1, 2]), node_features=tf.ones([3, 5]))
      >>> update = tp.PolynormerGraphUpdate(
      ...     node_set_name="nodes", edge_set_name="edges", num_heads=2, head_dim=4, num_local_layers=2
      ... )
      >>> update(graph).node_sets["nodes"]["hidden_state"].shape
      TensorShape([3, 8])
    """

    def __init__(
        self, *, node_set_name: str, edge_set_name: str, feature_name: str = tfgnn.HIDDEN_STATE, **encoder_arguments
    ):
        own = {
            name: encoder_arguments.pop(name) for name in ("name", "trainable", "dtype") if name in encoder_arguments
        }
        super().__init__(**own)
        self.node_set_name = node_set_name
        self.edge_set_name = edge_set_name
        self.feature_name = feature_name
        self.encoder_arguments = encoder_arguments
        self.encoder = Polynormer(name="encoder", **encoder_arguments)

    def call(
        self, graph: tfgnn.GraphTensor, *, phase: str | None = None, training: bool | None = None
    ) -> tfgnn.GraphTensor:
        """`phase` as in Polynormer. The graph is scalar (use `merge_batch_to_components` after batching)."""
        nodes, adjacency = graph.node_sets[self.node_set_name], graph.edge_sets[self.edge_set_name].adjacency
        if {adjacency.source_name, adjacency.target_name} != {self.node_set_name}:
            raise ValueError(
                f"edge set {self.edge_set_name!r} joins {adjacency.source_name!r} and {adjacency.target_name!r}, "
                f"expected {self.node_set_name!r} at both ends"
            )
        states = nodes[self.feature_name]
        num_nodes = states.shape[0] if states.shape[0] is not None else tf.shape(states)[0]
        near = build_undirected_edge_tensors(adjacency.source, adjacency.target, num_nodes)
        ids, _ = locate_nodes(nodes.sizes, num_nodes)
        graphs = Graphs(ids, nodes.sizes.shape[0] or tf.shape(nodes.sizes)[0])
        states = self.encoder(states, near, graphs=graphs, phase=phase, training=training)
        return graph.replace_features(node_sets={self.node_set_name: {**nodes.features, self.feature_name: states}})

    def get_config(self) -> dict:
        names = ("node_set_name", "edge_set_name", "feature_name")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}, **self.encoder_arguments}


def locate_nodes(sizes: tf.Tensor, num_nodes: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Each node's component and its position in it, [num_nodes] int32 each, from the sizes of the components.

    By comparison, since tf.repeat has no static shape under XLA.
    """
    ends = tf.cumsum(sizes)
    positions = tf.range(num_nodes)
    ids = tf.reduce_sum(tf.cast(positions[:, tf.newaxis] >= ends[tf.newaxis, :], tf.int32), 1)
    ids = tf.minimum(ids, tf.shape(sizes)[0] - 1)
    return ids, positions - tf.gather(ends - sizes, ids)

"""Node classification with a Polynormer encoder, in the authors' small- and large-graph forms, or with a baseline."""

from __future__ import annotations

import tensorflow as tf

from tpugraphs_polynormer.layers.dense import Linear, build_layers
from tpugraphs_polynormer.layers.dropout import Dropout, EdgeDropout
from tpugraphs_polynormer.layers.edge_index import as_neighbours
from tpugraphs_polynormer.layers.neighbours import ONE_GRAPH, Graphs, NeighbourSteps
from tpugraphs_polynormer.layers.registration import Configured, register
from tpugraphs_polynormer.models.encoder import Encoder
from tpugraphs_polynormer.models.polynormer import Polynormer


@register
class NodeClassifier(Configured, tf.keras.Model):
    """Features [num_nodes, feature_dim] -> float32 logits [num_nodes, num_classes].

    Input dropout, then (small-graph form) a linear map to the encoder's width and dropout, then the encoder, then the
    head of the phase. The large-graph form (`input_dim` None) feeds the features to the encoder as they are.

    Args:
      encoder: Polynormer, or a layer of models/gnn.py (which has the `local` phase only).
      num_classes: logits per node.
      input_dim: width of the linear map before the encoder, None for none.
      input_dropout_rate: on the features. dropout_rate: after the linear map. edge_dropout_rate: on the edges.

    Example:
      >>> edges = tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)
      >>> encoder = tp.Polynormer(num_heads=2, head_dim=4, num_local_layers=3, num_global_layers=2)
      >>> tp.NodeClassifier(encoder=encoder, num_classes=7, input_dim=8)(tf.ones([3, 5]), edges).shape
      TensorShape([3, 7])
    """

    def __init__(
        self,
        *,
        encoder: Encoder,
        num_classes: int,
        input_dim: int | None = None,
        input_dropout_rate: float = 0.0,
        dropout_rate: float = 0.0,
        edge_dropout_rate: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.keep_arguments(locals())
        # Without a rate there is no layer: its random state would change the initial weights that a seed gives.
        self.edge_dropout = EdgeDropout(rate=edge_dropout_rate) if edge_dropout_rate else None
        self.input_dropout = Dropout(rate=input_dropout_rate)
        self.project_inputs = None if input_dim is None else Linear(input_dim, name="project_inputs")
        self.dropout = Dropout(rate=dropout_rate)
        self.local_head = Linear(num_classes, name="local_head")
        self.global_head = Linear(num_classes, name="global_head") if "global" in encoder.phases else None

    def build(self, shape: tf.TensorShape) -> None:
        """Builds everything from the shape of the features, heads of both phases included."""
        shape = tf.TensorShape(shape)
        if self.project_inputs is not None:
            build_layers([self.project_inputs], shape)
            shape = shape[:-1].concatenate([self.input_dim])
        build_layers([self.encoder], shape)
        out_shape = shape[:-1].concatenate([self.encoder.output_dim])
        build_layers([self.local_head, self.global_head], out_shape)
        self.built = True

    def call(
        self,
        features: tf.Tensor,
        near: NeighbourSteps,
        *,
        graphs: Graphs = ONE_GRAPH,
        phase: str | None = None,
        fiedler: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """The arguments of the encoder; `phase` also chooses the head."""
        if self.edge_dropout is not None:
            near = self.edge_dropout.thin(as_neighbours(near), training=training)
        states = self.begin(features, training=training)
        states = self.encoder(states, near, graphs=graphs, phase=phase, fiedler=fiedler, training=training)
        return self.classify(states, phase=phase)

    def begin(self, features: tf.Tensor, *, training: bool | None = None) -> tf.Tensor:
        """The encoder's first states."""
        states = self.input_dropout(features, training=training)
        if self.project_inputs is None:
            return states
        return self.dropout(self.project_inputs(states), training=training)

    def classify(self, states: tf.Tensor, *, phase: str | None = None) -> tf.Tensor:
        """Float32 logits of the encoder's states, by the head of the phase."""
        head = self.local_head if self.encoder.check_phase(phase) == "local" else self.global_head
        return tf.cast(head(states), tf.float32)


def build_polynormer_classifier(
    *,
    num_classes: int,
    num_heads: int,
    head_dim: int,
    large_graph: bool = False,
    input_dropout_rate: float = 0.0,
    dropout_rate: float = 0.0,
    **encoder_arguments,
) -> NodeClassifier:
    """The authors' model: small-graph form by default; large-graph form without input map and with a constant beta.

    `encoder_arguments` are Polynormer's other arguments.
    """
    if large_graph:
        encoder_arguments = {"learn_beta": False, "beta": 0.9, **encoder_arguments}
    encoder = Polynormer(
        num_heads=num_heads, head_dim=head_dim, dropout_rate=dropout_rate, name="encoder", **encoder_arguments
    )
    return NodeClassifier(
        encoder=encoder,
        num_classes=num_classes,
        input_dim=None if large_graph else num_heads * head_dim,
        input_dropout_rate=input_dropout_rate,
        dropout_rate=dropout_rate,
    )

"""Keras layers on graphs, usable in any Keras 2 model."""

import tensorflow as tf

from tpugraphs_polynormer.exports import export_lazily

if not tf.keras.layers.Layer.__module__.startswith("tf_keras."):  # the package of Keras 2
    raise ImportError(
        "tf.keras is Keras 3 in this process, but TF-GNN and these layers need Keras 2: import tpugraphs_polynormer "
        "before the first use of tf.keras, or set TF_USE_LEGACY_KERAS=1"
    )

_EXPORTS = {
    "CandidateGate": "layers.graph_context",
    "DirectedConvolution": "layers.convolutions",
    "Dropout": "layers.dropout",
    "EdgeDropout": "layers.dropout",
    "EdgeIndex": "layers.edge_index",
    "Gate": "layers.gate",
    "GlobalAttention": "layers.global_attention",
    "GraphAttention": "layers.convolutions",
    "GraphConvolution": "layers.convolutions",
    "GraphNorm": "layers.normalization",
    "Graphs": "layers.neighbours",
    "JointAttention": "layers.joint_attention",
    "LayerNorm": "layers.normalization",
    "Linear": "layers.dense",
    "LocalAttention": "layers.local_attention",
    "MaskedBatchNorm": "layers.normalization",
    "SageConvolution": "layers.convolutions",
    "SqueezeExcite": "layers.graph_context",
    "build_directed_edge_tensors": "layers.directed_edges",
    "build_edge_inputs": "layers.edge_index",
}
__all__ = list(_EXPORTS)
__getattr__, __dir__ = export_lazily(__name__, _EXPORTS)

"""TpuGraphs runtime prediction with Polynormer: layers, models, losses, metrics, datasets and HLO.

Importing the package does not import TensorFlow: each name is loaded when it is first used.

>>> import tpugraphs_polynormer as tp
>>> layer = tp.layers.LocalAttention(num_heads=2, head_dim=8)
>>> layer(tf.ones([3, 5]), tp.build_undirected_edge_index([0, 1], [1, 2], num_nodes=3)).shape
TensorShape([3, 16])
"""

import os

from tpugraphs_polynormer.exports import export_lazily

__version__ = "0.1.0"

# TF-GNN needs Keras 2. TensorFlow reads this when `tf.keras` is first used, so it may be set after TensorFlow's import.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

_EXPORTS = {
    "layers": "layers",
    "models": "models",
    "losses": "training.losses",
    "metrics": "ranking.metrics",
    "datasets": "datasets",
    "hlo": "hlo",
    "EdgeIndex": "layers.edge_index",
    "Graphs": "layers.neighbours",
    "build_edge_index": "layers.edge_index",
    "build_undirected_edge_index": "layers.edge_index",
    "pad_edge_index": "layers.edge_index",
    "Polynormer": "models.polynormer",
    "PolynormerGraphUpdate": "models.graph_update",
    "NodeClassifier": "models.node_classifier",
    "build_polynormer_classifier": "models.node_classifier",
    "load_torch_weights": "models.torch_weights",
    "load_ranker": "ranking.runs",
    "rank_program": "ranking.own_program",
    "compile_program": "compiler.program",
    "compile_jax": "compiler.from_functions",
    "compile_tf": "compiler.from_functions",
    "judge_candidates": "compiler.program",
    "apply_layouts": "compiler.jax_layouts",
    "apply_to_hlo": "compiler.program",
    "score_layouts": "ranking.own_program",
    "open_dataset": "datasets.reader",
    "read_archive": "archives.npz",
    "read_benchmark": "nodes.datasets",
    "compute_fiedler": "nodes.fiedler",
    "RankingConfig": "config.schema",
    "NodeConfig": "config.schema",
    "load_config": "config.schema",
    "UserError": "errors",
}
__all__ = ["__version__", *_EXPORTS]
__getattr__, __dir__ = export_lazily(__name__, _EXPORTS)

"""Encoders and the models made of them."""

from tpugraphs_polynormer.exports import export_lazily

_EXPORTS = {
    "GAT": "models.gnn",
    "GCN": "models.gnn",
    "GraphSAGE": "models.gnn",
    "MLP": "models.gnn",
    "NodeClassifier": "models.node_classifier",
    "Polynormer": "models.polynormer",
    "PolynormerGraphUpdate": "models.graph_update",
    "RankingModel": "models.ranking.model",
    "TpuGraphsLayoutBaseline": "models.tpugraphs_baseline",
    "TpuGraphsTileBaseline": "models.tpugraphs_baseline",
    "build_polynormer_classifier": "models.node_classifier",
}
__all__ = list(_EXPORTS)
__getattr__, __dir__ = export_lazily(__name__, _EXPORTS)

"""Preprocessed collections on disk, and the tf.data that reads them."""

from tpugraphs_polynormer.exports import export_lazily

_EXPORTS = {
    "CandidateDraw": "datasets.reader",
    "FeatureStatistics": "datasets.statistics",
    "RankingDataset": "datasets.reader",
    "RankingGraph": "datasets.reader",
    "make_training_dataset": "datasets.input_pipeline",
    "open_dataset": "datasets.reader",
}
__all__ = list(_EXPORTS)
__getattr__, __dir__ = export_lazily(__name__, _EXPORTS)

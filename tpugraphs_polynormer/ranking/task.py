"""Config -> what a ranking run is made of: the data, the model and the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import tensorflow as tf

from tpugraphs_polynormer.catalog import find_collection
from tpugraphs_polynormer.config.schema import Config
from tpugraphs_polynormer.datasets.manifest import DatasetError, Manifest
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.datasets.statistics import FeatureStatistics
from tpugraphs_polynormer.models.ranking.model import RankingModel
from tpugraphs_polynormer.ranking.scorer import Scorer
from tpugraphs_polynormer.training.losses import build_loss

FACTS_NAME = "dataset.json"


@dataclass(frozen=True)
class RankingTask:
    """What training, evaluation and prediction share; variables are made on first use, in a strategy's scope."""

    config: Config
    collection: RankingDataset
    model: RankingModel
    loss: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]

    def make_scorer(self) -> Scorer:
        """Scores whole graphs with the task's model."""
        return Scorer(
            self.model,
            self.collection,
            candidates_per_group=self.config.data.candidates_per_graph,
            seed=self.config.seed,
        )


def open_collection(config: Config, data_dir: Path | str) -> RankingDataset:
    """The preprocessed collection that the config names, below the folder of all datasets."""
    return RankingDataset(Path(data_dir) / find_collection(config.data.collection).folder)


def build_ranking_task(config: Config, collection: RankingDataset, facts: DatasetFacts | None = None) -> RankingTask:
    """Builds the model of a config for a collection, scaled by the given facts, or by its own train split's."""
    tf.keras.mixed_precision.set_global_policy(
        "float32" if config.training.precision == "float32" else "mixed_bfloat16"
    )
    return RankingTask(
        config=config,
        collection=collection,
        model=build_ranking_model(config, facts or DatasetFacts.of(collection.manifest)),
        loss=build_loss(asdict(config.loss)),
    )


@dataclass(frozen=True)
class DatasetFacts:
    """What a model must know of the data it was trained on; kept in the run directory, so that it can travel alone."""

    collection: str
    kind: str
    statistics: FeatureStatistics

    @staticmethod
    def of(manifest: Manifest) -> DatasetFacts:
        """The facts of a preprocessed collection."""
        if manifest.statistics is None:
            raise DatasetError(f"{manifest.collection}: no train split, so no feature statistics; preprocess it too")
        return DatasetFacts(manifest.collection, manifest.kind, manifest.statistics)


def build_ranking_model(config: Config, facts: DatasetFacts) -> RankingModel:
    """The model of a config, for a dataset's kind and statistics."""
    return RankingModel(kind=facts.kind, config=config.model, statistics=facts.statistics, name="ranking")

"""The configs of the paper's TpuGraphs tables: they differ only in the model, and they learn."""

from pathlib import Path

import pytest
import tensorflow as tf

from tests.ranking_data import LAYOUT, TILE, ranking_datasets
from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.config.loader import config_differences
from tpugraphs_polynormer.config.schema import RankingConfig, load_config
from tpugraphs_polynormer.ranking.task import train_ranking

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("graphsage", "polynormer_local", "polynormer")


def load(model: str, collection: str, *overrides: str) -> RankingConfig:
    return load_config(ROOT / "configs" / "paper" / model / f"{collection.replace(':', '_')}.yaml", overrides)


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_the_three_models_differ_in_the_encoder_only(collection: str) -> None:
    baseline = load("graphsage", collection)
    assert baseline.data.collection == collection
    for model in MODELS[1:]:
        different = {line.split(":")[0] for line in config_differences(baseline, load(model, collection))}
        allowed = {"model.encoder", "model.num_heads", "model.pre_norm", "training.local_epochs"}
        assert "model.encoder" in different and different <= allowed


@pytest.mark.parametrize("collection", [LAYOUT, TILE])
@pytest.mark.parametrize(
    "model", [pytest.param("polynormer", marks=pytest.mark.slow), *(each for each in MODELS if each != "polynormer")]
)
def test_it_learns(tmp_path: Path, model: str, collection: str) -> None:
    """With segments smaller than the graphs, more pairs have the right order than in a random order."""
    small = [
        "training.epochs=6",
        "training.steps_per_epoch=20",
        "data.graphs_per_batch=4",
        "data.candidates_per_graph=8",
    ]
    small += ["model.segment_nodes=8"] if collection == LAYOUT else []
    small += ["training.local_epochs=2"] if model == "polynormer" else []
    config = load(model, collection, *small)
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    result = train_ranking(config, ranking_datasets(), tmp_path / "run", strategy=strategy)
    assert result["best"]["metrics"]["valid"]["opa"] > 0.65

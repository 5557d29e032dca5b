"""Training on packed batches: the loss is the mean over the graphs that are there, and a run learns and resumes."""

import numpy as np
import pytest
import tensorflow as tf

from tests.ranking_data import LAYOUT, TILE, ranking_datasets, small_config
from tpugraphs_polynormer.datasets.sampler import CandidateSampler
from tpugraphs_polynormer.ranking.task import RankingTask, open_collection, train_ranking

PACKED = ("data.graphs_per_batch=5", "model.dropout_rate=0.0")


@pytest.mark.parametrize("name", [LAYOUT, TILE])
@pytest.mark.parametrize("static", ["false", "true"])
def test_the_loss_is_that_of_the_same_graphs_without_packing(name, static):
    collection = open_collection(small_config(name), ranking_datasets())
    largest = max(graph.num_nodes for graph in collection.split("train").graphs)
    packed = small_config(name, *PACKED, f"data.batch_nodes={largest + 5}", f"data.static_shapes={static}")
    plan = CandidateSampler(collection.split("train"), packed.data, packed.seed).plan_batches()
    count = int((plan.positions(0) >= 0).sum())
    assert 1 <= count < 5, "the first batch has room left"
    plain = small_config(name, *PACKED, f"data.graphs_per_batch={count}")
    losses = []
    for config in (packed, plain):
        tf.keras.utils.set_random_seed(0)
        task = RankingTask(config, collection)
        batch = next(iter(task.make_dataset(0, tf.distribute.InputContext())))
        losses.append(float(task.loss(batch, num_replicas=1)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_a_packed_run_resumes_to_the_same_weights(tmp_path):
    overrides = ("data.graphs_per_batch=3", "data.batch_nodes=40", "training.epochs=3")
    strategy = tf.distribute.get_strategy()
    whole = train_ranking(small_config(LAYOUT, *overrides), ranking_datasets(), tmp_path / "whole", strategy=strategy)
    train_ranking(
        small_config(LAYOUT, *overrides[:2], "training.epochs=1"),
        ranking_datasets(),
        tmp_path / "two",
        strategy=strategy,
    )
    again = train_ranking(small_config(LAYOUT, *overrides), ranking_datasets(), tmp_path / "two", strategy=strategy)
    assert again["epochs"] == whole["epochs"] == 3 and np.isfinite(again["best"]["loss"])

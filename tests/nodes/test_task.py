"""The node-classification task in the trainer: losses, the two phases, mini-batches, resuming, baselines."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.node_data import make_config, make_dataset
from tpugraphs_polynormer.config.schema import NodeConfig
from tpugraphs_polynormer.nodes.datasets import NodeDataset, find_along, make_undirected
from tpugraphs_polynormer.nodes.task import NodeInputs, NodeTask, node_entropy, node_loss
from tpugraphs_polynormer.training.run_directory import RunDirectory, RunError
from tpugraphs_polynormer.training.trainer import Trainer, restore_best

PROJECT = Path(__file__).resolve().parents[2]


def make_trainer(config: NodeConfig, path: Path) -> Trainer:
    return Trainer(NodeTask(config, NodeInputs.make(make_dataset(), config), 0), RunDirectory.start(path, config))


def train(config: NodeConfig, path: Path) -> list[dict]:
    """The records of a run, without times."""
    trainer = make_trainer(config, path)
    trainer.train()
    return without_times(trainer.run.read_metrics())


def without_times(records: list[dict]) -> list[dict]:
    return [{key: value for key, value in record.items() if "seconds" not in key} for record in records]


def test_losses_by_hand() -> None:
    logits = tf.constant([[0.0, np.log(3.0)], [np.log(4.0), 0.0], [9.0, 9.0]])
    labels, weights = tf.constant([1, 1, -1], tf.int64), tf.constant([1.0, 1.0, 0.0])
    # The softmax probabilities of the labels are 3/4 and 1/5.
    np.testing.assert_allclose(node_loss("nll", logits, labels, weights), -np.log([3 / 4, 1 / 5]).mean(), rtol=1e-6)
    # The sigmoids give class 0 (absent) 1/2 and 1 - 4/5, class 1 (present) 3/4 and 1/2.
    expected = -np.log([1 / 2, 3 / 4, 1 / 5, 1 / 2]).mean()
    np.testing.assert_allclose(node_loss("bce", logits, labels, weights), expected, rtol=1e-6)
    assert node_loss("nll", logits, labels, tf.zeros(3)) == 0


def test_entropies_by_hand() -> None:
    logits = tf.constant([[0.0, 0.0], [0.0, np.log(3.0)], [100.0, -100.0], [5.0, -7.0]])
    weights = tf.constant([1.0, 1.0, 1.0, 0.0])
    # Softmax: (1/2, 1/2), (1/4, 3/4) and (1, 0); the last node does not count.
    half, quarter = np.log(2.0), -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    np.testing.assert_allclose(node_entropy("nll", logits, weights), (half + quarter) / 3, rtol=1e-6)
    # Sigmoids: two halves; 1/2 and 3/4; 1 and 0. A node's entropy is the mean of its two.
    expected = (half + (half + quarter) / 2) / 3
    np.testing.assert_allclose(node_entropy("bce", logits, weights), expected, rtol=1e-6)
    assert node_entropy("nll", logits, tf.zeros(4)) == 0


@pytest.mark.parametrize("kind", ["nll", "bce"])
def test_a_step_down_the_entropy_makes_a_prediction_sharper(kind: str) -> None:
    logits = tf.Variable([[0.2, 0.9, -0.1]])
    with tf.GradientTape() as tape:
        before = node_entropy(kind, logits, tf.ones(1))
    logits.assign_sub(0.1 * tape.gradient(before, logits))
    assert node_entropy(kind, logits, tf.ones(1)) < before
    assert logits[0, 1] > 0.9 and logits[0, 2] < -0.1


def loss_of(dataset: NodeDataset, *overrides: str) -> float:
    """The loss of the first step, without dropout."""
    config = make_config("model.dropout_rate=0", *overrides)
    task = NodeTask(config, NodeInputs.make(dataset, config), 0)
    task.enter_phase("global")
    return float(task.loss(next(iter(task.make_dataset(0, tf.distribute.InputContext()))), num_replicas=1))


def test_the_loss_has_the_entropy_of_other_nodes_and_none_of_their_labels() -> None:
    dataset = make_dataset()
    plain, sharpened = loss_of(dataset), loss_of(dataset, "training.entropy_weight=0.5")
    assert 0 < (sharpened - plain) / 0.5 <= np.log(2.0)
    labels, others = dataset.labels.copy(), np.concatenate([dataset.splits[0].valid, dataset.splits[0].test])
    labels[others] = 1 - labels[others]
    assert loss_of(dataclasses.replace(dataset, labels=labels), "training.entropy_weight=0.5") == sharpened


def test_a_weight_on_the_entropy_sharpens_the_predictions(tmp_path: Path) -> None:
    entropies = {}
    for weight in (0, 2):
        config = make_config("model.encoder=gcn", "training.epochs=40", f"training.entropy_weight={weight}")
        trainer = make_trainer(config, tmp_path / str(weight))
        trainer.train()
        entropies[weight] = float(node_entropy("nll", tf.constant(trainer.task.predict()), tf.ones(60)))
    assert entropies[2] < 0.8 * entropies[0]


def test_a_polynormer_without_global_epochs_trains_saves_and_predicts_its_local_phase(tmp_path: Path) -> None:
    config = make_config("training.local_epochs=12", "training.epochs=0")
    trainer = make_trainer(config, tmp_path)
    start = {variable.name: variable.numpy() for variable in trainer.task.model.trainable_variables}
    result = trainer.train()
    assert result["epochs"] == 12 and {record["phase"] for record in trainer.run.read_metrics()} == {"local"}
    changed = {
        variable.name: not np.array_equal(variable, start[variable.name])
        for variable in trainer.task.model.trainable_variables
    }
    assert changed["local_head/kernel:0"] and not changed["global_head/kernel:0"]
    again = NodeTask(config, trainer.task.inputs, 0)  # as another process would
    phase = restore_best(again, trainer.run)
    assert phase == result["best"]["phase"] == "local"
    assert again.evaluate() == result["best"]["metrics"]
    trainer.restore_best()
    np.testing.assert_array_equal(again.predict(), trainer.task.predict())


def test_global_phase_starts_from_the_best_local_epoch(tmp_path: Path, monkeypatch) -> None:
    """Epoch 1 is the best local epoch, so epoch 4 starts from its weights and moments, not from those of epoch 3."""
    config = make_config("training.local_epochs=4", "training.epochs=3", "model.dropout_rate=0")
    trainer = make_trainer(config, tmp_path)
    task, optimizer = trainer.task, trainer.learner.optimizer
    watched = [task.model.encoder.local_layers[0].linear.kernel, optimizer._first[0], optimizer._steps[0]]
    valid = iter([0.1, 0.7, 0.3, 0.2, 0.6, 0.9, 0.8])
    seen: list[list[np.ndarray]] = []
    starts: list[list[np.ndarray]] = []
    make_dataset = task.make_dataset

    def evaluate() -> dict:
        seen.append([variable.numpy() for variable in watched])
        return {"valid": {"roc_auc": next(valid)}}

    def watch(*arguments):
        starts.append([variable.numpy() for variable in watched])
        return make_dataset(*arguments)

    monkeypatch.setattr(task, "evaluate", evaluate)
    monkeypatch.setattr(task, "make_dataset", watch)
    result = trainer.train()
    assert (result["best"]["epoch"], result["best"]["phase"], result["epochs"]) == (5, "global", 7)
    for found, best, last in zip(starts[1], seen[1], seen[3], strict=True):
        np.testing.assert_array_equal(found, best)
        assert not np.array_equal(found, last)
    assert trainer.restore_best() == "global"
    np.testing.assert_array_equal(watched[0].numpy(), seen[5][0])


def test_each_phase_trains_what_it_uses(tmp_path: Path, monkeypatch) -> None:
    trainer = make_trainer(make_config("training.local_epochs=2", "training.epochs=1"), tmp_path)
    model, optimizer = trainer.task.model, trainer.learner.optimizer
    watched = {
        "local": model.encoder.local_layers[0].linear.kernel,
        "global": model.encoder.global_layers[0].key.kernel,
    }
    watched |= {"local_head": model.local_head.kernel, "global_head": model.global_head.kernel}
    values = [{name: variable.numpy() for name, variable in watched.items()}]
    scores = iter([0.1, 0.2, 0.3])  # the last local epoch is the best, so the global phase starts from it

    def evaluate() -> dict:
        values.append({name: variable.numpy() for name, variable in watched.items()})
        return {"valid": {"roc_auc": next(scores)}}

    monkeypatch.setattr(trainer.task, "evaluate", evaluate)
    trainer.train()
    changed = [
        {name for name in watched if not np.array_equal(before[name], after[name])}
        for before, after in itertools.pairwise(values)
    ]
    assert changed == [{"local", "local_head"}] * 2 + [{"local", "global", "global_head"}]
    order = {variable.ref(): i for i, variable in enumerate(model.trainable_variables)}
    steps = {name: int(optimizer._steps[order[variable.ref()]]) for name, variable in watched.items()}
    assert steps == {"local": 3, "local_head": 2, "global": 1, "global_head": 1}


def test_it_learns_and_the_best_epoch_can_be_restored(tmp_path: Path) -> None:
    trainer = make_trainer(make_config("training.local_epochs=15", "training.epochs=15"), tmp_path)
    result = trainer.train()
    records = trainer.run.read_metrics()
    assert [record["epoch"] for record in records] == list(range(30))
    assert [record["phase"] for record in records] == ["local"] * 15 + ["global"] * 15
    assert records[14]["loss"] < 0.8 * records[0]["loss"]
    best = max(records, key=lambda record: record["metrics"]["valid"]["roc_auc"])
    assert result["best"] == best and best["selection"] == best["metrics"]["valid"]["roc_auc"]
    assert trainer.restore_best() == best["phase"]
    assert trainer.task.evaluate() == best["metrics"]


def test_bfloat16_learns_beside_float32_with_weights_in_float32(tmp_path: Path) -> None:
    epochs = ("model.dropout_rate=0", "training.local_epochs=15", "training.epochs=15")
    wide = train(make_config(*epochs), tmp_path / "wide")
    trainer = make_trainer(make_config(*epochs, "training.precision=bfloat16"), tmp_path / "half")
    try:
        trainer.train()
        half = trainer.run.read_metrics()
        assert {variable.dtype for variable in trainer.task.model.trainable_variables} == {tf.float32}
        assert trainer.task.model.encoder.compute_dtype == "bfloat16"
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    losses, expected = (np.array([record["loss"] for record in each]) for each in (half, wide))
    np.testing.assert_allclose(losses, expected, rtol=0.1, atol=0.02)
    assert np.abs(losses - expected).max() > 0 and losses[14] < 0.8 * losses[0]


def test_directions_are_those_of_the_files() -> None:
    """Edges 0 -> 1 and 1 -> 2, and both directions between 2 and 3: sums along, and against."""
    pairs = np.array([[0, 1], [1, 2], [2, 3], [3, 2]])
    edges, (one,) = make_undirected(pairs, 4), make_dataset(num_splits=1).splits
    labels, features = np.zeros(4, np.int64), np.array([[1.0], [2.0], [4.0], [8.0]], np.float32)
    dataset = NodeDataset("toy", features, labels, edges, (one,), 2, "accuracy", find_along(edges, pairs, 4))
    config = make_config("model.encoder=graphsage", "model.directed=true")
    found = NodeInputs.make(dataset, config).edges
    both, along, against = (each.aggregate(tf.constant(features), how="sum").numpy()[:, 0].tolist() for each in found)
    assert along == [1, 3, 14, 12] and against == [3, 6, 12, 12]  # each with the node itself
    assert both == [3, 7, 14, 12]
    with pytest.raises(ValueError, match=r"toy: model\.directed needs directions; read it with directed=True"):
        NodeInputs.make(dataclasses.replace(dataset, is_along=None), config)


@pytest.mark.parametrize("encoder", ["gcn", "polynormer"])
def test_directed_models_learn_and_know_the_direction(tmp_path: Path, encoder: str) -> None:
    config = make_config(f"model.encoder={encoder}", "model.directed=true", "training.local_epochs=15")
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, epochs=1))
    trainer = make_trainer(config, tmp_path)
    trainer.train()
    records = trainer.run.read_metrics()
    assert records[14]["loss"] < 0.9 * records[0]["loss"]
    task, edges = trainer.task, trainer.task.inputs.edges
    turned = edges._replace(along=edges.against, against=edges.along)
    features = task.inputs.dataset.features
    assert not np.allclose(task.model(features, edges.as_tensors()), task.model(features, turned.as_tensors()))


@pytest.mark.parametrize("encoder", ["gcn", "graphsage", "gat", "polynormer-local"])
def test_models_of_one_phase_train_all_epochs_in_it(tmp_path: Path, encoder: str) -> None:
    config = make_config(f"model.encoder={encoder}", "training.local_epochs=5", "training.epochs=15")
    records = train(config, tmp_path)
    assert {record["phase"] for record in records} == {"local"}
    assert len(records) == 20
    assert records[-1]["loss"] < 0.9 * records[0]["loss"]


def test_batches_train_without_retracing_and_evaluate_in_chunks(tmp_path: Path, monkeypatch) -> None:
    config = make_config(
        "training.nodes_per_batch=25", "training.chunk_nodes=20", "training.local_epochs=12", "training.epochs=1"
    )
    trainer = make_trainer(config, tmp_path)
    task = trainer.task
    seen = list(itertools.islice(task._batches(0), task.steps_per_epoch))
    assert [len(batch[0]) for batch in seen] == [25, 25, 10]
    traced = []
    loss = task.loss
    monkeypatch.setattr(task, "loss", lambda batch, **kw: traced.append(task._phase) or loss(batch, **kw))
    trainer.train()
    assert traced == ["local", "global"]
    records = trainer.run.read_metrics()
    assert records[11]["loss"] < records[0]["loss"]


def test_one_batch_of_all_nodes_is_the_whole_graph(tmp_path: Path) -> None:
    short = ["training.local_epochs=3", "training.epochs=2"]
    whole = train(make_config(*short), tmp_path / "whole")
    batched = train(make_config(*short, "training.nodes_per_batch=60"), tmp_path / "batched")
    for one, other in zip(whole, batched, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_the_compiled_step_learns_the_same(tmp_path: Path) -> None:
    short = ["training.local_epochs=2", "training.epochs=2"]
    plain = train(make_config(*short), tmp_path / "plain")
    compiled = train(make_config(*short, "training.jit_compile=true"), tmp_path / "compiled")
    for one, other in zip(plain, compiled, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)


@pytest.mark.parametrize("setting", ["learning_rate=0.1", "weight_decay=0.5"])
def test_the_optimizer_obeys_the_config(tmp_path: Path, setting: str) -> None:
    short = ["training.local_epochs=2", "training.epochs=0", "model.dropout_rate=0", "model.encoder=gcn"]
    plain = train(make_config(*short), tmp_path / "plain")
    changed = train(make_config(*short, f"training.{setting}"), tmp_path / "changed")
    assert plain[0]["loss"] == pytest.approx(changed[0]["loss"], rel=1e-6), "before the first update"
    assert abs(plain[1]["loss"] - changed[1]["loss"]) > 1e-4


def test_evaluations_can_be_rarer(tmp_path: Path) -> None:
    config = make_config("training.local_epochs=5", "training.epochs=4", "training.epochs_per_evaluation=3")
    assert [record["epoch"] for record in train(config, tmp_path)] == [2, 4, 5, 8]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, monkeypatch) -> None:
    trainer = make_trainer(make_config("training.epochs=2"), tmp_path)
    call = trainer.task._call_model
    monkeypatch.setattr(trainer.task, "_call_model", lambda *inputs, **kw: call(*inputs, **kw) * np.nan)
    with pytest.raises(RunError, match="the loss became non-finite at step 0; no checkpoint was saved before"):
        trainer.train()
    assert not trainer.run.read_metrics() and not (tmp_path / "checkpoints/latest").exists()


class Interruption(Exception):
    """Simulates the end of a process between two epochs."""


@pytest.mark.parametrize(
    ("overrides", "stop"),
    [
        ([], 5),
        (["training.nodes_per_batch=25", "training.epochs_per_evaluation=2"], 8),
        (["training.ema_decay=0.9", "model.edge_dropout_rate=0.3", "model.post_norm=true"], 5),
    ],
)
def test_a_resumed_run_has_the_numbers_of_an_unbroken_one(
    tmp_path: Path, monkeypatch, overrides: list[str], stop: int
) -> None:
    config = make_config("training.local_epochs=5", "training.epochs=5", "training.checkpoint_seconds=0", *overrides)
    unbroken = train(config, tmp_path / "unbroken")
    broken = make_trainer(config, tmp_path / "broken")
    save = broken._latest.save

    def interrupt(number: int) -> None:
        if number == stop + 1:  # after the metrics, before the checkpoint: this epoch must be trained again
            raise Interruption
        save(number)

    monkeypatch.setattr(broken._latest, "save", interrupt)
    with pytest.raises(Interruption):
        broken.train()
    assert train(config, tmp_path / "broken") == unbroken


CHILD = """
import sys
from pathlib import Path
from tests.node_data import make_config, make_dataset
from tpugraphs_polynormer.nodes.benchmark import run_dataset
overrides = ["training.local_epochs=40", "training.epochs=40", "training.checkpoint_seconds=0"]
run_dataset(make_config(*overrides), make_dataset(), Path(sys.argv[1]), [1])
"""


def start_child(path: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(path)], cwd=PROJECT, env={**os.environ})


@pytest.mark.slow
@pytest.mark.parametrize("num_records", [6, 50])
def test_a_killed_process_run_again_ends_with_the_same_numbers(
    tmp_path: Path, num_records: int, moments: random.Random
) -> None:
    assert start_child(tmp_path / "unbroken").wait() == 0
    metrics = tmp_path / "broken" / "split_1" / "metrics.jsonl"
    child = start_child(tmp_path / "broken")
    while not metrics.exists() or metrics.read_text().count("\n") < num_records:
        assert child.poll() is None, "the child ended before it was killed"
        time.sleep(0.002)
    time.sleep(moments.uniform(0, 0.05))  # within the epoch that follows, its evaluation or its checkpoint
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "broken" / "summary.json").exists()
    first = json.loads(metrics.read_text().splitlines()[0])
    assert start_child(tmp_path / "broken").wait() == 0
    found = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert found[0] == first, "the run started over instead of resuming"
    unbroken = (tmp_path / "unbroken" / "split_1" / "metrics.jsonl").read_text().splitlines()
    assert without_times(found) == without_times([json.loads(line) for line in unbroken])


def test_each_step_drops_other_edges_and_keeps_both_directions_or_none() -> None:
    config = make_config("model.edge_dropout_rate=0.5")
    inputs = NodeInputs.make(make_dataset(), config)
    model = NodeTask(config, inputs, 0).model
    edges, loops = inputs.edges.as_tensors(), inputs.edges.source == inputs.edges.target
    masks = [model.edge_dropout.thin(edges, training=True).mask.numpy() for _ in range(2)]
    assert not np.array_equal(*masks)
    for mask in masks:
        assert mask[loops].all() and 0.3 < mask[~loops].mean() < 0.7
        kept = set(zip(inputs.edges.source[mask].tolist(), inputs.edges.target[mask].tolist(), strict=True))
        assert kept == {(target, source) for source, target in kept}
    assert model.edge_dropout.thin(edges, training=False) is edges


def test_averages_are_evaluated_with_their_own_batch_norm_and_across_phases(tmp_path: Path, monkeypatch) -> None:
    """The model that is evaluated has the averages of weights and statistics; each phase begins an average."""
    config = make_config(
        *("training.ema_decay=0.5", "model.post_norm=true", "model.dropout_rate=0"),
        *("training.local_epochs=3", "training.epochs=3"),
    )
    trainer = make_trainer(config, tmp_path)
    task, averages = trainer.task, trainer.learner.averages
    norm = task.model.encoder.local_layers[0].norm_after
    watched = [norm.moving_mean, norm.scale, task.model.encoder.local_layers[0].linear.kernel]
    raw, evaluated = [], []
    valid = iter([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])

    def evaluate() -> dict:
        evaluated.append([variable.numpy() for variable in watched])
        averages.swap()
        raw.append([variable.numpy() for variable in watched])
        averages.swap()
        return {"valid": {"roc_auc": next(valid)}}

    monkeypatch.setattr(task, "evaluate", evaluate)
    first = [variable.numpy() for variable in watched]
    trainer.train()
    for position in range(len(watched)):
        average = first[position].astype(np.float64)
        for epoch in range(6):  # the best epoch of the first phase is its last one: nothing is restored
            decay = min(0.5, (1 + epoch % 3) / (10 + epoch % 3))
            average = decay * average + (1 - decay) * raw[epoch][position]
            np.testing.assert_allclose(evaluated[epoch][position], average, rtol=1e-4, atol=1e-6)
    assert not np.allclose(evaluated[2][0], raw[2][0], atol=1e-4)


def test_edges_are_dropped_in_training_only() -> None:
    config = make_config("model.edge_dropout_rate=0.5", "model.dropout_rate=0")
    task = NodeTask(config, NodeInputs.make(make_dataset(), config), 0)
    task.enter_phase("global")
    np.testing.assert_array_equal(task.predict(), task.predict())
    batch = next(iter(task.make_dataset(0, tf.distribute.InputContext())))
    assert float(task.loss(batch, num_replicas=1)) != float(task.loss(batch, num_replicas=1))

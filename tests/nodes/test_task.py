"""The trainer: losses, the two phases, mini-batches, resuming, baselines."""

from __future__ import annotations

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
from tpugraphs_polynormer.config.schema import Config
from tpugraphs_polynormer.nodes.task import NodeInputs, NodeTrainer, NodeTrainingError, node_loss
from tpugraphs_polynormer.training.run_directory import RunDirectory

PROJECT = Path(__file__).resolve().parents[2]


def make_trainer(config: Config, path: Path) -> NodeTrainer:
    return NodeTrainer(config, NodeInputs.make(make_dataset(), config), 0, RunDirectory.start(path, config))


def without_times(records: list[dict]) -> list[dict]:
    return [{key: value for key, value in record.items() if "seconds" not in key} for record in records]


def test_losses_by_hand() -> None:
    logits = tf.constant([[0.0, np.log(3.0)], [np.log(4.0), 0.0], [9.0, 9.0]])
    labels, weights = tf.constant([1, 1, -1], tf.int64), tf.constant([1.0, 1.0, 0.0])
    # Softmax gives the labels 3/4 and 1/5.
    np.testing.assert_allclose(node_loss("nll", logits, labels, weights), -np.log([3 / 4, 1 / 5]).mean(), rtol=1e-6)
    # Sigmoids: class 0 off 1/2 and 1 - 4/5, class 1 on 3/4 and 1/2.
    expected = -np.log([1 / 2, 3 / 4, 1 / 5, 1 / 2]).mean()
    np.testing.assert_allclose(node_loss("bce", logits, labels, weights), expected, rtol=1e-6)
    assert node_loss("nll", logits, labels, tf.zeros(3)) == 0


def test_global_phase_starts_from_the_best_local_epoch(tmp_path: Path, monkeypatch) -> None:
    """An epoch that adds 1 to all weights and moments shows in them which epoch they come from."""
    trainer = make_trainer(make_config("training.local_epochs=4", "training.epochs=3"), tmp_path)
    weight = trainer.model.local_head.bias
    moment = trainer._optimizers[0].first[0]
    start = weight.numpy().copy()
    valid = iter([0.1, 0.7, 0.3, 0.2, 0.6, 0.9, 0.8])
    seen = []

    def train_epoch(epoch: int) -> float:
        for variable in trainer._learned():
            variable.assign_add(tf.ones_like(variable))
        seen.append((trainer.model.phase, float(weight[0] - start[0]), float(tf.reshape(moment, [-1])[0])))
        return 0.0

    monkeypatch.setattr(trainer, "train_epoch", train_epoch)
    monkeypatch.setattr(trainer, "_score", lambda: {"train": 0.0, "valid": next(valid), "test": 0.0})
    trainer.train()
    # Epoch 1 was the best local one: the global phase goes on from 2, not from 4.
    expected = [("local", n, n) for n in (1, 2, 3, 4)] + [("global", n, n) for n in (3, 4, 5)]
    assert [phase for phase, *_ in seen] == [phase for phase, *_ in expected]
    np.testing.assert_allclose([numbers for _, *numbers in seen], [numbers for _, *numbers in expected], atol=1e-5)
    trainer.restore_best()
    assert trainer.model.phase == "global"
    np.testing.assert_allclose(weight - start, 4, atol=1e-5)


def test_each_phase_trains_what_it_uses(tmp_path: Path) -> None:
    trainer = make_trainer(make_config("training.local_epochs=2", "training.epochs=2"), tmp_path)
    model = trainer.model
    watched = {
        "local": model.encoder.local_layers[0].linear.kernel,
        "global": model.encoder.global_layers[0].key.kernel,
    }
    watched |= {"local_head": model.local_head.kernel, "global_head": model.global_head.kernel}
    before = {name: variable.numpy() for name, variable in watched.items()}
    trainer._resume()
    trainer._run_epoch(0)
    changed = {name for name, variable in watched.items() if not np.array_equal(variable, before[name])}
    assert changed == {"local", "local_head"}
    trainer._start_global_phase(2)
    before = {name: variable.numpy() for name, variable in watched.items()}
    trainer._run_epoch(2)
    changed = {name for name, variable in watched.items() if not np.array_equal(variable, before[name])}
    assert changed == {"local", "global", "global_head"}
    assert [int(optimizer.steps) for optimizer in trainer._optimizers] == [2, 1]


def test_it_learns_and_the_best_epoch_can_be_restored(tmp_path: Path) -> None:
    trainer = make_trainer(make_config("training.local_epochs=15", "training.epochs=15"), tmp_path)
    records = trainer.train()
    assert [record["epoch"] for record in records] == list(range(30))
    assert [record["phase"] for record in records] == ["local"] * 15 + ["global"] * 15
    assert records[14]["loss"] < 0.8 * records[0]["loss"]
    best = max(records, key=lambda record: record["valid"])
    trainer.restore_best()
    assert trainer._score() == {name: best[name] for name in ("train", "valid", "test")}


@pytest.mark.parametrize("encoder", ["gcn", "graphsage", "gat", "polynormer-local"])
def test_models_of_one_phase_train_all_epochs_in_it(tmp_path: Path, encoder: str) -> None:
    config = make_config(f"model.encoder={encoder}", "training.local_epochs=5", "training.epochs=15")
    records = make_trainer(config, tmp_path).train()
    assert {record["phase"] for record in records} == {"local"}
    assert len(records) == 20
    assert records[-1]["loss"] < 0.9 * records[0]["loss"]


def test_batches_train_without_retracing_and_evaluate_in_chunks(tmp_path: Path) -> None:
    config = make_config(
        "training.nodes_per_batch=25", "training.chunk_nodes=20", "training.local_epochs=12", "training.epochs=1"
    )
    trainer = make_trainer(config, tmp_path)
    seen = [nodes for nodes, _ in trainer._batches(0)]
    assert [len(batch[0]) for batch in seen] == [25, 25, 10]
    records = trainer.train()
    assert trainer._step.experimental_get_tracing_count() == 1
    assert records[11]["loss"] < records[0]["loss"]


def test_one_batch_of_all_nodes_is_the_whole_graph(tmp_path: Path) -> None:
    short = ["training.local_epochs=3", "training.epochs=2"]
    whole = make_trainer(make_config(*short), tmp_path / "whole").train()
    batched = make_trainer(make_config(*short, "training.nodes_per_batch=60"), tmp_path / "batched").train()
    for one, other in zip(whole, batched, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


@pytest.mark.parametrize("setting", ["learning_rate=0.1", "weight_decay=0.5"])
def test_the_optimizer_obeys_the_config(tmp_path: Path, setting: str) -> None:
    short = ["training.local_epochs=2", "training.epochs=0", "model.dropout_rate=0", "model.encoder=gcn"]
    plain = make_trainer(make_config(*short), tmp_path / "plain").train()
    changed = make_trainer(make_config(*short, f"training.{setting}"), tmp_path / "changed").train()
    assert plain[0]["loss"] == pytest.approx(changed[0]["loss"], rel=1e-6), "before the first update"
    assert abs(plain[1]["loss"] - changed[1]["loss"]) > 1e-4


def test_evaluations_can_be_rarer(tmp_path: Path) -> None:
    config = make_config("training.local_epochs=5", "training.epochs=4", "training.epochs_per_evaluation=3")
    assert [record["epoch"] for record in make_trainer(config, tmp_path).train()] == [2, 4, 5, 8]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, monkeypatch) -> None:
    trainer = make_trainer(make_config("training.epochs=2"), tmp_path)
    monkeypatch.setattr(trainer, "_step", lambda *_: float("nan"))
    monkeypatch.setattr(trainer, "_start_global_phase", lambda _: None)
    with pytest.raises(NodeTrainingError, match="loss of epoch 0 is nan"):
        trainer.train()


class Interruption(Exception):
    """Stands for whatever ends a process between two epochs."""


@pytest.mark.parametrize(
    ("overrides", "stop"), [([], 5), (["training.nodes_per_batch=25", "training.epochs_per_evaluation=2"], 8)]
)
def test_a_resumed_run_has_the_numbers_of_an_unbroken_one(
    tmp_path: Path, monkeypatch, overrides: list[str], stop: int
) -> None:
    config = make_config("training.local_epochs=5", "training.epochs=5", "training.checkpoint_seconds=0", *overrides)
    unbroken = make_trainer(config, tmp_path / "unbroken").train()
    broken = make_trainer(config, tmp_path / "broken")
    run_epoch = broken._run_epoch

    def interrupt(epoch: int) -> None:
        run_epoch(epoch)
        if epoch == stop:  # after the metrics, before the checkpoint: this epoch must be computed again
            raise Interruption

    monkeypatch.setattr(broken, "_run_epoch", interrupt)
    with pytest.raises(Interruption):
        broken.train()
    resumed = make_trainer(config, tmp_path / "broken").train()
    assert without_times(resumed) == without_times(unbroken)


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
    assert not (tmp_path / "broken" / "results.json").exists()
    first = json.loads(metrics.read_text().splitlines()[0])
    assert start_child(tmp_path / "broken").wait() == 0
    found = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert found[0] == first, "the run started over instead of resuming"
    unbroken = (tmp_path / "unbroken" / "split_1" / "metrics.jsonl").read_text().splitlines()
    assert without_times(found) == without_times([json.loads(line) for line in unbroken])

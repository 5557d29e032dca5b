"""Training runs learn, survive kill -9 to the same weights, stop when they should, and agree across strategies."""

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.ranking_data import LAYOUT, SMALL, TILE, ranking_datasets, scratch_folder, small_config
from tests.training.test_checkpoints import read_events
from tpugraphs_polynormer.cli.main import main
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.datasets.input_pipeline import CandidateSampler
from tpugraphs_polynormer.datasets.manifest import DatasetError
from tpugraphs_polynormer.ranking import train as training
from tpugraphs_polynormer.ranking.train import train, train_seeds
from tpugraphs_polynormer.training.checkpoints import Checkpoints
from tpugraphs_polynormer.training.run_directory import RunDirectory, RunError

ROOT = Path(__file__).resolve().parents[2]
# The cheapest model to trace: these tests are about the loop.
CHEAP = ("model.encoder=mlp", "model.num_local_layers=1", "model.num_nconfig_layers=0", "model.hidden_dim=4")
DROPOUT = ("model.dropout_rate=0.3", "model.input_dropout_rate=0.2")
WARM_UP = ("model.encoder=polynormer", "training.local_epochs=2", "training.epochs=2", *DROPOUT)


def train_here(run_dir, *overrides: str, name: str = LAYOUT) -> dict:
    config = small_config(name, *CHEAP, *overrides)
    return train(config, ranking_datasets(), run_dir, strategy=tf.distribute.OneDeviceStrategy("CPU:0"))


def command(run_dir, *overrides: str, options: tuple[str, ...] = ()) -> list[str]:
    settings = (*SMALL, f"data.collection={LAYOUT}", *CHEAP, *overrides)
    sets = [part for setting in settings for part in ("--set", setting)]
    places = ["--datasets", str(ranking_datasets()), "--run-dir", str(run_dir)]
    return ["train", *places, *options, *sets]


def start(arguments: list[str], **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tpugraphs_polynormer.cli.main", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> dict:
    """The result that a process prints."""
    output, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors[-3000:]
    return json.loads(output)


def weights(run_dir, name: str = "latest") -> dict[str, np.ndarray]:
    """Every variable of a checkpoint, the optimizer's and the dropout's too."""
    reader = tf.train.load_checkpoint(str(Path(run_dir) / "checkpoints" / name))
    keys = set(reader.get_variable_to_shape_map())
    keys -= {"_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter/.ATTRIBUTES/VARIABLE_VALUE"}
    return {key: np.asarray(reader.get_tensor(key)) for key in sorted(keys)}


def assert_same_bytes(one, other, name: str = "latest") -> None:
    found, expected = weights(one, name), weights(other, name)
    assert found.keys() == expected.keys() and len(found) > 10
    assert not [key for key in found if found[key].tobytes() != expected[key].tobytes()]


def assert_close_weights(one, other) -> None:
    found, expected = weights(one), weights(other)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-3, atol=1e-5, err_msg=key)


def losses(run_dir) -> list[float]:
    return [record["loss"] for record in RunDirectory.open(run_dir).read_metrics()]


def without_seconds(run_dir) -> list[dict]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in RunDirectory.open(run_dir).read_metrics()]


@functools.cache
def finished() -> Path:
    """A short finished run with dropout, and nothing that disturbed it."""
    folder = scratch_folder()
    train_here(folder, "training.epochs=8", *DROPOUT)
    return folder


@pytest.mark.parametrize("name", [TILE, LAYOUT])
def test_learning_happens(tmp_path, name):
    steps = ("training.epochs=2", "training.steps_per_epoch=50", "training.steps_per_execution=25")
    wide = ("model.readout=sum", "model.hidden_dim=16", "data.graphs_per_batch=4", "data.candidates_per_graph=10")
    result = train_here(tmp_path, *steps, *wide, name=name)
    assert result["valid"]["overall"]["tau"] > 0.8
    first, second = losses(tmp_path)
    assert second < first / 3, "each epoch's loss is its own mean, not the run's"


def test_kill_9_at_any_moment_and_rerun_ends_with_the_same_weights(tmp_path, moments):
    arguments = command(tmp_path / "run", "training.epochs=8", *DROPOUT)
    kills = 0
    for _ in range(2):
        process = start(arguments)
        epochs = kills * 2 + 1  # once it has done some, at a random moment of what follows
        metrics = tmp_path / "run/metrics.jsonl"
        while process.poll() is None and (not metrics.exists() or len(metrics.read_text().splitlines()) < epochs):
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    assert kills, "the run was over before it could be killed"
    finish(start(arguments))
    for name in ("latest", "best"):
        assert_same_bytes(tmp_path / "run", finished(), name)
    assert without_seconds(tmp_path / "run") == without_seconds(finished())
    results = [json.loads((folder / "result.json").read_text()) for folder in (tmp_path / "run", finished())]
    assert results[0] == results[1]


class Killed(BaseException):
    """Stands for kill -9 between two writes of one process."""


@pytest.mark.parametrize(
    "folder, number",
    [
        ("latest", 3),
        pytest.param("latest", 2, marks=pytest.mark.slow),
        pytest.param("best", 3, marks=pytest.mark.slow),
    ],
)
def test_a_kill_between_two_writes_around_the_change_of_phase(tmp_path, monkeypatch, folder, number):
    """Number 2 is the last warm-up epoch, 3 the first of the global phase, which starts from the warm-up's best."""
    save = Checkpoints.save

    def interrupted(self, at: int) -> None:
        if at == number and self._folder.name == folder:
            raise Killed
        save(self, at)

    monkeypatch.setattr(Checkpoints, "save", interrupted)
    with pytest.raises(Killed):
        train_here(tmp_path, *WARM_UP)
    monkeypatch.undo()
    train_here(tmp_path, *WARM_UP)
    for name in ("latest", "best", "best_local"):
        assert_same_bytes(tmp_path, warmed_up(), name)
    assert without_seconds(tmp_path) == without_seconds(warmed_up())


@functools.cache
def warmed_up() -> Path:
    folder = scratch_folder()
    train_here(folder, *WARM_UP)
    return folder


def test_the_warm_up_trains_the_local_layers_and_hands_on_its_best():
    records = RunDirectory.open(warmed_up()).read_metrics()
    result = json.loads((warmed_up() / "result.json").read_text())
    assert len(records) == result["epochs"] == 4 and result["best_epoch"] >= 2
    local, final = weights(warmed_up(), "best_local"), weights(warmed_up(), "best")
    phase = "model/encoder/phase/.ATTRIBUTES/VARIABLE_VALUE"
    assert (int(local[phase]), int(final[phase])) == (0, 1)
    moved = {key for key in local if "encoder/global_layers" in key and not np.array_equal(local[key], final[key])}
    assert moved, "the global layers are trained in the global phase"
    optimizer = weights(warmed_up(), "latest")
    assert int(optimizer["optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE"]) == 8


def test_a_finished_run_is_not_trained_again(monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in finished().rglob("*") if path.is_file()}
    monkeypatch.setattr(training, "build_ranking_task", lambda *_: pytest.fail("built a model"))
    result = train_here(finished(), "training.epochs=8", *DROPOUT)
    assert result == json.loads((finished() / "result.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in finished().rglob("*") if path.is_file()} == before


def test_a_changed_config_is_refused_by_field():
    with pytest.raises(RunError, match=r"training\.epochs: 8 != 9"):
        train_here(finished(), "training.epochs=9", *DROPOUT)


def test_tensorboard_shows_what_metrics_jsonl_holds():
    events = read_events(finished())
    records = RunDirectory.open(finished()).read_metrics()
    assert [value for tag, _, value in events if tag == "loss"] == pytest.approx([r["loss"] for r in records])
    taus = {step: value for tag, step, value in events if tag == "valid/tau"}
    assert taus == pytest.approx({r["epoch"]: r["valid"]["overall"]["tau"] for r in records})


def test_a_non_finite_loss_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path, capsys, monkeypatch):
    steps = ("training.steps_per_epoch=4", "training.epochs=3", "training.clip_norm=0", "training.schedule=constant")
    monkeypatch.setattr(training, "build_optimizer", _explode_after(6))
    assert main(command(tmp_path, *steps)) == 2
    message = capsys.readouterr().err
    assert "the loss became non-finite at step 6" in message and "Traceback" not in message
    assert len(RunDirectory.open(tmp_path).read_metrics()) == 1
    saved = weights(tmp_path)
    assert all(np.isfinite(value).all() for value in saved.values() if value.dtype == np.float32)
    assert int(saved["optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE"]) == 4


def test_a_reader_that_fails_in_mid_epoch_names_the_file_without_a_traceback(tmp_path, capsys, monkeypatch):
    def fail(self, position):
        if position < 3:
            return draw(self, position)
        raise DatasetError("train-00000-of-00001.candidates: truncated; preprocess again")

    draw = CandidateSampler.draw
    monkeypatch.setattr(CandidateSampler, "draw", fail)
    assert main(command(tmp_path)) == 2
    message = capsys.readouterr().err
    assert "train-00000-of-00001.candidates: truncated; preprocess again" in message and "Traceback" not in message


def _explode_after(steps: int):
    """An optimizer whose learning rate is past all bounds from the step before `steps` on."""
    schedules = tf.keras.optimizers.schedules
    rate = schedules.PiecewiseConstantDecay([steps - 2], [1e-3, 1e30])
    return lambda config: tf.keras.optimizers.Adam(rate)


def test_patience_ends_a_run_that_gets_no_better(tmp_path):
    result = train_here(tmp_path, "training.learning_rate=0", "training.epochs=9", "training.patience=2")
    assert result["best_epoch"] == 0 and result["epochs"] == len(losses(tmp_path)) == 3


def test_seeds_are_trained_apart_and_their_spread_reported(tmp_path):
    config = small_config(LAYOUT, *CHEAP, "training.epochs=1")
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    summary = train_seeds(config, [0, 1], ranking_datasets(), tmp_path, strategy=strategy)
    opas = []
    for seed in (0, 1):
        assert RunDirectory.open(tmp_path / f"seed-{seed}").config.seed == seed
        opas.append(json.loads((tmp_path / f"seed-{seed}/result.json").read_text())["valid"]["overall"]["opa"])
    found = summary["summary"]["overall"]["opa"]
    assert found == {"mean": pytest.approx(np.mean(opas)), "std": pytest.approx(np.std(opas, ddof=1)), "num_seeds": 2}
    assert json.loads((tmp_path / "seeds.json").read_text()) == summary
    one, other = (weights(tmp_path / f"seed-{seed}") for seed in (0, 1))
    assert any(not np.array_equal(one[key], other[key]) for key in one if "kernel" in key)


@pytest.mark.parametrize(
    "overrides, reason",
    [
        (("training.epochs=0",), r"training\.epochs: found 0"),
        (("task=node_classification",), "task: found node_classification"),
    ],
)
def test_configs_that_cannot_be_trained_are_refused(tmp_path, overrides, reason):
    with pytest.raises(ConfigError, match=reason):
        train_here(tmp_path, *overrides)


@functools.cache
def one_device() -> Path:
    """What the distributed runs are held against: four graphs a step on one device."""
    folder = scratch_folder()
    train_here(folder, "data.graphs_per_batch=4")
    return folder


def test_two_devices_learn_what_one_learns(tmp_path):
    finish(start(command(tmp_path, options=("--strategy", "cpu", "--devices", "2"))))  # two graphs on each
    np.testing.assert_allclose(losses(tmp_path), losses(one_device()), rtol=1e-4)
    assert_close_weights(tmp_path, one_device())


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def test_two_processes_learn_what_one_learns(tmp_path):
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    configs = [json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}}) for i in (0, 1)]
    arguments = command(tmp_path, options=("--strategy", "multiworker"))
    workers = [start(arguments, TF_CONFIG=config) for config in configs]
    first, second = (finish(worker) for worker in workers)
    assert first == second, "both hold the same weights, so both validate the same"
    np.testing.assert_allclose(losses(tmp_path), losses(one_device()), rtol=1e-4)
    assert_close_weights(tmp_path, one_device())

"""Training runs: they learn, resume after kill -9 to the same weights, stop early, and agree between strategies."""

import functools
import json
import os
import re
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
from tpugraphs_polynormer import progress
from tpugraphs_polynormer.cli.main import main
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.datasets.input_pipeline import CandidateSampler
from tpugraphs_polynormer.datasets.manifest import DatasetError
from tpugraphs_polynormer.ranking import task as ranking_task
from tpugraphs_polynormer.ranking.task import train_ranking
from tpugraphs_polynormer.training import trainer as training
from tpugraphs_polynormer.training.checkpoints import Checkpoints
from tpugraphs_polynormer.training.run_directory import RunDirectory, RunError

ROOT = Path(__file__).resolve().parents[2]
# The model that is fastest to trace, because these tests are about the training loop.
CHEAP = ("model.encoder=mlp", "model.num_local_layers=1", "model.num_nconfig_layers=0", "model.hidden_dim=4")
DROPOUT = ("model.dropout_rate=0.3", "model.input_dropout_rate=0.2")
WARM_UP = ("model.encoder=polynormer", "training.local_epochs=2", "training.epochs=2", *DROPOUT)


def train_here(run_dir, *overrides: str, name: str = LAYOUT) -> dict:
    config = small_config(name, *CHEAP, *overrides)
    return train_ranking(config, ranking_datasets(), run_dir, strategy=tf.distribute.OneDeviceStrategy("CPU:0"))


def command(run_dir, *overrides: str, options: tuple[str, ...] = ()) -> list[str]:
    settings = (*SMALL, f"data.collection={LAYOUT}", *CHEAP, *overrides)
    sets = [part for setting in settings for part in ("--set", setting)]
    places = ["--datasets", str(ranking_datasets()), "--run-dir", str(run_dir)]
    return ["train", *places, *options, *sets]


# `tpugraphs`, but `train` prints its whole result instead of a table.
PRINTS_RESULT = """
import json, sys
from tpugraphs_polynormer.cli import main, train
train._format_result = lambda result, run_dir: json.dumps(result)
sys.exit(main.main(sys.argv[1:]))
"""


def start(arguments: list[str], **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PRINTS_RESULT, *arguments],
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
    """Every variable of a checkpoint, those of the optimizer and of dropout included."""
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


def without_seconds(records: list[dict]) -> list[dict]:
    return [{key: value for key, value in record.items() if "seconds" not in key} for record in records]


def logged(run_dir) -> list[dict]:
    """The records of a run, without times."""
    return without_seconds(RunDirectory.open(run_dir).read_metrics())


def read_result(run_dir) -> dict:
    """The result.json of a run, without times."""
    result = json.loads((Path(run_dir) / "result.json").read_text())
    return result | {"best": without_seconds([result["best"]])[0]}


@functools.cache
def finished() -> Path:
    """A short finished run with dropout that was not interrupted."""
    folder = scratch_folder()
    train_here(folder, "training.epochs=8", *DROPOUT)
    return folder


@pytest.mark.parametrize("name", [TILE, LAYOUT])
def test_learning_happens(tmp_path, name):
    steps = ("training.epochs=2", "training.steps_per_epoch=50", "training.steps_per_execution=25")
    wide = ("model.readout=sum", "model.hidden_dim=16", "data.graphs_per_batch=4", "data.candidates_per_graph=10")
    result = train_here(tmp_path, *steps, *wide, name=name)
    assert result["best"]["metrics"]["valid"]["tau"] > 0.8
    first, second = losses(tmp_path)
    assert second < first / 3, "each epoch's loss is its own mean, not the run's"


def test_kill_9_at_any_moment_and_rerun_ends_with_the_same_weights(tmp_path, moments):
    arguments = command(tmp_path / "run", "training.epochs=8", *DROPOUT)
    kills = 0
    for _ in range(2):
        process = start(arguments)
        epochs = kills * 2 + 1  # the kill is at a random moment after that many epochs
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
    assert logged(tmp_path / "run") == logged(finished())
    assert read_result(tmp_path / "run") == read_result(finished())


class Killed(BaseException):
    """Simulates kill -9 between two writes of a process."""


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
    for name in ("latest", "best"):
        assert_same_bytes(tmp_path, warmed_up(), name)
    assert logged(tmp_path) == logged(warmed_up())


@functools.cache
def warmed_up() -> Path:
    folder = scratch_folder()
    train_here(folder, *WARM_UP)
    return folder


ITERATIONS = "optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE"


def test_the_warm_up_trains_the_local_layers_and_hands_on_its_best(tmp_path, monkeypatch):
    """The checkpoint of the last warm-up epoch has the weights and moments of the best one, but its own counters."""
    records = RunDirectory.open(warmed_up()).read_metrics()
    assert [record["phase"] for record in records] == ["local", "local", "global", "global"]
    result = read_result(warmed_up())
    assert (result["epochs"], result["task"], result["format_version"]) == (4, "ranking", 1)
    assert result["best"]["epoch"] >= 2 and result["best"]["phase"] == "global"

    save, kept = Checkpoints.save, {}

    def keep(self, at: int) -> None:
        save(self, at)
        kept[self._folder.name, at] = weights(tmp_path, self._folder.name)

    monkeypatch.setattr(Checkpoints, "save", keep)
    # The first epoch is the best of the warm-up.
    scores = iter([0.9, 0.1, 0.2, 0.3])
    monkeypatch.setattr(ranking_task.RankingTask, "select", lambda self, metrics: next(scores))
    train_here(tmp_path, *WARM_UP)
    best, handed_on, first_global = kept["best", 1], kept["latest", 2], kept["best", 3]
    assert [(name, at) for name, at in kept if name == "best"] == [("best", 1), ("best", 3), ("best", 4)]
    counters = {key for key in best if best[key].dtype.kind == "i"}
    assert len(counters) > 3 and all(np.array_equal(handed_on[key], best[key]) for key in best.keys() - counters)
    assert (int(best[ITERATIONS]), int(handed_on[ITERATIONS])) == (2, 4)
    calls = {key for key in counters if "dropout/state" in key}
    assert any(handed_on[key][1] > best[key][1] for key in calls), "no mask is drawn twice"
    moved = {key for key in best if "encoder/global_layers" in key and not np.array_equal(best[key], first_global[key])}
    assert moved, "the global layers are trained in the global phase"
    assert not [key for key in moved if not np.array_equal(best[key], handed_on[key])]


def test_a_finished_run_is_not_trained_again(monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in finished().rglob("*") if path.is_file()}
    monkeypatch.setattr(ranking_task, "RankingTask", lambda *_, **__: pytest.fail("built a model"))
    result = train_here(finished(), "training.epochs=8", *DROPOUT)
    assert result == json.loads((finished() / "result.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in finished().rglob("*") if path.is_file()} == before


def test_a_changed_config_is_refused_by_field():
    with pytest.raises(RunError, match=r"training\.epochs: 8 != 7"):
        train_here(finished(), "training.epochs=7", *DROPOUT)
    with pytest.raises(
        RunError, match=r"seed: 0 != 1; training\.epochs: 8 != 9|training\.epochs: 8 != 9; seed: 0 != 1"
    ):
        train_here(finished(), "training.epochs=9", "seed=1", *DROPOUT)
    assert (finished() / "result.json").exists()


def test_a_finished_run_is_extended_by_more_epochs(tmp_path, caplog):
    train_here(tmp_path / "run", "training.epochs=2")
    before = logged(tmp_path / "run")
    caplog.set_level("INFO", "tpugraphs_polynormer")
    result = train_here(tmp_path / "run", "training.epochs=4")
    assert "extended from 2 to 4 epochs; the learning rate's schedule is computed anew" in caplog.text
    assert "resuming after epoch 1" in caplog.text
    assert logged(tmp_path / "run")[:2] == before and result["epochs"] == len(losses(tmp_path / "run")) == 4
    assert RunDirectory.open(tmp_path / "run").config.training.epochs == 4
    assert read_result(tmp_path / "run")["epochs"] == 4
    assert int(weights(tmp_path / "run")[ITERATIONS]) == 4 * 2


@pytest.mark.slow
def test_patience_that_has_ended_is_told_when_a_run_is_extended(tmp_path, caplog):
    settings = ("training.learning_rate=0", "training.patience=1")
    train_here(tmp_path, "training.epochs=3", *settings)
    caplog.set_level("INFO", "tpugraphs_polynormer")
    assert train_here(tmp_path, "training.epochs=9", *settings)["epochs"] == 2
    assert "ended after 2 of 9 epochs: training.patience=1" in caplog.text


@pytest.mark.slow
def test_a_loss_that_grew_is_told(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(training, "_HUGE_LOSS", 0.0)
    train_here(tmp_path, "training.epochs=1")
    assert "the run diverged: its last epoch's loss is" in caplog.text
    caplog.clear()
    monkeypatch.undo()
    train_here(tmp_path / "good", "training.epochs=1")
    assert "diverged" not in caplog.text


def test_without_a_terminal_lines_tell_the_progress_of_both_phases(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.2)
    assert main(command(tmp_path, *WARM_UP, "model.num_heads=2")) == 0
    told = capsys.readouterr()
    lines = [line for line in told.err.splitlines() if " of 8 steps, " in line]
    assert lines and re.search(r"train .*, (local|global) phase: \d of 8 steps, \d+ %, \d+ s passed, ", lines[-1])
    assert "left not known yet" in lines[0]
    header, run, written = told.out.splitlines()
    assert header.split()[:4] == ["run", "(valid)", "best", "epoch"] and run.split()[0] == tmp_path.name
    assert f"{read_result(tmp_path)['best']['metrics']['valid']['tau']:.4f}" in run
    assert written == f"{tmp_path}: result.json, metrics.jsonl, checkpoints/, tensorboard/"


def test_tensorboard_shows_what_metrics_jsonl_holds():
    events = read_events(finished())
    records = RunDirectory.open(finished()).read_metrics()
    assert [value for tag, _, value in events if tag == "loss"] == pytest.approx([r["loss"] for r in records])
    taus = {step: value for tag, step, value in events if tag == "valid/tau"}
    assert taus == pytest.approx({r["epoch"]: r["metrics"]["valid"]["tau"] for r in records})


def test_a_non_finite_loss_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path, capsys, monkeypatch):
    steps = ("training.steps_per_epoch=4", "training.epochs=3", "training.clip_norm=0", "training.schedule=constant")
    monkeypatch.setattr(training, "build_optimizer", _explode_after(6))
    assert main(command(tmp_path, *steps)) == 2
    message = capsys.readouterr().err
    assert "the loss became non-finite at step 6" in message and "Traceback" not in message
    assert len(RunDirectory.open(tmp_path).read_metrics()) == 1
    saved = weights(tmp_path)
    assert all(np.isfinite(value).all() for value in saved.values() if value.dtype == np.float32)
    assert int(saved[ITERATIONS]) == 4


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
    """An optimizer whose learning rate is very large from the step before `steps` on."""
    schedules = tf.keras.optimizers.schedules
    rate = schedules.PiecewiseConstantDecay([steps - 2], [1e-3, 1e30])
    return lambda config, num_steps: tf.keras.optimizers.Adam(rate)


def test_patience_ends_a_run_that_gets_no_better(tmp_path):
    result = train_here(tmp_path, "training.learning_rate=0", "training.epochs=9", "training.patience=2")
    assert result["best"]["epoch"] == 0 and result["epochs"] == len(losses(tmp_path)) == 3


def test_seeds_are_trained_apart_and_their_spread_reported(tmp_path):
    config = small_config(LAYOUT, *CHEAP, "training.epochs=1")
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    summary = train_ranking(config, ranking_datasets(), tmp_path, strategy=strategy, seeds=[0, 1])
    opas = []
    for seed in (0, 1):
        assert RunDirectory.open(tmp_path / f"seed-{seed}").config.seed == seed
        opas.append(json.loads((tmp_path / f"seed-{seed}/result.json").read_text())["best"]["metrics"]["valid"]["opa"])
    found = summary["metrics"]["valid"]["opa"]
    assert found == {"mean": pytest.approx(np.mean(opas)), "std": pytest.approx(np.std(opas, ddof=1)), "num_runs": 2}
    assert [run["run"] for run in summary["runs"]] == ["seed-0", "seed-1"]
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    alone = train_ranking(config, ranking_datasets(), tmp_path, strategy=strategy, seeds=[1])
    assert alone["metrics"]["valid"]["opa"] == {"mean": opas[1], "std": None, "num_runs": 1}
    one, other = (weights(tmp_path / f"seed-{seed}") for seed in (0, 1))
    assert any(not np.array_equal(one[key], other[key]) for key in one if "kernel" in key)


@pytest.mark.parametrize(
    "overrides, reason",
    [
        (("training.epochs=0",), r"training\.epochs: found 0"),
        (("model.num_heads=2",), r"model\.num_heads: found 2, but model\.encoder mlp has no such setting"),
        (("model.parametrization=large",), r"unknown field model\.parametrization; did you mean model\."),
        (("model.version=2",), r"unknown field model\.version; did you mean"),
        (("training.nodes_per_batch=8",), r"unknown field training\.nodes_per_batch; did you mean"),
        (("training.jit_compile=true",), r"training\.jit_compile: XLA needs static shapes"),
    ],
)
def test_configs_that_cannot_be_trained_are_refused_before_a_run_is_made(tmp_path, overrides, reason):
    with pytest.raises(ConfigError, match=reason):
        train_here(tmp_path / "run", *overrides)
    assert not (tmp_path / "run").exists()


def test_a_config_of_the_other_task_is_refused(tmp_path):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with pytest.raises(ConfigError, match="task: found node_classification, expected ranking"):
        train_ranking(load_config(None, ["task=node_classification"]), tmp_path, tmp_path, strategy=strategy)


def test_evaluations_and_checkpoints_can_be_rarer(tmp_path):
    rare = ("training.epochs=5", "training.epochs_per_evaluation=2", "training.checkpoint_seconds=1e6")
    result = train_here(tmp_path, *rare)
    assert [record["epoch"] for record in logged(tmp_path)] == [1, 3, 4] and result["epochs"] == 5
    assert int(weights(tmp_path)[ITERATIONS]) == 10, "the last epoch is always saved"


@functools.cache
def one_device(*overrides: str) -> Path:
    """The run on one device with four graphs per step, with which the distributed runs are compared."""
    folder = scratch_folder()
    train_here(folder, "data.graphs_per_batch=4", *overrides)
    return folder


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        pytest.param(("training.ema_decay=0.6",), marks=pytest.mark.slow),
        pytest.param(("training.optimizer=adam", "training.weight_decay=0.01"), marks=pytest.mark.slow),
    ],
    ids=["adamw", "averages", "adam"],
)
def test_two_devices_learn_what_one_learns(tmp_path, overrides):
    # Two graphs per device.
    finish(start(command(tmp_path, *overrides, options=("--strategy", "cpu", "--devices", "2"))))
    np.testing.assert_allclose(losses(tmp_path), losses(one_device(*overrides)), rtol=1e-4)
    assert_close_weights(tmp_path, one_device(*overrides))


@pytest.mark.slow
def test_two_devices_draw_and_average(tmp_path):
    """Dropout of states and edges and averages of all weights, those of batch norm included: a run that ends."""
    model = ("model.encoder=polynormer-local", "model.hidden_dim=8", "model.num_heads=2", "model.post_norm=true")
    drawn = (*DROPOUT, "model.edge_dropout_rate=0.3", "training.ema_decay=0.6")
    finish(start(command(tmp_path, *model, *drawn, options=("--strategy", "cpu", "--devices", "2"))))
    found = weights(tmp_path)
    calls = [value for key, value in found.items() if "dropout/state" in key and value[1]]
    assert calls and all(np.isfinite(value).all() for value in found.values() if value.dtype == np.float32)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.mark.parametrize(
    "overrides",
    [(), pytest.param(("training.ema_decay=0.6",), marks=pytest.mark.slow)],
    ids=["plain", "averages"],
)
def test_two_processes_learn_what_one_learns(tmp_path, overrides):
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    configs = [json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}}) for i in (0, 1)]
    arguments = command(tmp_path, *overrides, options=("--strategy", "multiworker"))
    workers = [start(arguments, TF_CONFIG=config) for config in configs]
    first, second = (finish(worker) for worker in workers)
    assert first["epochs"] == second["epochs"]
    bests = without_seconds([first["best"], second["best"]])
    assert bests[0] == bests[1], "both hold the same weights, so both validate the same"
    np.testing.assert_allclose(losses(tmp_path), losses(one_device(*overrides)), rtol=1e-4)
    assert_close_weights(tmp_path, one_device(*overrides))

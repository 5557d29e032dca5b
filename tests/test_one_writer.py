"""One writer per folder, processes that end with the one that started them, and files that are on the disk in time."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import tensorflow as tf

from tests.small_archives import layout_arrays, write_tree
from tests.small_datasets import LAYOUT
from tests.test_damage import SMALLEST
from tests.trained import SMALL, Trained, make_trained
from tpugraphs_polynormer.beam.commit import publish_text
from tpugraphs_polynormer.cli.main import main
from tpugraphs_polynormer.datasets.manifest import MANIFEST_NAME, read_manifest, serialize_manifest
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import only_writer, write_text
from tpugraphs_polynormer.training.checkpoints import hash_weights
from tpugraphs_polynormer.training.run_directory import RunDirectory

HOLD = """
import sys
from tpugraphs_polynormer.files import only_writer
with only_writer(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
TOLD = "another process writes to this folder; wait until it has finished, or choose another folder"


@pytest.fixture(scope="module")
def trained() -> Trained:
    """Runs that no test may change."""
    return make_trained()


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen]:
    """Another process that holds a folder, killed at the end."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], **pipes) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_folder_has_one_writer_until_that_ends_however_it_ends(tmp_path) -> None:
    folder = tmp_path / "new"
    with held(folder) as process:
        with pytest.raises(UserError, match=f"{folder}: {TOLD}"), only_writer(folder):
            raise AssertionError("two writers")
        process.send_signal(signal.SIGKILL)
        process.wait()
        with only_writer(folder):
            pass
    with pytest.raises(RuntimeError), only_writer(folder):
        raise RuntimeError
    with only_writer(folder):
        assert not list(folder.iterdir())  # nothing is left behind


def stages(trained: Trained, output: Path) -> dict[str, list[str]]:
    """Commands of which each would write to the output."""
    sets = [part for each in (*SMALLEST, f"data.collection={LAYOUT}") for part in ("--set", each)]
    datasets = ["--datasets", str(trained.data)]
    archives = ["--archives", str(trained.tree), "--collections", LAYOUT, "--runner=FnApiRunner"]
    return {
        "simulate": ["--archives", str(output), "--collections", "tile:xla", "--workers", "1"],
        "preprocess": [*archives, "--datasets", str(output)],
        "train": [*datasets, "--run-dir", str(output), "--strategy", "cpu", *sets],
        "predict": [*datasets, "--run-dir", str(trained.layout), "--output", str(output)],
        "demo": ["--output", str(output)],
        "beam predict": [*datasets, "--run-dir", str(trained.layout), "--output", str(output), "--runner=FnApiRunner"],
    }


@pytest.mark.parametrize("name", ["simulate", "preprocess", "train", "predict", "beam predict", "demo"])
def test_a_second_writer_is_told_in_one_line(name, trained, tmp_path, capsys) -> None:
    output = tmp_path / "output"
    stage = name.split()[-1]
    with held(output):
        capsys.readouterr()
        assert main([stage, *stages(trained, output)[name]]) == 2
        said = capsys.readouterr()
    assert said.err.splitlines()[-1] == f"tpugraphs {stage}: error: {output}: {TOLD}"
    assert not said.out
    # A training looks at its config first, so that another config is named, and checks it again once it holds the run.
    assert [path.name for path in output.rglob("*") if path.is_file()] in ([], ["config.yaml"])


@pytest.mark.slow
def test_two_trainings_in_one_run_directory_are_one(trained, tmp_path, capsys) -> None:
    run = tmp_path / "run"
    arguments = ["train", *stages(trained, run)["train"], "--set", "training.epochs=100000"]
    with subprocess.Popen([sys.executable, "-m", "tpugraphs_polynormer.cli.main", *arguments]) as first:
        try:
            wait_until((run / "metrics.jsonl").exists, 120)
            assert main(arguments) == 2
            assert capsys.readouterr().err.splitlines()[-1].endswith(TOLD)
            assert first.poll() is None
        finally:
            first.kill()


def wait_until(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def check_children_end(arguments: list[str], num_children: int, folder: Path, pattern: str) -> None:
    """Starts a stage, kills it alone once it has so many children and wrote such a file, and waits for their end."""
    command = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", *arguments]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet, start_new_session=True) as parent:
        seen: list[psutil.Process] = []

        def has_children() -> bool:
            assert parent.poll() is None, "it ended too early"
            seen[:] = psutil.Process(parent.pid).children(recursive=True)
            return len(seen) >= num_children and bool(list(folder.rglob(pattern)))

        try:
            wait_until(has_children, 120)
            parent.send_signal(signal.SIGKILL)
            parent.wait()
            gone, alive = psutil.wait_procs(seen, timeout=20)
            assert len(gone) >= num_children and not alive
        finally:
            for process in seen:
                if process.is_running():
                    process.kill()
            parent.kill()


@pytest.mark.slow
def test_kill_9_of_preprocess_leaves_no_beam_worker(tmp_path) -> None:
    write_tree(tmp_path / "in", LAYOUT, {"train": {f"g{i}": layout_arrays(200, 20, 20_000, seed=i) for i in range(8)}})
    places = ["preprocess", "--archives", f"{tmp_path}/in", "--datasets", f"{tmp_path}/out", "--collections", LAYOUT]
    options = ["--graphs-per-shard", "1", "--direct_num_workers=2"]
    check_children_end([*places, *options], 2, tmp_path / "out", "*.shard.json")


@pytest.mark.slow
def test_kill_9_of_simulate_leaves_no_process(tmp_path) -> None:
    arguments = ["simulate", "--archives", str(tmp_path), "--scale", "full", "--workers", "2"]
    check_children_end([*arguments, "--collections", "tile:xla"], 2, tmp_path, "*.npz")


def test_equal_weights_have_an_equal_hash_however_often_they_were_saved(tmp_path) -> None:
    model, optimizer = tf.Module(), tf.Module()
    model.weight, model.calls = tf.Variable([1.0, 2.0]), tf.Variable(3, dtype=tf.int64)
    optimizer.moment = tf.Variable([0.5])
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    hashes = [hash_weights(checkpoint.save(str(tmp_path / "ckpt")))]  # each save raises TensorFlow's counter
    model.calls.assign(9)
    optimizer.moment.assign([0.25])
    hashes.append(hash_weights(checkpoint.save(str(tmp_path / "ckpt"))))
    assert hashes[0] == hashes[1]
    model.weight.assign([1.0, 2.0000002])
    assert hash_weights(checkpoint.save(str(tmp_path / "ckpt"))) != hashes[0]
    path = next(tmp_path.glob("ckpt-1.data*"))
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(UserError, match="ckpt-1: a truncated or damaged checkpoint"):
        hash_weights(str(tmp_path / "ckpt-1"))


@pytest.fixture
def disk(monkeypatch) -> list[tuple[str, str]]:
    """The calls that bring files to the disk and give them their names, in order."""
    calls: list[tuple[str, str]] = []

    def fsync(file, real=os.fsync):
        calls.append(("sync", Path(os.readlink(f"/proc/self/fd/{file}")).name))
        real(file)

    def replace(source, target, real=os.replace):
        calls.append(("name", Path(target).name))
        real(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return calls


def test_what_a_finished_run_stands_for_is_on_the_disk_before_its_result_has_a_name(disk, tmp_path) -> None:
    run = RunDirectory.start(tmp_path / "run", SMALL)
    run.append_metrics({"epoch": 0})
    (run.path / "checkpoints" / "best").mkdir(parents=True)
    (run.path / "checkpoints" / "best" / "ckpt-1.index").write_bytes(b"weights")
    disk.clear()
    run.finish({"best": {}})
    order = [(what, name if name[0] != "." else name.split(".")[1]) for what, name in disk]
    last = order.index(("name", "result.json"))
    for name in ("config.yaml", "metrics.jsonl", "ckpt-1.index", "result"):
        assert ("sync", name) in order[:last], name
    assert order.index(("name", "checksums.json")) < last and order[last + 1] == ("sync", "run")


def test_a_manifest_is_on_the_disk_before_it_has_its_name_and_plain_texts_do_not_wait(disk, trained, tmp_path) -> None:
    manifest = read_manifest(trained.data / LAYOUT.replace(":", "/"))
    publish_text(str(tmp_path), MANIFEST_NAME, serialize_manifest(manifest))
    assert [what for what, _ in disk] == ["sync", "name", "sync"]
    disk.clear()
    write_text(tmp_path / "notes.txt", "text")
    assert [what for what, _ in disk] == ["name"]

"""The command in new processes writes the same bytes with one worker, two, a Dask cluster, and after kill -9."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from apache_beam.options.pipeline_options import DirectOptions, StandardOptions

from tests.beam.clusters import wait_until
from tests.small_archives import layout_arrays, write_long_tree
from tests.small_datasets import LAYOUT, TILE, preprocess_here, write_small_tree
from tpugraphs_polynormer.archives.writer import Blocks, write_archive
from tpugraphs_polynormer.beam.commit import FAILURE_NAME
from tpugraphs_polynormer.beam.plan import Job, ShardPlan, count_workers
from tpugraphs_polynormer.beam.runners import find_reason, make_options
from tpugraphs_polynormer.datasets.manifest import MANIFEST_NAME
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.datasets.shards import PreprocessOptions
from tpugraphs_polynormer.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
ONE_WORKER = ("--runner=FnApiRunner", "--direct_num_workers=1")
DASK_RUNNER = "--runner=apache_beam.runners.dask.dask_runner.DaskRunner"
FOLDER = "layout/xla/random"


def command(source: Path, output: Path, *more: str) -> list[str]:
    start = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", "preprocess"]
    return [*start, "--archives", str(source), "--datasets", str(output), *more]


def run(source: Path, output: Path, *more: str) -> subprocess.CompletedProcess:
    both = ("--collections", LAYOUT, TILE, "--graphs-per-shard", "2")
    return subprocess.run(command(source, output, *both, *more), capture_output=True, text=True, cwd=ROOT, timeout=300)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return write_small_tree(tmp_path_factory.mktemp("tree"))


def check_quiet(done: subprocess.CompletedProcess, output: Path) -> None:
    """It succeeded, and said nothing on stderr but its last line."""
    counts = "read 17 archives, wrote 17 graphs in [0-9]+ shards; left out: 0 rejected, 0 excluded"
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(f".*{re.escape(str(output))}: {counts}\n", done.stderr), done.stderr


@pytest.fixture(scope="module")
def expected(tree, tmp_path_factory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("one") / "out"
    done = run(tree, output, *ONE_WORKER)
    check_quiet(done, output)
    assert done.stdout.splitlines() == [f"{LAYOUT}: {output}", f"{TILE}: {output}"]
    found = contents(output)
    assert {f"{FOLDER}/{MANIFEST_NAME}", f"{FOLDER}/train-00003-of-00004.tfrecord"} <= set(found)
    return found


def test_two_workers_write_the_same_bytes(tree, tmp_path, expected):
    done = run(tree, tmp_path / "out", "--direct_num_workers=2")
    check_quiet(done, tmp_path / "out")
    assert contents(tmp_path / "out") == expected


@pytest.mark.slow
def test_a_bad_archive_in_a_worker_process_is_one_line(tmp_path):
    write_small_tree(tmp_path / "in")
    bad = tmp_path / "in/npz" / FOLDER / "train/graph2.npz"
    bad.write_bytes(bad.read_bytes()[:200])
    done = run(tmp_path / "in", tmp_path / "out", "--direct_num_workers=2")
    assert done.returncode == 2
    assert done.stderr.startswith(f"tpugraphs preprocess: error: {bad}: ")
    assert len(done.stderr.splitlines()) == 1
    assert not [name for name in contents(tmp_path / "out") if MANIFEST_NAME in name or ".tmp" in name]


@pytest.fixture(scope="module")
def dask_address(tmp_path_factory) -> Iterator[str]:
    """The address of a Dask scheduler with two workers, each in its own process."""
    pytest.importorskip("distributed")
    folder = tmp_path_factory.mktemp("dask")
    note = folder / "scheduler.json"
    start = [sys.executable, "-m", "dask"]
    options = ["--no-dashboard", "--scheduler-file", str(note)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT}
    scheduler = subprocess.Popen([*start, "scheduler", "--host", "127.0.0.1", "--port", "0", *options], **quiet)
    worker = [*start, "worker", "--no-nanny", "--nthreads", "1", "--local-directory", str(folder), *options]
    processes = [scheduler]
    try:
        wait_until(note.exists, 60)
        processes += [subprocess.Popen(worker, **quiet) for _ in range(2)]
        yield json.loads(note.read_text())["address"]
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def loaded_shards() -> bool:
    return "tpugraphs_polynormer.datasets.shards" in sys.modules


def test_a_dask_cluster_writes_the_same_bytes(tree, tmp_path, expected, dask_address):
    from distributed import Client

    with Client(dask_address) as client:
        client.wait_for_workers(2, timeout=60)
        done = run(tree, tmp_path / "out", DASK_RUNNER, f"--dask_client_address={dask_address}")
        check_quiet(done, tmp_path / "out")
        assert contents(tmp_path / "out") == expected
        assert list(client.run(loaded_shards).values()) == [True, True]  # both workers processed shards


@pytest.mark.slow
def test_a_bad_archive_on_a_dask_cluster_is_one_line(tmp_path, dask_address):
    write_small_tree(tmp_path / "in")
    bad = tmp_path / "in/npz" / FOLDER / "train/graph2.npz"
    bad.write_bytes(b"no zip")
    done = run(tmp_path / "in", tmp_path / "out", DASK_RUNNER, f"--dask_client_address={dask_address}")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"tpugraphs preprocess: error: {bad}: ")
    assert "Traceback" not in done.stderr
    assert set(contents(tmp_path / "out")) & {FAILURE_NAME, f"{FOLDER}/{MANIFEST_NAME}"} == {FAILURE_NAME}


@pytest.fixture(scope="module")
def slow_tree(tmp_path_factory) -> Path:
    """A tree of fourteen archives, one per shard, that take long enough to be interrupted."""
    return write_long_tree(tmp_path_factory.mktemp("slow"), LAYOUT, 14, 20, 1500)


def kill_in_the_middle(arguments: list[str], folder: Path, num_described: int, pause: float) -> None:
    """Starts the command, waits for `num_described` finished shards and `pause` seconds, then kills all processes."""
    process = subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT, start_new_session=True
    )
    try:
        wait_until(lambda: len(list(folder.glob("*.shard.json"))) >= num_described, 120)
        time.sleep(pause)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def check_killed_twice(slow_tree: Path, tmp_path: Path, moments: random.Random, *runner: str) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    preprocess_here(slow_tree, undisturbed, LAYOUT, graphs_per_shard=1)
    arguments = command(slow_tree, disturbed, "--collections", LAYOUT, "--graphs-per-shard", "1", *runner)
    for low in (1, 5):
        kill_in_the_middle(arguments, disturbed / FOLDER, moments.randint(low, low + 3), moments.uniform(0, 0.05))
        assert not (disturbed / FOLDER / MANIFEST_NAME).exists()  # no later stage can read it as a dataset
    before = {path.name: path.stat().st_ino for path in (disturbed / FOLDER).glob("*.shard.json")}
    subprocess.run(arguments, check=True, capture_output=True, cwd=ROOT, timeout=300)
    assert contents(disturbed) == contents(undisturbed)
    after = {path.name: path.stat().st_ino for path in (disturbed / FOLDER).glob("*.shard.json")}
    assert len(before) >= 5
    assert {name: after[name] for name in before} == before  # finished shards were kept
    RankingDataset(disturbed / FOLDER).verify()


@pytest.mark.slow
def test_killed_twice_and_run_again_equals_undisturbed(slow_tree, tmp_path, moments):
    check_killed_twice(slow_tree, tmp_path, moments, *ONE_WORKER)


@pytest.mark.slow
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["parent", "group"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
def test_an_interrupt_is_one_line_and_ends_the_workers(slow_tree, tmp_path, send, number, code):
    arguments = command(slow_tree, tmp_path, "--collections", LAYOUT, "--graphs-per-shard", "1")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(
        [*arguments, "--direct_num_workers=2", "--direct_running_mode=multi_processing"],
        **pipes,
        cwd=ROOT,
        start_new_session=True,
    )
    wait_until(lambda: len(list((tmp_path / FOLDER).glob("*.shard.json"))) >= 1, 120)
    send(process.pid, number)
    _, told = process.communicate(timeout=60)  # ends when no worker holds the pipe
    assert told == "tpugraphs preprocess: interrupted; run the same command again to continue\n"
    assert process.returncode == code and not (tmp_path / FOLDER / MANIFEST_NAME).exists()
    in_group = [each for each in psutil.process_iter() if _group_of(each) == process.pid]
    assert [each for each in in_group if each.status() != psutil.STATUS_ZOMBIE] == []


def _group_of(process: psutil.Process) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(process.pid)
    return None


@pytest.mark.slow
def test_killed_twice_with_two_workers(slow_tree, tmp_path, moments):
    check_killed_twice(slow_tree, tmp_path, moments, "--direct_num_workers=2")


def test_every_core_is_used_unless_a_runner_is_named():
    options = make_options([])
    assert options.view_as(StandardOptions).runner == "FnApiRunner"
    assert options.view_as(DirectOptions).direct_num_workers == 0  # in Beam this means one per core
    assert options.view_as(DirectOptions).direct_running_mode == "multi_processing"
    named = make_options(["--runner", "DirectRunner"])
    assert named.view_as(DirectOptions).direct_running_mode != "multi_processing"
    assert make_options(["--direct_num_workers=3"]).view_as(DirectOptions).direct_num_workers == 3


def test_one_worker_needs_no_process_of_its_own():
    options = make_options([], num_workers=1).view_as(DirectOptions)
    assert options.direct_running_mode == "in_memory"
    assert make_options([], num_workers=2).view_as(DirectOptions).direct_num_workers == 2
    assert make_options(["--direct_num_workers=3"], num_workers=1).view_as(DirectOptions).direct_num_workers == 3


@pytest.mark.parametrize(
    ("num_plans", "num_sources", "size", "expected"),
    [(50, 4, 1_000, 1), (50, 4, 2_000_000, 1), (50, 4, 10_000_000, 2), (500, 4, 100_000_000, 8), (3, 256, 10**9, 3)],
)
def test_workers_are_started_by_the_size_of_the_archives(monkeypatch, num_plans, num_sources, size, expected):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    plan = ShardPlan(LAYOUT, "train", "name", ("path",) * num_sources, size, PreprocessOptions())
    assert count_workers(Job("out", (plan,) * num_plans)) == expected


@pytest.mark.parametrize("arguments", [["--inptu=x"], ["stray"], ["--runner=FnApiRunner", "--max_nodes=3"]])
def test_what_neither_we_nor_beam_know_is_refused(arguments):
    with pytest.raises(UserError, match=f"unknown options {arguments[-1]}"):
        make_options(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--runner=DataflowRunner", "--project=p", "--region=r", "--temp_location=gs://b/t", "--setup_file=./setup.py"],
        ["--runner=FlinkRunner", "--flink_master=localhost:8081", "--environment_type=LOOPBACK"],
        ["--runner=PortableRunner", "--job_endpoint=localhost:8099", "--environment_type=LOOPBACK"],
        [DASK_RUNNER, "--dask_client_address=tcp://127.0.0.1:8786", "--dask_npartitions=8"],
    ],
)
def test_the_documented_options_of_other_runners_are_known(arguments):
    assert make_options(arguments).view_as(StandardOptions).runner in arguments[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Traceback ...\nRuntimeError: lost [while running 'Commit']", "RuntimeError: lost [while running 'Commit']"),
        (
            "java.lang.RuntimeException: Error received\n\tat a.B.c(B.java:1)\nTraceback (most recent call last):\n"
            "  File x, line 1, in y\nValueError: bad shard\n\n\tat a.B.d(B.java:2)\n\t... 5 more\n",
            "ValueError: bad shard",
        ),
        (
            "SparkException: stopped\norg.a.B$1.c(B.scala:3)\njava.base/java.lang.Thread.run(Thread.java:840)",
            "SparkException: stopped",
        ),
        ("a.B: failed\nCaused by: java.lang.OutOfMemoryError: Java heap space\n\tat a.B.<init>(Unknown Source)",
            "java.lang.OutOfMemoryError: Java heap space"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_reason_is_found_between_the_frames_of_java(text, reason):
    assert find_reason(text) == reason


def write_largest_archive(path: Path, num_candidates: int, num_config: int) -> None:
    """Writes an archive of the largest official size, 5.8 GB of float32 candidates, in blocks."""
    chance = np.random.default_rng(0)
    arrays = layout_arrays(6000, num_config, 2)
    table = chance.integers(-1, 6, (60, 18)).astype(np.float32)

    def blocks():
        for start in range(0, num_candidates, 40):
            tied = chance.integers(0, 60, (min(40, num_candidates - start), num_config // 40))
            yield table[np.repeat(tied, 40, axis=1)]  # nodes of a group are equal, as in the compiler's search

    shape = (num_candidates, num_config, 18)
    runtimes = chance.integers(10**6, 10**9, num_candidates)
    write_archive(path, arrays | {"config_runtime": runtimes, "node_config_feat": Blocks(shape, np.float32, blocks())})


def peak_memory(arguments: list[str]) -> tuple[int, int]:
    """(exit code, largest sum of resident memory over the processes of the command)."""
    process = psutil.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        total = 0
        for each in [process, *process.children(recursive=True)]:
            try:
                total += each.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        peak = max(peak, total)
        time.sleep(0.05)
    return process.returncode, peak


@pytest.mark.slow
def test_the_largest_archive_goes_through_in_little_memory(tmp_path, monkeypatch):
    archive = tmp_path / "in/npz" / FOLDER / "train/large.npz"
    write_largest_archive(archive, 100_040, 800)
    code, peak = peak_memory(command(tmp_path / "in", tmp_path / "out", "--collections", LAYOUT))
    assert code == 0
    assert peak < 4 << 30
    collection = RankingDataset(tmp_path / "out" / FOLDER)
    split = collection.split("train")
    (graph,) = split.graphs
    assert graph.num_source_candidates == 100_040
    assert collection.manifest.splits["train"].shards[0].candidate_bytes <= 100_040 * 800 * 18 * 4 / 9
    sizes = []

    def pread(file, size, offset, read=os.pread):
        sizes.append(size)
        return read(file, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    drawn = np.random.default_rng(1).permutation(graph.num_candidates)[:64]
    assert split.read_codes(0, drawn).shape == (64, 800)
    split.read_column(0, "runtimes", drawn)
    assert sum(sizes) < 1 << 20


def test_a_worker_that_starts_while_its_job_is_killed_ends_at_once():
    """Beam's own worker first waits a minute for the job's log server."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    environment = os.environ | {"LOGGING_API_SERVICE_DESCRIPTOR": 'url: "localhost:1"'}
    environment |= {"CONTROL_API_SERVICE_DESCRIPTOR": 'url: "localhost:1"', "PIPELINE_OPTIONS": "{}"}
    worker = [sys.executable, "-m", "tpugraphs_polynormer.beam.lifeline", str(gone.pid)]
    assert subprocess.run(worker, cwd=ROOT, env=environment, timeout=30).returncode == 1

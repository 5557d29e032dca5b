"""Flink and Spark on loopback: the bytes of the local runner, whatever is killed in the middle."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beam.clusters import ROOT, Cluster, embedded, flink_cluster, spark_cluster, wait_until
from tests.small_archives import write_long_tree
from tests.small_datasets import LAYOUT, TILE, preprocess_here, write_small_tree
from tests.trained import Trained, make_trained
from tpugraphs_polynormer.beam.commit import RUNNING_NAME
from tpugraphs_polynormer.datasets.manifest import MANIFEST_NAME
from tpugraphs_polynormer.datasets.reader import RankingDataset

pytestmark = pytest.mark.engines
FOLDER = Path("layout/xla/random")
CLUSTERS = {"flink": flink_cluster, "spark": spark_cluster}


@pytest.fixture(scope="module", params=["flink", "spark"])
def cluster(request, tmp_path_factory) -> Iterator[Cluster]:
    """A cluster that the tests of this file share."""
    with CLUSTERS[request.param](tmp_path_factory.mktemp(request.param)) as found:
        yield found


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return write_small_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def long_tree(tmp_path_factory) -> Path:
    """A tree of sixteen archives, one per shard, that take long enough to be interrupted."""
    return write_long_tree(tmp_path_factory.mktemp("long"), LAYOUT, 16, 60, 3000)


@pytest.fixture(scope="module")
def undisturbed(long_tree, tmp_path_factory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("undisturbed")
    preprocess_here(long_tree, output, LAYOUT, graphs_per_shard=1)
    return contents(output)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def start(script: str, cluster: Cluster, *arguments: object) -> subprocess.Popen:
    """Starts one of pipelines/*.py on a cluster, in the root of the project."""
    command = [sys.executable, ROOT / "pipelines" / script, *arguments, *cluster.options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(list(map(str, command)), **pipes, cwd=ROOT, start_new_session=True)


def finish(script: str, cluster: Cluster, *arguments: object) -> tuple[int, str]:
    """(exit code, stderr) of one of pipelines/*.py; Spark's job server refuses a job while it still has another."""
    for _ in range(10):
        process = start(script, cluster, *arguments)
        told = process.communicate(timeout=400)[1]
        if "Only one SparkContext" not in told:
            break
        assert cluster.engine == "spark" and process.returncode == 2 and "Traceback" not in told
        time.sleep(5)
    return process.returncode, told


def run(script: str, cluster: Cluster, *arguments: object) -> None:
    code, told = finish(script, cluster, *arguments)
    assert code == 0, told


def check(process: subprocess.Popen) -> None:
    """Waits for the end, and shows what was said if it was no success."""
    told = process.communicate(timeout=400)[1]
    assert process.returncode == 0, told


def preprocess_long(long_tree: Path, output: Path) -> tuple[object, ...]:
    return ("--archives", long_tree, "--datasets", output, "--collections", LAYOUT, "--graphs-per-shard", 1)


def wait_for_shards(output: Path, count: int) -> None:
    wait_until(lambda: len(list((output / FOLDER).glob("*.shard.json"))) >= count, 300, f"{output}: {count} shards")


@pytest.mark.parametrize("engine", ["flink", "spark"])
def test_an_embedded_engine_writes_the_same_bytes(engine, tree, tmp_path):
    preprocess_here(tree, tmp_path / "local", LAYOUT, TILE, graphs_per_shard=2)
    (tmp_path / "logs").mkdir()
    own = ("--archives", tree, "--datasets", tmp_path / "out", "--collections", LAYOUT, TILE, "--graphs-per-shard", 2)
    with embedded(tmp_path / "logs", engine) as found:
        run("preprocess.py", found, *own)
    assert contents(tmp_path / "out") == contents(tmp_path / "local")


def test_a_node_killed_in_the_middle_costs_nothing(cluster, long_tree, tmp_path, undisturbed):
    process = start("preprocess.py", cluster, *preprocess_long(long_tree, tmp_path))
    wait_for_shards(tmp_path, 2)
    assert len({each.ppid() for each in cluster.workers()}) == 2, "both nodes have workers"
    cluster.kill_node()
    check(process)
    assert contents(tmp_path) == undisturbed
    cluster.start_node()


def test_a_worker_killed_in_the_middle_costs_nothing(cluster, long_tree, tmp_path, undisturbed):
    """As the kernel does when memory runs out."""
    process = start("preprocess.py", cluster, *preprocess_long(long_tree, tmp_path))
    wait_for_shards(tmp_path, 2)
    cluster.workers()[0].kill()
    check(process)
    assert contents(tmp_path) == undisturbed


def test_a_killed_command_is_resumed(cluster, long_tree, tmp_path, undisturbed):
    """The cluster continues its job, which must not disturb the next one."""
    process = start("preprocess.py", cluster, *preprocess_long(long_tree, tmp_path))
    wait_for_shards(tmp_path, 2)
    process.kill()
    process.communicate()
    token = (tmp_path / RUNNING_NAME).read_text()
    before = {path.name: path.stat().st_ino for path in (tmp_path / FOLDER).glob("*.shard.json")}
    run("preprocess.py", cluster, *preprocess_long(long_tree, tmp_path))
    assert token and contents(tmp_path) == undisturbed
    after = {path.name: path.stat().st_ino for path in (tmp_path / FOLDER).glob("*.shard.json")}
    assert {name: after[name] for name in before} == before, "finished shards were kept"
    RankingDataset(tmp_path / FOLDER).verify()


def test_an_interrupted_command_ends_its_job(cluster, long_tree, tmp_path):
    """Beam's job server does not always pass the cancellation on; workers then stop at the next shard."""
    process = start("preprocess.py", cluster, *preprocess_long(long_tree, tmp_path))
    wait_for_shards(tmp_path, 2)
    process.terminate()
    told = process.communicate(timeout=60)[1]
    assert told.splitlines()[-1] == "tpugraphs preprocess: interrupted; run the same command again to continue"
    wait_until(lambda: not cluster.workers(), 60, "the workers end")
    assert not (tmp_path / FOLDER / MANIFEST_NAME).exists()


def test_a_bad_archive_is_one_line(cluster, tmp_path):
    write_small_tree(tmp_path / "in")
    bad = tmp_path / "in/npz" / FOLDER / "train/graph2.npz"
    bad.write_bytes(b"no zip")
    own = ("--archives", tmp_path / "in", "--datasets", tmp_path / "out", "--collections", LAYOUT, TILE)
    code, told = finish("preprocess.py", cluster, *own)
    assert code == 2
    assert told.splitlines()[-1].startswith(f"tpugraphs preprocess: error: {bad}: ") and "Traceback" not in told


@pytest.fixture(scope="module")
def trained() -> Trained:
    """Trained runs that tests share and must not change."""
    return make_trained()


def test_scores_are_those_of_the_local_command(cluster, trained, tmp_path):
    runs = ("--run-dir", trained.layout, trained.tile, "--datasets", trained.data, "--split", "test")
    local = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", "predict", *runs, "--output", tmp_path / "local"]
    subprocess.run(list(map(str, local)), check=True, capture_output=True, cwd=ROOT, timeout=300)
    run("score.py", cluster, *runs, "--output", tmp_path / "out")
    found = contents(tmp_path / "out")
    assert found == contents(tmp_path / "local") and sum(name.endswith(".npz") for name in found) >= 6


def test_labels_are_those_of_the_local_command(cluster, tmp_path):
    pytest.importorskip("libtpu", reason="the extra tpu-compiler is not installed")
    own = ("--programs", "zoo", "--count", 3, "--candidates", 3)
    local = [sys.executable, ROOT / "pipelines/label.py", *own, "--archives", tmp_path / "local", "--workers", "1"]
    subprocess.run(list(map(str, local)), check=True, capture_output=True, cwd=ROOT, timeout=300)
    run("label.py", cluster, *own, "--archives", tmp_path / "out")
    found, wanted = (
        {k: v for k, v in contents(tmp_path / each).items() if k.endswith(".npz")} for each in ("out", "local")
    )
    assert found == wanted and len(found) == 3
    assert json.loads((tmp_path / "out/labels.json").read_text())["runtimes"] == "estimated"

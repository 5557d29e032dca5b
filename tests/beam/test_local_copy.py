"""All data behind s3://, in moto's stand-in for S3: preprocess, train and predict give the bytes of local folders."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beam.clusters import HOST, ROOT, Processes, free_port
from tests.small_datasets import LAYOUT, TILE
from tests.trained import SMALL, Trained, make_trained
from tpugraphs_polynormer.beam.local_copy import copy_datasets
from tpugraphs_polynormer.cli.main import main
from tpugraphs_polynormer.config.loader import dump_config
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.ranking.runs import open_ranking_run
from tpugraphs_polynormer.training.checkpoints import checkpoint_path, hash_weights

pytestmark = pytest.mark.engines
BUCKET = "tpugraphs"
ARCHIVES, DATASETS = f"s3://{BUCKET}/in", f"s3://{BUCKET}/out"
BOTH = ("--collections", LAYOUT, TILE, "--graphs-per-shard", "4")


class Store:
    """A server of an empty object store, and what it was asked."""

    def __init__(self, processes: Processes, port: int) -> None:
        import boto3

        self._processes = processes
        keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
        self.client = boto3.client("s3", endpoint_url=f"http://{HOST}:{port}", **keys)

    def requests(self) -> list[tuple[str, str]]:
        """(method, key) of every request so far."""
        return re.findall(rf"(GET|HEAD|PUT|POST|DELETE) /{BUCKET}/([^ ?]*)", self._processes.log("s3"))

    def keys(self, prefix: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def contents(self, prefix: str) -> dict[str, bytes]:
        found = {key: self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in self.keys(prefix)}
        return {key.removeprefix(prefix): content for key, content in found.items()}


@pytest.fixture(scope="module")
def trained() -> Trained:
    """Trained runs that tests share and must not change."""
    return make_trained()


@pytest.fixture(scope="module")
def store(trained, tmp_path_factory) -> Iterator[Store]:
    """An object store with the archives of the trained runs."""
    pytest.importorskip("moto", reason="the extra engines is not installed")
    pytest.importorskip("boto3", reason="the extra s3 is not installed")
    processes, port = Processes(tmp_path_factory.mktemp("store")), free_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "any")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{HOST}:{port}")
        try:
            processes.start("s3", [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)])
            processes.wait_for("s3", "Running on")
            found = Store(processes, port)
            found.client.create_bucket(Bucket=BUCKET)
            for path in sorted((trained.tree / "npz").rglob("*.npz")):
                found.client.upload_file(str(path), BUCKET, f"in/{path.relative_to(trained.tree)}")
            yield found
        finally:
            processes.stop()


def preprocess(*more: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", "preprocess", "--archives", ARCHIVES]
    command += ["--datasets", DATASETS, *BOTH, *more]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)


@pytest.fixture(scope="module")
def preprocessed(store) -> Store:
    done = preprocess("--direct_num_workers=2")
    assert done.returncode == 0, done.stderr
    return store


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TPUGRAPHS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_store_gets_the_bytes_of_a_local_folder_and_a_rerun_reuses_them(preprocessed, trained):
    assert preprocessed.contents("out/") == files_of(trained.data)
    before = len(preprocessed.requests())
    assert preprocess("--runner=FnApiRunner").returncode == 0
    written = {key.rpartition("/")[2] for method, key in preprocessed.requests()[before:] if method in ("PUT", "POST")}
    assert written == {"running.txt", "schema.pbtxt", "manifest.json"}
    assert preprocessed.contents("out/") == files_of(trained.data)


def test_training_and_prediction_are_those_of_local_data(preprocessed, trained, tmp_path, cache):
    (tmp_path / "config.yaml").write_text(dump_config(SMALL))
    own = ["--datasets", DATASETS, "--run-dir", str(tmp_path / "run")]
    assert main(["train", "--config", str(tmp_path / "config.yaml"), *own, "--strategy", "cpu"]) == 0
    hashes = [hash_weights(checkpoint_path(open_ranking_run(each))) for each in (tmp_path / "run", trained.layout)]
    assert hashes[0] == hashes[1]
    for name, datasets in (("remote", DATASETS), ("local", str(trained.data))):
        own = ["--run-dir", str(trained.layout), "--datasets", datasets, "--output", str(tmp_path / name)]
        assert main(["predict", *own, "--strategy", "cpu"]) == 0
    assert files_of(tmp_path / "remote") == files_of(tmp_path / "local")


def test_evaluation_report_and_export_read_the_store(preprocessed, trained, tmp_path, cache):
    for name, datasets in (("remote", DATASETS), ("local", str(trained.data))):
        own = ["--run-dir", str(trained.layout), "--datasets", datasets]
        assert main(["evaluate", *own, "--output", str(tmp_path / name), "--strategy", "cpu"]) == 0
        assert main(["report", *own, "--output", str(tmp_path / f"{name}.html"), "--candidates", "4"]) == 0
        assert main(["export", *own, "--output", str(tmp_path / f"{name}_model" / "1")]) == 0
        assert (tmp_path / f"{name}_model" / "1" / "saved_model.pb").is_file()
    assert files_of(tmp_path / "remote") == files_of(tmp_path / "local")
    pages = [(tmp_path / f"{name}.html").read_text() for name in ("remote", "local")]
    assert len(pages[0]) > 10_000 and abs(len(pages[0]) - len(pages[1])) < 500


def test_each_file_is_copied_once_and_verified(preprocessed, trained, cache):
    before = len(preprocessed.requests())
    folder = copy_datasets(DATASETS, [LAYOUT])
    shards = {path.name for path in (trained.data / "layout/xla/random").iterdir() if path.suffix != ".json"}
    read = [key.rpartition("/")[2] for method, key in preprocessed.requests()[before:] if method == "GET" and key]
    assert {name: read.count(name) for name in shards} == dict.fromkeys(shards, 1)
    assert not (folder / "tile").exists()
    before = len(preprocessed.requests())
    assert copy_datasets(DATASETS + "/", [LAYOUT]) == folder
    read = {key.rpartition("/")[2] for method, key in preprocessed.requests()[before:] if key}
    assert read == {"manifest.json"}


def test_a_damaged_object_is_named_and_nothing_counts_as_a_dataset(preprocessed, cache):
    key = next(each for each in preprocessed.keys("out/tile/xla/") if each.endswith(".candidates"))
    good = preprocessed.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    preprocessed.client.put_object(Bucket=BUCKET, Key=key, Body=good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(UserError, match=rf"s3://{BUCKET}/{key}: sha256 .* preprocess. again"):
        copy_datasets(DATASETS, [TILE])
    assert not list(cache.rglob("manifest.json"))
    preprocessed.client.put_object(Bucket=BUCKET, Key=key, Body=good)
    copy_datasets(DATASETS, [TILE])


@pytest.mark.parametrize(
    ("archives", "datasets", "told"),
    [
        ("s3://nobody/in", DATASETS, "s3://nobody/in"),
        (ARCHIVES, "s3://nobody/out", "s3://nobody/out"),
        ("nothing://bucket/in", DATASETS, "nothing://bucket/in"),
    ],
)
def test_what_cannot_be_reached_is_one_line(store, archives, datasets, told, capsys):
    assert main(["preprocess", "--archives", archives, "--datasets", datasets, *BOTH, "--runner=FnApiRunner"]) == 2
    error = capsys.readouterr().err
    assert told in error and "Traceback" not in error and len(error.splitlines()) == 1, error


def test_datasets_that_are_not_there_are_one_line(store, trained, tmp_path, cache, capsys):
    own = ["--run-dir", str(trained.layout), "--datasets", f"s3://{BUCKET}/nothing", "--output", str(tmp_path / "out")]
    assert main(["predict", *own]) == 2
    assert f"s3://{BUCKET}/nothing/layout/xla/random/manifest.json: not found" in capsys.readouterr().err

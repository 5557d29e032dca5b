"""Damaged files: no stage reports success on them, each says in one line which file it is, and `verify` lists all."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.small_datasets import LAYOUT
from tests.trained import Trained, make_trained
from tpugraphs_polynormer.checksums import CHECKSUMS_NAME
from tpugraphs_polynormer.cli.main import main
from tpugraphs_polynormer.datasets.manifest import MANIFEST_NAME
from tpugraphs_polynormer.datasets.schema import SCHEMA_NAME

FOLDER = Path(LAYOUT.replace(":", "/"))


@pytest.fixture(scope="module")
def trained() -> Trained:
    """Runs and datasets that no test may change."""
    return make_trained()


def randomize(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "random bytes in the records": (".tfrecord", randomize),
    "zeros in the candidates": (".candidates", zero),
    "a flipped bit in the records": (".tfrecord", flip),
    "truncated candidates": (".candidates", truncate),
    "truncated records": (".tfrecord", truncate),
    "a missing shard": (".candidates", Path.unlink),
}
STAGES = {
    "evaluate": ("valid", ["--split", "valid"]),
    "predict": ("test", []),
    "report": ("valid", []),
    "train": ("train", []),
}
SMALLEST = ("model.hidden_dim=8", "model.num_heads=2", "training.epochs=1", "training.steps_per_epoch=2")


@pytest.fixture
def datasets(trained: Trained, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(trained.data, tmp_path / "datasets"))


def arguments_of(stage: str, trained: Trained, datasets: Path, tmp_path: Path) -> list[str]:
    if stage == "train":
        sets = [part for each in (*SMALLEST, f"data.collection={LAYOUT}") for part in ("--set", each)]
        return ["train", "--datasets", str(datasets), "--run-dir", str(tmp_path / "run"), "--strategy", "cpu", *sets]
    places = ["--run-dir", str(trained.layout), "--datasets", str(datasets), "--output", str(tmp_path / "output")]
    return [stage, *places, *STAGES[stage][1]]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_names_the_damaged_file_and_fails(stage, damage, trained, datasets, tmp_path, capsys) -> None:
    suffix, spoil = DAMAGES[damage]
    (path,) = (datasets / FOLDER).glob(f"{STAGES[stage][0]}-*{suffix}")
    spoil(path)
    capsys.readouterr()
    assert main(arguments_of(stage, trained, datasets, tmp_path)) == 2
    said = capsys.readouterr()
    last = said.err.splitlines()[-1]
    assert last.startswith(f"tpugraphs {stage}: error: ") and str(path) in last and last.endswith("preprocess again")
    assert "Traceback" not in said.err and not said.out
    assert not list(tmp_path.glob("output/**/checksums.json")) and not list(tmp_path.glob("output/*.html"))


def verify(capsys, *folders: Path) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["verify", *map(str, folders)])
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture
def demo_like(trained: Trained, tmp_path: Path) -> Path:
    """Datasets, two runs and predictions below one folder."""
    root = tmp_path / "all"
    shutil.copytree(trained.data, root / "datasets")
    for run in (trained.layout, trained.tile):
        shutil.copytree(run, root / "runs" / run.name)
    shutil.copytree(predictions(), root / "predictions")
    return root


@functools.cache
def predictions() -> Path:
    trained = make_trained()
    places = ["--datasets", str(trained.data), "--output", str(trained.root / "verified")]
    assert main(["predict", "--run-dir", str(trained.layout), str(trained.tile), *places]) == 0
    return trained.root / "verified"


def test_verify_reads_every_file_and_finds_whole_ones_whole(demo_like, capsys) -> None:
    status, out, _ = verify(capsys, demo_like)
    assert status == 0 and "all as they were written" in out
    marks = ("tensorboard", "checksums.json")
    files = [path for path in demo_like.rglob("*") if path.is_file() and not any(mark in str(path) for mark in marks)]
    assert f" {len(files):,} files, {sum(path.stat().st_size for path in files):,} bytes" in out


CHANGED = [
    f"datasets/{FOLDER}/train-00000-of-00001.tfrecord",
    f"datasets/{FOLDER}/valid-00000-of-00001.candidates",
    f"datasets/{FOLDER}/test-00000-of-00001.shard.json",
    f"datasets/{FOLDER}/{MANIFEST_NAME}",
    f"datasets/{FOLDER}/{SCHEMA_NAME}",
    "runs/layout/config.yaml",
    "runs/layout/dataset.json",
    "runs/layout/metrics.jsonl",
    "runs/layout/result.json",
    "runs/tile/checkpoints/best/*.data-00000-of-00001",
    "runs/tile/checkpoints/latest/*.index",
    f"predictions/{FOLDER}/recipe.json",
    f"predictions/{FOLDER}/*.npz",
]


@pytest.mark.parametrize("spoil", [flip, truncate, Path.unlink], ids=lambda each: each.__name__)
@pytest.mark.parametrize("pattern", CHANGED)
def test_verify_lists_a_changed_file(demo_like, capsys, pattern, spoil) -> None:
    path = sorted(demo_like.glob(pattern))[0]
    if spoil is Path.unlink and path.name in ("config.yaml", "recipe.json", "result.json"):
        pytest.skip("by this file the folder is what it is")
    spoil(path)
    status, out, err = verify(capsys, demo_like)
    assert status == 2 and str(path) in out
    assert err.startswith("tpugraphs verify: error: 1 of ") and len(err.splitlines()) == 1


def test_verify_lists_all_that_is_wrong_and_what_should_not_be_there(demo_like, capsys) -> None:
    spoiled = [path for pattern in CHANGED[:2] for path in demo_like.glob(pattern)]
    for path in spoiled:
        flip(path)
    foreign = demo_like / "predictions" / FOLDER / "foreign.npz"
    foreign.write_bytes(b"")
    status, out, err = verify(capsys, demo_like)
    assert status == 2 and all(str(path) in out for path in (*spoiled, foreign)) and "error: 3 of " in err


def test_verify_of_an_unfinished_run_reads_its_checkpoints(demo_like, capsys) -> None:
    run = demo_like / "runs" / "layout"
    (run / "result.json").unlink()
    status, out, _ = verify(capsys, run)
    assert status == 0 and f"{run}: not trained to its end" in out
    (path,) = run.glob("checkpoints/latest/*.data-00000-of-00001")
    randomize(path)
    status, out, _ = verify(capsys, run)
    assert status == 2 and str(path.parent) in out


def test_verify_of_unfinished_things_fails(demo_like, capsys) -> None:
    (demo_like / "predictions" / FOLDER / CHECKSUMS_NAME).unlink()
    (demo_like / "datasets" / FOLDER / MANIFEST_NAME).unlink()
    status, out, _ = verify(capsys, demo_like)
    assert status == 2 and "let `tpugraphs predict` finish" in out and "run `tpugraphs preprocess` to the end" in out


@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd"])
def test_verify_reads_no_file_outside_its_folder(demo_like, capsys, name) -> None:
    path = demo_like / "runs" / "tile" / CHECKSUMS_NAME
    path.write_text(json.dumps({"files": {name: {"bytes": 1, "sha256": "0"}}}))
    status, out, _ = verify(capsys, demo_like / "runs")
    assert status == 2 and repr(name) in out


def test_verify_needs_something_to_verify(tmp_path, capsys) -> None:
    assert "found no dataset, run or predictions" in verify(capsys, tmp_path)[2]
    assert "not a folder" in verify(capsys, tmp_path / "nothing")[2]

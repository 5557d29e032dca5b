"""The Beam job of labels, with a stand-in for the compiler: plan, archives, commit, resumption."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.test_session import fake
from tests.hlo.programs import small_cnn
from tpugraphs_polynormer.archives.inspect import inspect_archive
from tpugraphs_polynormer.archives.npz import read_archive
from tpugraphs_polynormer.beam import label
from tpugraphs_polynormer.compiler.labelling import LabelOptions
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.hlo.writer import serialize_module

VERSIONS = {"jax": "0", "jaxlib": "0", "libtpu": "0.0.51"}
FOLDER = Path("layout/xla/random")


def make_job(
    folder: Path, *fault: object, count: int = 8, candidates: int = 6, programs: str = "zoo"
) -> label.LabelJob:
    options = LabelOptions("v3:2x2", candidates, "random", seed=1, time_limit=60.0)
    tasks = label.plan_tasks(programs, count, 1)
    folder.mkdir(exist_ok=True)
    return label.LabelJob(folder / "out", programs, tasks, options, VERSIONS, fake(folder / "log", *fault))


def read_tree(folder: Path) -> dict[str, bytes]:
    """The bytes of all archives."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.npz"))}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> label.LabelJob:
    """A job that ran to its end in this process; tests must not change it."""
    job = make_job(tmp_path_factory.mktemp("finished"))
    summary = label.run(job, [], 1)
    assert summary == label.LabelSummary({"train": 6, "valid": 1, "test": 1}, 48, 0, {})
    return job


def test_programs_are_split_once_and_test_names_are_hidden():
    tasks = label.plan_tasks("zoo", 40, 0)
    assert [sum(task.split == split for task in tasks) for split in ("train", "valid", "test")] == [30, 5, 5]
    assert len({task.name for task in tasks}) == len({task.title for task in tasks}) == 40
    assert all((task.name != task.title) == (task.split == "test") for task in tasks)
    assert label.plan_tasks("zoo", 40, 0) == tasks != label.plan_tasks("zoo", 40, 1)


def test_the_tree_is_official_and_marked_as_estimated(finished):
    names = {
        split: [task.name for task in finished.tasks if task.split == split] for split in ("train", "valid", "test")
    }
    for split, expected in names.items():
        folder = finished.output / "npz" / FOLDER / split
        assert sorted(path.stem for path in folder.iterdir()) == sorted(expected)
    archive = read_archive(finished.output / "npz" / FOLDER / "test" / f"{names['test'][0]}.npz")
    with np.load(finished.output / "truth" / FOLDER / "test" / f"{names['test'][0]}.npz") as truth:
        assert archive.is_hidden and list(truth) == ["config_runtime"] and (truth["config_runtime"] > 0).all()
    labels = json.loads((finished.output / "labels.json").read_text())
    assert labels["runtimes"] == "estimated" and labels["megahertz"] == 940 and labels["versions"] == VERSIONS
    assert [each["name"] for each in labels["labelled"]] == [task.name for task in finished.tasks]
    told = str(inspect_archive(finished.output / "npz" / FOLDER / "train" / f"{names['train'][0]}.npz"))
    assert "estimated by the TPU compiler for v3:2x2 (libtpu 0.0.51), not measured" in told


def test_an_archive_of_another_origin_is_not_called_estimated(finished, tmp_path):
    source = min((finished.output / "npz" / FOLDER / "train").iterdir())
    (tmp_path / "other.npz").write_bytes(source.read_bytes())
    assert inspect_archive(tmp_path / "other.npz").origin is None
    (tmp_path / "labels.json").write_text("[]")
    assert inspect_archive(tmp_path / "other.npz").origin is None
    (tmp_path / "labels.json").write_bytes((finished.output / "labels.json").read_bytes())
    assert inspect_archive(tmp_path / "other.npz").origin is None, "labels.json does not name it"


def test_a_finished_job_does_nothing_and_another_recipe_is_refused(finished):
    log = finished.output.parent / "log"
    before = log.read_text()
    assert sum(label.run(finished, [], 1).programs.values()) == 8
    assert log.read_text() == before
    other = dataclasses.replace(finished, options=dataclasses.replace(finished.options, seed=2))
    with pytest.raises(UserError, match=r"another recipe \(seed 1, not 2\); choose another --archives"):
        label.run(other, [], 1)
    longer = dataclasses.replace(finished, options=dataclasses.replace(finished.options, time_limit=90.0))
    assert label.run(longer, [], 1).candidates == 48


def test_archives_of_another_origin_are_not_mixed_with(tmp_path):
    (tmp_path / "out" / "npz").mkdir(parents=True)
    with pytest.raises(UserError, match="estimated ones are not put beside them"):
        label.run(make_job(tmp_path), [], 1)


@pytest.mark.slow
def test_two_workers_write_the_same_bytes(finished, tmp_path):
    job = make_job(tmp_path)
    label.run(job, [], 2)
    assert read_tree(job.output) == read_tree(finished.output)


def test_refused_programs_are_named_and_do_not_stop_the_others(tmp_path):
    source = tmp_path / "programs"
    source.mkdir()
    (source / "good.hlo.pb").write_bytes(serialize_module(small_cnn()))
    (source / "bad.pb").write_bytes(b"words")
    job = make_job(tmp_path, programs=str(source))
    summary = label.run(job, [], 1)
    assert summary.programs["train"] == 1 and summary.candidates == 6
    ((title, reason),) = summary.refused_programs.items()
    assert title == "bad_0000" and "bad.pb" in reason
    (source / "good.hlo.pb").unlink()
    with pytest.raises(UserError, match=r"all 1 programs were refused, the first: .*bad\.pb"):
        label.run(make_job(tmp_path / "none", programs=str(source)), [], 1)


@pytest.mark.parametrize("programs", ["nothing", "empty"])
def test_a_folder_without_programs_is_one_line(tmp_path, programs):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=f"--programs .*{programs}: found no"):
        label.plan_tasks(str(tmp_path / programs), None, 0)


def test_a_killed_job_continues_and_writes_the_same_bytes(finished, tmp_path):
    job = make_job(tmp_path)
    code = (
        "from pathlib import Path; from tests.beam.test_label import make_job, label; "
        f"label.run(make_job(Path({str(tmp_path)!r})), [], 1)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while label.count_done(job) < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len((tmp_path / "log").read_text().splitlines())
    assert 20 <= label.count_done(job) < 48 and not (job.output / "labels.json").exists()
    label.run(job, [], 1)
    assert read_tree(job.output) == read_tree(finished.output)
    total = len((finished.output.parent / "log").read_text().splitlines())
    assert len((tmp_path / "log").read_text().splitlines()) <= total + 3, f"{done} answers were kept"

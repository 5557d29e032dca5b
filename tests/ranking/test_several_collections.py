"""One run on several collections: validation of each and their mean, resuming, and every stage after training."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.ranking_data import SMALL
from tests.several_collections import OTHER, SETTING, SEVERAL, simulated_collections
from tests.small_datasets import LAYOUT
from tests.training.test_trainer import CHEAP, assert_same_bytes
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.ranking.evaluate import evaluate_runs, format_evaluations
from tpugraphs_polynormer.ranking.report.page import write_report
from tpugraphs_polynormer.ranking.runs import group_runs, load_ranker
from tpugraphs_polynormer.ranking.task import train_ranking
from tpugraphs_polynormer.ranking.traced_steps import dataset_batches, official_batches
from tpugraphs_polynormer.training.checkpoints import Checkpoints
from tpugraphs_polynormer.training.run_directory import RunError

SETS = (*SMALL, *CHEAP, SETTING)


def train_here(run_dir, *overrides: str) -> dict:
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    return train_ranking(load_config(None, (*SETS, *overrides)), data_dir(), run_dir, strategy=strategy)


def data_dir():
    return simulated_collections() / "data"


def tpugraphs(*arguments) -> str:
    """The output of a stage in a new process."""
    command = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run that the command line trained on both collections."""
    folder = tmp_path_factory.mktemp("several") / "both"
    sets = [part for each in SETS for part in ("--set", each)]
    tpugraphs("train", "--datasets", data_dir(), "--run-dir", folder, *sets)
    return folder


def test_validation_is_the_mean_over_collections_and_chooses_the_best(run_dir) -> None:
    result = json.loads((run_dir / "result.json").read_text())
    metrics = result["best"]["metrics"]
    assert metrics.keys() == {"valid", *(f"valid/{name}" for name in SEVERAL)}
    for metric in ("tau", "opa", "contest_score"):
        each = [metrics[f"valid/{name}"][metric] for name in SEVERAL]
        assert metrics["valid"][metric] == pytest.approx(np.mean(each))
    assert [metrics[f"valid/{name}"]["num_graphs"] for name in SEVERAL] == [2, 1]
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    scores = [record["metrics"]["valid"]["contest_score"] for record in records]
    assert [record["selection"] for record in records] == scores and result["best"]["selection"] == max(scores)
    facts = json.loads((run_dir / "dataset.json").read_text())
    assert facts["collection"] == OTHER and facts["kind"] == "layout"


def test_a_run_that_was_killed_ends_with_the_same_bytes(run_dir, tmp_path, monkeypatch) -> None:
    save = Checkpoints.save

    class Killed(BaseException):
        pass

    def interrupted(self, at: int) -> None:
        if at == 2 and self._folder.name == "latest":
            raise Killed
        save(self, at)

    monkeypatch.setattr(Checkpoints, "save", interrupted)
    with pytest.raises(Killed):
        train_here(tmp_path)
    monkeypatch.undo()
    train_here(tmp_path)
    for name in ("latest", "best"):
        assert_same_bytes(tmp_path, run_dir, name)


def test_every_stage_after_training_serves_each_collection(run_dir, tmp_path) -> None:
    runs = ["--run-dir", run_dir, "--datasets", data_dir()]
    table = tpugraphs("evaluate", *runs, "--output", tmp_path)
    rows = [line.split() for line in table.splitlines() if line.startswith("both")]
    assert [row[1:3] for row in rows] == [[LAYOUT, "1"], [OTHER, "2"], ["mean", "3"]] or [row[1:3] for row in rows] == [
        [OTHER, "2"],
        [LAYOUT, "1"],
        ["mean", "3"],
    ]
    summary = json.loads((tmp_path / "both" / "evaluation-valid.json").read_text())
    assert set(summary["collections"]) == set(SEVERAL)
    assert "2 graphs, 2 predicted now" in tpugraphs("predict", *runs, "--output", tmp_path / "predictions")
    tree = simulated_collections() / "tree"
    submitted = tpugraphs(
        *("submit", "--predictions", tmp_path / "predictions", "--archives", tree, "--truth", tree / "truth"),
        *("--output", tmp_path / "submission.csv", "--collections", *SEVERAL),
    )
    assert all(name in submitted for name in SEVERAL) and "2 rows, valid" in submitted


def test_runs_are_found_scored_and_reported_by_collection(run_dir, tmp_path) -> None:
    assert list(group_runs([run_dir])) == list(SEVERAL)
    (result,) = evaluate_runs([run_dir], data_dir(), split="valid", output=tmp_path)
    means = result.summarize()
    logged = json.loads((run_dir / "result.json").read_text())["best"]["metrics"]
    for name in SEVERAL:
        assert means["collections"][name] == pytest.approx(logged[f"valid/{name}"], abs=1e-5)
        task = load_ranker(run_dir, data_dir(), collection=name)
        assert task.evaluate()["valid"] == pytest.approx(logged[f"valid/{name}"], abs=1e-5)
    assert format_evaluations([result]).count("both") == 3
    page = write_report([run_dir], data_dir(), tmp_path / "report.html").read_text()
    assert all(name in page for name in SEVERAL)


def test_a_collection_of_the_other_kind_cannot_be_scored(run_dir, monkeypatch) -> None:
    opened = load_ranker(run_dir, data_dir()).collection
    monkeypatch.setattr("tpugraphs_polynormer.ranking.runs.open_named", lambda name, folder: opened)
    monkeypatch.setattr(opened, "manifest", opened.manifest.__class__(**{**vars(opened.manifest), "kind": "tile"}))
    with pytest.raises(RunError, match="a run on layout collections, found tile:xla, which is not one"):
        load_ranker(run_dir, data_dir(), collection="tile:xla")


def test_batches_hold_graphs_of_all_collections() -> None:
    config = load_config(None, SETS)
    single = [load_config(None, (*SMALL, *CHEAP, f"data.collection={name}")) for name in SEVERAL]
    for sizes_of in (official_batches, lambda each: dataset_batches(each, data_dir())):
        alone, together = [sizes_of(each).limits for each in single], sizes_of(config).limits
        assert together == {name: max(each[name] for each in alone) for name in together}


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (
            "data.collections=[layout:xla:random, tile:xla]",
            r"collections: found layout:xla:random \(layout\), tile:xla",
        ),
        ("data.collections=[tile:xla, tile:xla]", "collections: found tile:xla more than once"),
        ("data.collections=[layout:xla]", r"data\.collections\[0\]: found 'layout:xla', expected"),
        ("data.max_candidates=1", "max_candidates: found 1, expected 0 for all, or at least 2"),
    ],
)
def test_lists_that_cannot_be_trained_on_are_refused(setting, reason) -> None:
    with pytest.raises(ConfigError, match=reason):
        load_config(None, (setting,))


def test_a_list_beside_another_collection_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"collection: found 'tile:xla', but it is read only with collections=\[\]"):
        load_config(None, ("data.collection=tile:xla", SETTING))

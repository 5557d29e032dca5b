"""The demo: finished stages are not run again, failures name the log, and all stages run at the smallest size."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from tpugraphs_polynormer import demo
from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.errors import UserError


class Recorder:
    """A replacement of `run_stage` that records the stages and fails at one of them."""

    def __init__(self, failing: str | None = None) -> None:
        self.stages: list[str] = []
        self._failing = failing

    def __call__(self, arguments: list[str], log: Path, num_threads: int | None = None) -> None:
        self.stages.append(arguments[0])
        if arguments[0] == self._failing:
            raise UserError("it failed")


@pytest.fixture
def without_scores(monkeypatch) -> None:
    monkeypatch.setattr(demo._Demo, "format_scores", lambda self: "scores")


def test_each_collection_has_its_config() -> None:
    for name in COLLECTIONS:
        config = load_config(demo.CONFIGS / f"{name.replace(':', '_')}.yaml")
        assert (config.task, config.data.collection) == ("ranking", name)


def test_stages_run_once_and_go_on_after_a_failure(tmp_path, monkeypatch, without_scores) -> None:
    monkeypatch.setattr(demo, "run_stage", first := Recorder(failing="predict"))
    with pytest.raises(UserError, match="it failed"):
        demo.run_demo(tmp_path / "demo")
    assert first.stages == ["simulate", "preprocess", *["train"] * 5, "evaluate", "predict"]
    monkeypatch.setattr(demo, "run_stage", second := Recorder())
    demo.run_demo(tmp_path / "demo")
    assert second.stages == ["predict", "submit", "report"]
    monkeypatch.setattr(demo, "run_stage", third := Recorder())
    assert str(tmp_path / "demo" / "report.html") in demo.run_demo(tmp_path / "demo")
    assert third.stages == []


def test_another_seed_in_the_same_folder_is_refused(tmp_path, monkeypatch, without_scores) -> None:
    monkeypatch.setattr(demo, "run_stage", Recorder())
    demo.run_demo(tmp_path, 0)
    with pytest.raises(UserError, match="seed 0"):
        demo.run_demo(tmp_path, 1)


def test_a_failed_stage_tells_its_last_line_and_its_log(tmp_path) -> None:
    log = tmp_path / "inspect.log"
    with pytest.raises(UserError, match=r"nowhere\.npz.*inspect\.log"):
        demo.run_stage(["inspect", "nowhere.npz"], log)
    assert "nowhere.npz" in log.read_text()


@pytest.mark.slow
def test_the_whole_way_at_the_smallest_size(tmp_path) -> None:
    configs = shutil.copytree(demo.CONFIGS, tmp_path / "configs")
    for path in configs.iterdir():
        settings = yaml.safe_load(path.read_text())
        settings["training"] |= {"epochs": 1, "steps_per_epoch": 3, "steps_per_execution": 1}
        settings["model"] |= {"hidden_dim": 8, "num_heads": 2}
        path.write_text(yaml.safe_dump(settings))
    text = demo.run_demo(tmp_path / "demo", scale="tiny", configs=configs)
    lines = [line.split() for line in text.splitlines()]
    assert [line[0] for line in lines[1:7]] == [*COLLECTIONS, "mean"]
    scores = {line[0]: (float(line[1]), float(line[2])) for line in lines[1:7]}
    assert scores["mean"][0] == pytest.approx(np.mean([scores[name][0] for name in COLLECTIONS]), abs=1e-3)
    assert all(scores[name][1] == 0 for name in COLLECTIONS if name.startswith("layout"))
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "Simulated data" in page
    assert all(f">{line[1]}</td>" in page and f">{line[2]}</td>" in page for line in lines[1:7])  # the closing table
    assert json.loads((tmp_path / "demo" / "progress.json").read_text())["done"][-1] == "report"

"""The demo: finished stages are not run again, failures name the log, and all stages run at the smallest size."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from tpugraphs_polynormer import demo
from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.errors import UserError


class Recorder:
    """A replacement of `run_stages` that records the stages and fails at one of them."""

    def __init__(self, failing: str | None = None) -> None:
        self.stages: list[str] = []
        self._failing = failing

    def __call__(self, stages: list[demo.StageRun], num_at_once: int, watch: Callable[[], None]) -> None:
        self.stages += [stage.arguments[0] for stage in stages]
        watch()
        if self._failing in self.stages:
            raise UserError("it failed")


@pytest.fixture
def without_scores(monkeypatch) -> None:
    monkeypatch.setattr(demo._Demo, "format_scores", lambda self: "scores")


def test_each_collection_has_its_config() -> None:
    for name in COLLECTIONS:
        config = load_config(demo.CONFIGS / f"{name.replace(':', '_')}.yaml")
        assert (config.task, config.data.collection) == ("ranking", name)


def test_stages_run_once_and_go_on_after_a_failure(tmp_path, monkeypatch, without_scores) -> None:
    monkeypatch.setattr(demo, "run_stages", first := Recorder(failing="predict"))
    with pytest.raises(UserError, match="it failed"):
        demo.run_demo(tmp_path / "demo")
    assert first.stages == ["simulate", "preprocess", *["train"] * 5, "evaluate", "predict"]
    monkeypatch.setattr(demo, "run_stages", second := Recorder())
    demo.run_demo(tmp_path / "demo")
    assert second.stages == ["predict", "submit", "report"]
    monkeypatch.setattr(demo, "run_stages", third := Recorder())
    assert str(tmp_path / "demo" / "report.html") in demo.run_demo(tmp_path / "demo")
    assert third.stages == []


def test_another_seed_in_the_same_folder_is_refused(tmp_path, monkeypatch, without_scores) -> None:
    monkeypatch.setattr(demo, "run_stages", Recorder())
    demo.run_demo(tmp_path, 0)
    with pytest.raises(UserError, match="seed 0"):
        demo.run_demo(tmp_path, 1)


def test_a_failed_stage_tells_its_last_line_and_its_log(tmp_path) -> None:
    log = tmp_path / "inspect.log"
    with pytest.raises(UserError, match=r"nowhere\.npz.*inspect\.log"):
        demo.run_stages([demo.StageRun(("inspect", "nowhere.npz"), log)])
    assert "nowhere.npz" in log.read_text()


def session_of(word: str) -> list[int]:
    """The processes whose command line has a word, but for this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def wait_until(check: Callable[[], bool], seconds: float) -> bool:
    """Whether the check holds within that time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)], ids=["INT", "TERM", "KILL"]
)
def test_an_interrupted_demo_leaves_no_process(tmp_path, number: int, code: int) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", "demo", "--output", str(out)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert wait_until(lambda: len(list(out.glob("data/npz/*/*/*/*.npz"))) > 3, 120)
    os.kill(process.pid, number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == code and "Traceback" not in told, told
    if number != signal.SIGKILL:
        assert told.splitlines()[-1] == "tpugraphs demo: interrupted; run the same command again to continue"
        assert session_of(str(out)) == []
    assert wait_until(lambda: session_of(str(out)) == [], 20)  # killed, it could not wait for them
    assert "Traceback" not in (out / "logs" / "simulate.log").read_text()


@pytest.mark.slow
def test_a_failure_ends_the_stages_beside_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(demo, "_start", lambda stage: started.append(start(stage)) or started[-1])
    started: list[subprocess.Popen] = []

    def start(stage: demo.StageRun) -> subprocess.Popen:
        with stage.log.open("w") as log:
            return subprocess.Popen([sys.executable, "-c", *stage.arguments], stdout=log, start_new_session=True)

    slow, failing = "import time; time.sleep(60)", "print('broken'); raise SystemExit(3)"
    stages = [demo.StageRun((code,), tmp_path / f"{number}.log") for number, code in enumerate([slow, failing, slow])]
    with pytest.raises(UserError, match=r"broken \(all of its output is in .*1\.log"):
        demo.run_stages(stages, 2)
    assert len(started) == 2 and all(process.returncode is not None for process in started)


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

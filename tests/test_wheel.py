"""The wheel in a new environment outside the clone: it contains the configs and templates."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    arguments = list(map(str, command))
    ended = subprocess.run(arguments, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended


@pytest.mark.slow
def test_the_stages_run_from_any_folder_with_only_the_wheel(tmp_path):
    """The new environment gets dependencies from this one through a .pth file, and the package from the wheel."""
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--quiet", wheel, cwd=tmp_path)
    (packages,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    import numpy

    (packages / "dependencies.pth").write_text(str(Path(numpy.__file__).parents[1]) + "\n")
    where = run(python, "-c", "import tpugraphs_polynormer as tp; print(tp.__file__)", cwd=tmp_path).stdout
    assert str(packages) in where
    code = "import importlib.util as util; print(util.find_spec('pipelines'))"
    assert run(python, "-c", code, cwd=tmp_path).stdout == "None\n"
    tpugraphs = tmp_path / "env" / "bin" / "tpugraphs"
    chosen = ["--archives", "data", "--collections", "layout:xla:random"]
    run(tpugraphs, "simulate", "--scale", "tiny", *chosen, cwd=tmp_path)
    run(tpugraphs, "preprocess", "--datasets", "sets", *chosen, cwd=tmp_path)
    short = [f"training.{each}" for each in ("epochs=1", "steps_per_epoch=2", "steps_per_execution=1")]
    sets = [part for each in short for part in ("--set", each)]
    data = ["--datasets", "sets", "--run-dir", "run"]
    run(tpugraphs, "train", "--config", "demo/layout_xla_random", *data, *sets, cwd=tmp_path)
    run(tpugraphs, "report", *data, "--output", "report.html", cwd=tmp_path)
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert "0 of 13" in run(tpugraphs, "benchmark", "--list", "--files", tmp_path, cwd=tmp_path).stdout
    code = "from tpugraphs_polynormer import demo; print(demo.CONFIGS)"
    assert str(packages) in run(python, "-c", code, cwd=tmp_path).stdout

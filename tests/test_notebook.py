"""The Kaggle notebook: its cells run unchanged on a small simulated tree."""

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.small_datasets import LAYOUT, TILE
from tests.trained import Trained, make_trained
from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.ranking.submission import expected_rows
from tpugraphs_polynormer.ranking.submission_check import check_submission

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "notebooks" / "kaggle.ipynb"
SMALL = ("model.hidden_dim=8", "model.num_heads=2", "training.epochs=1", "training.steps_per_epoch=2")


@pytest.fixture(scope="module")
def trained() -> Trained:
    """Trained runs that tests share and must not change."""
    return make_trained()


def code_cells() -> list[dict]:
    """The code cells of the notebook, which must not have output."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)
    return cells


def test_its_parameters_name_configs_that_exist() -> None:
    first = code_cells()[0]
    assert first["metadata"]["tags"] == ["parameters"]
    names: dict = {}
    exec("".join(first["source"]), names)
    assert list(names["CONFIGS"]) == list(COLLECTIONS)
    for collection, path in names["CONFIGS"].items():
        assert load_config(ROOT / path).data.collection == collection


@pytest.mark.slow
def test_its_cells_lead_to_a_valid_submission(trained: Trained, tmp_path: Path) -> None:
    parameters = f"""
from pathlib import Path
TREE, WORK = Path({str(trained.tree)!r}), Path({str(tmp_path)!r})
CONFIGS = {{name: Path("configs/demo") / f"{{name.replace(':', '_')}}.yaml" for name in {[LAYOUT, TILE]!r}}}
SETTINGS, SEEDS, BEAM = {list(SMALL)!r}, [0, 1], ["--runner=FnApiRunner"]
HOURS, KEEP_DATASETS = 1, False
"""
    check = "print('drawn:', [len(axes.lines) for axes in plt.gcf().axes])"
    source = "\n".join([parameters, *("".join(cell["source"]) for cell in code_cells()[1:]), check])
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-c", source]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert check_submission(tmp_path / "submission.csv", expected_rows(trained.tree)) == []
    assert (
        ended.stdout.splitlines()[-1] == "drawn: [2, 2, 2, 2]"
    )  # a curve and the graphs of two seeds, two collections
    for collection in (LAYOUT, TILE):
        assert (tmp_path / f"report_{collection.replace(':', '_')}.html").read_text().count("seed-1") > 2
    assert list((tmp_path / "dataset").rglob("*.tfrecord")) == []  # removed: the disk holds one collection at a time
    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0 and "loss" not in again.stdout, "a rerun continues where the first one ended"


def test_its_stages_can_be_interrupted_and_their_failures_stop_the_notebook(tmp_path: Path) -> None:
    names: dict = {"WORK": tmp_path, "CONFIGS": {}, "HOURS": 1, "SEEDS": [0]}
    source = "".join(code_cells()[1]["source"])
    exec(source.replace("len(CONFIGS) * len(SEEDS)", "1"), names)
    with pytest.raises(RuntimeError, match="inspect failed"):
        names["stage"]("inspect", tmp_path / "nothing.npz")
    started = time.monotonic()
    slow = ["simulate", "--archives", tmp_path / "a", "--scale", "full", "--workers", 1]
    names["stage"](*slow, hours=5 / 3600)
    assert time.monotonic() - started < 60


def test_its_cells_are_code_of_every_python_that_is_supported() -> None:
    assert json.loads(NOTEBOOK.read_text())["metadata"]["language_info"]["version"] == "3.12"
    for cell in code_cells():
        ast.parse("".join(cell["source"]), feature_version=(3, 10))


@pytest.mark.tpu_compiler
def test_the_notebook_of_own_programs_runs_from_functions_to_applied_layouts() -> None:
    pytest.importorskip("libtpu", reason="the extra tpu-compiler is not installed")
    cells = json.loads((ROOT / "notebooks" / "own_program.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    source = "\n".join(['TOPOLOGY, BUDGET, BEST = "v3:2x2", 24, 1', *code[1:]])
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("judged by the TPU compiler") == 2 and "with the best layouts applied" in done.stdout
    assert "the ranker in the box: 4 members" in done.stdout

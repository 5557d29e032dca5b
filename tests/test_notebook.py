"""The Kaggle notebook: its cells run unchanged on a small simulated tree."""

import json
import os
import subprocess
import sys
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
SETTINGS, SEEDS, BEAM = {list(SMALL)!r}, "0,1", ["--runner=FnApiRunner"]
"""
    source = "\n".join([parameters, *("".join(cell["source"]) for cell in code_cells()[1:])])
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", source]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert check_submission(tmp_path / "submission.csv", expected_rows(trained.tree)) == []
    assert (tmp_path / "report.html").read_text().count("seed-1") > 2

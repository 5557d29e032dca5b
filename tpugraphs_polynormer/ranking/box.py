"""The ranker in the box: a small pretrained ensemble that travels with the package, and the card that says what it is.

`benchmarks/box.py` trains it and writes both. A member is a run directory with what scoring reads: the config, the
facts of its training data, its calibration, and the best weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import temporary_folder, write_text
from tpugraphs_polynormer.ranking.calibration import CALIBRATION_NAME
from tpugraphs_polynormer.training.run_directory import CONFIG_NAME, FACTS_NAME

FOLDER = Path(__file__).resolve().parents[1] / "box"
CARD_NAME = "card.json"
_FILES = (CONFIG_NAME, FACTS_NAME, CALIBRATION_NAME)
_WEIGHTS = Path("checkpoints", "best")


def box_runs(folder: Path = FOLDER) -> list[Path]:
    """The run directories of the members; UserError if the package was installed without them."""
    runs = sorted(path for path in folder.glob("seed-*") if path.is_dir())
    if not runs or not (folder / CARD_NAME).is_file():
        raise UserError(f"{folder}: found no ranker in the box; install the package again, or give --run-dir")
    return runs


def read_card(folder: Path = FOLDER) -> dict[str, Any]:
    """What is known of the ranker in the box (JSON values): its data, command, and agreement with real runtimes."""
    box_runs(folder)
    return json.loads((folder / CARD_NAME).read_text(encoding="utf-8"))


def describe_card(card: Mapping[str, Any]) -> str:
    """The card in two sentences, for those who only see a ranking."""
    taus = ", ".join(f"{row['graph']} {row['tau_beyond_noise']:.2f}" for row in card["real"])
    return (
        f"the ranker in the box: {card['members']} members, trained on {card['trained_on']}. Its Kendall's tau on "
        f"measured TPU v3 runtimes, over pairs that differ by more than the noise: {taus}"
    )


def write_box(folder: Path, run_dirs: Sequence[Path], card: Mapping[str, Any]) -> None:
    """Replaces a box by the members of these runs and their card."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(folder) as staged:
        for number, run_dir in enumerate(run_dirs):
            pack_run(run_dir, staged / f"seed-{number}")
        write_text(staged / CARD_NAME, json.dumps(card, indent=1) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(staged, folder)


def pack_run(run_dir: Path, target: Path) -> None:
    """Copies what scoring reads of a run to a new folder."""
    target.mkdir(parents=True)
    for name in _FILES:
        shutil.copyfile(run_dir / name, target / name)
    shutil.copytree(run_dir / _WEIGHTS, target / _WEIGHTS)

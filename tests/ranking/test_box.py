"""The ranker in the box: its members, its card, and how both are packed."""

import json
import shutil

import pytest

from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.ranking.box import FOLDER, box_runs, describe_card, read_card, write_box
from tpugraphs_polynormer.ranking.calibration import read_calibration
from tpugraphs_polynormer.ranking.program_scorer import open_layout_run
from tpugraphs_polynormer.training.checkpoints import checkpoint_path, hash_weights


def test_the_members_are_different_calibrated_layout_runs():
    runs = [open_layout_run(path) for path in box_runs()]
    assert len(runs) == read_card()["members"] > 1
    assert len({hash_weights(checkpoint_path(run)) for run in runs}) == len(runs)
    assert all(read_calibration(run) is not None for run in runs)
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 5e6


def test_the_card_says_what_it_was_trained_on_and_how_it_agrees_with_real_runtimes():
    card = read_card()
    assert "no measured runtime" in card["trained_on"] and "benchmarks/box.py" in card["command"]
    taus = {row["graph"]: row["tau_beyond_noise"] for row in card["real"]}
    assert set(taus) == {"alexnet", "unet3d", "unet_3d_default", "unet_3d_random"}
    assert all(-1 <= tau <= 1 for tau in taus.values())
    told = describe_card(card)
    assert f"alexnet {taus['alexnet']:.2f}" in told and "simulated" in told


def test_a_box_is_replaced_as_a_whole(tmp_path):
    card = {"members": 1, "real": []}
    write_box(tmp_path / "box", box_runs(), card)
    write_box(tmp_path / "box", box_runs()[:1], card)
    assert [path.name for path in box_runs(tmp_path / "box")] == ["seed-0"]
    assert json.loads((tmp_path / "box" / "card.json").read_text()) == card == read_card(tmp_path / "box")
    packed, source = (open_layout_run(path) for path in (tmp_path / "box" / "seed-0", box_runs()[0]))
    assert hash_weights(checkpoint_path(packed)) == hash_weights(checkpoint_path(source))
    assert [path.name for path in tmp_path.iterdir()] == ["box"]


def test_a_missing_box_is_one_line(tmp_path):
    with pytest.raises(UserError, match="found no ranker in the box; install the package again, or give --run-dir"):
        box_runs(tmp_path)
    shutil.copytree(box_runs()[0], tmp_path / "seed-0")
    with pytest.raises(UserError, match="no ranker in the box"):  # without its card
        read_card(tmp_path)

"""Runs that start from another run's weights: what they take over, what is refused, and resuming."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.ranking_data import LAYOUT, SMALL, TILE, ranking_datasets, scratch_folder, small_config
from tests.several_collections import OTHER, simulated_collections
from tests.training.test_trainer import CHEAP, DROPOUT, assert_same_bytes, weights
from tpugraphs_polynormer.ranking.task import train_ranking
from tpugraphs_polynormer.ranking.verify import verify_folder
from tpugraphs_polynormer.training.checkpoints import Checkpoints
from tpugraphs_polynormer.training.run_directory import RunError


def train_here(run_dir, *overrides: str, init_from=None, name: str = LAYOUT, data=None) -> dict:
    config = small_config(name, *CHEAP, *DROPOUT, *overrides)
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    return train_ranking(config, data or ranking_datasets(), run_dir, strategy=strategy, init_from=init_from)


@pytest.fixture(scope="module")
def source() -> Path:
    """A finished run whose best weights are averages."""
    folder = scratch_folder() / "source"
    train_here(folder, "training.ema_decay=0.5")
    return folder


def test_a_run_starts_from_the_best_weights_and_statistics_of_another(source, tmp_path) -> None:
    """Other data, loss and training; the learning rate is 0, so that the weights stay what they were."""
    data = simulated_collections() / "data"
    still = ("training.learning_rate=0", "training.weight_decay=0", "loss.list_mle=1", "data.max_candidates=10")
    train_here(tmp_path / "run", *still, "seed=7", init_from=source, name=OTHER, data=data)
    best, found = weights(source, "best"), weights(tmp_path / "run")
    floats = [key for key in found if key.startswith("model/") and found[key].dtype == np.float32]
    assert len(floats) > 5
    assert not [key for key in floats if found[key].tobytes() != best[key].tobytes()]
    states = [key for key in found if "dropout/state" in key]
    assert states and all(found[key][0] != best[key][0] for key in states), "dropout has the seed of the new run"
    facts, expected = (json.loads((run / "dataset.json").read_text()) for run in (tmp_path / "run", source))
    assert facts == expected | {"collection": OTHER}
    recorded = json.loads((tmp_path / "run" / "init.json").read_text())
    assert recorded["run"] == str(source.resolve()) and len(recorded["sha256"]) == 64 and recorded["epochs"] in (1, 2)
    assert "init.json" in (tmp_path / "run" / "checksums.json").read_text()
    assert not verify_folder(tmp_path / "run").faults


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bytes(source, tmp_path, monkeypatch) -> None:
    train_here(tmp_path / "whole", "training.epochs=3", init_from=source)
    save = Checkpoints.save

    class Killed(BaseException):
        pass

    for at in (1, 2):  # before the first checkpoint, which starts over, and after it

        def interrupted(self, number: int, last: int = at) -> None:
            if number == last and self._folder.name == "latest":
                raise Killed
            save(self, number)

        monkeypatch.setattr(Checkpoints, "save", interrupted)
        with pytest.raises(Killed):
            train_here(tmp_path / "broken", "training.epochs=3", init_from=source)
        monkeypatch.undo()
    train_here(tmp_path / "broken", "training.epochs=3", init_from=source)
    for name in ("latest", "best"):
        assert_same_bytes(tmp_path / "broken", tmp_path / "whole", name)
    train_here(tmp_path / "alone", "training.epochs=3")
    assert weights(tmp_path / "alone").keys() == weights(tmp_path / "whole").keys()
    with pytest.raises(AssertionError):
        assert_same_bytes(tmp_path / "alone", tmp_path / "whole")


def test_another_model_is_refused_by_its_first_field(source, tmp_path) -> None:
    other = small_config(LAYOUT, *CHEAP, *DROPOUT, "model.hidden_dim=16", "model.opcode_dim=3")
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with pytest.raises(RunError, match=r"--init-from .*source: another model: model\.hidden_dim: 4 != 16 \(there"):
        train_ranking(other, ranking_datasets(), tmp_path / "run", strategy=strategy, init_from=source)
    with pytest.raises(RunError, match="a run on layout collections, expected tile"):
        train_here(tmp_path / "run", init_from=source, name=TILE)
    with pytest.raises(RunError, match="found nothing, expected a run directory"):
        train_here(tmp_path / "run", init_from=tmp_path / "nothing")
    assert not (tmp_path / "run").exists()


def test_a_run_keeps_the_weights_that_it_was_started_from(source, tmp_path) -> None:
    run = tmp_path / "run"
    train_here(run, init_from=source)
    before = (run / "result.json").stat().st_mtime_ns
    train_here(run, init_from=source)
    assert (run / "result.json").stat().st_mtime_ns == before
    with pytest.raises(RunError, match=r"was started from the weights of .*source; give --init-from .*source again"):
        train_here(run)
    moved = shutil.copytree(source, tmp_path / "moved")
    train_here(run, init_from=moved)  # the same weights
    with pytest.raises(RunError, match="was started from other weights"):
        train_here(run, init_from=run)
    with pytest.raises(RunError, match="was started without --init-from"):
        train_here(source, "training.ema_decay=0.5", init_from=run)


@pytest.mark.slow
def test_the_command_line_tunes_on_few_candidates(source, tmp_path) -> None:
    """Also with several seeds, whose runs see different candidates."""
    data = simulated_collections() / "data"
    sets = (*SMALL, *CHEAP, *DROPOUT, f"data.collection={OTHER}", "data.max_candidates=10", "training.epochs=1")
    arguments = ["--datasets", data, "--run-dir", tmp_path, "--init-from", source, "--seeds", "0,1"]
    command = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", "train", *map(str, arguments)]
    done = subprocess.run(
        [*command, *(part for each in sets for part in ("--set", each))],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "starts from the best weights of" in done.stderr
    recorded = [json.loads((tmp_path / f"seed-{seed}" / "init.json").read_text()) for seed in (0, 1)]
    assert recorded[0] == recorded[1] and recorded[0]["run"] == str(source.resolve())
    one, other = (weights(tmp_path / f"seed-{seed}") for seed in (0, 1))
    assert any(not np.array_equal(one[key], other[key]) for key in one if "kernel" in key)

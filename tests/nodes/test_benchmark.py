"""Runs over splits, result tables, and the fields that an encoder refuses."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.node_data import make_config, make_dataset
from tpugraphs_polynormer.catalog import BENCHMARKS
from tpugraphs_polynormer.cli.main import main
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.nodes.benchmark import (
    describe_present,
    format_results,
    run_dataset,
    summarize_splits,
)


@pytest.mark.parametrize(
    "override, reason",
    [
        ("model.encoder=mlp", "model.encoder: found 'mlp', expected one of polynormer, polynormer-local"),
        ("training.epochs=0", "training.epochs: found 0, and local_epochs too"),
        ("model.fusion=early", "unknown field model.fusion; did you mean"),
        ("loss.mse=1", "unknown field loss; did you mean"),
        (
            "training.steps_per_epoch=3",
            "unknown field training.steps_per_epoch; did you mean training.steps_per",
        ),
        ("data.collection=tile:xla", "unknown field data.collection; did you mean data.benchmark"),
        ("model.parametrization=large", "unknown field model.parametrization; did you mean"),
        ("model.learn_beta=false", "model.beta: found -1.0, expected 0 to 1 with learn_beta=false"),
        (
            "training.nodes_per_batch=5 model.directed=true",
            "model.directed: partitions have no directions; set training.nodes_per_batch=0 too",
        ),
        ("model.post_norm=true model.post_layer_norm=true", "model.post_layer_norm: found True, and post_norm too"),
    ],
)
def test_configs_that_would_not_be_obeyed_are_refused(override: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        make_config(*override.split())


@pytest.mark.parametrize(
    "overrides, reason",
    [
        (["model.encoder=gcn", "model.version=2"], "model.version: found 2, but model.encoder gcn has no such setting"),
        (["model.encoder=gat", "model.conv=gcn"], "model.conv: found 'gcn', but model.encoder gat has no such setting"),
        (
            ["model.encoder=polynormer-local", "model.num_global_layers=2"],
            "model.num_global_layers: found 2, but model.encoder polynormer-local has no such setting",
        ),
        (
            ["model.attention=local_and_global", "model.pre_norm=true"],
            "model.pre_norm: found True, but model.attention local_and_global has no such setting",
        ),
        *(
            (
                [f"model.encoder={encoder}", f"model.{name}=true"],
                f"model.{name}: found True, but model.encoder {encoder} has",
            )
            for encoder in ("polynormer", "polynormer-local")
            for name in ("residual", "post_layer_norm", "jumping_sum")
        ),
    ],
)
def test_fields_that_the_encoder_lacks_are_refused_before_a_run_is_made(tmp_path: Path, overrides, reason) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        run_dataset(make_config(*overrides), make_dataset(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_config_of_the_other_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="task: found ranking, expected node_classification"):
        run_dataset(load_config(None), make_dataset(), tmp_path)


def test_the_command_refuses_what_no_task_reads_without_a_traceback(tmp_path: Path, capsys) -> None:
    arguments = ["--set", "model.parametrization=large", "--run-dir", str(tmp_path / "run")]
    node = ["benchmark", "--name", "minesweeper", "--files", str(tmp_path)]
    for stage in (["train", "--datasets", str(tmp_path)], node):
        assert main([*stage, *arguments]) == 2
        told = capsys.readouterr().err
        assert "unknown field model.parametrization; did you mean model." in told and "Traceback" not in told


def test_a_run_over_splits(tmp_path: Path) -> None:
    dataset = make_dataset(num_classes=3, metric="accuracy")
    config = make_config("training.local_epochs=2", "training.epochs=2", "model.encoder=gcn")
    results = run_dataset(config, dataset, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["metrics"]["test"]["accuracy"]["mean"] == pytest.approx(results["mean"] / 100)
    assert [run["run"] for run in summary["runs"]] == ["split_0", "split_1"]
    assert "| toy | accuracy | gcn | 2 |" in (tmp_path / "results.md").read_text()
    assert [row["split"] for row in results["splits"]] == [0, 1]
    for row in results["splits"]:
        run = tmp_path / f"split_{row['split']}"
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        best = max(record["selection"] for record in records)
        first = next(record for record in records if record["selection"] == best)
        assert best == first["metrics"]["valid"]["accuracy"]
        assert (row["epoch"], row["test"]) == (first["epoch"], first["metrics"]["test"]["accuracy"])
        assert load_config(run / "config.yaml").seed == row["split"]
    # A finished split is read, not trained again; without checkpoints it could not resume.
    shutil.rmtree(tmp_path / "split_0" / "checkpoints")
    assert run_dataset(config, dataset, tmp_path, [0])["splits"] == results["splits"][:1]


def test_splits_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"toy: splits: found 2, -1, expected some of 0\.\.1"):
        run_dataset(make_config(), make_dataset(), tmp_path, [0, 2, -1])


def test_table_against_the_paper() -> None:
    dataset = make_dataset()
    rows = [{"split": split, "test": test} for split, test in enumerate((0.9, 0.94, 0.95))]
    results = summarize_splits(make_config(), dataset, rows)
    assert results["mean"] == pytest.approx(93)
    assert results["standard_deviation"] == pytest.approx(7**0.5)  # deviations -3, 1, 2; 14 / 2
    official = {**results, "benchmark": "minesweeper", "paper": 96.96, "paper_relu": 97.46}
    alone = {**results, "encoder": "gcn", "standard_deviation": None, "splits": rows[:1]}
    table = format_results([official, alone]).splitlines()
    assert table[2] == "| minesweeper | roc_auc | polynormer-r | 3 | 93.00 ± 2.65 | 96.96 | 97.46 |"
    assert table[3] == "| toy | roc_auc | gcn | 1 | 93.00 | - | - |"


def test_present_benchmarks_are_listed(real_data: Path) -> None:
    lines = describe_present(real_data / "nodes").splitlines()
    assert lines[0].startswith("4 of 13 benchmarks in ")
    by_name = {line.split()[0]: line for line in lines[1:]}
    assert set(by_name) == set(BENCHMARKS)
    assert by_name["minesweeper"].endswith("minesweeper.npz")
    assert "absent; tpugraphs download --benchmarks pokec --files" in by_name["pokec"]

"""Runs over splits, result tables, and the thirteen configs against the authors' hyper-parameters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.node_data import make_config, make_dataset
from tpugraphs_polynormer.catalog import BENCHMARKS
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.nodes.benchmark import (
    describe_present,
    format_results,
    run_dataset,
    summarize_splits,
)
from tpugraphs_polynormer.nodes.models import check_node_config

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "nodes"

# name: head width, heads, local epochs, global epochs, local layers, global layers, learning rate, weight decay,
# dropout, global dropout, input dropout, beta
AUTHORS = {
    "roman-empire": (64, 8, 100, 2500, 10, 2, 1e-3, 0, 0.3, 0.5, 0.15, 0.5),
    "amazon-ratings": (256, 2, 200, 2500, 10, 1, 1e-3, 0, 0.3, 0.3, 0.2, -1),
    "minesweeper": (64, 8, 100, 2000, 10, 3, 1e-3, 0, 0.3, 0.3, 0.2, -1),
    "tolokers": (60, 16, 100, 800, 7, 4, 1e-3, 0, 0.5, 0.5, 0.2, 0.1),
    "questions": (64, 8, 200, 1500, 5, 3, 3e-5, 0, 0.2, 0.5, 0.15, 0.4),
    "amazon-computer": (64, 8, 200, 1000, 5, 1, 1e-3, 5e-5, 0.7, 0.7, 0.2, -1),
    "amazon-photo": (64, 8, 200, 1000, 7, 2, 1e-3, 5e-5, 0.7, 0.7, 0.2, -1),
    "coauthor-cs": (64, 8, 100, 1500, 5, 2, 1e-3, 5e-4, 0.3, 0.3, 0.1, -1),
    "coauthor-physics": (32, 8, 100, 1500, 5, 4, 1e-3, 5e-4, 0.5, 0.5, 0.1, -1),
    "wikics": (512, 1, 100, 1000, 7, 2, 1e-3, 0, 0.5, 0.5, 0.5, -1),
    "ogbn-arxiv": (256, 1, 2000, 500, 7, 2, 5e-4, 5e-4, 0.5, 0.5, 0.15, 0.9),
    "ogbn-products": (32, 8, 1000, 500, 10, 2, 5e-4, 0, 0.5, 0.5, 0.2, 0.9),
    "pokec": (256, 1, 2000, 500, 7, 2, 5e-4, 0, 0.2, 0.2, 0, 0.9),
}
# What differs from: small-graph form, GAT, no norms, NLL, whole graph.
OTHERS = {
    "questions": {"pre_norm": True, "loss": "bce"},
    "ogbn-arxiv": {"parametrization": "large", "conv": "gcn", "post_norm": True},
    "ogbn-products": {
        "parametrization": "large",
        "pre_norm": True,
        "post_norm": True,
        "nodes_per_batch": 100_000,
    },
    "pokec": {"parametrization": "large", "conv": "gcn", "post_norm": True, "nodes_per_batch": 550_000},
}
PLAIN = {
    "parametrization": "small",
    "conv": "gat",
    "pre_norm": False,
    "post_norm": False,
    "loss": "nll",
    "nodes_per_batch": 0,
}


def test_there_is_one_config_per_benchmark() -> None:
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(BENCHMARKS) == set(AUTHORS)


@pytest.mark.parametrize("name", AUTHORS)
def test_configs_hold_the_authors_hyper_parameters(name: str) -> None:
    config = load_config(CONFIGS / f"{name}.yaml")
    check_node_config(config)
    model, training = config.model, config.training
    found = (
        *(model.hidden_dim / model.num_heads, model.num_heads, training.local_epochs, training.epochs),
        *(model.num_local_layers, model.num_global_layers, training.learning_rate, training.weight_decay),
        *(model.dropout_rate, model.global_dropout_rate, model.input_dropout_rate, model.beta),
    )
    assert found == AUTHORS[name]
    settings = {key: getattr(model if hasattr(model, key) else training, key) for key in PLAIN}
    assert settings == {**PLAIN, **OTHERS.get(name, {})}
    assert config.data.benchmark == name
    assert (model.encoder, model.attention, model.relu, model.share_query_key) == (
        *("polynormer", "local_to_global", True, True),
    )
    # The two that train on partitions do not fit in one call either.
    assert (training.chunk_nodes > 0) == (training.nodes_per_batch > 0)


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_configs_say_how_they_are_run(path: Path) -> None:
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any(line.startswith("# Command: ") for line in header)
    assert any(line.startswith("# Hardware") for line in header)


def test_configs_that_would_not_be_obeyed_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"task=node_classification, training\.optimizer=adam.*clip_norm=0\.0"):
        check_node_config(load_config(None))
    with pytest.raises(ConfigError, match=r"training\.patience=0"):
        check_node_config(make_config("training.patience=3"))
    with pytest.raises(ConfigError, match="found mlp"):
        check_node_config(make_config("model.encoder=mlp"))
    with pytest.raises(ConfigError, match="nothing to train"):
        check_node_config(make_config("training.epochs=0"))


def test_a_run_over_splits(tmp_path: Path) -> None:
    dataset = make_dataset(num_classes=3, metric="accuracy")
    config = make_config("training.local_epochs=2", "training.epochs=2", "model.encoder=gcn")
    results = run_dataset(config, dataset, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == results
    assert [row["split"] for row in results["splits"]] == [0, 1]
    for row in results["splits"]:
        run = tmp_path / f"split_{row['split']}"
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        best = max(record["valid"] for record in records)
        first = next(record for record in records if record["valid"] == best)
        assert (row["epoch"], row["test"]) == (first["epoch"], first["test"])
        assert load_config(run / "config.yaml").seed == row["split"]
    # A finished split is read, not trained again: without its checkpoints that could not go on.
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

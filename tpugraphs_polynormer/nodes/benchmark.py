"""The node-classification benchmarks: one run per official split, and their results beside the paper's."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpugraphs_polynormer.catalog import BENCHMARKS
from tpugraphs_polynormer.config.schema import Config
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import write_text
from tpugraphs_polynormer.nodes.datasets import NodeDataset, find_benchmarks, read_benchmark
from tpugraphs_polynormer.nodes.models import check_node_config
from tpugraphs_polynormer.nodes.task import NodeInputs, NodeTrainer, best_record
from tpugraphs_polynormer.training.run_directory import RunDirectory

RESULTS_NAME = "results.json"
TABLE_NAME = "results.md"
_TIMES = ("train_seconds", "evaluation_seconds")

_logger = logging.getLogger(__name__)


def run_benchmark(
    config: Config, data_dir: Path | str, run_dir: Path | str, splits: Sequence[int] | None = None
) -> dict[str, Any]:
    """Trains and scores config.data.benchmark on its splits (default: all), resuming what is half done.

    Split k has its own folder in the run directory and the seed config.seed + k. Writes results.json, which is also
    returned, and results.md.
    """
    check_node_config(config)
    return run_dataset(config, read_benchmark(config.data.benchmark, Path(data_dir)), run_dir, splits)


def run_dataset(
    config: Config, dataset: NodeDataset, run_dir: Path | str, splits: Sequence[int] | None = None
) -> dict[str, Any]:
    """`run_benchmark` of a data set already read."""
    check_node_config(config)
    numbers = list(range(len(dataset.splits))) if splits is None else list(dict.fromkeys(splits))
    _check_splits(dataset, numbers)
    run = RunDirectory.start(run_dir, config)
    inputs = NodeInputs.make(dataset, config)
    rows = []
    for number in numbers:
        records = train_split(config, inputs, number, run.path)
        rows.append(summarize_split(number, records))
        _logger.info("%s split %d: test %.4f (epoch %d)", dataset.name, number, rows[-1]["test"], rows[-1]["epoch"])
    results = summarize_splits(config, dataset, rows)
    run.write_json(RESULTS_NAME, results)
    write_text(run.path / TABLE_NAME, format_results([results]))
    return results


def train_split(config: Config, inputs: NodeInputs, split: int, run_path: Path) -> list[dict[str, Any]]:
    """The records of one split, trained as far as it is not yet."""
    config = dataclasses.replace(config, seed=config.seed + split)
    run = RunDirectory.start(run_path / f"split_{split}", config)
    records = run.read_metrics()
    if records and records[-1]["epoch"] + 1 == config.training.local_epochs + config.training.epochs:
        return records
    return NodeTrainer(config, inputs, split, run).train()


def summarize_split(split: int, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The best-validation epoch of a split, and what an epoch cost (the first of a phase traces, so: the median)."""
    best = best_record(list(records))
    seconds = {name: float(np.median([record[name] for record in records])) for name in _TIMES}
    return {"split": split, **{name: best[name] for name in ("epoch", "phase", "train", "valid", "test")}, **seconds}


def summarize_splits(config: Config, dataset: NodeDataset, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and sample standard deviation of the test score, in per cent, beside the paper's."""
    scores = 100 * np.array([row["test"] for row in rows])
    official = BENCHMARKS.get(dataset.name)
    return {
        "benchmark": dataset.name,
        "metric": dataset.metric,
        "encoder": config.model.encoder,
        "relu": config.model.relu,
        "mean": float(scores.mean()),
        "standard_deviation": float(scores.std(ddof=1)) if len(scores) > 1 else None,
        "paper": None if official is None else official.paper_score,
        "paper_relu": None if official is None else official.paper_score_relu,
        "splits": [dict(row) for row in rows],
    }


def format_results(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of several benchmarks' results against the paper's (per cent)."""
    lines = [
        "| benchmark | metric | model | splits | test, per cent | Polynormer (paper) | Polynormer-r (paper) |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        spread = "" if result["standard_deviation"] is None else f" ± {result['standard_deviation']:.2f}"
        paper = ["-" if result[key] is None else f"{result[key]:.2f}" for key in ("paper", "paper_relu")]
        cells = [
            result["benchmark"],
            result["metric"],
            result["encoder"] + ("-r" if "polynormer" in result["encoder"] and result["relu"] else ""),
            str(len(result["splits"])),
            f"{result['mean']:.2f}{spread}",
            *paper,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def describe_present(data_dir: Path | str) -> str:
    """Which of the thirteen benchmarks lie below a folder, and the command that gets each of the others."""
    found = find_benchmarks(Path(data_dir))
    width = max(map(len, found))
    lines = [f"{sum(path is not None for path in found.values())} of {len(found)} benchmarks in {data_dir}:"]
    for name, path in found.items():
        get = f"absent; tpugraphs download --benchmarks {name} --files {data_dir}"
        lines.append(f"  {name:<{width}}  {get if path is None else path}")
    return "\n".join(lines)


def _check_splits(dataset: NodeDataset, splits: Sequence[int]) -> None:
    wrong = [split for split in splits if not 0 <= split < len(dataset.splits)]
    if wrong or not splits:
        found = ", ".join(map(str, wrong)) or "none"
        raise UserError(f"{dataset.name}: splits: found {found}, expected some of 0..{len(dataset.splits) - 1}")

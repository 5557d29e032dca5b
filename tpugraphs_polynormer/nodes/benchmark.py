"""Runs the node-classification benchmarks, one run per official split, and compares the results with the paper."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpugraphs_polynormer.catalog import BENCHMARKS
from tpugraphs_polynormer.config.loader import ConfigError
from tpugraphs_polynormer.config.schema import Config, NodeConfig
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import write_text
from tpugraphs_polynormer.models.encoder_registry import check_encoder
from tpugraphs_polynormer.nodes.datasets import NodeDataset, find_benchmarks, read_benchmark
from tpugraphs_polynormer.nodes.task import NodeInputs, NodeTask
from tpugraphs_polynormer.training.run_directory import RunDirectory
from tpugraphs_polynormer.training.trainer import train_many

TABLE_NAME = "results.md"
_TIMES = ("train_seconds", "evaluation_seconds")


def run_benchmark(
    config: Config, data_dir: Path | str, run_dir: Path | str, splits: Sequence[int] | None = None
) -> dict[str, Any]:
    """The results of config.data.benchmark on its splits, after training or resuming their runs.

    Split k has the run directory `<run_dir>/split_k` and the seed config.seed + k. Writes summary.json and results.md.

    Args:
      config: the experiment; ConfigError if it is not of node classification.
      data_dir: the folder of benchmark files.
      run_dir: the folder of the runs.
      splits: numbers of the official splits; by default all.
    """
    _check(config)
    dataset = read_benchmark(config.data.benchmark, Path(data_dir), directed=config.model.directed)
    return run_dataset(config, dataset, run_dir, splits)


def run_dataset(
    config: Config, dataset: NodeDataset, run_dir: Path | str, splits: Sequence[int] | None = None
) -> dict[str, Any]:
    """The results of a data set that is already in memory; see `run_benchmark`."""
    _check(config)
    numbers = list(range(len(dataset.splits))) if splits is None else list(dict.fromkeys(splits))
    wrong = [number for number in numbers if not 0 <= number < len(dataset.splits)]
    if wrong or not numbers:
        found = ", ".join(map(str, wrong)) or "none"
        raise UserError(f"{dataset.name}: splits: found {found}, expected some of 0..{len(dataset.splits) - 1}")
    path = RunDirectory.start(run_dir, config).path
    inputs = NodeInputs.make(dataset, config)
    jobs = []
    for number in numbers:
        run = RunDirectory.start(path / f"split_{number}", dataclasses.replace(config, seed=config.seed + number))
        jobs.append((run, functools.partial(NodeTask, run.config, inputs, number)))
    summary = train_many(jobs, path)
    rows = [
        summarize_split(number, dataset.metric, best, run.read_metrics())
        for number, best, (run, _) in zip(numbers, summary["runs"], jobs, strict=True)
    ]
    results = summarize_splits(config, dataset, rows)
    write_text(path / TABLE_NAME, format_results([results]))
    return results


def summarize_split(
    split: int, metric: str, best: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The metrics of a split's best epoch, and the median times of an epoch (the first of a phase is slow: tracing)."""
    scores = {part: best["metrics"][part][metric] for part in ("train", "valid", "test")}
    seconds = {name: float(np.median([record[name] for record in records])) for name in _TIMES}
    return {"split": split, "epoch": best["epoch"], "phase": best["phase"], **scores, **seconds}


def summarize_splits(config: NodeConfig, dataset: NodeDataset, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and sample standard deviation of the test metric over splits, and the paper's numbers, all in per cent."""
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
    """A Markdown table of the results of several benchmarks and the paper's numbers, in per cent."""
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
    """A text with the path of each benchmark below a folder, or the command that downloads it."""
    found = find_benchmarks(Path(data_dir))
    width = max(map(len, found))
    lines = [f"{sum(path is not None for path in found.values())} of {len(found)} benchmarks in {data_dir}:"]
    for name, path in found.items():
        get = f"absent; tpugraphs download --benchmarks {name} --files {data_dir}"
        lines.append(f"  {name:<{width}}  {get if path is None else path}")
    return "\n".join(lines)


def check_benchmark(config: Config, option: str, name: str) -> None:
    """Raises ConfigError if an option names another data set than the config."""
    _check(config)
    if config.data.benchmark != name:
        raise ConfigError(
            f"data.benchmark: the config says {config.data.benchmark}, {option} says {name}; choose that data set's "
            f"config, or add --set data.benchmark={name}"
        )


def _check(config: Config) -> None:
    if not isinstance(config, NodeConfig):
        raise ConfigError(f"task: found {config.task}, expected node_classification; or use `tpugraphs train`")
    check_encoder(config.model)

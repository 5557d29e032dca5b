"""The stages of node classification: benchmark, experiment."""

from __future__ import annotations

import argparse
from pathlib import Path

from tpugraphs_polynormer.catalog import BENCHMARKS
from tpugraphs_polynormer.cli.options import (
    add_overrides,
    add_path,
    check_output,
    conclude,
    parse_numbers,
    read_config_option,
)
from tpugraphs_polynormer.cli.parser import add_stage
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.process import import_tensorflow, keep_freed_memory

TITLE = "node classification"


def _add_benchmark(stages: argparse._SubParsersAction) -> None:
    benchmark = add_stage(
        stages,
        "benchmark",
        "node classification on the Polynormer paper's data sets",
        _run_benchmark,
        ["--list --files files", "--name minesweeper --files files --splits 0,1 --config nodes/small/minesweeper"],
    )
    which = benchmark.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--name", choices=BENCHMARKS, metavar="NAME", help="data set to train and test on; needed without --list"
    )
    which.add_argument("--list", action="store_true", help="print which data sets are present")
    add_path(benchmark, "--files", "DIR", "folder of the downloaded files", required=True)
    add_path(benchmark, "--run-dir", "DIR", "folder for the runs, one per split (default: runs/<name>)")
    benchmark.add_argument(
        "--config", metavar="FILE", help="YAML file, or the name of a shipped one (default: nodes/<name>)"
    )
    benchmark.add_argument(
        "--splits", type=parse_numbers, metavar="0,1,2", help="official splits to train on (default: all)"
    )
    add_overrides(benchmark)


def _run_benchmark(args: argparse.Namespace) -> None:
    config = None if args.list else read_config_option(args.config or f"nodes/{args.name}", args.overrides)
    run_dir = args.run_dir or Path("runs") / (args.name or "")
    if config is not None:
        check_output("--run-dir", run_dir, args.files)
    keep_freed_memory()
    import_tensorflow()
    from tpugraphs_polynormer.nodes.benchmark import check_benchmark, describe_present, format_results, run_benchmark

    if config is None:
        print(describe_present(args.files))
        return
    check_benchmark(config, "--name", args.name)
    result = run_benchmark(config, args.files, run_dir, args.splits)
    print(format_results([result]))
    conclude(f"{run_dir}: {len(result['splits']):,} splits of {args.name}, trained on {args.files}")


def _add_experiment(stages: argparse._SubParsersAction) -> None:
    experiment = add_stage(
        stages,
        "experiment",
        "the Polynormer paper's other experiments, each with a picture",
        _run_experiment,
        ["monomials --output monomials", "ablation --files files --benchmark minesweeper --output ablation"],
    )
    experiment.add_argument(
        "name", choices=("scaling", "heatmaps", "ablation", "circular_skip_links", "monomials"), help="which one"
    )
    add_path(experiment, "--output", "DIR", "folder for the JSON file and the picture", required=True)
    add_path(experiment, "--files", "DIR", "heatmaps, ablation: folder of the benchmarks' files")
    experiment.add_argument(
        "--benchmark",
        choices=BENCHMARKS,
        metavar="NAME",
        default="minesweeper",
        help="heatmaps, ablation: data set to train on",
    )
    experiment.add_argument(
        "--config", metavar="FILE", help="YAML file, or the name of a shipped one (default: nodes/small/<benchmark>)"
    )
    add_overrides(experiment)


def _run_experiment(args: argparse.Namespace) -> None:
    import importlib
    import json

    needs_data = args.name in ("heatmaps", "ablation")
    if needs_data and not args.files:
        raise UserError(f"{args.name} trains on a benchmark: name the folder of its files with --files")
    config = read_config_option(args.config or f"nodes/small/{args.benchmark}", args.overrides) if needs_data else None
    check_output("--output", args.output, args.files)
    keep_freed_memory()
    import_tensorflow()
    run = getattr(importlib.import_module(f"tpugraphs_polynormer.nodes.experiments.{args.name}"), f"run_{args.name}")
    if needs_data:
        from tpugraphs_polynormer.nodes.benchmark import check_benchmark
        from tpugraphs_polynormer.nodes.datasets import read_benchmark

        check_benchmark(config, "--benchmark", args.benchmark)
        dataset = read_benchmark(args.benchmark, args.files, directed=config.model.directed)
        result = run(args.output, dataset, config)
    else:
        result = run(args.output)
    print(json.dumps(result, indent=1))


STAGES = (_add_benchmark, _add_experiment)

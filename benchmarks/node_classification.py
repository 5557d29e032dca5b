"""Scores, time and memory of node classification on minesweeper and amazon-photo.

    python benchmarks/node_classification.py               # minesweeper, splits 0 1 2, 64 wide: score and time
    python benchmarks/node_classification.py --full-width  # a few epochs at the authors' 512 wide: time and memory
    python benchmarks/node_classification.py --photo       # amazon-photo, 64 wide
    python benchmarks/node_classification.py --quick       # one narrow epoch of each phase, to check that it runs

The same command resumes interrupted runs from their run directories.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from real_data import REAL_DATA

from tpugraphs_polynormer.config.schema import NodeConfig, load_config
from tpugraphs_polynormer.nodes.benchmark import format_results, run_benchmark
from tpugraphs_polynormer.nodes.datasets import read_benchmark
from tpugraphs_polynormer.nodes.task import NodeInputs, NodeTask
from tpugraphs_polynormer.process import keep_freed_memory
from tpugraphs_polynormer.training.run_directory import RunDirectory
from tpugraphs_polynormer.training.trainer import Trainer

PROJECT = Path(__file__).resolve().parents[1]
CONFIGS = PROJECT / "configs" / "nodes"
QUICK = (
    *(f"model.{each}" for each in ("hidden_dim=8", "num_heads=2", "num_local_layers=1", "num_global_layers=1")),
    *("training.local_epochs=1", "training.epochs=1"),
)


def measure_scores(name: str, args: argparse.Namespace) -> dict:
    """The results of the small config on the splits; prints each split's score and the median times of an epoch."""
    config = load_config(CONFIGS / "small" / f"{name}.yaml", args.overrides)
    started, processor = time.time(), time.process_time()
    results = run_benchmark(config, args.data, args.run_dir / f"{name}-small", args.splits)
    for row in results["splits"]:
        print(
            f"{name} split {row['split']}: test {row['test']:.4f} (valid {row['valid']:.4f}, {row['phase']} epoch "
            f"{row['epoch']}), {row['train_seconds']:.3f} s per training epoch, "
            f"{row['evaluation_seconds']:.3f} s per evaluation"
        )
    print(f"{name}: mean test {results['mean']:.2f} per cent over {len(results['splits'])} splits")
    print(f"{name}: {time.time() - started:.0f} s of wall time, {time.process_time() - processor:.0f} s of CPU time")
    print(format_results([results]))
    return results


def measure_full_width(args: argparse.Namespace) -> dict:
    """The times of a few epochs of each phase of the authors' minesweeper model, and the peak resident set."""
    config = with_epochs(load_config(CONFIGS / "minesweeper.yaml", args.overrides), args.epochs)
    times = {}
    inputs = NodeInputs.make(read_benchmark("minesweeper", args.data), config)
    run = RunDirectory.start(args.run_dir / f"minesweeper-full-{time.time_ns()}", config)
    Trainer(NodeTask(config, inputs, 0), run).train()
    for record in run.read_metrics():
        times.setdefault(record["phase"], []).append((record["train_seconds"], record["evaluation_seconds"]))
    result = {"peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    for phase, rows in times.items():
        # The first epoch of a phase also traces.
        train, evaluate = np.median(rows[1:] or rows, axis=0)
        result[phase] = {"train_seconds": float(train), "evaluation_seconds": float(evaluate)}
        print(f"full width, {phase} phase: {train:.2f} s per training epoch, {evaluate:.2f} s per evaluation")
    print(f"full width: peak resident set {result['peak_gigabytes']:.2f} GB")
    return result


def with_epochs(config: NodeConfig, epochs: int) -> NodeConfig:
    """The config with `epochs` epochs in each phase and without checkpoints in between, which are large."""
    training = dataclasses.replace(config.training, epochs=epochs, local_epochs=epochs, checkpoint_seconds=1e9)
    return dataclasses.replace(config, training=training)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=REAL_DATA / "nodes")
    parser.add_argument("--run-dir", type=Path, default=Path("runs") / "node_classification")
    parser.add_argument("--splits", type=int, nargs="+", default=None, help="default: 0 1 2, or all there are")
    parser.add_argument("--photo", action="store_true", help="amazon-photo instead of minesweeper")
    parser.add_argument("--full-width", action="store_true", help="time and memory at the authors' width")
    parser.add_argument("--epochs", type=int, default=4, help="with --full-width: epochs of each phase")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", dest="overrides")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    parser.add_argument("--quick", action="store_true", help="a narrow model, one epoch of each phase: does it run?")
    return parser.parse_args()


def main() -> None:
    keep_freed_memory()
    args = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        if args.quick:
            args.splits, args.epochs, args.run_dir = [0], 1, Path(folder)
            args.overrides = [*QUICK, *args.overrides]
        if args.full_width:
            result = measure_full_width(args)
        elif args.photo:
            result = measure_scores("amazon-photo", args)
        else:
            args.splits = args.splits or [0, 1, 2]
            result = measure_scores("minesweeper", args)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

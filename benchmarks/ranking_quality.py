"""Ranking metrics of GraphSAGE, Polynormer-local and Polynormer on unseen simulated programs, over seeds.

    python benchmarks/ranking_quality.py                              # five collections, three models, three seeds
    python benchmarks/ranking_quality.py --collections layout:nlp:random --seeds 0 --set model.fusion=early
    python benchmarks/ranking_quality.py --quick    # two tiny collections, one model, four steps, to check that it runs

Simulates `--scale small`, preprocesses it, and trains configs/ranking/<model>/<collection>.yaml, made smaller for two
cores (SMALLER): all models have the same width, heads, fusion, candidates and number of steps. The validation split
selects the epoch; the numbers are those of all candidates of the test graphs, with the hidden runtimes. Runs are
concurrent, one core each; a rerun uses the finished parts in `--work`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.catalog import COLLECTIONS, find_collection
from tpugraphs_polynormer.demo import run_stage
from tpugraphs_polynormer.process import import_tensorflow, keep_freed_memory
from tpugraphs_polynormer.ranking.metrics import true_costs
from tpugraphs_polynormer.ranking.random_baseline import expected_slowdown

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "ranking"
MODELS = {"graphsage": "GraphSAGE", "polynormer_local": "Polynormer-local", "polynormer": "Polynormer"}
SMALLER = [
    "model.hidden_dim=32",
    "model.num_local_layers=3",
    "model.num_global_layers=1",
    "model.dropout_rate=0",
    "data.candidates_per_graph=16",
    "training.learning_rate=2e-3",
    "training.warmup_steps=50",
    "training.local_epochs=0",
    "training.epochs=12",
    "training.steps_per_epoch=50",
    "training.validation_candidates=200",
]
QUICK = [
    "model.hidden_dim=8",
    "model.num_heads=2",
    "model.num_local_layers=1",
    "training.epochs=1",
    "training.steps_per_epoch=4",
    "training.steps_per_execution=1",
]
SHOWN = ("tau", "opa", "slowdown_1", "slowdown_5")


def prepare(work: Path, collections: list[str], scale: str) -> None:
    """Writes simulated archives and datasets to `work`, unless they are there."""
    (work / "logs").mkdir(parents=True, exist_ok=True)
    for stage, out, arguments in (
        ("simulate", work / "simulated", ["--archives", str(work / "simulated"), "--scale", scale]),
        ("preprocess", work / "data", ["--archives", str(work / "simulated"), "--datasets", str(work / "data")]),
    ):
        done = work / f"{stage}.done"
        if not done.exists():
            run_stage([stage, *arguments, "--collections", *collections], work / "logs" / f"{stage}.log")
            done.touch()
            print(f"{stage}: {out}", file=sys.stderr)


def train_and_judge(job: dict) -> dict:
    """The test metrics of one trained model, means over graphs; runs in the worker."""
    keep_freed_memory()
    import_tensorflow()
    from tpugraphs_polynormer.config.schema import load_config
    from tpugraphs_polynormer.ranking.metrics import graph_metrics, summarize
    from tpugraphs_polynormer.ranking.runs import load_ranker
    from tpugraphs_polynormer.ranking.task import train_ranking
    from tpugraphs_polynormer.training.distribution import make_strategy

    work, name = Path(job["work"]), job["collection"]
    collection = find_collection(name)
    heads = [] if job["model"] == "graphsage" else ["model.num_heads=4"]
    overrides = [*SMALLER, *heads, *job["overrides"], f"seed={job['seed']}"]
    config = load_config(CONFIGS / job["model"] / f"{name.replace(':', '_')}.yaml", overrides)
    train_ranking(config, work / "data", job["run"], strategy=make_strategy("cpu"))
    task = load_ranker(Path(job["run"]), work / "data")
    scorer, split, graphs = task.make_scorer(), task.collection.split("test"), []
    for number, entry in enumerate(split.graphs):
        runtimes, normalizers = read_truth(work, name, entry.name)
        scores = scorer.score_graph(split, number)
        names = {"collection": name, "graph": entry.name}
        graphs.append(graph_metrics(collection.kind, runtimes, scores, normalizers, noise=split.noise(number), **names))
    return summarize(graphs)["overall"]


def read_truth(work: Path, name: str, graph: str) -> tuple[np.ndarray, np.ndarray | None]:
    """The hidden runtimes of a test graph and, for tiles, their normalizers."""
    path = work / "simulated" / "truth" / find_collection(name).folder / "test" / f"{graph}.npz"
    with np.load(path, allow_pickle=False) as archive:
        return archive["config_runtime"], archive.get("config_runtime_normalizers")


def run_job(job: dict) -> dict:
    """The result of `train_and_judge` in a new process on one core; the run directory keeps it."""
    path = Path(job["run"]) / "test.json"
    if not path.exists():
        environment = dict(os.environ, TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")
        command = [sys.executable, __file__, "--worker", json.dumps(job)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise SystemExit(f"{job['run']}: failed: {done.stderr.strip()[-2000:]}")
        path.write_text(done.stdout.splitlines()[-1])
    result = json.loads(path.read_text())
    print(f"{job['run']}: tau {result['tau']:.3f}", file=sys.stderr, flush=True)
    return result


def chance_slowdowns(work: Path, name: str) -> dict[str, float]:
    """The mean slowdowns at 1 and 5 of a random order of the test graphs' candidates."""
    folder = work / "simulated" / "truth" / find_collection(name).folder / "test"
    costs = [true_costs(*read_truth(work, name, path.stem), graph=path.stem) for path in sorted(folder.glob("*.npz"))]
    return {f"slowdown_{k}": statistics.mean(expected_slowdown(each, k) for each in costs) for k in (1, 5)}


def show(results: dict[tuple[str, str], list[dict]], work: Path) -> None:
    """Prints a Markdown table of means and, with several seeds, standard deviations over them."""
    print(f"| collection | model | {' | '.join(SHOWN)} |\n|---|---|{'---|' * len(SHOWN)}")
    collections = list(dict.fromkeys(name for name, _ in results))
    for name in collections:
        chance = {"tau": 0.0, "opa": 0.5, **chance_slowdowns(work, name)}
        print(f"| {name} | random order | {' | '.join(f'{chance[metric]:.3f}' for metric in SHOWN)} |")
        for model in MODELS:
            if (name, model) in results:
                print(f"| {name} | {MODELS[model]} | {format_cells(results[name, model])} |")
    for model in MODELS:
        of_model = [results[name, model] for name in collections if (name, model) in results]
        if len(of_model) > 1:
            per_seed = [
                {metric: statistics.mean(run[metric] for run in seed) for metric in SHOWN}
                for seed in zip(*of_model, strict=True)
            ]
            print(f"| mean | {MODELS[model]} | {format_cells(per_seed)} |")


def format_cells(runs: list[dict]) -> str:
    """The table cells of one row."""
    cells = []
    for metric in SHOWN:
        values = [run[metric] for run in runs]
        spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        cells.append(f"{statistics.mean(values):.3f}{spread}")
    return " | ".join(cells)


def main() -> None:
    """Trains the missing runs and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/ranking_quality"))
    parser.add_argument("--collections", default=",".join(COLLECTIONS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="change a field for every run")
    parser.add_argument("--name", default="default", help="of this set of runs, where overrides differ")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="tiny data, one short run of each: does it run?")
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(train_and_judge(json.loads(args.worker))))
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        if args.quick:
            args.work, args.models, args.seeds = Path(folder), "polynormer", "0"
            args.collections, args.overrides = "tile:xla,layout:xla:random", [*QUICK, *args.overrides]
        compare(args)


def compare(args: argparse.Namespace) -> None:
    """Writes the data, trains every model on every collection with every seed, and prints the table."""
    names = args.collections.split(",")
    prepare(args.work, names if args.quick else list(COLLECTIONS), "tiny" if args.quick else "small")
    jobs = [
        {
            "work": str(args.work),
            "collection": name,
            "model": model,
            "seed": int(seed),
            "overrides": args.overrides,
            "run": str(args.work / "runs" / args.name / model / name.replace(":", "_") / f"seed-{seed}"),
        }
        for seed in args.seeds.split(",")
        for name in names
        for model in args.models.split(",")
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(run_job, jobs))
    results: dict[tuple[str, str], list[dict]] = {}
    for job, result in zip(jobs, found, strict=True):
        results.setdefault((job["collection"], job["model"]), []).append(result)
    show(results, args.work)


if __name__ == "__main__":
    main()

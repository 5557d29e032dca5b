"""Trials: a config is trained with a seed in a child process on one core and judged on graphs with known runtimes.

The benchmarks ranking_quality, ablation and transfer are lists of trials. Every finished trial keeps its result in its
run directory, so a rerun continues where the last one ended.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from child import run_child

from tpugraphs_polynormer.catalog import find_collection
from tpugraphs_polynormer.datasets.reader import RankingDataset, RankingSplit
from tpugraphs_polynormer.demo import StageRun, run_stages
from tpugraphs_polynormer.process import import_tensorflow, keep_freed_memory
from tpugraphs_polynormer.ranking.baselines import CostScorer, RandomScorer
from tpugraphs_polynormer.ranking.metrics import GraphMetrics, graph_metrics

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "ranking"
MODELS = {"graphsage": "GraphSAGE", "polynormer_local": "Polynormer-local", "polynormer": "Polynormer"}
# The shipped configs made smaller for two cores; all models have the same width, heads, batches and number of steps.
SMALLER = (
    "data.batch_nodes=0",
    "data.candidates_per_graph=16",
    "model.hidden_dim=32",
    "model.num_local_layers=3",
    "model.dropout_rate=0",
    "training.learning_rate=4e-3",
    "training.warmup_steps=50",
    "training.local_epochs=0",
    "training.epochs=12",
    "training.steps_per_epoch=50",
    "training.epochs_per_evaluation=1000",  # only the last weights are judged: eight programs choose no better ones
    "training.validation_candidates=200",
)
QUICK = (
    "model.hidden_dim=8",
    "model.num_local_layers=1",
    "training.epochs=1",
    "training.steps_per_epoch=4",
    "training.steps_per_execution=1",
)


@dataclass(frozen=True)
class Judged:
    """Graphs that judge a trial: a split of a dataset, and where its runtimes are if the dataset hides them."""

    datasets: str
    collection: str
    split: str
    truth: str | None = None  # the `truth` folder of a simulation


@dataclass(frozen=True)
class Trial:
    """One training: a shipped config's name below configs/ranking, what is changed in it, and who judges it."""

    config: str
    datasets: str
    run: str
    judged: tuple[Judged, ...]
    overrides: tuple[str, ...] = ()
    init_from: str | None = None  # a run whose weights are the first ones


@dataclass(frozen=True)
class Result:
    """The metrics of each judged graph, and the time of a training step in seconds."""

    graphs: list[GraphMetrics]
    step_seconds: float

    def mean(self, metric: str) -> float:
        """The mean of a metric over the graphs in which it is defined."""
        values = [getattr(graph, metric) for graph in self.graphs]
        return statistics.mean(value for value in values if not math.isnan(value))


def small_overrides(model: str, collection: str) -> tuple[str, ...]:
    """What makes a shipped config small: width 32, 16 candidates of 4 programs or 16 kernels, 600 steps."""
    graphs = 16 if find_collection(collection).kind == "tile" else 4
    own = {"graphsage": (), "polynormer_local": ("model.num_heads=4",)}
    full = ("model.num_heads=4", "model.num_global_layers=1")
    return (*SMALLER, f"data.graphs_per_batch={graphs}", *own.get(model, full))


def run_trials(trials: Sequence[Trial], num_at_once: int | None = None) -> list[Result]:
    """The results of the trials, in their order; one core each, as many at once as this process may use."""
    with ThreadPoolExecutor(num_at_once or len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(_run_trial, trials))


def _run_trial(trial: Trial) -> Result:
    path = Path(trial.run) / "judged.json"
    if not path.exists():
        one_core = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
        path.write_text(json.dumps(run_child("trials", asdict(trial), environment=one_core, quiet=True)))
    found = json.loads(path.read_text())
    result = Result([GraphMetrics(**graph) for graph in found["graphs"]], found["step_seconds"])
    print(f"{trial.run}: tau {result.mean('tau'):.3f}", file=sys.stderr, flush=True)
    return result


def measure(trial: dict) -> dict:
    """The content of judged.json, of a trial as a dictionary: in the child process."""
    keep_freed_memory()
    import_tensorflow()
    from tpugraphs_polynormer.config.schema import load_config
    from tpugraphs_polynormer.ranking.runs import load_ranker
    from tpugraphs_polynormer.ranking.task import train_ranking
    from tpugraphs_polynormer.training.distribution import make_strategy

    config = load_config(CONFIGS / f"{trial['config']}.yaml", trial["overrides"])
    start = {} if trial["init_from"] is None else {"init_from": trial["init_from"]}
    train_ranking(config, trial["datasets"], trial["run"], strategy=make_strategy("cpu"), **start)
    graphs = []
    for each in (Judged(**fields) for fields in trial["judged"]):
        collection = find_collection(each.collection)
        task = load_ranker(trial["run"], each.datasets, collection=each.collection)
        scorer, split = task.make_scorer(), task.collection.split(each.split)
        for number, entry in enumerate(split.graphs):
            runtimes, normalizers = read_truth(each, entry.name, split, number)
            names = {"collection": each.collection, "graph": entry.name, "noise": split.noise(number)}
            scores = scorer.score_graph(split, number)
            graphs.append(asdict(graph_metrics(collection.kind, runtimes, scores, normalizers, **names)))
    return {"graphs": graphs, "step_seconds": _step_seconds(Path(trial["run"]) / "metrics.jsonl", config)}


def judge_baseline(judged: Judged, scorer: CostScorer | RandomScorer) -> Result:
    """The metrics of a ranker that needs no training."""
    collection = find_collection(judged.collection)
    split, graphs = RankingDataset(Path(judged.datasets) / collection.folder).split(judged.split), []
    for number, entry in enumerate(split.graphs):
        runtimes, normalizers = read_truth(judged, entry.name, split, number)
        names = {"collection": judged.collection, "noise": split.noise(number), "graph": entry.name}
        scores = scorer.score_graph(split, number)
        graphs.append(graph_metrics(collection.kind, runtimes, scores, normalizers, **names))
    return Result(graphs, math.nan)


def read_truth(judged: Judged, graph: str, split: RankingSplit, number: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The runtimes of a graph's candidates and, for tiles, their normalizers."""
    collection = find_collection(judged.collection)
    if judged.truth is not None:
        path = Path(judged.truth) / collection.folder / judged.split / f"{graph}.npz"
        with np.load(path, allow_pickle=False) as archive:
            return archive["config_runtime"], archive.get("config_runtime_normalizers")
    candidates = np.arange(split.graphs[number].num_candidates)
    columns = ("runtimes", "normalizers") if collection.kind == "tile" else ("runtimes",)
    found = [split.read_column(number, column, candidates) for column in columns]
    return found[0], found[1] if len(found) > 1 else None


def _step_seconds(metrics: Path, config) -> float:
    """The median over epochs of the seconds of a training step; the first epoch compiles."""
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    seconds = [each["train_seconds"] for each in records if "train_seconds" in each]
    return statistics.median(seconds[1:] or seconds) / config.training.steps_per_epoch if seconds else math.nan


def link(source: Path, target: Path) -> None:
    """Makes a file of another folder known under a second path, unless it is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        target.symlink_to(source.resolve())


def run_once(work: Path, name: str, arguments: Sequence[str]) -> None:
    """Runs a stage of `tpugraphs` once; `work` remembers that it is done."""
    done = work / f"{name}.done"
    if not done.exists():
        (work / "logs").mkdir(parents=True, exist_ok=True)
        run_stages([StageRun(tuple(arguments), work / "logs" / f"{name}.log")])
        done.touch()
        print(f"{name}: done", file=sys.stderr, flush=True)


def simulate(
    work: Path, scale: str, collections: Sequence[str], *, num_programs: int | None = None, seed: int = 0
) -> tuple[Path, Path]:
    """The archives and the datasets of a simulation below `work`; see `tpugraphs simulate --programs`."""
    archives, datasets = work / "simulated", work / "data"
    only = ["--collections", *collections]
    how = ["--scale", scale, "--seed", str(seed), "--operands"]
    if num_programs is not None:
        how += ["--programs", str(num_programs)]
    run_once(work, "simulate", ["simulate", "--archives", str(archives), *how, *only])
    run_once(work, "preprocess", ["preprocess", "--archives", str(archives), "--datasets", str(datasets), *only])
    return archives, datasets


def format_spread(values: Sequence[float]) -> str:
    """The mean of a metric over seeds and, with several, the sample standard deviation."""
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"

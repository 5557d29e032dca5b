"""What a report shows of one run: scores graph by graph, regret, the compiler's default, and where attention goes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpugraphs_polynormer.archives.noise import group_equal
from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.datasets.input_pipeline import iterate_blocks
from tpugraphs_polynormer.datasets.manifest import Manifest
from tpugraphs_polynormer.datasets.reader import RankingSplit
from tpugraphs_polynormer.datasets.targets import read_costs
from tpugraphs_polynormer.hlo.opcodes import OPCODE_NAMES
from tpugraphs_polynormer.models.ranking.batch import unpack_batch
from tpugraphs_polynormer.progress import track
from tpugraphs_polynormer.ranking.baselines import CostScorer
from tpugraphs_polynormer.ranking.metrics import GraphMetrics, graph_metrics, rank_candidates, slowdown, true_costs
from tpugraphs_polynormer.ranking.random_baseline import expected_contest_score, expected_slowdown
from tpugraphs_polynormer.ranking.runs import load_ranker, open_ranking_run
from tpugraphs_polynormer.ranking.scorer import Scorer, choose_candidates
from tpugraphs_polynormer.ranking.task import RankingTask, open_named
from tpugraphs_polynormer.training.checkpoints import checkpoint_path
from tpugraphs_polynormer.training.run_directory import RunDirectory, RunError
from tpugraphs_polynormer.training.trainer import best_record

REGRET_KS = (1, 2, 5, 10, 20, 50, 100)
TRIED = 5  # candidates that the headline and the list of worst graphs try
_MAX_POINTS = 150  # drawn per graph
_MAX_SIDE = 192  # pixels of an attention picture; larger graphs are averaged down
_HEATMAP_NODES = 60  # the default choice: the graph closest to this size
_NUM_RESAMPLES = 2000
_MIN_DEFAULT_REPEATS = 3


@dataclass(frozen=True)
class GraphReport:
    """One graph's part of the report."""

    metrics: GraphMetrics
    num_nodes: int
    random_contest_score: float  # of a random ranking
    cost_contest_score: float  # of the analytic cost model
    regret: tuple[float, ...]  # slowdown of the best of the k first, for REGRET_KS
    chance_regret: tuple[float, ...]
    worst_regret: float  # slowdown of the best of the TRIED first in the worst order; 0: any order is perfect
    default_slowdown: float | None  # of the compiler's default against the best candidate; None: unknown
    points: np.ndarray  # [p, 3]: rank in 0..1, slowdown of the candidate predicted there, of the one truly there

    @property
    def family(self) -> str:
        """The letters that the graph's name begins with: "bert" of bert_A-12_S-32."""
        found = re.match("[A-Za-z]+", self.metrics.graph)
        return found[0] if found else self.metrics.graph

    @property
    def chance_slowdown(self) -> float:
        """The slowdown of the best of the TRIED first in random order."""
        return self.chance_regret[REGRET_KS.index(TRIED)]

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the default the best of the TRIED first is; None where the default is unknown."""
        return None if self.default_slowdown is None else (1 + self.default_slowdown) / (1 + self.metrics.slowdown_5)


@dataclass(frozen=True)
class Attention:
    """Global attention in one graph: `weights` [side, side], mean over heads, 1 where all nodes get the same."""

    graph: str
    num_nodes: int
    weights: np.ndarray
    opcodes: tuple[tuple[str, int, float], ...]  # (opcode, nodes, what a node of it gets), most attended first


@dataclass(frozen=True)
class RunReport:
    """One run's part of the report; a run on several collections has one for each."""

    label: str
    run: RunDirectory
    manifest: Manifest
    records: list[dict[str, Any]]  # of metrics.jsonl
    graphs: list[GraphReport]
    attention: Attention | None

    @property
    def collection(self) -> str:
        """Whose graphs were scored."""
        return self.manifest.collection

    @property
    def best(self) -> dict[str, Any]:
        """The record of the epoch whose weights the run kept."""
        return best_record(self.records, across_phases=False)


@dataclass(frozen=True)
class Report:
    """All that the page shows."""

    runs: list[RunReport]
    split: str
    test_scores: dict[str, tuple[float, float]]  # (score, that of a random order) by collection and under "mean"

    @property
    def by_collection(self) -> list[tuple[str, list[RunReport]]]:
        """The runs of each collection, in the catalog's order."""
        groups = {name: [run for run in self.runs if run.collection == name] for name in COLLECTIONS}
        return [(name, members) for name, members in groups.items() if members]

    @property
    def has_mean(self) -> bool:
        """Whether a mean over collections has a meaning: there are several, with one run each."""
        return len(self.by_collection) == len(self.runs) > 1


def gather_run(
    run_dir: Path,
    label: str,
    data_dir: Path | str,
    *,
    split: str,
    most: int,
    heatmap_graph: str | None,
    collection: str | None = None,
) -> RunReport:
    """Scores the split's graphs, on at most `most` candidates each (0: all), and reads what training logged.

    The graphs are those of `collection`, by default of the run's (first) collection.
    """
    run = open_ranking_run(run_dir)
    task = load_ranker(run_dir, data_dir, collection=collection)
    opened = task.collection.split(split)
    chosen = choose_candidates(opened, most=most)
    scorer = task.make_scorer()
    numbers = track(range(len(opened)), len(opened), f"report {label}", "graph")
    graphs = [_gather_graph(task, scorer, opened, number, chosen[number]) for number in numbers]
    attention = _gather_attention(task, opened, heatmap_graph)
    return RunReport(label, run, task.collection.manifest, run.read_metrics(), graphs, attention)


def _gather_graph(
    task: RankingTask, scorer: Scorer, split: RankingSplit, number: int, chosen: np.ndarray
) -> GraphReport:
    entry, manifest = split.graphs[number], task.collection.manifest
    runtimes = split.read_column(number, "runtimes", chosen)
    normalizers = split.read_column(number, "normalizers", chosen) if manifest.kind == "tile" else None
    costs = true_costs(runtimes, normalizers, graph=entry.name)
    scores = scorer.score_graph(split, number, chosen)
    names = {"collection": manifest.collection, "graph": entry.name}
    metrics = graph_metrics(manifest.kind, runtimes, scores, normalizers, noise=split.noise(number), **names)
    estimates = CostScorer().score_graph(split, number, chosen)
    estimated = graph_metrics(manifest.kind, runtimes, estimates, normalizers, noise=split.noise(number), **names)
    ranking, best, default = rank_candidates(scores, graph=entry.name), costs.min(), find_default_cost(split, number)
    return GraphReport(
        metrics=metrics,
        num_nodes=entry.num_nodes,
        random_contest_score=expected_contest_score(manifest.kind, costs),
        cost_contest_score=estimated.contest_score,
        regret=tuple(slowdown(costs, ranking, k) for k in REGRET_KS),
        chance_regret=tuple(expected_slowdown(costs, k) for k in REGRET_KS),
        worst_regret=float(np.sort(costs)[-TRIED:].min() / best) - 1.0,
        default_slowdown=None if default is None else float(default / best) - 1.0,
        points=_thin_out(costs[ranking] / best - 1),
    )


def find_default_cost(split: RankingSplit, number: int) -> float | None:
    """The cost of the compiler's default in a graph; None where it cannot be told.

    A tile's cost is its runtime over the default's, so that the default costs 1. A layout archive does not say which
    candidate is the default, but its search measured the default again and again (about forty times in the official
    archives). It is the candidate that was measured at least three times, and clearly more often than any other: by
    half and by two. Of the 120 train and valid graphs of the demo's default searches, which repeat other candidates
    too, this finds the default in 42 and never a wrong one; it finds all 120 defaults of the random searches.
    """
    if split.kind == "tile":
        return 1.0
    everything = np.arange(split.graphs[number].num_candidates)
    groups = group_equal(split.read_codes(number, everything))
    repeats = np.bincount(groups, split.read_column(number, "counts"))
    first, second = np.sort(np.append(repeats, 0))[:-3:-1]
    if not second or first < max(_MIN_DEFAULT_REPEATS, 1.5 * second, second + 2):
        return None
    return float(np.median(read_costs(split, number)[groups == repeats.argmax()]))


def bootstrap_interval(collections: Sequence[Sequence[float]], *, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean over collections of the means over graphs: values of the graphs, by collection.

    The graphs of each collection are drawn again with replacement, 2,000 times; undefined values (NaN) are left out.
    """
    random = np.random.default_rng(seed)
    means = []
    for values in collections:
        defined = np.asarray(values, np.float64)[~np.isnan(values)]
        means.append(defined[random.integers(len(defined), size=(_NUM_RESAMPLES, len(defined)))].mean(1))
    low, high = np.quantile(np.mean(means, 0), (0.025, 0.975))
    return float(low), float(high)


def _thin_out(slowdowns: np.ndarray) -> np.ndarray:
    """Slowdowns in predicted order [c] -> `GraphReport.points` at no more than _MAX_POINTS evenly spaced ranks."""
    kept = np.unique(np.linspace(0, len(slowdowns) - 1, min(len(slowdowns), _MAX_POINTS)).astype(int))
    return np.stack([kept / max(1, len(slowdowns) - 1), slowdowns[kept], np.sort(slowdowns)[kept]], 1)


def _gather_attention(task: RankingTask, split: RankingSplit, name: str | None) -> Attention | None:
    """The first global layer's attention in the named graph; None where candidates do not share one."""
    has_global = "global" in task.model.phases and task.phase != "local"
    number = _choose_graph(split, name)
    if number is None or not has_global or task.config.model.fusion != "late":
        return None
    block = next(iterate_blocks(task.collection, split, number, 1, np.zeros(1, np.int64)))
    batch = unpack_batch(block.graph, directed=task.config.model.directed)
    weights = attention_weights(task, batch)
    received = defaultdict(list)
    for opcode, weight in zip(batch.opcodes.numpy(), weights.mean(0), strict=True):
        received[OPCODE_NAMES[opcode]].append(float(weight))
    opcodes = sorted(((op, len(got), float(np.mean(got))) for op, got in received.items()), key=lambda row: -row[2])
    return Attention(split.graphs[number].name, len(weights), _average_down(weights, _MAX_SIDE), tuple(opcodes))


def _choose_graph(split: RankingSplit, name: str | None) -> int | None:
    """The number of the named graph (None if it is not in the split), or of a small one that is not tiny."""
    if name is not None:
        return next((number for number, entry in enumerate(split.graphs) if entry.name == name), None)
    distances = [abs(entry.num_nodes - _HEATMAP_NODES) for entry in split.graphs]
    return int(np.argmin(distances)) if distances else None


def attention_weights(task: RankingTask, batch: Any) -> np.ndarray:
    """[n, n]: s(q_i) . s(k_j) over its mean over j (Eq. 8), averaged over heads; each row's mean is 1."""
    encoder = task.model.encoder
    states = encoder.norm(task.model.encode(batch, phase="local", training=False).states)
    states, layer = encoder.enter(encoder.num_local_layers, states, batch.op_graphs), encoder.global_layers[0]
    projected = layer.project(states)
    return layer.attention_weights(projected, layer.sum_keys(projected)).numpy() * len(states)


def _average_down(weights: np.ndarray, side: int) -> np.ndarray:
    """[n, n] -> at most [side, side], means over blocks of neighbours in topological order."""
    count = len(weights)
    if count <= side:
        return weights
    edges = np.linspace(0, count, side + 1).astype(int)[:-1]
    sizes = np.diff([*edges, count])
    sums = np.add.reduceat(np.add.reduceat(weights, edges, 0), edges, 1)
    return sums / np.outer(sizes, sizes)


def check_inputs(runs: Sequence[RunDirectory], data_dir: Path | str, split: str, heatmap_graph: str | None) -> None:
    """Before the long part: every split has graphs, and one of them is the graph whose attention is asked for."""
    known: list[str] = []
    for run in runs:
        checkpoint_path(run)
        for name in run.config.data.names:
            known += [entry.name for entry in open_named(name, data_dir).split(split).graphs]
    if heatmap_graph is not None and heatmap_graph not in known:
        raise RunError(f"--heatmap {heatmap_graph}: no such graph in the {split} split, expected one like {known[0]}")

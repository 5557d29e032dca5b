"""What a report shows of one run: scores graph by graph, regret, points to draw, and where attention goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from tpugraphs_polynormer.datasets.input_pipeline import iterate_blocks
from tpugraphs_polynormer.datasets.manifest import Manifest
from tpugraphs_polynormer.datasets.reader import RankingSplit
from tpugraphs_polynormer.hlo.opcodes import OPCODE_NAMES
from tpugraphs_polynormer.models.ranking.batch import unpack_batch
from tpugraphs_polynormer.ranking.metrics import GraphMetrics, graph_metrics, rank_candidates, slowdown, true_costs
from tpugraphs_polynormer.ranking.random_baseline import expected_contest_score, expected_slowdown
from tpugraphs_polynormer.ranking.runs import checkpoint_path, load_ranker, open_ranking_run
from tpugraphs_polynormer.ranking.scorer import Scorer, choose_candidates
from tpugraphs_polynormer.ranking.task import RankingTask, open_collection
from tpugraphs_polynormer.training.run_directory import RunDirectory, RunError

REGRET_KS = (1, 2, 5, 10, 20, 50, 100)
_MAX_POINTS = 250  # drawn per graph
_MAX_SIDE = 192  # pixels of an attention picture; larger graphs are averaged down
_MIN_HEATMAP_NODES = 40  # the default choice: the smallest graph that still shows a structure


@dataclass(frozen=True)
class GraphReport:
    """One graph's part of the report."""

    metrics: GraphMetrics
    num_nodes: int
    random_contest_score: float  # of a random ranking
    regret: tuple[float, ...]  # slowdown of the best of the k first, for REGRET_KS
    chance_regret: tuple[float, ...]
    points: np.ndarray  # [p, 2]: predicted rank in 0..1, runtime over the best runtime


@dataclass(frozen=True)
class Attention:
    """Global attention in one graph: `weights` [side, side], mean over heads, 1 where all nodes get the same."""

    graph: str
    num_nodes: int
    weights: np.ndarray
    opcodes: tuple[tuple[str, int, float], ...]  # (opcode, nodes, what a node of it gets), most attended first


@dataclass(frozen=True)
class RunReport:
    """One run's part of the report."""

    label: str
    run: RunDirectory
    manifest: Manifest
    records: list[dict[str, Any]]  # of metrics.jsonl
    graphs: list[GraphReport]
    attention: Attention | None

    @property
    def collection(self) -> str:
        """What the run was trained on."""
        return self.manifest.collection


def gather_run(
    run_dir: Path, label: str, data_dir: Path | str, *, split: str, most: int, heatmap_graph: str | None
) -> RunReport:
    """Scores the split's graphs, on at most `most` candidates each (0: all), and reads what training logged."""
    run = open_ranking_run(run_dir)
    task = load_ranker(run_dir, data_dir)
    opened = task.collection.split(split)
    chosen = choose_candidates(opened, most=most)
    scorer = task.make_scorer()
    numbers = tqdm(range(len(opened)), desc=label, unit="graph", disable=None)
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
    ranking = rank_candidates(scores, graph=entry.name)
    return GraphReport(
        metrics=metrics,
        num_nodes=entry.num_nodes,
        random_contest_score=expected_contest_score(manifest.kind, costs),
        regret=tuple(slowdown(costs, ranking, k) for k in REGRET_KS),
        chance_regret=tuple(expected_slowdown(costs, k) for k in REGRET_KS),
        points=_thin_out(costs[ranking] / costs.min()),
    )


def _thin_out(ratios: np.ndarray) -> np.ndarray:
    """Ratios in predicted order [c] -> at most _MAX_POINTS evenly spaced (rank, ratio)."""
    kept = np.unique(np.linspace(0, len(ratios) - 1, min(len(ratios), _MAX_POINTS)).astype(int))
    return np.stack([kept / max(1, len(ratios) - 1), ratios[kept]], 1)


def _gather_attention(task: RankingTask, split: RankingSplit, name: str | None) -> Attention | None:
    """The first global layer's attention in the named graph; None where candidates do not share one."""
    encoder = task.model.encoder
    has_global = "global" in encoder.phases and task.phase != "local"
    number = _choose_graph(split, name)
    if number is None or not has_global or task.config.model.fusion != "late":
        return None
    block = next(iterate_blocks(task.collection, split, number, 1, np.zeros(1, np.int64)))
    batch = unpack_batch(block.graph)
    weights = attention_weights(task, batch)
    received = defaultdict(list)
    for opcode, weight in zip(batch.opcodes.numpy(), weights.mean(0), strict=True):
        received[OPCODE_NAMES[opcode]].append(float(weight))
    opcodes = sorted(((op, len(got), float(np.mean(got))) for op, got in received.items()), key=lambda row: -row[2])
    return Attention(split.graphs[number].name, len(weights), _average_down(weights, _MAX_SIDE), tuple(opcodes))


def _choose_graph(split: RankingSplit, name: str | None) -> int | None:
    """The number of the named graph (None if it is not in the split), or of a small one."""
    if name is not None:
        return next((number for number, entry in enumerate(split.graphs) if entry.name == name), None)
    sizes = [(entry.num_nodes < _MIN_HEATMAP_NODES, entry.num_nodes) for entry in split.graphs]
    return min(range(len(split)), key=sizes.__getitem__) if sizes else None


def attention_weights(task: RankingTask, batch: Any) -> np.ndarray:
    """[n, n]: s(q_i) . s(k_j) over its mean over j (Eq. 8), averaged over heads; each row's mean is 1."""
    encoder = task.model.encoder
    states = encoder.norm(task.model.encode(batch, phase="local", training=False).states)
    layer = encoder.global_layers[0]
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
        collection = open_collection(run.config, data_dir)
        known += [entry.name for entry in collection.split(split).graphs]
    if heatmap_graph is not None and heatmap_graph not in known:
        raise RunError(f"--heatmap {heatmap_graph}: no such graph in the {split} split, expected one like {known[0]}")

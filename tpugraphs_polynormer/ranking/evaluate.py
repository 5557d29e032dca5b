"""Metrics of a model on whole graphs of a split, by the official validation protocol where its indices are given."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields

import numpy as np
from tqdm import tqdm

from tpugraphs_polynormer.catalog import find_collection
from tpugraphs_polynormer.datasets.manifest import DatasetError
from tpugraphs_polynormer.datasets.reader import RankingSplit
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.ranking.metrics import GraphMetrics, graph_metrics
from tpugraphs_polynormer.ranking.scorer import Scorer


def choose_candidates(
    split: RankingSplit, *, most: int, seed: int = 0, indices: Mapping[str, np.ndarray] | None = None
) -> list[np.ndarray]:
    """Which candidates of each graph to evaluate: the given indices, else at most `most` (0: all), by seed."""
    chosen = []
    for number, entry in enumerate(split.graphs):
        if indices is not None and entry.name in indices:
            numbers = indices[entry.name]
            if numbers.max() >= entry.num_candidates:
                raise UserError(
                    f"{entry.name}: the index file names candidate {numbers.max()}, "
                    f"expected 0..{entry.num_candidates - 1}; is it of another collection?"
                )
        elif most and entry.num_candidates > most:
            numbers = np.sort(np.random.default_rng((seed, number)).choice(entry.num_candidates, most, replace=False))
        else:
            numbers = np.arange(entry.num_candidates)
        chosen.append(numbers)
    return chosen


def evaluate_split(
    scorer: Scorer, split: RankingSplit, *, collection: str, candidates: Sequence[np.ndarray], progress: bool = False
) -> list[GraphMetrics]:
    """The metrics of each graph of a split on the given candidates of it, in bounded memory."""
    kind = find_collection(collection).kind
    results = []
    for number in tqdm(range(len(split)), desc=collection, unit="graph", disable=None if progress else True):
        entry = split.graphs[number]
        numbers = candidates[number]
        runtimes = split.read_column(number, "runtimes", numbers)
        if not runtimes.all():
            raise DatasetError(f"{collection} {entry.name}: runtimes are hidden; evaluate a split that has them")
        normalizers = split.read_column(number, "normalizers", numbers) if kind == "tile" else None
        scores = scorer.score_graph(split, number, numbers)
        names = {"collection": collection, "graph": entry.name}
        results.append(graph_metrics(kind, runtimes, scores, normalizers, noise=split.noise(number), **names))
    return results


def format_csv(graphs: Sequence[GraphMetrics]) -> str:
    """One line per graph."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [field.name for field in fields(GraphMetrics)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(graph) for graph in graphs)
    return stream.getvalue()

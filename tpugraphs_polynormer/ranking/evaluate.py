"""Evaluation of trained runs on a split: a csv line per graph, a JSON summary, and a table for the terminal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tpugraphs_polynormer.archives.indices import find_indices
from tpugraphs_polynormer.files import write_text, writing
from tpugraphs_polynormer.ranking.baselines import BASELINES
from tpugraphs_polynormer.ranking.metrics import GraphMetrics, summarize
from tpugraphs_polynormer.ranking.runs import expand_runs, label_runs, load_ranker, open_ranking_run
from tpugraphs_polynormer.ranking.scorer import choose_candidates, evaluate_split
from tpugraphs_polynormer.ranking.tables import format_number, format_table, guard_cell

_SHOWN = ("opa", "tau", "tau_beyond_noise", "slowdown_1", "slowdown_5", "contest_score")


@dataclass(frozen=True)
class RunEvaluation:
    """The metrics of a run's best weights on the graphs of a split."""

    label: str
    collection: str
    split: str
    protocol: str  # "all candidates" or "official indices"
    graphs: list[GraphMetrics]
    baselines: dict[str, list[GraphMetrics]]  # by label: the cost model and a random order, on the same candidates

    def summarize(self) -> dict[str, Any]:
        """The content of the JSON file: run, split, protocol, and means by collection and over collections."""
        facts = {"run": self.label, "split": self.split, "protocol": self.protocol}
        beside = {label: summarize(graphs)["overall"] for label, graphs in self.baselines.items()}
        return facts | summarize(self.graphs) | {"baselines": beside}


def evaluate_run(
    run_dir: Path, data_dir: Path | str, *, split: str, indices_dir: Path | str | None = None, label: str | None = None
) -> RunEvaluation:
    """The metrics of one run on every graph of a split.

    Args:
      run_dir, data_dir: the run directory, and the folder of all datasets.
      split: `train`, `valid` or `test`; its runtimes must be known.
      indices_dir: folder of the official index files, which name the candidates to use (layout collections). Without
        it, and for tiles, all candidates are used.
      label: name of the run in tables; by default that of its folder.
    """
    run = open_ranking_run(run_dir)
    name = run.config.data.collection
    indices = find_indices(indices_dir, name)
    task = load_ranker(run_dir, data_dir)
    opened = task.collection.split(split)
    chosen = choose_candidates(opened, most=0, indices=indices)
    same = {"collection": name, "candidates": chosen}
    graphs = evaluate_split(task.make_scorer(), opened, **same, progress=True)
    baselines = {label: evaluate_split(each, opened, **same) for label, each in BASELINES.items()}
    protocol = "official indices" if indices is not None else "all candidates"
    return RunEvaluation(label or label_runs([run_dir])[0], name, split, protocol, graphs, baselines)


def evaluate_runs(
    run_dirs: Sequence[Path | str],
    data_dir: Path | str,
    *,
    split: str,
    indices_dir: Path | str | None = None,
    output: Path | None = None,
) -> list[RunEvaluation]:
    """The evaluation of each run, written as `evaluation-<split>.csv` and `.json` to the run or `<output>/<label>`."""
    runs = expand_runs(run_dirs)
    labels = label_runs(runs)
    results = []
    for run, label in zip(runs, labels, strict=True):
        result = evaluate_run(run, data_dir, split=split, indices_dir=indices_dir, label=label)
        _write(run if output is None else Path(output) / label, result)
        results.append(result)
    return results


def _write(folder: Path, result: RunEvaluation) -> None:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / f"evaluation-{result.split}.csv", format_csv(result.graphs))
        write_text(folder / f"evaluation-{result.split}.json", json.dumps(result.summarize(), indent=1) + "\n")


def format_csv(graphs: Sequence[GraphMetrics]) -> str:
    """The metrics as csv, one line per graph."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [field.name for field in fields(GraphMetrics)], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: guard_cell(value) for key, value in asdict(graph).items()} for graph in graphs)
    return stream.getvalue()


def format_evaluations(results: Sequence[RunEvaluation]) -> str:
    """A table with one line per run; if every run has its own collection, also their mean, as in the contest.

    Below are the cost model and a random order on each collection.
    """
    first = {result.collection: result for result in results}
    rankers = [[(result.label, result.collection, result.graphs) for result in results]]
    rankers += [[(label, name, first[name].baselines[label]) for name in first] for label in BASELINES]
    lines = []
    for ranked in rankers:
        lines += [_format_line(label, name, graphs) for label, name, graphs in ranked]
        if len(first) == len(results) > 1:
            label = "mean" if ranked is rankers[0] else f"{ranked[0][0]}, mean"
            lines.append(_format_line(label, "", [graph for *_, graphs in ranked for graph in graphs]))
    return format_table(["run", "collection", "graphs", *_SHOWN], lines)


def _format_line(label: str, collection: str, graphs: Sequence[GraphMetrics]) -> list[str]:
    means = summarize(graphs)["overall"]
    return [label, collection, str(means["num_graphs"]), *(format_number(means[name]) for name in _SHOWN)]

"""Evaluation of trained runs on a split: a csv line per graph, a JSON summary, and a table for the terminal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tpugraphs_polynormer.archives.indices import find_indices
from tpugraphs_polynormer.files import write_text, writing
from tpugraphs_polynormer.ranking.baselines import BASELINES
from tpugraphs_polynormer.ranking.calibration import calibrate_run
from tpugraphs_polynormer.ranking.metrics import GraphMetrics, summarize
from tpugraphs_polynormer.ranking.runs import expand_runs, label_runs, load_ranker, open_ranking_run
from tpugraphs_polynormer.ranking.scorer import choose_candidates, evaluate_split
from tpugraphs_polynormer.ranking.tables import format_number, format_table, guard_cell
from tpugraphs_polynormer.ranking.task import open_named

_SHOWN = ("opa", "tau", "tau_beyond_noise", "slowdown_1", "slowdown_5", "contest_score")


@dataclass(frozen=True)
class RunEvaluation:
    """The metrics of a run's best weights on the graphs of a split."""

    label: str
    collection: str  # several are joined by ", "
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
    run_dir: Path,
    data_dir: Path | str,
    *,
    split: str,
    indices_dir: Path | str | None = None,
    label: str | None = None,
    calibrates: bool = False,
) -> RunEvaluation:
    """The metrics of one run on every graph of a split, of all collections that it was trained on.

    Args:
      run_dir, data_dir: the run directory, and the folder of all datasets.
      split: `train`, `valid` or `test`; its runtimes must be known.
      indices_dir: folder of the official index files, which name the candidates to use (layout collections). Without
        it, and for tiles, all candidates are used.
      label: name of the run in tables; by default that of its folder.
      calibrates: also write the run's calibration (calibration.py), which `tpugraphs rank` reads.
    """
    run = open_ranking_run(run_dir)
    names = run.config.data.names
    indices = {name: find_indices(indices_dir, name) for name in names}
    scorer = load_ranker(run_dir, data_dir).make_scorer()
    graphs: list[GraphMetrics] = []
    baselines: dict[str, list[GraphMetrics]] = {each: [] for each in BASELINES}
    for name in names:
        opened = open_named(name, data_dir).split(split)
        same = {"collection": name, "candidates": choose_candidates(opened, most=0, indices=indices[name])}
        graphs += evaluate_split(scorer, opened, **same, progress=True)
        for each, baseline in BASELINES.items():
            baselines[each] += evaluate_split(baseline, opened, **same)
    if calibrates:
        calibrate_run(run_dir, data_dir, scorer=scorer)
    protocol = "official indices" if indices[names[0]] is not None else "all candidates"
    return RunEvaluation(label or label_runs([run_dir])[0], ", ".join(names), split, protocol, graphs, baselines)


def evaluate_runs(
    run_dirs: Sequence[Path | str],
    data_dir: Path | str,
    *,
    split: str,
    indices_dir: Path | str | None = None,
    output: Path | None = None,
) -> list[RunEvaluation]:
    """The evaluation of each run, written as `evaluation-<split>.csv` and `.json` to the run or `<output>/<label>`.

    With the validation split and without `output`, a layout run also gets its calibration.
    """
    runs = expand_runs(run_dirs)
    labels = label_runs(runs)
    results = []
    for run, label in zip(runs, labels, strict=True):
        names = {"indices_dir": indices_dir, "label": label}
        result = evaluate_run(run, data_dir, split=split, **names, calibrates=split == "valid" and output is None)
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
    """A table with a line per run and collection, and the mean over the collections of a run that has several.

    If every run has collections of its own, the last line of a ranker has the mean over all collections, as in the
    contest. Below the runs are the cost model and a random order on each collection.
    """
    runs = [(result.label, result.graphs) for result in results]
    lines = _format_rankers(runs)
    for label in BASELINES:
        found: dict[str, list[GraphMetrics]] = {}  # of each collection once
        for result in results:
            of_result = {graph.collection for graph in result.graphs} - set(found)
            for graph in result.baselines[label]:
                if graph.collection in of_result:
                    found.setdefault(graph.collection, []).append(graph)
        lines += _format_rankers([(label, [graph for graphs in found.values() for graph in graphs])])
    return format_table(["run", "collection", "graphs", *_SHOWN], lines)


def _format_rankers(rankers: Sequence[tuple[str, Sequence[GraphMetrics]]]) -> list[list[str]]:
    """Lines of rankers, by their label and graphs: of each collection, and the means over several."""
    lines, names = [], []
    for label, graphs in rankers:
        summary = summarize(graphs)
        rows = summary["collections"] | ({"mean": summary["overall"]} if len(summary["collections"]) > 1 else {})
        lines += [_format_means(label, name, means) for name, means in rows.items()]
        names += summary["collections"]
    if len(set(names)) == len(names) and len(rankers) > 1:
        overall = summarize([graph for _, graphs in rankers for graph in graphs])["overall"]
        lines.append(_format_means("mean", "", overall))
    return lines


def _format_means(label: str, collection: str, means: Mapping[str, Any]) -> list[str]:
    return [label, collection, str(means["num_graphs"]), *(format_number(means[name]) for name in _SHOWN)]

"""All stages of the contest at the official size, on simulated archives, with the time, memory and disk of each.

    python benchmarks/rehearsal.py --work DIR [--collections ID ...] [--tenth ID ...] [--steps 200] [--keep-archives]
    python benchmarks/rehearsal.py --quick    # a tenth of one tiny collection, two steps, to check that it runs

For each collection: simulate at the official scale, preprocess, train some steps of the shipped Polynormer config with
one validation on 1,000 candidates per graph, evaluate, predict the test split. Then: one submission of all collections,
and its check. A collection after --tenth has a tenth of the graphs of every split. Every stage is a `tpugraphs` command
in a new process. Finished stages are not run again, so that a killed rehearsal resumes. The archives of train and valid
are deleted after preprocessing, unless --keep-archives.

Printed for each stage: wall and CPU time, the largest sum of the resident memory of all processes (shared pages count
once per process), and the size of the working folder when the stage ends.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from process_tree import run_measured

from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.files import write_text
from tpugraphs_polynormer.simulator.scales import SCALES

_ROOT = Path(__file__).resolve().parents[1]
_GIGA = 1e9
_VALIDATION_CANDIDATES = 1000
_QUICK = ("model.hidden_dim=8", "model.num_heads=2", "model.num_local_layers=1")


@dataclasses.dataclass(frozen=True)
class Stage:
    """The time, memory and disk of one stage of one collection."""

    collection: str
    stage: str
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    disk_bytes: int
    note: str


class Rehearsal:
    """The stages of a rehearsal in its working folder; `stages.jsonl` lists the finished ones."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.work, self._tenth, self._num_steps = options.work, options.tenth, options.steps
        self._keep_archives, self._scale, self._is_quick = options.keep_archives, options.scale, options.quick
        self._journal = self.work / "stages.jsonl"
        self.work.mkdir(parents=True, exist_ok=True)
        lines = self._journal.read_text().splitlines() if self._journal.exists() else []
        self.finished = {(stage.collection, stage.stage): stage for stage in (Stage(**json.loads(x)) for x in lines)}

    def run_collection(self, name: str) -> None:
        """Runs the stages of one collection, from its simulation to its predictions."""
        folder, run_dir = name.replace(":", "/"), self.work / "runs" / name.replace(":", "_")
        config = _ROOT / "configs" / "ranking" / "polynormer" / f"{name.replace(':', '_')}.yaml"
        archives, datasets, indices = (str(self.work / each) for each in ("archives", "datasets", "eval_indices"))
        data = ["--datasets", datasets]
        steps = [
            "training.local_epochs=0",
            "training.epochs=1",
            f"training.steps_per_epoch={self._num_steps}",
            "training.steps_per_execution=1",
            *(_QUICK if self._is_quick else ()),
        ]
        settings = [part for each in steps for part in ("--set", each)]
        self._simulate(name, archives)
        self._run(
            name, "preprocess", ["preprocess", "--archives", archives, "--datasets", datasets, "--collections", name]
        )
        if not self._keep_archives:
            for split in ("train", "valid"):
                shutil.rmtree(Path(archives) / "npz" / folder / split, ignore_errors=True)
        self._write_indices(name, Path(datasets) / folder, Path(indices))
        protocol = ["--indices", indices] if COLLECTIONS[name].kind == "layout" else []
        train = ["train", "--config", str(config), *data, "--run-dir", str(run_dir), *protocol, *settings]
        self._run(name, "train", train, note=f"{self._num_steps} steps and one validation")
        self._run(name, "evaluate", ["evaluate", "--run-dir", str(run_dir), *data, *protocol])
        predictions = ["--output", str(self.work / "predictions")]
        self._run(name, "predict", ["predict", "--run-dir", str(run_dir), *data, *predictions])

    def submit(self) -> None:
        """Writes and checks the submission of all predictions."""
        archives, csv = ["--archives", str(self.work / "archives")], str(self.work / "submission.csv")
        predictions = ["--predictions", str(self.work / "predictions")]
        for stage, arguments in (("submit", [*predictions, "--output", csv]), ("check", ["--check", csv])):
            self.finished.pop(("all", stage), None)  # there may be predictions of more collections now
            self._run("all", stage, ["submit", *arguments, *archives])

    def _simulate(self, name: str, archives: str) -> None:
        if name in self._tenth:
            command = [sys.executable, __file__, "--simulate-tenth", name, archives, self._scale]
            self._run(name, "simulate", None, command, "a tenth")
        else:
            scale = ["--scale", self._scale]
            self._run(name, "simulate", ["simulate", "--archives", archives, *scale, "--collections", name])

    @staticmethod
    def _write_indices(name: str, folder: Path, target: Path) -> None:
        """Writes an index file like the official ones: 1,000 candidates of each validation graph."""
        path = target / ("_".join(name.split(":")[1:]) + ".json")
        if COLLECTIONS[name].kind == "tile" or path.exists():
            return
        random = np.random.default_rng(0)
        target.mkdir(parents=True, exist_ok=True)
        graphs = RankingDataset(folder).split("valid").graphs
        chosen = {each.name: random.permutation(each.num_candidates)[:_VALIDATION_CANDIDATES] for each in graphs}
        write_text(path, json.dumps({graph: sorted(numbers.tolist()) for graph, numbers in chosen.items()}))

    def _run(
        self, collection: str, stage: str, arguments: list[str] | None, command: list[str] | None = None, note: str = ""
    ) -> None:
        if (collection, stage) in self.finished:
            return
        command = command or [sys.executable, "-m", "tpugraphs_polynormer.cli.main", *arguments]
        print(f"{collection}: {stage}", file=sys.stderr, flush=True)
        log = self.work / "logs" / f"{collection.replace(':', '_')}_{stage}.txt"
        used = run_measured(command, log, interval=0.2)
        disk = sum(path.stat().st_size for path in self.work.rglob("*") if path.is_file())
        done = Stage(collection, stage, used.wall_seconds, used.cpu_seconds, used.peak_bytes, disk, note)
        self.finished[collection, stage] = done
        with self._journal.open("a") as journal:
            journal.write(json.dumps(dataclasses.asdict(done)) + "\n")


def simulate_tenth(name: str, archives: Path, scale: str) -> None:
    """Simulates a tenth of the graphs of each split of a layout collection, at the sizes of the scale."""
    from tpugraphs_polynormer.simulator.write import list_graphs, simulate_graph

    counts = tuple(max(1, count // 10) for count in SCALES[scale].layout_graphs[name])
    plan = dataclasses.replace(SCALES[scale], layout_graphs={name: counts})
    for graph in list_graphs(plan, name):
        simulate_graph(archives, Path(COLLECTIONS[name].folder) / graph.split, plan, 0, graph.number)


def report(rehearsal: Rehearsal) -> str:
    """A Markdown table of the finished stages, and one of the sizes of the datasets."""
    lines = _table_head("collection", "stage", "wall, s", "CPU, s", "peak memory, GB", "on disk, GB", "")
    for stage in rehearsal.finished.values():
        seconds = f"{stage.wall_seconds:,.0f} | {stage.cpu_seconds:,.0f}"
        sizes = f"{stage.peak_bytes / _GIGA:.2f} | {stage.disk_bytes / _GIGA:.2f}"
        lines.append(f"| {stage.collection} | {stage.stage} | {seconds} | {sizes} | {stage.note} |")
    lines += ["", *_table_head("dataset", "split", "graphs", "candidates", "nodes, max", "config nodes, max")]
    for name, collection in COLLECTIONS.items():
        folder = rehearsal.work / "datasets" / collection.folder
        if (folder / "manifest.json").exists():
            for split, entry in RankingDataset(folder).manifest.splits.items():
                sizes = f"{entry.sizes['nodes']['max']:,} | {entry.sizes['config_nodes']['max']:,}"
                lines.append(f"| {name} | {split} | {entry.num_graphs:,} | {entry.num_candidates:,} | {sizes} |")
    return "\n".join(lines)


def _table_head(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def main() -> None:
    """Runs the unfinished stages, then prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("runs/rehearsal"), help="working folder; up to 40 GB")
    parser.add_argument("--collections", nargs="*", choices=COLLECTIONS, default=list(COLLECTIONS), metavar="ID")
    parser.add_argument("--tenth", nargs="*", choices=COLLECTIONS, default=[], metavar="ID")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--keep-archives", action="store_true")
    parser.add_argument("--simulate-tenth", nargs=3, help=argparse.SUPPRESS)  # for the process that this script starts
    parser.add_argument("--quick", action="store_true", help="a tenth of a tiny collection, two steps: does it run?")
    arguments = parser.parse_args()
    if arguments.simulate_tenth:
        name, archives, scale = arguments.simulate_tenth
        simulate_tenth(name, Path(archives), scale)
        return
    arguments.scale = "full"
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        if arguments.quick:
            arguments.work, arguments.scale, arguments.steps = Path(folder), "tiny", 2
            arguments.collections = arguments.tenth = ["layout:xla:random"]
        rehearsal = Rehearsal(arguments)
        for name in arguments.collections:
            rehearsal.run_collection(name)
        rehearsal.submit()
        print(report(rehearsal))


if __name__ == "__main__":
    main()

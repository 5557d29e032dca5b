"""The stages under test at their smallest size: their inputs, made once, their commands, and what they must write."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from fault_rows import processes
from fault_rows.mirror import Mirror

COLLECTIONS = ("layout:xla:random", "tile:xla")
_MODEL = ("model.hidden_dim=8", "model.num_heads=2", "model.num_local_layers=1")
_RANKING = (*_MODEL, "training.steps_per_epoch=4", "training.steps_per_execution=1", "training.checkpoint_seconds=0")
_NODES = (*_MODEL, "training.local_epochs=8", "training.epochs=8", "training.checkpoint_seconds=0")
# What depends on the clock, not on the data.
_TIMED = re.compile(r'"(train|evaluation)_seconds": [0-9.e+-]+,?')
_WRITTEN = re.compile(rb"Written [-0-9 :]+ UTC")
_LEFT_OUT = re.compile(r"(^|/)(tensorboard|logs)(/|$)|(^|/)(checksums\.json|fingerprint\.pb)$")


@dataclass(frozen=True)
class Subject:
    """A stage under test.

    `arguments` makes its command line for an output folder, `work_begins` is a pattern of the first file of its work,
    `marks` are patterns of files by which the output counts as finished, `prepare` is called in its process before it
    starts, `make_inputs` before its first run.
    """

    name: str
    arguments: Callable[[Path], list[str]]
    work_begins: str
    marks: tuple[str, ...]
    prepare: Callable[[], None] = lambda: None
    make_inputs: Callable[[], None] = lambda: None


class Inputs:
    """What the stages read: archives, datasets, two trained runs, predictions, a program and a node data set."""

    def __init__(self, root: Path, epochs: int) -> None:
        self.root, self._epochs = root, epochs
        self.archives, self.datasets, self.files = root / "archives", root / "datasets", root / "files"
        self.runs = [root / "runs" / name.replace(":", "_") for name in COLLECTIONS]
        self.program, self.predictions, self.configs = root / "program.pb", root / "predictions", root / "configs"
        if not (root / "complete").exists():
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True)
            self._run("simulate", "--archives", self.archives, "--workers", 1, "--collections", *COLLECTIONS)
            processes.compute(self._write_program)
            self._write_benchmark()
            self._write_configs()
            (root / "complete").touch()

    def make_runs(self) -> None:
        """Makes the datasets, runs and predictions, unless they are there: only some stages read them."""
        if self.predictions.exists():
            return
        places = ("--archives", self.archives, "--datasets", self.datasets)
        self._run("preprocess", *places, "--collections", *COLLECTIONS)
        for run, name in zip(self.runs, COLLECTIONS, strict=True):
            self._run(*self.train(run, name, 1))
        self._run("predict", "--run-dir", *self.runs, "--datasets", self.datasets, "--output", self.predictions)

    def _run(self, *arguments: object) -> None:
        stage = processes.start(list(map(str, arguments)), self.root / "log" / f"{arguments[0]}.txt")
        if stage.wait() != 0:
            raise SystemExit(f"{arguments[0]} failed: {stage.said()[-1]}")

    def train(self, run: Path, collection: str, epochs: int) -> list[str]:
        """The command of a training."""
        sets = [*_RANKING, f"training.epochs={epochs}", f"data.collection={collection}"]
        places = ["--datasets", str(self.datasets), "--run-dir", str(run), "--strategy", "cpu"]
        return ["train", *places, *(part for each in sets for part in ("--set", each))]

    def _write_program(self) -> None:
        from tpugraphs_polynormer.hlo.writer import serialize_module
        from tpugraphs_polynormer.simulator.programs import SOURCES, draw_program
        from tpugraphs_polynormer.simulator.scales import SCALES

        program = draw_program(SOURCES["xla"][0], SCALES["tiny"].size, np.random.default_rng(0))
        self.program.write_bytes(serialize_module(program))

    def _write_benchmark(self) -> None:
        """A data set of 60 nodes in the format, and by the name, of minesweeper."""
        rng = np.random.default_rng(0)
        part = np.stack([rng.permutation(np.arange(60) % 4) for _ in range(2)])
        masks = {"train_masks": part < 2, "val_masks": part == 2, "test_masks": part == 3}
        labels = rng.integers(0, 2, 60)
        features = rng.normal(size=(60, 7)).astype(np.float32) + labels[:, None]
        self.files.mkdir()
        arrays = {"node_features": features, "node_labels": labels, "edges": rng.integers(0, 60, (200, 2))}
        np.savez(self.files / "minesweeper.npz", **arrays, **masks)

    def _write_configs(self) -> None:
        """The demo's configs, of a smaller model and fewer steps."""
        from tpugraphs_polynormer.demo import CONFIGS

        shutil.copytree(CONFIGS, self.configs)
        for path in self.configs.iterdir():
            settings = yaml.safe_load(path.read_text())
            steps = {"epochs": 2, "steps_per_epoch": 3, "steps_per_execution": 1, "checkpoint_seconds": 0}
            settings["training"] |= steps
            settings["model"] |= {"hidden_dim": 8, "num_heads": 2, "num_local_layers": 1}
            path.write_text(yaml.safe_dump(settings))

    def shrink_demo(self) -> None:
        """Makes `tpugraphs demo` of this process run at the tiny scale with the small configs."""
        import functools

        from tpugraphs_polynormer import demo

        demo.run_demo = functools.partial(demo.run_demo, scale="tiny", configs=self.configs)

    def subjects(self) -> dict[str, Subject]:
        """The stages by name."""
        data, runs = ["--datasets", str(self.datasets)], ["--run-dir", *map(str, self.runs)]
        archives = ["--archives", str(self.archives)]
        collections = ["--collections", *COLLECTIONS]
        nodes = [part for each in _NODES for part in ("--set", each)]
        layout = ["--run-dir", str(self.runs[0])]
        predictions = tuple(f"{name.replace(':', '/')}/checksums.json" for name in COLLECTIONS)
        manifests = tuple(f"{name.replace(':', '/')}/manifest.json" for name in COLLECTIONS)
        workers, shards = ["--direct_num_workers=2"], ["--graphs-per-shard", "2"]
        ranked, best = ["--budget", "3000"], "ranking.npz"
        predicted = ["--predictions", str(self.predictions)]
        nodes = ["--name", "minesweeper", "--files", str(self.files), "--config", "nodes/small/minesweeper", *nodes]
        npz = str(next((self.archives / "npz" / "layout").rglob("*.npz")))
        mirror = Mirror(self.root / "mirror", self.archives)
        fetched = ["--collections", COLLECTIONS[1], "--no-indices", "--base-address", mirror.address]
        everything = [
            Subject(
                "download",
                lambda out: ["download", *fetched, "--archives", str(out)],
                "npz_*",
                (),  # downloads.json lists what is whole
                mirror.serve,
            ),
            Subject(
                "simulate",
                lambda out: ["simulate", "--archives", str(out), "--workers", "2", *collections],
                "npz/**/*.npz",
                (),  # its journal lists what is whole
            ),
            Subject(
                "preprocess",
                lambda out: (["preprocess", *archives, "--datasets", str(out), *collections, *shards, *workers]),
                "**/*.shard.json",
                manifests,
            ),
            Subject(
                "train", lambda out: self.train(out, COLLECTIONS[0], self._epochs), "metrics.jsonl", ("result.json",)
            ),
            Subject(
                "evaluate", lambda out: ["evaluate", *runs, *data, "--output", str(out)], "**/*.csv", ("**/*.json",)
            ),
            Subject("predict", lambda out: ["predict", *runs, *data, "--output", str(out)], "**/*.npz", predictions),
            Subject(
                "Beam scoring",
                lambda out: ["predict", *layout, *data, "--output", str(out), "--beam", *workers],
                "**/*.npz",
                predictions[:1],
            ),
            Subject(
                "submit",
                lambda out: (["submit", *predicted, *archives, "--output", str(out / "submission.csv")]),
                "*.csv",
                ("submission.csv",),
            ),
            Subject(
                "report", lambda out: ["report", *runs, *data, "--output", str(out / "r.html")], "*.html", ("r.html",)
            ),
            Subject(
                "export", lambda out: ["export", *layout, *data, "--output", str(out / "1")], ".1*/**/*", ("1/*.pb",)
            ),
            Subject(
                "rank",
                lambda out: (["rank", str(self.program), *layout, *ranked, "--output", str(out / best)]),
                "*.npz",
                (best,),
            ),
            Subject(
                "featurize",
                lambda out: ["featurize", str(self.program), "--candidates", "3000", "--output", str(out / "p.npz")],
                "*.npz",
                ("p.npz",),
            ),
            Subject("inspect", lambda out: ["inspect", npz, "--plot", str(out / "plot.png")], "*.png", ("plot.png",)),
            Subject(
                "benchmark",
                lambda out: (["benchmark", *nodes, "--run-dir", str(out)]),
                "**/metrics.jsonl",
                ("summary.json", "results.md"),
            ),
            Subject(
                "experiment",
                lambda out: ["experiment", "monomials", "--output", str(out)],
                "*.json",
                ("monomials.json", "monomials.png"),
            ),
            Subject(
                "demo",
                lambda out: ["demo", "--output", str(out)],
                "data/simulation.jsonl",
                ("submission.csv", "report.html"),
                self.shrink_demo,
            ),
        ]
        alone = ("download", "simulate", "featurize", "inspect", "benchmark", "experiment", "demo")
        return {
            each.name: each if each.name in alone else replace(each, make_inputs=self.make_runs) for each in everything
        }


def digest(folder: Path) -> dict[str, str]:
    """{path: hash} of the files of an output, without what depends on the clock.

    Left out: TensorBoard's events, the demo's logs, the seconds in metrics, the times in TensorFlow's list of
    checkpoints and its counter of saves, the date of a report, the random number in a SavedModel's fingerprint and the
    order of inputs in its graph, and checksums.json, which lists the hashes of these (`verify` compares it).
    """
    if not folder.exists():
        return {}
    paths = sorted(path for path in folder.rglob("*") if not path.is_dir())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: _hash(path) for name, path in names.items() if not _LEFT_OUT.search(name)}


def _hash(path: Path) -> str:
    if "checkpoints" in path.parts and path.suffix == ".index":
        return _hash_checkpoint(path.with_suffix(""))
    if "checkpoints" in path.parts and path.name.endswith(".data-00000-of-00001"):
        return "by its index"
    if path.name == "saved_model.pb":
        return _hash_saved_model(path)
    data = path.read_bytes()
    if path.suffix == ".html":
        data = _WRITTEN.sub(b"", data)
    elif path.name == "checkpoint":
        data = data.splitlines()[0]
    elif path.suffix in (".json", ".jsonl"):
        data = _TIMED.sub("", data.decode()).encode()
        if path.name == "simulation.jsonl":  # graphs are listed in the order in which two processes finished them
            data = b"\n".join(sorted(data.splitlines()))
    return hashlib.sha256(data).hexdigest()


def _hash_saved_model(path: Path) -> str:
    """The names and ops of the nodes: TF-GNN's parser gives equal inputs an order that differs between processes."""
    from tensorflow.core.protobuf import saved_model_pb2

    graph = saved_model_pb2.SavedModel.FromString(path.read_bytes()).meta_graphs[0]
    functions = [(each.signature.name, sorted((node.name, node.op) for node in each.node_def))
                 for each in graph.graph_def.library.function]  # fmt: skip
    nodes = sorted((node.name, node.op) for node in graph.graph_def.node)
    return hashlib.sha256(repr((nodes, sorted(functions), sorted(graph.signature_def))).encode()).hexdigest()


def _hash_checkpoint(prefix: Path) -> str:
    import tensorflow as tf

    reader, content = tf.train.load_checkpoint(str(prefix)), hashlib.sha256()
    for name in sorted(reader.get_variable_to_shape_map()):
        if "save_counter" not in name and name != "_CHECKPOINTABLE_OBJECT_GRAPH":
            content.update(name.encode() + np.asarray(reader.get_tensor(name)).tobytes())
    return content.hexdigest()


def verify(folder: Path) -> list[str]:
    """What `tpugraphs verify` finds wrong in a folder; nothing if there is nothing that it knows."""
    from tpugraphs_polynormer.errors import UserError
    from tpugraphs_polynormer.ranking.verify import verify_folder

    try:
        return [str(fault.path) for fault in verify_folder(folder).faults]
    except UserError as fault:
        return [] if "found no dataset" in str(fault) else [str(fault)]


def judge(folder: Path, expected: dict[str, str]) -> tuple[list[str], list[str]]:
    """(what differs from the expected output, files that should not be there) of a finished output."""

    def compare() -> list[list[str]]:
        found = digest(folder)
        differing = [name for name, value in expected.items() if found.get(name) != value]
        return [differing + [f"verify: {name}" for name in verify(folder)], sorted(set(found) - set(expected))]

    differing, extra = processes.compute(compare)
    return differing, extra


def read_baseline(subject: Subject, work: Path) -> dict:
    """The time, the begin of the work, the peak of the disk and the digest of an undisturbed run, made once."""
    path = work / "baselines" / f"{subject.name.replace(' ', '-')}.json"
    if not path.exists():
        subject.make_inputs()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_measure(subject, work / "baseline" / subject.name.replace(" ", "-"))))
    return json.loads(path.read_text())


def _measure(subject: Subject, folder: Path) -> dict:
    import time

    shutil.rmtree(folder, ignore_errors=True)
    out = folder / "out"
    out.mkdir(parents=True)
    stage = processes.start(subject.arguments(out), folder / "log.txt", prepare=subject.prepare)
    begin, code = None, None
    while code is None:
        code = stage.wait(0.02)
        if begin is None and any(out.glob(subject.work_begins)):
            begin = time.monotonic() - stage.started
    seconds = time.monotonic() - stage.started
    if code:
        raise SystemExit(f"{subject.name} failed undisturbed: {stage.said()[-1]}")
    expected = processes.compute(lambda: digest(out))
    if wrong := processes.compute(lambda: verify(out)):
        raise SystemExit(f"{subject.name} undisturbed: {wrong}")
    shutil.rmtree(folder)
    return {"seconds": seconds, "begin": min(begin or 0.0, 0.95 * seconds), "digest": expected}

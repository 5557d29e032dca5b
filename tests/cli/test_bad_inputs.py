"""The table of bad inputs: each is one line on stderr that names the file or field, exit code 2, and no output."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.bad_inputs import Places
from tests.trained import make_trained
from tpugraphs_polynormer.cli.main import main


class Case(NamedTuple):
    """Arguments made of the places, and what the one line must say."""

    arguments: Callable[[Places], list]
    told: tuple[str, ...]


def runs(p: Places, stage: str, run: Path, *more: object) -> list:
    """A stage on a run and the good datasets."""
    return [stage, "--run-dir", run, "--datasets", p.data, *more]


def train(p: Places, *more: object) -> list:
    """The smallest training into the case's output."""
    small = ["model.hidden_dim=8", "model.num_heads=2", "training.epochs=1", "training.steps_per_epoch=1"]
    settings = [word for each in small for word in ("--set", each)]
    return ["train", "--datasets", p.data, "--run-dir", p.out, "--strategy", "cpu", *settings, *more]


def tune(p: Places, program: object, judge: str, *more: object) -> list:
    """A tuning into the case's output."""
    return ["tune", program, "--judge", judge, "--output", p.out, *more]


def outputs(stage: str, option: str, build: Callable[[Places, object], list], is_folder: bool) -> dict[str, Case]:
    """The cases of an output that cannot be written, for one stage."""
    wrong = (lambda p: p.file) if is_folder else (lambda p: p.folder)
    cases = {
        "unwritable": Case(lambda p: build(p, p.unwritable), (option, "cannot be written")),
        "below a file": Case(lambda p: build(p, p.below_file), (option, "cannot be written")),
        "name too long": Case(lambda p: build(p, p.long), (option, "cannot be written", "too long")),
        "of the wrong kind": Case(
            lambda p: build(p, wrong(p)),
            (option, "found a file" if is_folder else "found a folder"),
        ),
        "full disk": Case(lambda p: build(p, p.full / "out.png"), (option, "No space left")),
    }
    if not is_folder:
        cases["a device"] = Case(lambda p: build(p, "/dev/full"), ("/dev/full", option))
    return {f"{stage} {option} {name}": case for name, case in cases.items()}


OUTPUTS = {
    **outputs("simulate", "--archives", lambda p, out: ["simulate", "--archives", out], True),
    **outputs("demo", "--output", lambda p, out: ["demo", "--output", out], True),
    **outputs("preprocess", "--datasets", lambda p, out: ["preprocess", "--archives", p.tree, "--datasets", out], True),
    **outputs("train", "--run-dir", lambda p, out: [*train(p), "--run-dir", out], True),
    **outputs("featurize", "--output", lambda p, out: ["featurize", p.program, "--output", out], False),
    **outputs("featurize folder", "--output", lambda p, out: ["featurize", p.programs, "--output", out], True),
    **outputs("evaluate", "--output", lambda p, out: runs(p, "evaluate", p.layout, "--output", out), True),
    **outputs("predict", "--output", lambda p, out: runs(p, "predict", p.layout, "--output", out), True),
    **outputs("report", "--output", lambda p, out: runs(p, "report", p.layout, "--output", out), False),
    **outputs("export", "--output", lambda p, out: runs(p, "export", p.layout, "--output", out), True),
    **outputs("rank", "--output", lambda p, out: ["rank", p.program, "--run-dir", p.layout, "--output", out], False),
    **outputs(
        "submit",
        "--output",
        lambda p, out: ["submit", "--predictions", p.layout_predictions, "--archives", p.tree, "--output", out],
        False,
    ),
    **outputs(
        "benchmark",
        "--run-dir",
        lambda p, out: ["benchmark", "--name", "pokec", "--files", p.folder, "--run-dir", out],
        True,
    ),
    **outputs("experiment", "--output", lambda p, out: ["experiment", "monomials", "--output", out], True),
    **outputs(
        "download",
        "--archives",
        lambda p, out: [
            "download",
            "--collections",
            "tile:xla",
            "--archives",
            out,
            "--base-address",
            "http://localhost:9",
        ],
        True,
    ),
    **outputs("inspect", "--plot", lambda p, out: ["inspect", p.archive, "--plot", out], False),
}
del OUTPUTS["inspect --plot of the wrong kind"], OUTPUTS["inspect --plot a device"]  # no ending: told as such, below
del (
    OUTPUTS["inspect --plot unwritable"],
    OUTPUTS["inspect --plot below a file"],
    OUTPUTS["inspect --plot name too long"],
)


def same(stage: str, build: Callable[[Places], list]) -> dict[str, Case]:
    """The case of an output that is the input."""
    return {f"{stage} output is input": Case(build, ("found the input itself",))}


SAME = {
    **same("featurize", lambda p: ["featurize", p.program, "--output", p.program]),
    **same("featurize folder", lambda p: ["featurize", p.programs, "--output", p.programs]),
    **same("preprocess", lambda p: ["preprocess", "--archives", p.tree, "--datasets", p.tree]),
    **same("train", lambda p: [*train(p), "--run-dir", p.data]),
    **same("predict datasets", lambda p: runs(p, "predict", p.layout, "--output", p.data)),
    **same("predict run", lambda p: runs(p, "predict", p.layout, "--output", p.layout)),
    **same("evaluate", lambda p: runs(p, "evaluate", p.layout, "--output", p.data)),
    **same("export", lambda p: runs(p, "export", p.layout, "--output", p.layout)),
    **same("rank", lambda p: ["rank", p.program, "--run-dir", p.layout, "--output", p.program]),
    **same("benchmark", lambda p: ["benchmark", "--name", "pokec", "--files", p.folder, "--run-dir", p.folder]),
    **same("experiment", lambda p: ["experiment", "monomials", "--files", p.folder, "--output", p.folder]),
}


def option(*words: object) -> Callable[[Places], list]:
    """Arguments that name no place."""
    return lambda p: list(words)


NUMBERS = {
    f"{stage} {flag} {value}": Case(
        lambda p, stage=stage, flag=flag, value=value: [stage, *REQUIRED[stage](p), flag, value],
        (flag, value, "expected"),
    )
    for stage, flag, values in (
        ("simulate", "--seed", ("-1", "x", "1.5", "", str(2**40))),
        ("simulate", "--workers", ("0", "-3")),
        ("demo", "--seed", ("-1",)),
        ("featurize", "--seed", ("-1",)),
        ("featurize", "--candidates", ("0", "-1")),
        ("rank", "--seed", ("-1",)),
        ("rank", "--top", ("-2", "0")),
        ("tune", "--measurements", ("0", "many")),
        ("tune", "--batch", ("0", "2000")),
        ("rank", "--budget", ("0", "-5", "200000")),
        ("rank", "--seconds", ("0", "-1")),
        ("report", "--candidates", ("-1",)),
        ("preprocess", "--max-nodes", ("-1",)),
        ("preprocess", "--hops", ("-1",)),
        ("preprocess", "--graphs-per-shard", ("0", "-1")),
        ("train", "--seeds", ("1,1", "0,-1", "a", "", "0,,1", str(2**40))),
        ("train", "--devices", ("0", "-1", "9999999")),
        ("benchmark", "--splits", ("0,0", "-1")),
    )
    for value in values
}
REQUIRED: dict[str, Callable[[Places], list]] = {
    "simulate": lambda p: ["--archives", p.out],
    "demo": lambda p: ["--output", p.out],
    "featurize": lambda p: [p.program, "--output", p.out],
    "rank": lambda p: [p.program, "--run-dir", p.layout],
    "tune": lambda p: [p.program, "--judge", "simulator", "--output", p.out],
    "report": lambda p: ["--run-dir", p.layout, "--datasets", p.data],
    "preprocess": lambda p: ["--archives", p.tree, "--datasets", p.out],
    "train": lambda p: ["--datasets", p.data, "--run-dir", p.out],
    "benchmark": lambda p: ["--name", "minesweeper", "--files", p.folder],
}

WORDS = {
    "an unknown stage": Case(option("trian"), ("trian",)),
    "an unknown option": Case(option("train", "--speed", "9", "--datasets", "a", "--run-dir", "b"), ("--speed",)),
    "a missing option": Case(option("train"), ("--datasets", "--run-dir")),
    "an unknown scale": Case(option("simulate", "--archives", "a", "--scale", "huge"), ("--scale", "tiny")),
    "an unknown collection": Case(
        lambda p: ["preprocess", "--archives", p.tree, "--datasets", p.out, "--collections", "tile:nlp"],
        ("--collections", "tile:nlp", "tile:xla"),
    ),
    "an unknown benchmark": Case(option("benchmark", "--name", "mines", "--files", "a"), ("mines", "minesweeper")),
    "an unknown experiment": Case(option("experiment", "x", "--output", "a"), ("scaling",)),
    "an unknown config action": Case(option("config", "edit"), ("edit", "show")),
    "a log level of no kind": Case(option("--log-level", "LOUD", "demo"), ("--log-level", "DEBUG")),
    "nothing to download": Case(option("download"), ("--collections", "--benchmarks")),
    "an option of Beam that it lacks": Case(
        lambda p: ["preprocess", "--archives", p.tree, "--datasets", p.out, "--collections", "tile:xla", "--runer=x"],
        ("--runer",),
    ),
    "an unknown runner": Case(
        lambda p: ["preprocess", "--archives", p.tree, "--datasets", p.out, "--collections", "tile:xla", "--runner=No"],
        ("No",),
    ),
}

CONFIGS = {
    "no such config": Case(lambda p: train(p, "--config", p.nothing), ("nothing",)),
    "a near config": Case(lambda p: train(p, "--config", "demo/layout_xla_rand"), ("did you mean", "demo/layout_xla_")),
    "a folder as config": Case(lambda p: train(p, "--config", p.folder), ("folder",)),
    "config is not YAML": Case(lambda p: train(p, "--config", p.not_yaml), ("not.yaml", "YAML")),
    "config is a list": Case(lambda p: train(p, "--config", p.listed), ("list.yaml", "mapping")),
    "config is binary": Case(lambda p: train(p, "--config", p.binary_config), ("binary.yaml",)),
    "config with an unknown field": Case(lambda p: train(p, "--config", p.unknown_field), ("hidden_dim",)),
    "--set without a value": Case(lambda p: train(p, "--set", "model.hidden_dim"), ("--set model.hidden_dim",)),
    "--set of an unknown field": Case(lambda p: train(p, "--set", "model.speed=9"), ("model.speed",)),
    "--set of a wrong type": Case(lambda p: train(p, "--set", "model.hidden_dim=wide"), ("model.hidden_dim", "wide")),
    "--set out of range": Case(lambda p: train(p, "--set", "training.learning_rate=-1"), ("training.learning_rate",)),
    "--set of a negative seed": Case(lambda p: train(p, "--set", "seed=-1"), ("seed",)),
    "--set of no epochs": Case(lambda p: train(p, "--set", "training.epochs=0"), ("epochs",)),
    "--set that is not YAML": Case(lambda p: train(p, "--set", "model.hidden_dim=["), ("model.hidden_dim",)),
    "--set of an unknown collection": Case(lambda p: train(p, "--set", "data.collection=x"), ("data.collection",)),
    "--set of an unknown encoder": Case(lambda p: train(p, "--set", "model.encoder=x"), ("encoder",)),
    "heads that do not divide": Case(lambda p: train(p, "--set", "model.num_heads=3"), ("num_heads",)),
    "a node config for ranking": Case(
        lambda p: ["train", "--datasets", p.data, "--run-dir", p.out, "--config", p.node_config], ("benchmark",)
    ),
    "a ranking config for nodes": Case(
        lambda p: ["benchmark", "--name", "pokec", "--files", p.folder, "--run-dir", p.out, "--config", p.own_config],
        ("tpugraphs train",),
    ),
    "another benchmark's config": Case(
        lambda p: ["benchmark", "--name", "pokec", "--files", p.folder, "--run-dir", p.out, "--config", "nodes/wikics"],
        ("wikics", "--name says pokec"),
    ),
    "another experiment's config": Case(
        lambda p: (
            [
                "experiment",
                "ablation",
                "--benchmark",
                "wikics",
                "--files",
                p.folder,
                "--output",
                p.out,
                "--config",
                "nodes/pokec",
            ]
        ),
        ("pokec", "--benchmark says wikics"),
    ),
    "no files of a benchmark": Case(
        lambda p: ["benchmark", "--name", "wikics", "--files", p.nothing, "--run-dir", p.out], ("tpugraphs download",)
    ),
    "an experiment without files": Case(
        lambda p: ["experiment", "heatmaps", "--output", p.out, "--files", p.folder], ("minesweeper.npz",)
    ),
    "config show of nothing": Case(lambda p: ["config", "show", p.nothing], ("nothing",)),
    "gpu without one": Case(lambda p: train(p, "--strategy", "gpu"), ("--strategy gpu",)),
    "multiworker without workers": Case(lambda p: train(p, "--strategy", "multiworker"), ("TF_CONFIG",)),
}


def archive(stage: str, build: Callable[[Places, Path], list]) -> dict[str, Case]:
    """The cases of an archive that cannot be read."""
    return {
        f"{stage} of {name}": Case(lambda p, name=name: build(p, getattr(p, name)), told)
        for name, told in {
            "nothing": ("nothing", "check the path"),
            "folder": ("found a folder", "check the path"),
            "below_file": ("file/out", "check the path"),
            "cut_npz": ("cut.npz",),
            "text_npz": ("text.npz", "check the path"),
            "empty_npz": ("empty.npz",),
            "changed_npz": ("changed.npz",),
            "npy": ("array.npy",),
            "other_npz": ("other.npz", "node_config_feat"),
        }.items()
    }


ARCHIVES = {
    **archive("inspect", lambda p, path: ["inspect", path]),
    "--plot without an ending": Case(lambda p: ["inspect", p.archive, "--plot", p.out], (".png",)),
    "--plot x.xyz": Case(lambda p: ["inspect", p.archive, "--plot", p.out / "x.xyz"], ("x.xyz", ".png")),
    "--plot a folder": Case(lambda p: ["inspect", p.archive, "--plot", p.root / "folder.png"], ("found a folder",)),
    "--plot the archive": Case(lambda p: ["inspect", p.archive, "--plot", p.archive], (".npz", ".png")),
    "--plot below a file": Case(lambda p: ["inspect", p.archive, "--plot", p.below_file / "x.png"], ("--plot", "file")),
    "featurize nothing": Case(lambda p: ["featurize", p.nothing, "--output", p.out], ("nothing", "cannot be read")),
    "featurize an empty folder": Case(lambda p: ["featurize", p.folder, "--output", p.out], ("folder", ".pb")),
    "featurize an empty file": Case(lambda p: ["featurize", p.empty, "--output", p.out], ("an empty file",)),
    "featurize HLO text with a fault": Case(
        lambda p: ["featurize", p.hlo_text, "--output", p.out], ("text.hlo", "line 3, column 23", "expected a shape")
    ),
    "featurize words": Case(lambda p: ["featurize", p.file, "--output", p.out], ("bytes of text",)),
    "featurize a truncated program": Case(lambda p: ["featurize", p.cut_program, "--output", p.out], ("truncated",)),
    "featurize any bytes": Case(lambda p: ["featurize", p.binary, "--output", p.out], ("binary.pb", "damaged")),
    "featurize a cut archive": Case(lambda p: ["featurize", p.cut_npz, "--output", p.out], ("cut.npz",)),
    "tune nothing": Case(lambda p: tune(p, p.nothing, "simulator"), ("nothing", "cannot be read")),
    "tune by no one": Case(lambda p: tune(p, p.program, "oracle"), ("--judge", "oracle", "simulator")),
    "tune by no command": Case(lambda p: tune(p, p.program, "command"), ("--judge command", "no --command")),
    "tune by a command that is not there": Case(
        lambda p: tune(p, p.program, "command", "--command", "no-such-program"), ("no-such-program",)
    ),
    "tune by two judges": Case(
        lambda p: tune(p, p.program, "simulator", "--command", "true"), ("--judge simulator", "--command")
    ),
    "tune for no chip": Case(lambda p: tune(p, p.program, "simulator", "--topology", "v9"), ("v9",)),
    "rank nothing": Case(lambda p: ["rank", p.nothing, "--run-dir", p.layout], ("nothing", "cannot be read")),
    "rank a folder": Case(lambda p: ["rank", p.folder, "--run-dir", p.layout], ("folder", "directory")),
    "rank an empty file": Case(lambda p: ["rank", p.empty, "--run-dir", p.layout], ("an empty file",)),
    "rank HLO text with a fault": Case(
        lambda p: ["rank", p.hlo_text, "--run-dir", p.layout], ("text.hlo", "line 3, column 23", "expected a shape")
    ),
    "rank a truncated program": Case(lambda p: ["rank", p.cut_program, "--run-dir", p.layout], ("truncated",)),
    "rank an archive": Case(lambda p: ["rank", p.archive, "--run-dir", p.layout], ("npz file",)),
    "rank to another kind of file": Case(
        lambda p: ["rank", p.program, "--run-dir", p.layout, "--output", p.folder / "ranking.csv"],
        ("--output", "ranking.csv", "'.csv'", ".html, .json, .npz"),
    ),
    "rank with a tile run": Case(lambda p: ["rank", p.program, "--run-dir", p.tile], ("layout run",)),
    "preprocess nothing": Case(
        lambda p: ["preprocess", "--archives", p.nothing, "--datasets", p.out], ("nothing", "--archives")
    ),
    "preprocess datasets": Case(
        lambda p: ["preprocess", "--archives", p.data, "--datasets", p.out], ("npz", "--archives")
    ),
    "preprocess a cut archive": Case(
        lambda p: (
            [
                "preprocess",
                "--archives",
                p.cut_tree,
                "--datasets",
                p.out,
                "--collections",
                "layout:xla:random",
                "--runner=FnApiRunner",
            ]
        ),
        ("cut.npz", "--on-error skip"),
    ),
    "preprocess tiles as layouts": Case(
        lambda p: (
            [
                "preprocess",
                "--archives",
                p.tile_as_layout,
                "--datasets",
                p.out,
                "--collections",
                "layout:xla:random",
                "--runner=FnApiRunner",
            ]
        ),
        ("tile",),
    ),
    "preprocess without a list": Case(
        lambda p: ["preprocess", "--archives", p.tree, "--datasets", p.out, "--exclude-file", p.nothing], ("nothing",)
    ),
    "preprocess excluding nobody": Case(
        lambda p: (
            [
                "preprocess",
                "--archives",
                p.tree,
                "--datasets",
                p.out,
                "--collections",
                "tile:xla",
                "--exclude",
                "nobody",
            ]
        ),
        ("nobody",),
    ),
    "simulate beside other archives": Case(lambda p: ["simulate", "--archives", p.tree], ("npz", "another --archives")),
    "simulate another scale": Case(
        lambda p: ["simulate", "--archives", p.old_journal, "--seed", 3], ("scale demo, not tiny",)
    ),
    "simulate another seed": Case(
        lambda p: ["simulate", "--archives", p.old_journal, "--scale", "demo"], ("seed 3, not 0",)
    ),
    "simulate with a broken journal": Case(lambda p: ["simulate", "--archives", p.odd_journal], ("simulation.jsonl",)),
    "simulate with an empty journal": Case(
        lambda p: ["simulate", "--archives", p.empty_journal], ("simulation.jsonl",)
    ),
    "a demo with broken progress": Case(lambda p: ["demo", "--output", p.odd_demo], ("progress.json",)),
    "a demo of another seed": Case(lambda p: ["demo", "--output", p.other_demo], ("seed 4",)),
    "download from nobody": Case(
        lambda p: ["download", "--collections", "tile:xla", "--archives", p.out, "--base-address", "nowhere"],
        ("nowhere",),
    ),
}

BROKEN_RUNS = {
    "nothing": ("nothing", "check the path"),
    "file": ("found a file",),
    "folder": ("no config.yaml", "check the path"),
    "runs": ("layout, layout_1, tile", "name them"),
    "cut_data": ("cut_data", "truncated or damaged checkpoint"),
    "cut_index": ("cut_index", "checkpoint"),
    "cut_state": ("cut_state", "checkpoint"),
    "no_data": ("no_data", "checkpoint"),
    "no_checkpoint": ("no_checkpoint", "tpugraphs train"),
    "cut_facts": ("dataset.json",),
    "empty_facts": ("dataset.json",),
    "odd_facts": ("dataset.json",),
    "binary_facts": ("dataset.json",),
    "no_facts": ("dataset.json",),
    "cut_config": ("config.yaml",),
    "odd_config": ("speed",),
    "other_model": ("not a checkpoint of this model",),
    "node_run": ("node_classification",),
}
RUNS = {
    f"{stage} of {name}": Case(
        lambda p, stage=stage, name=name, more=more: runs(p, stage, getattr(p, name), *more(p)), told
    )
    for stage, more in {
        "evaluate": lambda p: ["--output", p.out],
        "predict": lambda p: ["--output", p.out],
        "report": lambda p: ["--output", p.out],
        "export": lambda p: ["--output", p.out],
    }.items()
    for name, told in BROKEN_RUNS.items()
} | {
    f"rank with {name}": Case(lambda p, name=name: ["rank", p.program, "--run-dir", getattr(p, name)], told)
    for name, told in BROKEN_RUNS.items()
}

DATASETS = {
    f"{stage} on {name}": Case(
        lambda p, stage=stage, name=name: [
            *([*train(p), "--datasets"] if stage == "train" else [stage, "--run-dir", p.layout, "--datasets"]),
            getattr(p, name),
            *(["--output", p.out] if stage in ("predict", "export", "report") else []),
        ],
        told,
    )
    for stage in ("train", "evaluate", "predict", "report", "export")
    for name, told in {
        "nothing": ("manifest.json", "tpugraphs preprocess"),
        "file": ("manifest.json",),
        "folder": ("manifest.json",),
        "tree": ("manifest.json",),
        "tile_in_layout": ("found a dataset of tile:xla", "layout:xla:random"),
        "cut_manifest": ("manifest.json", "not readable"),
        "odd_manifest": ("manifest.json",),
        "binary_manifest": ("manifest.json", "not readable"),
        "no_manifest": ("manifest.json", "not found"),
        "no_shard": ("tfrecord", "is missing"),
        "short_shard": ("candidates", "the manifest says"),
    }.items()
}

SUBMISSIONS = {
    "submit of nothing": Case(lambda p: ["submit", "--archives", p.tree], ("--predictions", "--check")),
    "submit without predictions": Case(
        lambda p: ["submit", "--predictions", p.folder, "--archives", p.tree, "--output", p.out], ("tpugraphs predict",)
    ),
    "submit of others' predictions": Case(
        lambda p: ["submit", "--predictions", p.foreign_predictions, "--archives", p.tree, "--output", p.out],
        ("none of the 120 predicted graphs", "other data"),
    ),
    "submit of one collection of two": Case(
        lambda p: ["submit", "--predictions", p.layout_predictions, "--archives", p.tree, "--output", p.out],
        ("no predictions for tile:xla", "--collections layout:xla:random"),
    ),
    "submit of a cut prediction": Case(
        lambda p: (
            [
                "submit",
                "--predictions",
                p.cut_predictions,
                "--archives",
                p.tree,
                "--output",
                p.out,
                "--collections",
                "layout:xla:random",
            ]
        ),
        ("cut_predictions",),
    ),
    "submit of an absent collection": Case(
        lambda p: (
            [
                "submit",
                "--predictions",
                p.layout_predictions,
                "--archives",
                p.tree,
                "--output",
                p.out,
                "--collections",
                "layout:nlp:random",
            ]
        ),
        ("layout/nlp/random/test",),
    ),
    "submit with datasets as archives": Case(
        lambda p: ["submit", "--predictions", p.layout_predictions, "--archives", p.data, "--output", p.out], ("npz/",)
    ),
    "submit with collections and no data": Case(
        lambda p: ["submit", "--check", p.foreign_csv, "--collections", "tile:xla"], ("--collections needs",)
    ),
    "check of nothing": Case(lambda p: ["submit", "--check", p.nothing, "--archives", p.tree], ("cannot be read",)),
    "train on other indices": Case(lambda p: train(p, "--indices", p.odd_index), ("xla_random.json",)),
    "train without indices": Case(lambda p: train(p, "--indices", p.nothing), ("xla_random.json",)),
    "evaluate without indices": Case(
        lambda p: runs(p, "evaluate", p.layout, "--indices", p.nothing), ("xla_random.json",)
    ),
    "report on an unknown graph": Case(
        lambda p: runs(p, "report", p.layout, "--output", p.out, "--heatmap", "nobody"), ("nobody",)
    ),
    "a run named twice": Case(
        lambda p: runs(p, "evaluate", p.layout, "--run-dir", p.layout, p.layout), ("more than once",)
    ),
    "predict beside a broken recipe": Case(
        lambda p: runs(p, "predict", p.layout, "--output", p.odd_recipe), ("recipe.json",)
    ),
    "export over a folder": Case(lambda p: runs(p, "export", p.layout, "--output", p.programs), ("exists already",)),
    "train in another's run": Case(
        lambda p: [*train(p), "--run-dir", p.layout, "--set", "model.hidden_dim=16"], ("model.hidden_dim",)
    ),
    "train in a run with a cut checkpoint": Case(
        lambda p: ["train", "--datasets", p.data, "--run-dir", p.cut_latest, "--config", p.cut_latest / "config.yaml"],
        ("truncated or damaged checkpoint",),
    ),
    "train in a run with a cut result": Case(
        lambda p: ["train", "--datasets", p.data, "--run-dir", p.cut_result, "--config", p.cut_result / "config.yaml"],
        ("result.json",),
    ),
    "train in a run with odd metrics": Case(
        lambda p: [
            "train",
            "--datasets",
            p.data,
            "--run-dir",
            p.cut_metrics,
            "--config",
            p.cut_metrics / "config.yaml",
        ],
        ("metrics.jsonl",),
    ),
}

GROUPS = (OUTPUTS, SAME, NUMBERS, WORDS, CONFIGS, ARCHIVES, RUNS, DATASETS, SUBMISSIONS)
CASES: dict[str, Case] = {name: case for group in GROUPS for name, case in group.items()}


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Places:
    """The broken things; no case changes them."""
    made = Places(tmp_path_factory.mktemp("bad"), make_trained())
    (made.root / "folder.png").mkdir()
    return made


@contextlib.contextmanager
def full_disk(folder: Path, kilobytes: int = 4) -> Iterator[None]:
    """Mounts a file system at the folder that has only so much room; skips where this user may not mount one."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        pytest.skip(f"no small file system can be mounted here: {asked.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def error_lines(told: str) -> list[str]:
    """The lines of stderr but for the log, and for TensorFlow's own: imported by the tests, it is not silenced."""
    return [line for line in told.splitlines() if not re.match(r"(INFO|WARNING|[IWEF]\d{4}) ", line)]


def snapshot(root: Path) -> set[tuple[str, int]]:
    """Every file below the places, and its size."""
    return {(str(path), path.lstat().st_size) for path in root.rglob("*") if not path.is_dir()}


def test_there_are_many_cases() -> None:
    assert len(CASES) == sum(map(len, GROUPS)) > 250


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_line(name: str, places: Places, tmp_path: Path, capfd, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # default outputs go there
    monkeypatch.delenv("TF_CONFIG", raising=False)
    places.out = tmp_path / "out"
    case = CASES[name]
    before = snapshot(places.root)
    with full_disk(places.full) if "full disk" in name else contextlib.nullcontext():
        code = main(list(map(str, case.arguments(places))))
    told = capfd.readouterr().err
    lines = error_lines(told)
    assert "Traceback" not in told and code == 2, told
    assert len(lines) == 1 and re.match(r"tpugraphs( [a-z]+)*: error: ", lines[0]), told
    assert [part for part in case.told if part not in lines[0]] == [], lines[0]
    assert snapshot(places.root) == before
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in KEPT]
    assert left == []


# What an interrupted or refused job may leave in its own new output: what it needs to continue.
KEPT = {"config.yaml", "failed.txt", "dataset.json", "recipe.json", "downloads.json"}


FILLING = {
    "simulate": Case(lambda p: ["simulate", "--archives", p.full / "a", "--workers", 1], ("No space left",)),
    "simulate in processes": Case(lambda p: ["simulate", "--archives", p.full / "a", "--workers", 2], ("No space",)),
    "train": Case(lambda p: [*train(p), "--run-dir", p.full / "run"], ("checkpoint", "disk full")),
    "export": Case(lambda p: runs(p, "export", p.layout, "--output", p.full / "1"), ("cannot be written",)),
    "inspect": Case(lambda p: ["inspect", p.archive, "--plot", p.full / "a.png"], ("No space left",)),
    "featurize": Case(
        lambda p: ["featurize", p.program, "--output", p.full / "a.npz", "--candidates", 100_000], ("No space left",)
    ),
    "rank": Case(
        lambda p: ["rank", p.program, "--run-dir", p.layout, "--output", p.full / "a.npz", "--budget", 20_000],
        ("No space left",),
    ),
    "report": Case(lambda p: runs(p, "report", p.layout, "--output", p.full / "a.html"), ("No space left",)),
    "preprocess": Case(
        lambda p: ["preprocess", "--archives", p.tree, "--datasets", p.full, "--collections", "tile:xla"],
        ("No space left",),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILLING)
def test_a_disk_that_fills_up_is_one_line(name: str, places: Places, tmp_path: Path, capfd) -> None:
    places.out = tmp_path / "out"
    with full_disk(places.full, kilobytes=24):  # room for the first try (16 kB), not for the output
        code = main(list(map(str, FILLING[name].arguments(places))))
        hidden = [path for path in places.full.rglob("*") if path.name.endswith(".tmp")]
    told = capfd.readouterr().err
    lines = error_lines(told)
    assert "Traceback" not in told and code == 2, told
    assert len(lines) == 1 and all(part in lines[0] for part in FILLING[name].told), told
    assert hidden == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "simulate --seed -1",
        "export of cut_data",
        "predict --output unwritable",
        "inspect --plot full disk",
        "evaluate of runs",
        "preprocess a cut archive",
        "train on tile_in_layout",
        "rank a truncated program",
    ],
)
def test_bad_input_is_one_line_of_a_process(name: str, places: Places, tmp_path: Path) -> None:
    places.out = tmp_path / "out"
    with full_disk(places.full) if "full disk" in name else contextlib.nullcontext():
        command = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", *map(str, CASES[name].arguments(places))]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1, ended.stderr
    assert all(part in ended.stderr for part in CASES[name].told), ended.stderr

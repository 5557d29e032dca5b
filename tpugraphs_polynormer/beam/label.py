"""Beam job: programs x candidates -> official layout archives whose runtimes the real TPU compiler estimates.

One chain, as in preprocessing: one DoFn labels a program and writes its archive, and one last step counts the programs
against the plan and writes labels.json, the commit. Beside the tree of archives, `labels/` has for each program a
journal of the compiler's answers, from which a killed job continues, and a file of facts, which marks it as finished.
Workers must see the folder under the same path.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np

from tpugraphs_polynormer.archives.estimated import LABELS_NAME
from tpugraphs_polynormer.archives.featurize import read_program
from tpugraphs_polynormer.archives.writer import write_archive, write_npz
from tpugraphs_polynormer.beam.runners import make_options, run_pipeline
from tpugraphs_polynormer.catalog import COLLECTIONS, SPLITS
from tpugraphs_polynormer.compiler.labelling import LabelOptions, label_program
from tpugraphs_polynormer.compiler.program import RefusedError
from tpugraphs_polynormer.compiler.session import COMMAND, CompilerSession
from tpugraphs_polynormer.compiler.topologies import find_chip
from tpugraphs_polynormer.compiler.zoo import draw_zoo_program
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import check_name, only_writer, write_text
from tpugraphs_polynormer.hlo.writer import serialize_module
from tpugraphs_polynormer.simulator.programs import SOURCES, draw_program
from tpugraphs_polynormer.simulator.scales import SCALES

FORMAT_VERSION = 2
FOLDER_NAME = "labels"
RECIPE_NAME = "recipe.json"
OWN_PROGRAMS = ("zoo", "simulated")
# Programs of the simulator, small enough that the compiler takes some seconds for a candidate.
_SIMULATED_SIZE = dataclasses.replace(
    SCALES["tiny"].size,
    blocks=(1, 1),
    layers=(1, 1),
    width=(1, 3),
    batch=(2, 4, 8),
    image=(8, 16),
    volume=(8,),
    sequence=(8, 16),
)
_SPLIT_STREAM = 1 << 40  # a random stream apart from those of the programs


@dataclass(frozen=True)
class ProgramTask:
    """One program to label: a number of the zoo or the simulator, or a file."""

    source: str  # zoo, simulated, or the path of an HLO file
    number: int
    name: str  # of its archive
    title: str  # what it is: test archives have a hash as their name
    split: str


@dataclass(frozen=True)
class LabelJob:
    """The programs to label, how, and where."""

    output: Path
    programs: str
    tasks: tuple[ProgramTask, ...]
    options: LabelOptions
    versions: dict[str, str]
    command: tuple[str, ...] = COMMAND

    @property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the archives; the time limit does not, unless a candidate reaches it."""
        kept = {name: value for name, value in asdict(self.options).items() if name != "time_limit"}
        recipe = {"format_version": FORMAT_VERSION, "programs": self.programs, "count": len(self.tasks)}
        return recipe | kept | {"versions": self.versions}

    @property
    def collection_folder(self) -> str:
        """The folder of the archives in the official tree."""
        return COLLECTIONS[f"layout:xla:{self.options.search}"].folder

    def path(self, task: ProgramTask, suffix: str) -> Path:
        """A file of a program in the folder of labels: its journal (.jsonl) or its facts (.json)."""
        return self.output / FOLDER_NAME / f"{task.name}{suffix}"


@dataclass(frozen=True)
class LabelSummary:
    """What a job wrote, and what it left out."""

    programs: dict[str, int]  # by split
    candidates: int
    refused_candidates: int
    refused_programs: dict[str, str]  # title -> reason


def plan_tasks(programs: str, count: int | None, seed: int) -> tuple[ProgramTask, ...]:
    """The programs, each in a split: an eighth for valid, an eighth for test, the others for train."""
    if programs in OWN_PROGRAMS:
        numbered = [(programs, number, _describe(programs, number, seed)) for number in range(count or 40)]
    else:
        folder = Path(programs)
        if not folder.is_dir():
            raise UserError(f"--programs {programs}: found no such folder; expected zoo, simulated or a folder of .pb")
        paths = sorted(folder.rglob("*.pb"))[:count]
        if not paths:
            raise UserError(f"--programs {programs}: found no *.pb below it; dump HLO with xla_dump_hlo_as_proto")
        stems = [path.name.removesuffix(".pb").removesuffix(".hlo") for path in paths]
        numbered = [
            (str(path.resolve()), number, check_name(stem, str(path)))
            for number, (path, stem) in enumerate(zip(paths, stems, strict=True))
        ]
    shuffled = np.random.default_rng([seed, _SPLIT_STREAM]).permutation(len(numbered)).tolist()
    held_out = len(numbered) // 8
    split_of = {
        number: "valid" if place < held_out else "test" for place, number in enumerate(shuffled[: 2 * held_out])
    }
    return tuple(_make_task(source, number, title, split_of.get(number, "train")) for source, number, title in numbered)


def _describe(programs: str, number: int, seed: int) -> str:
    return draw_zoo_program(number, seed).name if programs == "zoo" else _simulated_family(number)


def _simulated_family(number: int) -> str:
    families = [family for each in SOURCES.values() for family in each]
    return families[number % len(families)]


def _make_task(source: str, number: int, title: str, split: str) -> ProgramTask:
    title = f"{title}_{number:04d}"
    digest = hashlib.md5(title.encode(), usedforsecurity=False).hexdigest()
    return ProgramTask(source, number, digest if split == "test" else title, title, split)


def run(job: LabelJob, beam_arguments: Sequence[str], num_workers: int) -> LabelSummary:
    """What became of the programs, after the job has run to its end."""
    find_chip(job.options.topology)
    options = make_options(beam_arguments, num_workers)
    with only_writer(job.output):
        _open_folder(job)
        pending = [task for task in job.tasks if not job.path(task, ".json").exists()]
        if pending:
            (job.output / LABELS_NAME).unlink(missing_ok=True)
        if pending or not (job.output / LABELS_NAME).exists():
            total = len(job.tasks) * job.options.num_candidates
            run_pipeline(Label(job, pending), options, lambda: count_done(job), total, "candidate")
        if not (job.output / LABELS_NAME).exists():  # some runners report success for a failed job
            raise UserError(f"{job.output / LABELS_NAME}: the runner ended without writing it; run the command again")
    return summarize(json.loads((job.output / LABELS_NAME).read_text()))


def _open_folder(job: LabelJob) -> None:
    """Makes the folder of labels with its recipe; refuses archives and labels of another origin."""
    path = job.output / FOLDER_NAME / RECIPE_NAME
    if path.exists():
        found = json.loads(path.read_text())
        differing = [name for name, value in job.recipe.items() if found.get(name) != value]
        if differing:
            told = ", ".join(f"{name} {found.get(name)!r:.60}, not {job.recipe[name]!r:.60}" for name in differing)
            raise UserError(f"{job.output}: holds labels of another recipe ({told}); choose another --archives folder")
        return
    if (job.output / "npz").exists():
        raise UserError(
            f"{job.output / 'npz'}: found archives that are no labels of the compiler (there is no {FOLDER_NAME}/"
            f"{RECIPE_NAME}); estimated ones are not put beside them: choose another --archives folder"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(job.recipe, indent=1))


def count_done(job: LabelJob) -> int:
    """The number of candidates with an answer; all of those of a finished program."""
    done = 0
    for task in job.tasks:
        if job.path(task, ".json").exists():
            done += job.options.num_candidates
        elif job.path(task, ".jsonl").exists():
            done += max(0, job.path(task, ".jsonl").read_bytes().count(b"\n") - 1)
    return done


class Label(beam.PTransform):
    """PBegin -> one element: the number of programs, once labels.json is written."""

    def __init__(self, job: LabelJob, pending: Sequence[ProgramTask]) -> None:
        super().__init__()
        self._job, self._pending = job, tuple(pending)

    def expand(self, begin: beam.Pipeline) -> beam.PCollection:
        """Programs -> archives -> labels.json."""
        labelled = (
            begin
            | "Programs" >> beam.Create(self._pending, reshuffle=True)
            | "Label" >> beam.ParDo(LabelProgram(self._job))
        )
        return (
            begin
            | "Once" >> beam.Create([None])
            | "Commit" >> beam.Map(_commit, self._job, beam.pvalue.AsList(labelled))
        )


class LabelProgram(beam.DoFn):
    """ProgramTask -> its name, once its archive and its facts are written, or the reason why it has no archive."""

    def __init__(self, job: LabelJob) -> None:
        self._job = job

    def process(self, task: ProgramTask) -> Iterator[str]:
        """Labels one program with a compiler of its own."""
        job = self._job
        with CompilerSession(job.options.topology, time_limit=job.options.time_limit, command=job.command) as session:
            try:
                module = _load_module(task, job.options.seed, session)
                labels = label_program(session, module, job.path(task, ".jsonl"), job.options)
            except UserError as fault:
                facts: dict[str, Any] = {"unlabelled": str(fault)}
            else:
                _write_archive(job, task, labels.arrays)
                facts = labels.facts
        write_text(job.path(task, ".json"), json.dumps(asdict(task) | facts, indent=1))
        yield task.name


def _load_module(task: ProgramTask, seed: int, session: CompilerSession) -> bytes:
    if task.source == "zoo":
        try:
            return session.lower(draw_zoo_program(task.number, seed))
        except RuntimeError as fault:
            raise RefusedError(str(fault)) from None
    if task.source == "simulated":
        rng = np.random.default_rng([seed, task.number])
        return serialize_module(draw_program(_simulated_family(task.number), _SIMULATED_SIZE, rng, lowered=False))
    read_program(task.source)  # its errors name the file
    return Path(task.source).read_bytes()


def _write_archive(job: LabelJob, task: ProgramTask, arrays: dict[str, np.ndarray]) -> None:
    """Writes an archive; as in the official tree, test archives hide the runtimes, which go to a tree of truth."""
    folder = Path(job.collection_folder) / task.split
    if task.split == "test":
        runtimes = arrays["config_runtime"]
        write_npz(job.output / "truth" / folder / f"{task.name}.npz", {"config_runtime": runtimes})
        arrays = arrays | {"config_runtime": np.zeros_like(runtimes)}
    write_archive(job.output / "npz" / folder / f"{task.name}.npz", arrays)


def _commit(_: None, job: LabelJob, labelled: list[str]) -> int:
    """The number of programs; raises if one is lost, and writes labels.json unless every program was refused."""
    lost = [task.name for task in job.tasks if not job.path(task, ".json").exists()]
    if lost:
        raise RuntimeError(f"the runner lost the programs {lost} of {len(labelled)}")
    programs = [json.loads(job.path(task, ".json").read_text()) for task in job.tasks]
    reasons = [each["unlabelled"] for each in programs if "unlabelled" in each]
    if len(reasons) == len(programs):
        raise RuntimeError(f"all {len(programs)} programs were refused, the first: {reasons[0]}")
    content = {
        "runtimes": "estimated",
        "estimated_by": "the TPU compiler: the sum of the estimated cycles of the compiled program's ops, at the clock",
        "megahertz": find_chip(job.options.topology).megahertz,
        "collection": f"layout:xla:{job.options.search}",
        **job.recipe,
        "labelled": programs,
    }
    write_text(job.output / LABELS_NAME, json.dumps(content, indent=1))
    return len(programs)


def summarize(labels: dict[str, Any]) -> LabelSummary:
    """The counts of labels.json."""
    programs = [each for each in labels["labelled"] if "unlabelled" not in each]
    return LabelSummary(
        programs={split: sum(each["split"] == split for each in programs) for split in SPLITS},
        candidates=sum(each["candidates"] for each in programs),
        refused_candidates=sum(sum(each["refused"].values()) for each in programs),
        refused_programs={each["title"]: each["unlabelled"] for each in labels["labelled"] if "unlabelled" in each},
    )

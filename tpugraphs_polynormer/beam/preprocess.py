"""The Beam job from npz archives to datasets: plan shards, write each in one step, then one last step that commits.

Beam's runners differ in what they lose (some drop tagged outputs, finish_bundle or all sinks but the last). So there is
one chain only: shards are planned before the job, each is written whole by one DoFn, and the last step takes all
descriptions, counts them against the plan, and writes the manifests. Heavy data never passes through a shuffle.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import apache_beam as beam
from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.filesystems import FileSystems

from tpugraphs_polynormer.beam.runners import make_options, run_pipeline
from tpugraphs_polynormer.catalog import SPLITS, find_collection
from tpugraphs_polynormer.datasets.exclusion import find_excluded, read_patterns
from tpugraphs_polynormer.datasets.manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest, write_json
from tpugraphs_polynormer.datasets.schema import SCHEMA_NAME, write_schema
from tpugraphs_polynormer.datasets.shards import (
    DESCRIPTION_SUFFIX,
    PreprocessOptions,
    ShardDescription,
    describe_split,
    moments_of,
    write_shard,
)
from tpugraphs_polynormer.datasets.split_files import CANDIDATE_SUFFIX, RECORD_SUFFIX
from tpugraphs_polynormer.datasets.statistics import FeatureStatistics, Moments, merge, summarize_moments
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import replacing

FAILURE_NAME = "failed.txt"
REJECTED_NAME = "rejected.jsonl"
# What this job writes into a collection's folder, besides the commit.
_OWN_FILES = re.compile(r"(train|valid|test)-\d+-of-\d+\.(tfrecord|candidates|shard\.json)|\..+\.tmp")


class PreprocessError(UserError):
    """The job cannot start, or did not finish: says why and what to do."""


@dataclass(frozen=True)
class ShardPlan:
    """One unit of work: the archives of one shard of one split."""

    collection: str
    split: str
    name: str
    sources: tuple[str, ...]  # paths, sorted by file name
    source_bytes: int  # of all of them
    options: PreprocessOptions


@dataclass(frozen=True)
class Job:
    """What the workers need to know."""

    output: str
    plans: tuple[ShardPlan, ...]
    excluded: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)  # collection -> split -> names

    @property
    def collections(self) -> tuple[str, ...]:
        """The collections of the plan, in order."""
        return tuple(dict.fromkeys(plan.collection for plan in self.plans))


def plan_job(
    input_folder: str,
    output: str,
    collections: Mapping[str, PreprocessOptions],
    *,
    input_format: str = "npz",
    exclude: Sequence[str] = (),
) -> Job:
    """Lists the archives and assigns them to shards by name alone, so that every run plans the same.

    `input_format` "pb" takes layout tuning protobufs instead, `[pb/]<collection folder>/<split>/*.pb`, one graph each.
    Graphs whose names match a pattern of `exclude` are left out (see exclusion.py).
    """
    files: dict[tuple[str, str], list[FileMetadata]] = {}
    for collection in collections:
        if input_format == "pb" and find_collection(collection).kind == "tile":
            raise PreprocessError(f"{collection}: a tile protobuf holds many kernels; run `tpugraphs featurize` first")
        found = {split: _list_archives(input_folder, input_format, collection, split) for split in SPLITS}
        if not any(found.values()):
            place = FileSystems.join(input_folder, input_format, find_collection(collection).folder)
            advice = "check --archives and --format, or run `tpugraphs download` first"
            raise PreprocessError(f"{place}: no <split>/*.{input_format} found; {advice}")
        files |= {(collection, split): found[split] for split in SPLITS}
    excluded = find_excluded(
        {place: [_graph_name(file.path) for file in each] for place, each in files.items()}, exclude
    )
    plans = []
    for (collection, split), each in files.items():
        left_out = excluded.get(collection, {}).get(split, ())
        kept = [file for file in each if _graph_name(file.path) not in left_out]
        plans += _plan_split(collection, split, kept, collections[collection])
    return Job(output, tuple(plans), excluded)


def _list_archives(input_folder: str, input_format: str, collection: str, split: str) -> list[FileMetadata]:
    """A split's archives, sorted by file name."""
    parts = (*find_collection(collection).folder.split("/"), split, f"*.{input_format}")
    patterns = [FileSystems.join(input_folder, input_format, *parts), FileSystems.join(input_folder, *parts)]
    matches = [match.metadata_list for match in FileSystems.match(patterns)]
    return sorted(matches[0] or matches[1], key=lambda file: FileSystems.split(file.path)[1])


def _plan_split(
    collection: str, split: str, files: Sequence[FileMetadata], options: PreprocessOptions
) -> list[ShardPlan]:
    step = options.graphs_per_shard
    chunks = [files[start : start + step] for start in range(0, len(files), step)]
    return [
        ShardPlan(
            collection,
            split,
            f"{split}-{number:05d}-of-{len(chunks):05d}",
            tuple(file.path for file in chunk),
            sum(file.size_in_bytes for file in chunk),
            options,
        )
        for number, chunk in enumerate(chunks)
    ]


class Preprocess(beam.PTransform):
    """PBegin -> one element per collection, its id, once its manifest is written."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def expand(self, begin: beam.Pipeline) -> beam.PCollection:
        """Plans -> descriptions -> (statistics per collection) -> manifests."""
        described = (
            begin
            | "Plans" >> beam.Create(self._job.plans, reshuffle=True)
            | "WriteShards" >> beam.ParDo(WriteShard(self._job.output))
        )
        statistics = (
            described
            | "TrainMoments" >> beam.FlatMap(_train_moments)
            | "Statistics" >> beam.CombinePerKey(MergeMoments())
        )
        return (
            begin
            | "Once" >> beam.Create([None])
            | "Commit"
            >> beam.FlatMap(_commit, self._job, beam.pvalue.AsList(described), beam.pvalue.AsDict(statistics))
        )


class WriteShard(beam.DoFn):
    """ShardPlan -> (collection, ShardDescription); a bad archive stops the job through a note in the output folder."""

    def __init__(self, output: str) -> None:
        self._output = output

    def process(self, plan: ShardPlan) -> Iterator[tuple[str, ShardDescription]]:
        """Writes one shard, unless another one has failed meanwhile."""
        if read_failure(self._output) is not None:
            return
        folder = _folder_of(self._output, plan.collection)
        with _localize(folder, plan) as (local, sources):
            try:
                description = write_shard(
                    local,
                    plan.name,
                    sources,
                    kind=find_collection(plan.collection).kind,
                    is_train=plan.split == "train",
                    options=plan.options,
                )
            except UserError as fault:
                _publish_text(self._output, FAILURE_NAME, _name_sources(str(fault), sources, plan))
                return
        yield plan.collection, description


@contextmanager
def _localize(folder: str, plan: ShardPlan) -> Iterator[tuple[Path, dict[str, Path]]]:
    """Local paths for a plan (its folder, its archives): the very files, or copies that are carried back if remote."""
    with tempfile.TemporaryDirectory(prefix="tpugraphs-") as temporary:
        sources = {_graph_name(path): _copy_near(path, Path(temporary)) for path in plan.sources}
        if not _is_remote(folder):
            yield Path(folder), sources
            return
        names = [plan.name + suffix for suffix in (RECORD_SUFFIX, CANDIDATE_SUFFIX, DESCRIPTION_SUFFIX)]
        paths = [FileSystems.join(folder, name) for name in names]
        if all(FileSystems.exists(path) for path in paths):  # an earlier run's shard, to be found whole
            for path in paths:
                _copy_near(path, Path(temporary))
        before = _times(temporary, names)
        yield Path(temporary), sources
        if _times(temporary, names) != before:
            for name, path in zip(names, paths, strict=True):
                with (Path(temporary) / name).open("rb") as source:
                    _publish(path, source)


def _times(folder: str, names: Sequence[str]) -> list[int]:
    return [path.stat().st_mtime_ns for path in map(Path(folder).joinpath, names) if path.exists()]


def _copy_near(path: str, folder: Path) -> Path:
    if not _is_remote(path):
        return Path(path)
    local = folder / FileSystems.split(path)[1]
    with FileSystems.open(path) as source, local.open("wb") as target:
        shutil.copyfileobj(source, target)
    return local


def _name_sources(text: str, sources: Mapping[str, Path], plan: ShardPlan) -> str:
    """A message about local copies, told about what they are copies of."""
    for local, path in zip(sources.values(), plan.sources, strict=True):
        text = text.replace(str(local), path)
    return text


def _graph_name(path: str) -> str:
    return FileSystems.split(path)[1].removesuffix(".npz").removesuffix(".pb")


def _folder_of(output: str, collection: str) -> str:
    return FileSystems.join(output, *find_collection(collection).folder.split("/"))


def _is_remote(path: str) -> bool:
    return "://" in path


class MergeMoments(beam.CombineFn):
    """(shard name, Moments) of one collection -> FeatureStatistics; merged in the order of names, so exactly once."""

    def create_accumulator(self) -> list[tuple[str, Moments]]:
        """Nothing yet."""
        return []

    def add_input(self, accumulator: list, element: tuple[str, Moments]) -> list:
        """Remembers a shard's moments: a few kilobytes."""
        return [*accumulator, element]

    def merge_accumulators(self, accumulators: Iterable[list]) -> list:
        """All of them."""
        return [element for accumulator in accumulators for element in accumulator]

    def extract_output(self, accumulator: list[tuple[str, Moments]]) -> FeatureStatistics:
        """Float sums depend on their order: names decide it, not the runner."""
        return summarize_moments(merge(moments for _, moments in sorted(accumulator, key=lambda element: element[0])))


def _train_moments(element: tuple[str, ShardDescription]) -> Iterator[tuple[str, tuple[str, Moments]]]:
    collection, description = element
    moments = moments_of(description)
    if moments is not None:
        yield collection, (description.shard.name, moments)


def _commit(
    _: None, job: Job, described: list[tuple[str, ShardDescription]], statistics: dict[str, FeatureStatistics]
) -> Iterator[str]:
    """Counts what was written against the plan, then writes each collection's manifest; yields what is finished."""
    if read_failure(job.output) is not None:
        return
    for collection in job.collections:
        plans = [plan for plan in job.plans if plan.collection == collection]
        descriptions = {item.shard.name: item for owner, item in described if owner == collection}
        _check_complete(collection, plans, descriptions)
        _check_files(_folder_of(job.output, collection), descriptions.values())
        _write_manifest(job, collection, plans, descriptions, statistics.get(collection))
        yield collection


def _check_complete(collection: str, plans: Sequence[ShardPlan], found: dict[str, ShardDescription]) -> None:
    lost = [plan.name for plan in plans if plan.name not in found]
    foreign = sorted(set(found) - {plan.name for plan in plans})
    if lost or foreign:
        raise RuntimeError(f"{collection}: the runner lost shards {lost} and made up {foreign}")
    for plan in plans:
        description = found[plan.name]
        if len(description.shard.graphs) + len(description.rejected) != len(plan.sources):
            raise RuntimeError(f"{collection} {plan.name}: {len(plan.sources)} archives went in, fewer came out")


def _check_files(folder: str, descriptions: Iterable[ShardDescription]) -> None:
    """Every shard file lies where the manifest will say: not so where workers write to disks of their own."""
    match = FileSystems.match([FileSystems.join(folder, "*")])[0]
    sizes = {FileSystems.split(item.path)[1]: item.size_in_bytes for item in match.metadata_list}
    for shard in (description.shard for description in descriptions):
        for suffix, size in ((RECORD_SUFFIX, shard.record_bytes), (CANDIDATE_SUFFIX, shard.candidate_bytes)):
            if sizes.get(shard.name + suffix) != size:
                place = FileSystems.join(folder, shard.name + suffix)
                raise RuntimeError(f"{place}: {sizes.get(shard.name + suffix)} bytes found, {size} were written")


def _write_manifest(
    job: Job,
    collection: str,
    plans: Sequence[ShardPlan],
    found: dict[str, ShardDescription],
    statistics: FeatureStatistics | None,
) -> None:
    folder = _folder_of(job.output, collection)
    rejected = [item for plan in plans for item in found[plan.name].rejected]
    if rejected:
        lines = [json.dumps(dataclasses.asdict(item)) + "\n" for item in rejected]
        _publish_text(folder, REJECTED_NAME, "".join(lines))
    kind = find_collection(collection).kind
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        collection=collection,
        kind=kind,
        options=plans[0].options.recorded(),
        splits={
            split: describe_split([found[plan.name] for plan in plans if plan.split == split])
            for split in SPLITS
            if any(plan.split == split for plan in plans)
        },
        statistics=statistics,
        num_rejected=len(rejected),
        excluded=dict(job.excluded.get(collection, {})),
    )
    with tempfile.TemporaryDirectory() as temporary:
        write_schema(Path(temporary), kind)
        write_json(Path(temporary) / MANIFEST_NAME, manifest)
        for name in (SCHEMA_NAME, MANIFEST_NAME):  # the manifest last: it is the commit
            with (Path(temporary) / name).open("rb") as source:
                _publish(FileSystems.join(folder, name), source)


def count_finished(job: Job) -> int:
    """How many shards of the plan have been described so far; earlier runs' shards count once they are checked."""
    patterns = [FileSystems.join(_folder_of(job.output, name), "*" + DESCRIPTION_SUFFIX) for name in job.collections]
    return sum(len(match.metadata_list) for match in FileSystems.match(patterns))


def clear_commit(job: Job) -> None:
    """Takes back earlier manifests and notes, and what no longer belongs: from here on the output is unfinished."""
    _make_folders(job)
    names = [FileSystems.join(job.output, FAILURE_NAME)]
    for collection in job.collections:
        folder = _folder_of(job.output, collection)
        names += [FileSystems.join(folder, name) for name in (MANIFEST_NAME, REJECTED_NAME)]
    present = [name for name in names if FileSystems.exists(name)]
    if present:
        FileSystems.delete(present)
    stale = [path for collection in job.collections for path in _find_stale(job, collection)]
    if stale:
        FileSystems.delete(stale)


def _make_folders(job: Job) -> None:
    for folder in (_folder_of(job.output, collection) for collection in job.collections):
        if _is_remote(folder):
            continue
        try:
            os.makedirs(folder, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as fault:
            raise PreprocessError(
                f"{folder}: cannot be written ({fault.strerror}); choose another --datasets folder"
            ) from None


def _find_stale(job: Job, collection: str) -> list[str]:
    """Shards of another plan and the temporary files of killed runs."""
    planned = tuple(plan.name + "." for plan in job.plans if plan.collection == collection)
    folder = _folder_of(job.output, collection)
    paths = [item.path for item in FileSystems.match([FileSystems.join(folder, "*")])[0].metadata_list]
    names = {path: FileSystems.split(path)[1] for path in paths}
    return [path for path, name in names.items() if _OWN_FILES.fullmatch(name) and not name.startswith(planned)]


def check_commit(job: Job) -> None:
    """Raises PreprocessError unless every collection's manifest is there: some runners report success regardless."""
    failure = read_failure(job.output)
    if failure is not None:
        raise PreprocessError(f"{failure}; or leave bad archives out with --on-error skip")
    for collection in job.collections:
        path = FileSystems.join(_folder_of(job.output, collection), MANIFEST_NAME)
        if not FileSystems.exists(path):
            raise PreprocessError(f"{path}: the runner reported success without writing it; run the same command again")


def read_failure(output: str) -> str | None:
    """Why a worker stopped the job, if one did."""
    path = FileSystems.join(output, FAILURE_NAME)
    if not FileSystems.exists(path):
        return None
    with FileSystems.open(path) as stream:
        return stream.read().decode()


def _publish_text(folder: str, name: str, text: str) -> None:
    with tempfile.TemporaryFile() as source:
        source.write(text.encode())
        source.seek(0)
        _publish(FileSystems.join(folder, name), source)


def _publish(path: str, source: IO[bytes]) -> None:
    """A file appears under its name whole: by a rename on local disks, on close in an object store."""
    if _is_remote(path):
        with FileSystems.create(path) as target:
            shutil.copyfileobj(source, target)
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary, temporary.open("wb") as stream:
        shutil.copyfileobj(source, stream)


_GRAPHS_PER_SHARD = {"layout": 4, "tile": 256}


def run(args: argparse.Namespace, beam_arguments: Sequence[str]) -> dict[str, int]:
    """Runs the job to its end; the collections that are now finished, and how many graphs of each were excluded."""
    collections = {
        collection: PreprocessOptions(
            max_nodes=args.max_nodes,
            num_hops=args.hops,
            graphs_per_shard=args.graphs_per_shard or _GRAPHS_PER_SHARD[find_collection(collection).kind],
            skip_bad=args.on_error == "skip",
        )
        for collection in args.collections
    }
    exclude = [*args.exclude, *(read_patterns(args.exclude_file) if args.exclude_file else [])]
    job = plan_job(args.archives, args.datasets, collections, input_format=args.format, exclude=exclude)
    options = make_options(beam_arguments, count_workers(job))
    clear_commit(job)
    run_pipeline(Preprocess(job), options, lambda: count_finished(job), len(job.plans))
    check_commit(job)
    return {name: sum(map(len, job.excluded.get(name, {}).values())) for name in job.collections}


def count_workers(job: Job) -> int:
    """How many processes the archives deserve on this machine, one for every ten seconds of estimated work.

    A worker takes about two seconds to start. On one core of the machine of docs/results.md a tile archive took 3 ms
    and a layout archive a second for every 30 MB on disk.
    """
    num_sources = sum(len(plan.sources) for plan in job.plans)
    seconds = num_sources * 0.003 + sum(plan.source_bytes for plan in job.plans) / 30e6
    return min(os.cpu_count() or 1, len(job.plans), 1 + int(seconds / 10))

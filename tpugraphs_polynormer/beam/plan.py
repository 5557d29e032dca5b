"""The plan of the preprocessing job: which archives become which shards. File names alone decide it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.filesystems import FileSystems

from tpugraphs_polynormer.catalog import SPLITS, find_collection
from tpugraphs_polynormer.datasets.exclusion import find_excluded
from tpugraphs_polynormer.datasets.shards import PreprocessOptions
from tpugraphs_polynormer.errors import UserError


class PreprocessError(UserError):
    """A job that cannot start or did not finish; the message says why and what to do."""


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
    """The shards to write, and where."""

    output: str
    plans: tuple[ShardPlan, ...]
    excluded: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)  # collection -> split -> names
    token: str = ""  # of one run of the job; see check_newest

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
    """The job of the collections' archives, assigned to shards by name, so that every run makes the same plan.

    Args:
      input_folder: holds `[npz/]<collection folder>/<split>/*.npz`.
      output: the folder for the datasets.
      collections: the options of each collection id.
      input_format: "npz", or "pb" for layout tuning protobufs, one graph each.
      exclude: graphs whose names match one of these patterns are left out (see exclusion.py).
    """
    files: dict[tuple[str, str], list[FileMetadata]] = {}
    for collection in collections:
        if input_format == "pb" and find_collection(collection).kind == "tile":
            raise PreprocessError(f"{collection}: a tile protobuf holds many kernels; run `tpugraphs featurize` first")
        found = {split: _list_archives(input_folder, input_format, collection, split) for split in SPLITS}
        if not any(found.values()):
            folder = FileSystems.join(input_folder, input_format, find_collection(collection).folder)
            advice = "check --archives and --format, or run `tpugraphs download` first"
            raise PreprocessError(f"{folder}: no <split>/*.{input_format} found; {advice}")
        files |= {(collection, split): found[split] for split in SPLITS}
    excluded = find_excluded({key: [graph_name(file.path) for file in each] for key, each in files.items()}, exclude)
    plans = []
    for (collection, split), each in files.items():
        left_out = excluded.get(collection, {}).get(split, ())
        kept = [file for file in each if graph_name(file.path) not in left_out]
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


def graph_name(path: str) -> str:
    """The name of the graph in an archive: its file name without the suffix."""
    return FileSystems.split(path)[1].removesuffix(".npz").removesuffix(".pb")


def folder_of(output: str, collection: str) -> str:
    """The folder of a collection's dataset."""
    return FileSystems.join(output, *find_collection(collection).folder.split("/"))


def count_workers(job: Job) -> int:
    """The number of processes for a job on this machine: one for every ten seconds of estimated work.

    A worker takes about two seconds to start. On one core of the machine of docs/results.md a tile archive took 3 ms
    and a layout archive a second for every 30 MB on disk.
    """
    num_sources = sum(len(plan.sources) for plan in job.plans)
    seconds = num_sources * 0.003 + sum(plan.source_bytes for plan in job.plans) / 30e6
    return min(os.cpu_count() or 1, len(job.plans), 1 + int(seconds / 10))

"""The commit of the preprocessing job: the output is finished when every collection has its manifest."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from apache_beam.io.filesystems import FileSystems

from tpugraphs_polynormer.archives.estimated import name_origin
from tpugraphs_polynormer.beam.plan import Job, PreprocessError, ShardPlan, folder_of
from tpugraphs_polynormer.catalog import SPLITS, find_collection
from tpugraphs_polynormer.datasets.manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest, serialize_manifest
from tpugraphs_polynormer.datasets.schema import SCHEMA_NAME, schema_text
from tpugraphs_polynormer.datasets.shards import DESCRIPTION_SUFFIX, ShardDescription, describe_split, train_statistics
from tpugraphs_polynormer.datasets.split_files import CANDIDATE_SUFFIX, RECORD_SUFFIX
from tpugraphs_polynormer.files import remove_leftovers, replacing, writing

FAILURE_NAME = "failed.txt"
REJECTED_NAME = "rejected.jsonl"
RUNNING_NAME = "running.txt"
# What this job writes into a collection's folder, besides the commit.
_OWN_FILES = re.compile(r"(train|valid|test)-\d+-of-\d+\.(tfrecord|candidates|shard\.json)|\..+\.tmp")


class CollectionSummary(NamedTuple):
    """How many archives of a collection were read, and what became of them."""

    num_archives: int
    num_graphs: int
    num_shards: int
    num_rejected: int
    num_excluded: int


def clear_commit(job: Job) -> None:
    """Removes earlier manifests, failure notes and stale shards, so that the output counts as unfinished."""
    _make_folders(job)
    if job.token:
        publish_text(job.output, RUNNING_NAME, job.token)
    names = [FileSystems.join(job.output, FAILURE_NAME)]
    for collection in job.collections:
        folder = folder_of(job.output, collection)
        names += [FileSystems.join(folder, name) for name in (MANIFEST_NAME, REJECTED_NAME)]
    present = [name for name in names if FileSystems.exists(name)]
    if present:
        FileSystems.delete(present)
    stale = [path for collection in job.collections for path in _find_stale(job, collection)]
    if stale:
        FileSystems.delete(stale)


def check_newest(output: str, token: str) -> None:
    """Raises unless the run of this token is the one that writes to the output now; for a worker, before it writes.

    After kill -9 of the command, a cluster continues its job. That job must not touch what a later run writes.
    """
    if not token:
        return
    found = _read_text(FileSystems.join(output, RUNNING_NAME))
    if found != token:
        raise RuntimeError(f"{output}: a later run of the job writes here, or has finished; this one stops")


def end_run(job: Job) -> None:
    """Removes the note of a run that has ended, and what its killed workers left half-written."""
    path = FileSystems.join(job.output, RUNNING_NAME)
    if _read_text(path) == job.token:
        FileSystems.delete([path])
    if not is_remote(job.output):
        remove_leftovers(Path(job.output))


def _make_folders(job: Job) -> None:
    for folder in (folder_of(job.output, collection) for collection in job.collections):
        if is_remote(folder):
            continue
        with writing(folder, "--datasets folder"):
            os.makedirs(folder, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()


def _find_stale(job: Job, collection: str) -> list[str]:
    """The paths of shards of another plan and of temporary files of killed runs."""
    planned = tuple(plan.name + "." for plan in job.plans if plan.collection == collection)
    folder = folder_of(job.output, collection)
    paths = [item.path for item in FileSystems.match([FileSystems.join(folder, "*")])[0].metadata_list]
    names = {path: FileSystems.split(path)[1] for path in paths}
    return [path for path, name in names.items() if _OWN_FILES.fullmatch(name) and not name.startswith(planned)]


def count_finished(job: Job) -> int:
    """The number of shards with a description, those of earlier runs included; for the progress bar."""
    patterns = [FileSystems.join(folder_of(job.output, name), "*" + DESCRIPTION_SUFFIX) for name in job.collections]
    return sum(len(match.metadata_list) for match in FileSystems.match(patterns))


def commit(_: None, job: Job, described: list[tuple[str, ShardDescription]]) -> Iterator[str]:
    """Yields the id of each collection whose manifest is written, after its shards were counted against the plan."""
    check_newest(job.output, job.token)
    if read_failure(job.output) is not None:
        return
    for collection in job.collections:
        plans = [plan for plan in job.plans if plan.collection == collection]
        descriptions = {item.shard.name: item for owner, item in described if owner == collection}
        _check_complete(collection, plans, descriptions)
        emptied = _find_emptied(collection, plans, descriptions)
        if emptied:
            publish_text(job.output, FAILURE_NAME, emptied)
            return
        _check_files(folder_of(job.output, collection), descriptions.values())
        _write_manifest(job, collection, plans, descriptions)
        yield collection


def _check_complete(collection: str, plans: Sequence[ShardPlan], found: dict[str, ShardDescription]) -> None:
    lost = [plan.name for plan in plans if plan.name not in found]
    foreign = sorted(set(found) - {plan.name for plan in plans})
    if lost or foreign:
        raise RuntimeError(f"{collection}: the runner lost the shards {lost} and returned unplanned ones {foreign}")
    for plan in plans:
        description = found[plan.name]
        if len(description.shard.graphs) + len(description.rejected) != len(plan.sources):
            raise RuntimeError(
                f"{collection} {plan.name}: {len(plan.sources)} archives were planned, fewer are accounted for"
            )


def _find_emptied(collection: str, plans: Sequence[ShardPlan], found: dict[str, ShardDescription]) -> str | None:
    """What to say of a split whose archives were all rejected, or None."""
    for split in dict.fromkeys(plan.split for plan in plans):
        descriptions = [found[plan.name] for plan in plans if plan.split == split]
        rejected = [item for description in descriptions for item in description.rejected]
        if rejected and not any(description.shard.graphs for description in descriptions):
            first = f"the first: {rejected[0].reason}"
            return (
                f"{collection}: all {len(rejected):,} archives of the {split} split were rejected, 0 are left; {first}"
            )
    return None


def _check_files(folder: str, descriptions: Iterable[ShardDescription]) -> None:
    """Raises unless every shard file is in the output folder; a worker may have written to a disk of its own."""
    match = FileSystems.match([FileSystems.join(folder, "*")])[0]
    sizes = {FileSystems.split(item.path)[1]: item.size_in_bytes for item in match.metadata_list}
    for shard in (description.shard for description in descriptions):
        for suffix, size in ((RECORD_SUFFIX, shard.record_bytes), (CANDIDATE_SUFFIX, shard.candidate_bytes)):
            if sizes.get(shard.name + suffix) != size:
                path = FileSystems.join(folder, shard.name + suffix)
                raise RuntimeError(f"{path}: {sizes.get(shard.name + suffix)} bytes found, {size} were written")


def _write_manifest(job: Job, collection: str, plans: Sequence[ShardPlan], found: dict[str, ShardDescription]) -> None:
    folder = folder_of(job.output, collection)
    rejected = [item for plan in plans for item in found[plan.name].rejected]
    if rejected:
        lines = [json.dumps(dataclasses.asdict(item)) + "\n" for item in rejected]
        publish_text(folder, REJECTED_NAME, "".join(lines))
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
        statistics=train_statistics(found.values()),
        num_rejected=len(rejected),
        excluded=dict(job.excluded.get(collection, {})),
        origin=_join_origins(plans),
    )
    publish_text(folder, SCHEMA_NAME, schema_text(kind))
    publish_text(folder, MANIFEST_NAME, serialize_manifest(manifest))  # last: it is the commit


def _join_origins(plans: Sequence[ShardPlan]) -> str:
    """Where the runtimes come from: what the file beside the archives says of the first archive of each shard."""
    return "; ".join(dict.fromkeys(name_origin(plan.sources[0]) for plan in plans))


def check_commit(job: Job) -> None:
    """Raises PreprocessError if a manifest is missing: some runners report success for a failed job."""
    failure = read_failure(job.output)
    if failure is not None:
        skips = any(plan.options.skip_bad for plan in job.plans)
        raise PreprocessError(failure if skips else f"{failure}; or leave bad archives out with --on-error skip")
    for collection in job.collections:
        path = FileSystems.join(folder_of(job.output, collection), MANIFEST_NAME)
        if not FileSystems.exists(path):
            raise PreprocessError(f"{path}: the runner reported success without writing it; run the same command again")


def summarize_commit(job: Job) -> dict[str, CollectionSummary]:
    """What the job wrote, by collection."""
    summaries = {}
    for collection in job.collections:
        plans = [plan for plan in job.plans if plan.collection == collection]
        path = FileSystems.join(folder_of(job.output, collection), MANIFEST_NAME)
        with FileSystems.open(path) as stream:
            manifest = json.loads(stream.read())
        summaries[collection] = CollectionSummary(
            num_archives=sum(len(plan.sources) for plan in plans),
            num_graphs=sum(split["num_graphs"] for split in manifest["splits"].values()),
            num_shards=len(plans),
            num_rejected=manifest["num_rejected"],
            num_excluded=sum(map(len, job.excluded.get(collection, {}).values())),
        )
    return summaries


def read_failure(output: str) -> str | None:
    """The reason why a worker stopped the job, or None."""
    return _read_text(FileSystems.join(output, FAILURE_NAME))


def _read_text(path: str) -> str | None:
    """The text of a local or remote file; None if it is not there."""
    if not FileSystems.exists(path):
        return None
    with FileSystems.open(path) as stream:
        return stream.read().decode()


def publish_text(folder: str, name: str, text: str) -> None:
    """Writes a whole text file to a local or remote folder."""
    publish(FileSystems.join(folder, name), io.BytesIO(text.encode()))


def publish(path: str, source: IO[bytes]) -> None:
    """Copies a stream to a file that appears whole: by a rename on local disks, on close in an object store."""
    if is_remote(path):
        with FileSystems.create(path) as target:
            shutil.copyfileobj(source, target)
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target, durable=True) as temporary, temporary.open("wb") as stream:
        shutil.copyfileobj(source, stream)


def is_remote(path: str) -> bool:
    """Whether a path names an object store or another remote file system."""
    return "://" in path

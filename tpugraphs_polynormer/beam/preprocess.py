"""The Beam job from npz archives to datasets: plan shards, write each in one step, then commit in one last step.

Beam's runners lose different things: some drop tagged outputs, some finish_bundle, some all sinks but the last. The job
therefore is one chain: shards are planned before it starts, one DoFn writes each shard whole, and the last step takes
all descriptions, counts them against the plan and writes the manifests. Heavy data never passes through a shuffle.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems

from tpugraphs_polynormer.beam.commit import (
    FAILURE_NAME,
    CollectionSummary,
    check_commit,
    check_newest,
    clear_commit,
    commit,
    count_finished,
    end_run,
    is_remote,
    publish,
    publish_text,
    read_failure,
    summarize_commit,
)
from tpugraphs_polynormer.beam.local_copy import reaching
from tpugraphs_polynormer.beam.plan import Job, ShardPlan, count_workers, folder_of, graph_name, plan_job
from tpugraphs_polynormer.beam.runners import make_options, run_pipeline
from tpugraphs_polynormer.catalog import find_collection
from tpugraphs_polynormer.datasets.exclusion import read_patterns
from tpugraphs_polynormer.datasets.shards import DESCRIPTION_SUFFIX, PreprocessOptions, ShardDescription, write_shard
from tpugraphs_polynormer.datasets.split_files import CANDIDATE_SUFFIX, RECORD_SUFFIX
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import only_writer

_GRAPHS_PER_SHARD = {"layout": 4, "tile": 256}


def run(args: argparse.Namespace, beam_arguments: Sequence[str]) -> dict[str, CollectionSummary]:
    """What became of each collection, after the job has run to its end."""
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
    FileSystems.set_options(make_options(beam_arguments))  # else s3:// is refused until the job runs
    # Workers of a cluster have another current folder.
    archives, datasets = (each if is_remote(each) else os.path.abspath(each) for each in (args.archives, args.datasets))
    with reaching(archives, datasets):
        job = plan_job(archives, datasets, collections, input_format=args.format, exclude=exclude)
    job = dataclasses.replace(job, token=uuid.uuid4().hex)
    options = make_options(beam_arguments, count_workers(job))
    with contextlib.nullcontext() if is_remote(job.output) else only_writer(job.output):
        with reaching(datasets):
            clear_commit(job)
        try:
            run_pipeline(Preprocess(job), options, lambda: count_finished(job), len(job.plans))
        finally:
            end_run(job)
        check_commit(job)
        return summarize_commit(job)


class Preprocess(beam.PTransform):
    """PBegin -> one element per collection, its id, once its manifest is written."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def expand(self, begin: beam.Pipeline) -> beam.PCollection:
        """Plans -> descriptions -> manifests."""
        described = (
            begin
            | "Plans" >> beam.Create(self._job.plans, reshuffle=True)
            | "WriteShards" >> beam.ParDo(WriteShard(self._job.output, self._job.token))
        )
        return (
            begin
            | "Once" >> beam.Create([None])
            | "Commit" >> beam.FlatMap(commit, self._job, beam.pvalue.AsList(described))
        )


class WriteShard(beam.DoFn):
    """ShardPlan -> (collection, ShardDescription). A bad archive leaves a failure note, which stops the job."""

    def __init__(self, output: str, token: str = "") -> None:
        self._output, self._token = output, token

    def process(self, plan: ShardPlan) -> Iterator[tuple[str, ShardDescription]]:
        """Writes one shard, unless another one has failed."""
        check_newest(self._output, self._token)
        if read_failure(self._output) is not None:
            return
        folder = folder_of(self._output, plan.collection)
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
                publish_text(self._output, FAILURE_NAME, _name_sources(str(fault), sources, plan))
                return
        yield plan.collection, description


@contextmanager
def _localize(folder: str, plan: ShardPlan) -> Iterator[tuple[Path, dict[str, Path]]]:
    """Yields local paths of a plan's folder and archives; remote ones are copied, and a new shard is copied back."""
    with tempfile.TemporaryDirectory(prefix="tpugraphs-") as temporary:
        sources = {graph_name(path): _copy_near(path, Path(temporary)) for path in plan.sources}
        if not is_remote(folder):
            yield Path(folder), sources
            return
        names = [plan.name + suffix for suffix in (RECORD_SUFFIX, CANDIDATE_SUFFIX, DESCRIPTION_SUFFIX)]
        paths = [FileSystems.join(folder, name) for name in names]
        if all(FileSystems.exists(path) for path in paths):  # an earlier run's shard, which write_shard can reuse
            for path in paths:
                _copy_near(path, Path(temporary))
        before = _times(temporary, names)
        yield Path(temporary), sources
        if _times(temporary, names) != before:
            for name, path in zip(names, paths, strict=True):
                with (Path(temporary) / name).open("rb") as source:
                    publish(path, source)


def _times(folder: str, names: Sequence[str]) -> list[int]:
    return [path.stat().st_mtime_ns for path in map(Path(folder).joinpath, names) if path.exists()]


def _copy_near(path: str, folder: Path) -> Path:
    if not is_remote(path):
        return Path(path)
    local = folder / FileSystems.split(path)[1]
    with FileSystems.open(path) as source, local.open("wb") as target:
        shutil.copyfileobj(source, target)
    return local


def _name_sources(text: str, sources: Mapping[str, Path], plan: ShardPlan) -> str:
    """A message in which the paths of local copies are replaced by those of the originals."""
    for local, path in zip(sources.values(), plan.sources, strict=True):
        text = text.replace(str(local), path)
    return text

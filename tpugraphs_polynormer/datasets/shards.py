"""Writes one shard: the pair of files of some archives, and a description. An intact earlier shard is reused."""

from __future__ import annotations

import dataclasses
import json
import logging
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpugraphs_polynormer.archives.featurize import featurize_file
from tpugraphs_polynormer.archives.noise import group_equal, measure_noise
from tpugraphs_polynormer.archives.npz import (
    ArchiveError,
    LayoutArchive,
    TileArchive,
    iterate_layouts,
    read_archive,
    relative_costs,
)
from tpugraphs_polynormer.archives.writer import write_archive
from tpugraphs_polynormer.checksums import compare_file
from tpugraphs_polynormer.datasets.encoding import Candidates, collapse_duplicates, encode_layouts, encode_tiles
from tpugraphs_polynormer.datasets.manifest import (
    FORMAT_VERSION,
    DatasetError,
    GraphEntry,
    Rejected,
    ShardEntry,
    SplitEntry,
    hash_json,
    parse_record,
)
from tpugraphs_polynormer.datasets.pruning import keep_neighbourhood
from tpugraphs_polynormer.datasets.records import RECORD_FRAMING, serialize_graph, write_record
from tpugraphs_polynormer.datasets.split_files import (
    CANDIDATE_SUFFIX,
    RECORD_SUFFIX,
    append_checksums,
    candidate_bytes,
    shard_files,
    write_candidates,
)
from tpugraphs_polynormer.datasets.statistics import (
    FeatureStatistics,
    Moments,
    measure_moments,
    merge,
    summarize_moments,
    summarize_sizes,
)
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import check_name, hash_file, sync, write_text

DESCRIPTION_SUFFIX = ".shard.json"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreprocessOptions:
    """The options that decide the bytes of a dataset, besides the archives."""

    max_nodes: int = 0  # prune larger graphs to the neighbourhood of their config nodes; 0: never
    num_hops: int = 3  # how far that neighbourhood reaches at most
    graphs_per_shard: int = 4
    skip_bad: bool = False  # leave bad archives out and list them instead of stopping

    def __post_init__(self) -> None:
        for name, low in (("max_nodes", 0), ("num_hops", 0), ("graphs_per_shard", 1)):
            if getattr(self, name) < low:
                raise UserError(f"{name}: found {getattr(self, name)}, expected at least {low}")

    def recorded(self) -> dict[str, int]:
        """The options that the manifest records: all but `skip_bad`."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "skip_bad"}


@dataclass(frozen=True)
class ShardDescription:
    """The content of one shard, and the archives and options that it was made of."""

    format_version: int
    options: dict[str, Any]
    sources: dict[str, str]  # archive name -> sha256
    shard: ShardEntry
    moments: dict[str, Any] | None  # of a train shard
    rejected: tuple[Rejected, ...]


def write_shard(
    folder: Path, name: str, sources: Mapping[str, Path], *, kind: str, is_train: bool, options: PreprocessOptions
) -> ShardDescription:
    """The description of the shard `name` of the archives {graph name: path}, written unless it exists intact.

    All archives are of one `kind`, "layout" or "tile". Raises ArchiveError for a bad one.
    """
    checksums = {graph: hash_file(path) for graph, path in sources.items()}
    done = _find_whole(folder, name, checksums, options)
    if done:
        _logger.info("%s: already whole, reused", folder / name)
        return done
    token = uuid.uuid4().hex  # a runner may write the same shard twice at the same time
    staged = {suffix: folder / f".{name}{suffix}.{token}.tmp" for suffix in (RECORD_SUFFIX, CANDIDATE_SUFFIX)}
    try:
        description = _write_staged(staged, name, sources, checksums, kind, is_train, options)
        for suffix, path in staged.items():
            sync(path)
            path.replace(folder / (name + suffix))
    finally:
        for path in staged.values():
            path.unlink(missing_ok=True)
    # The description is written last: its presence means that the two files are complete.
    content = dataclasses.asdict(description)
    text = json.dumps({"sha256": hash_json(content), "description": content})
    write_text(folder / (name + DESCRIPTION_SUFFIX), text, durable=True)
    return description


def read_description(folder: Path, name: str) -> ShardDescription:
    """The description of a shard, its checksum verified."""
    path = folder / (name + DESCRIPTION_SUFFIX)
    try:
        content = json.loads(path.read_text())
        if content["sha256"] != hash_json(content["description"]):
            raise ValueError("its checksum is another")
        return parse_record(ShardDescription, content["description"], str(path))
    except (OSError, ValueError, LookupError, TypeError) as fault:
        raise DatasetError(f"{path}: not readable ({fault}); preprocess again") from None


def train_statistics(descriptions: Iterable[ShardDescription]) -> FeatureStatistics | None:
    """The statistics of the train shards among these, None without any.

    Sums of floats depend on their order, so the names of the shards decide it.
    """
    trained = sorted((each for each in descriptions if each.moments), key=lambda each: each.shard.name)
    if not trained:
        return None
    parts = ({key: np.array(value) for key, value in each.moments.items()} for each in trained)
    return summarize_moments(merge(Moments(**part | {"count": int(part["count"])}) for part in parts))


def describe_split(descriptions: Sequence[ShardDescription]) -> SplitEntry:
    """A split of these shards: counts and sizes over all their graphs."""
    graphs = [graph for description in descriptions for graph in description.shard.graphs]
    return SplitEntry(
        num_graphs=len(graphs),
        num_candidates=sum(graph.num_candidates for graph in graphs),
        sizes=summarize_sizes(np.array([graph.sizes for graph in graphs])),
        shards=tuple(description.shard for description in descriptions),
    )


def _find_whole(
    folder: Path, name: str, checksums: Mapping[str, str], options: PreprocessOptions
) -> ShardDescription | None:
    """The description of a shard that an earlier run made of the same input, if its files are intact."""
    try:
        found = read_description(folder, name)
    except DatasetError:
        return None
    wanted = (name, FORMAT_VERSION, options.recorded(), dict(checksums))
    if (found.shard.name, found.format_version, found.options, found.sources) != wanted or (
        found.rejected and not options.skip_bad
    ):
        return None
    if any(compare_file(folder / (name + suffix), *wanted) for suffix, wanted in shard_files(found.shard).items()):
        return None
    return found


def _write_staged(
    staged: Mapping[str, Path],
    name: str,
    sources: Mapping[str, Path],
    checksums: Mapping[str, str],
    kind: str,
    is_train: bool,
    options: PreprocessOptions,
) -> ShardDescription:
    entries: list[GraphEntry] = []
    moments: list[Moments] = []
    rejected: list[Rejected] = []
    record_offset = 0
    with staged[RECORD_SUFFIX].open("wb") as records, staged[CANDIDATE_SUFFIX].open("wb") as stream:
        for graph, path in sources.items():
            try:
                check_name(graph, str(path))
                archive, candidates = read_candidates(path, kind)
            except UserError as fault:
                if not options.skip_bad:
                    raise
                rejected.append(Rejected(path.name, str(fault).replace(str(path), path.name)))
                continue
            num_source = len(candidates.rows)
            groups = group_equal(candidates.codes)
            noise = measure_noise(relative_costs(candidates.runtimes, candidates.normalizers), groups)
            if is_train:
                candidates = collapse_duplicates(candidates, groups)
            kept = keep_neighbourhood(archive, options.max_nodes, options.num_hops)
            record, num_config_edges = serialize_graph(
                archive, kept, candidates.config_values, candidates.codes.shape[1]
            )
            write_record(records, record)
            entry = GraphEntry(
                name=graph,
                source_sha256=checksums[graph],
                record_offset=record_offset,
                record_length=len(record),
                codes_offset=stream.tell(),
                code_bytes=candidates.codes.itemsize,
                num_nodes=len(kept),
                num_edges=int(np.isin(archive.edge_index, kept).all(axis=1).sum()),
                num_config_nodes=candidates.codes.shape[1],
                num_config_edges=num_config_edges,
                num_config_values=len(candidates.config_values),
                num_candidates=len(candidates.codes),
                num_source_candidates=num_source,
                noise=noise,
                has_operands=archive.node_operands is not None,
            )
            record_offset += len(record) + RECORD_FRAMING
            write_candidates(stream, candidates)
            if stream.tell() - entry.codes_offset != candidate_bytes(entry):
                raise RuntimeError(f"{graph}: wrote {stream.tell() - entry.codes_offset} candidate bytes")
            entries.append(entry)
            if is_train:
                moments.append(measure_moments(archive.node_feat[kept], archive.node_opcode[kept]))
    checksums_crc32c = append_checksums(staged[CANDIDATE_SUFFIX])
    return ShardDescription(
        format_version=FORMAT_VERSION,
        options=options.recorded(),
        sources=dict(checksums),
        shard=ShardEntry(
            name=name,
            record_bytes=staged[RECORD_SUFFIX].stat().st_size,
            record_sha256=hash_file(staged[RECORD_SUFFIX]),
            candidate_bytes=staged[CANDIDATE_SUFFIX].stat().st_size,
            candidate_sha256=hash_file(staged[CANDIDATE_SUFFIX]),
            checksums_crc32c=checksums_crc32c,
            graphs=tuple(entries),
        ),
        moments={key: np.asarray(value).tolist() for key, value in vars(merge(moments)).items()} if moments else None,
        rejected=tuple(rejected),
    )


def read_candidates(path: Path, kind: str) -> tuple[TileArchive | LayoutArchive, Candidates]:
    """An archive and its encoded candidates; the dense tensor of layouts is never in memory as a whole.

    A layout tuning protobuf (.pb) is featurized first, into an archive of the same name.
    """
    if path.suffix == ".pb":
        with tempfile.TemporaryDirectory(prefix="tpugraphs-") as folder:
            converted = Path(folder) / f"{path.stem}.npz"
            write_archive(converted, featurize_file(path, operands=True))
            return read_candidates(converted, kind)
    archive = read_archive(path, with_candidates=False)
    if archive.kind != kind:
        raise ArchiveError(path, "kind", f"a {archive.kind} archive", f"a {kind} archive")
    if isinstance(archive, LayoutArchive):
        config_values, codes = encode_layouts(iterate_layouts(path), len(archive.node_config_ids))
        normalizers = np.ones(archive.num_candidates, np.int64)
    else:
        config_values, codes = encode_tiles(archive.config_feat)
        normalizers = archive.config_runtime_normalizers
    rows = np.arange(archive.num_candidates, dtype=np.int32)
    return archive, Candidates(config_values, codes, archive.config_runtime, normalizers, rows, np.ones_like(rows))

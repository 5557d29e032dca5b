"""manifest.json: the content of a preprocessed collection. A dataset without it is unfinished."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tpugraphs_polynormer.archives.estimated import UNKNOWN
from tpugraphs_polynormer.catalog import COLLECTIONS, NUM_NODE_FEATURES, NUM_OPCODES
from tpugraphs_polynormer.config.parser import ParseError, parse_dataclass
from tpugraphs_polynormer.datasets.statistics import SIZE_NAMES, FeatureStatistics, summarize_sizes
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import check_name

# 2: `noise` of each graph and `excluded`; 3: checksums of blocks of candidates and of the manifest; 4: edges between
# config nodes, and the dimensions of their operands; 5: `operands` of ops, and which graphs have them
FORMAT_VERSION = 5
MANIFEST_NAME = "manifest.json"
T = TypeVar("T")


class DatasetError(UserError):
    """A dataset that cannot be read: names the file, what was found and what to do."""


@dataclass(frozen=True)
class GraphEntry:
    """Where one graph is in its shard: offsets in bytes; split_files.py describes the bytes at `codes_offset`."""

    name: str
    source_sha256: str
    record_offset: int
    record_length: int
    codes_offset: int
    code_bytes: int  # 1, 2 or 4 per code
    num_nodes: int
    num_edges: int
    num_config_nodes: int
    num_config_edges: int  # pairs of config nodes whose layouts meet
    num_config_values: int
    num_candidates: int
    num_source_candidates: int  # before duplicates were collapsed
    noise: float | None  # of its measurements, see noise.py; None if it cannot be estimated
    has_operands: bool  # whether its archive says what hlo/operands.py describes

    @property
    def sizes(self) -> tuple[int, ...]:
        """In the order of statistics.SIZE_NAMES."""
        return tuple(getattr(self, f"num_{name}") for name in SIZE_NAMES)


@dataclass(frozen=True)
class ShardEntry:
    """One pair of shard files, `<name>.tfrecord` and `<name>.candidates`."""

    name: str
    record_bytes: int
    record_sha256: str
    candidate_bytes: int
    candidate_sha256: str
    checksums_crc32c: int  # of the checksums at the end of the candidate file, see split_files.py
    graphs: tuple[GraphEntry, ...]


@dataclass(frozen=True)
class SplitEntry:
    """One split: its shards, counts and sizes (max and quantiles over graphs)."""

    num_graphs: int
    num_candidates: int
    sizes: dict[str, dict[str, int]]
    shards: tuple[ShardEntry, ...]


@dataclass(frozen=True)
class Rejected:
    """An archive that was left out, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Manifest:
    """The whole of manifest.json."""

    format_version: int
    collection: str
    kind: str
    options: dict[str, Any]  # of the preprocessing; shards of other options are not reused
    splits: dict[str, SplitEntry]
    statistics: FeatureStatistics | None  # of the train split; None if it has no graphs
    num_rejected: int
    excluded: dict[str, tuple[str, ...]]  # split -> names of the graphs that the user left out, sorted
    origin: str = UNKNOWN  # of the runtimes, see archives/estimated.py


def serialize_manifest(manifest: Manifest) -> str:
    """The text of manifest.json: the manifest and its own checksum."""
    return json.dumps(seal_json(dataclasses.asdict(manifest)), indent=1) + "\n"


def seal_json(content: dict[str, Any]) -> dict[str, Any]:
    """The content with the field `sha256`, of the JSON text of all others."""
    others = {key: value for key, value in content.items() if key != "sha256"}
    return others | {"sha256": hash_json(others)}


def hash_json(content: Any) -> str:
    """The sha256 of a value's JSON text."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a dataset folder, checked for its version, fields and checksum."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        raise DatasetError(f"{path}: not found, expected a finished dataset; run `tpugraphs preprocess` to the end")
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as fault:
        raise DatasetError(f"{path}: not readable ({fault}); run `tpugraphs preprocess` again") from None
    version = content.get("format_version") if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        raise DatasetError(f"{path}: format_version {version}, expected {FORMAT_VERSION}; {_remake(folder, content)}")
    found = content.pop("sha256", None)
    manifest = parse_record(Manifest, content, str(path))
    _check_values(manifest, path)
    expected = hash_json(content)
    if found != expected:  # last, because a wrong value that is named says more
        raise DatasetError(f"{path}: sha256 {found!r:.80}, its content has {expected}: damaged; preprocess again")
    return manifest


def _remake(folder: Path, content: Any) -> str:
    """The command that makes a dataset again, as far as its old manifest names it."""
    collection = COLLECTIONS.get(str(content.get("collection"))) if isinstance(content, dict) else None
    if collection is None:
        return "preprocess again with `tpugraphs preprocess`"
    root = folder.resolve().parents[collection.folder.count("/")]
    return f"preprocess again: `tpugraphs preprocess --archives DIR --datasets {root} --collections {collection.id}`"


def _check_values(manifest: Manifest, path: Path) -> None:
    """Raises DatasetError if fields of the right types contradict each other."""
    if manifest.collection not in COLLECTIONS:
        raise DatasetError(f"{path}.collection: found {manifest.collection!r:.80}, expected one of {list(COLLECTIONS)}")
    expected: dict[str, tuple[Any, Any]] = {"kind": (manifest.kind, COLLECTIONS[manifest.collection].kind)}
    for name, split in manifest.splits.items():
        for part in [part.name for shard in split.shards for part in (shard, *shard.graphs)]:
            try:
                check_name(part, f"{path}.splits.{name}")
            except UserError as fault:
                raise DatasetError(f"{fault}; preprocess again, and do not trust this dataset") from None
        graphs = [graph for shard in split.shards for graph in shard.graphs]
        expected[f"splits.{name}.num_graphs"] = split.num_graphs, len(graphs)
        expected[f"splits.{name}.num_candidates"] = split.num_candidates, sum(each.num_candidates for each in graphs)
        expected[f"splits.{name}.sizes"] = split.sizes, summarize_sizes(np.array([each.sizes for each in graphs]))
        for graph in graphs:
            if graph.noise is not None and not 0 <= graph.noise < np.inf:
                found = f"{path}.splits.{name}: {graph.name}.noise: found {graph.noise!r}"
                raise DatasetError(f"{found}, expected a relative difference, at least 0; preprocess again")
    if manifest.statistics:
        for name in ("mean", "std", "minimum", "maximum"):
            expected[f"statistics.{name}"] = len(getattr(manifest.statistics, name)), NUM_NODE_FEATURES
        expected["statistics.opcode_counts"] = len(manifest.statistics.opcode_counts), NUM_OPCODES
    for field, (found, right) in expected.items():
        if found != right:
            raise DatasetError(f"{path}.{field}: found {found!r:.80}, expected {right!r:.80}; preprocess again")


def parse_record(kind: type[T], content: Any, where: str) -> T:
    """The nested dataclass of parsed JSON; raises DatasetError that names a missing, unknown or ill-typed field."""
    try:
        return parse_dataclass(kind, content, lambda name: where)
    except ParseError as fault:
        raise DatasetError(f"{fault}; preprocess again") from None

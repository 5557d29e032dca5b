"""Reads TpuGraphs npz archives into checked records."""

from __future__ import annotations

import math
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import numpy as np

from tpugraphs_polynormer.catalog import (
    LAYOUT_MAX,
    LAYOUT_MIN,
    NUM_LAYOUT_FEATURES,
    NUM_NODE_FEATURES,
    NUM_OPCODES,
    NUM_TILE_FEATURES,
)
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.hlo.operands import NUM_OPERAND_BITS

_BLOCK_BYTES = 4 << 20  # of dense float32 candidates per block: a block fits in the cache
_ZIP_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    tokenize.TokenError,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    OverflowError,
    MemoryError,
    SyntaxError,
    TypeError,
)  # what zipfile and the npy header parser raise on damaged or forged bytes
# Limits, so that a small file cannot take all memory or hours. The largest official arrays have 24 MB (node_feat) and
# 6.1 GB (node_config_feat, which is read block by block).
_MAX_MEMBERS = 100
_MAX_BYTES = 256 << 20
_MAX_CANDIDATE_BYTES = 16 << 30
# Deflate expands at most 1,032-fold, which takes a single value throughout; candidates of real programs about 80-fold.
_MAX_EXPANSION, _ALWAYS_EXPANDED = 500, 64 << 20


class ArchiveError(UserError):
    """A malformed archive: names the file, the key, what was found and what was expected."""

    def __init__(
        self, path: Path | str, key: str, found: str, expected: str, advice: str = "download or make this file again"
    ) -> None:
        # Keys and names come from the file: a damaged or forged one has line breaks and terminal commands in them.
        shown, told = ("".join(each if each.isprintable() else "?" for each in text) for text in (key[:200], found))
        super().__init__(f"{path}: {shown}: found {told}, expected {expected}; {advice}")
        self.path, self.key, self.found, self.expected, self.advice = str(path), key, found, expected, advice

    def __reduce__(self) -> tuple:
        """Pickled by its parts (Beam sends exceptions between processes)."""
        return type(self), (self.path, self.key, self.found, self.expected, self.advice)


@dataclass(frozen=True)
class ProgramGraph:
    """The common part of tile and layout archives; `edge_index` rows are (consumer, producer)."""

    path: Path
    node_feat: np.ndarray  # [n, 140] float32
    node_opcode: np.ndarray  # [n] uint8
    edge_index: np.ndarray  # [m, 2] int64
    config_runtime: np.ndarray  # [c] int64 nanoseconds, all 0 where hidden
    node_operands: np.ndarray | None  # [n] int64, see hlo/operands.py; None in official archives

    @property
    def name(self) -> str:
        """The graph's name: its file name without `.npz`."""
        return self.path.name.removesuffix(".npz")

    @property
    def num_candidates(self) -> int:
        """The number of candidates."""
        return len(self.config_runtime)

    @property
    def is_hidden(self) -> bool:
        """Whether the runtimes are withheld, as in the official test split."""
        return not self.config_runtime.any()


@dataclass(frozen=True)
class TileArchive(ProgramGraph):
    """A kernel and its tile sizes; rank by runtime over normalizer."""

    config_feat: np.ndarray  # [c, 24] float32
    config_runtime_normalizers: np.ndarray  # [c] int64
    kind: str = field(default="tile", init=False)


@dataclass(frozen=True)
class LayoutArchive(ProgramGraph):
    """A program and the layouts of its config nodes."""

    node_config_ids: np.ndarray  # [nc] int64
    node_splits: np.ndarray  # [s] int64, empty where the file has none
    node_config_feat: np.ndarray | None  # [c, nc, 18] int8 in -1..5; None when read without candidates
    kind: str = field(default="layout", init=False)


def read_archive(path: Path | str, *, with_candidates: bool = True) -> TileArchive | LayoutArchive:
    """The checked record of one archive; layout candidates are int8, or left out (see `iterate_layouts`)."""
    with _open_members(path) as members:
        graph = _read_graph(members)
        if members.is_layout:
            return _read_layout(members, graph, with_candidates)
        return _read_tile(members, graph)


def relative_costs(runtimes: np.ndarray, normalizers: np.ndarray | None = None) -> np.ndarray:
    """[c]: what candidates are ranked by, lower is faster: runtimes (layouts), or runtime over normalizer (tiles).

    Runtimes without normalizers stay int64, so that large ones are not rounded.
    """
    return runtimes if normalizers is None else runtimes / normalizers


def iterate_layouts(path: Path | str) -> Iterator[np.ndarray]:
    """Yields a layout archive's candidates in order as int8 blocks [b, nc, 18], about 4 MB of float32 at a time.

    In Fortran order, which no official file has, the first candidate is complete only at the end of the file. Such an
    array is copied to a temporary file of one byte per value, so that memory stays bounded.
    """
    with _open_members(path) as members:
        yield from _iterate_layouts(members)


def read_shapes(path: Path | str) -> dict[str, tuple[int, ...]]:
    """The shape of each array of an archive, from the headers alone."""
    with _open_members(path) as members:
        return {key: members.header(key).shape for key in members.names}


def read_arrays(path: Path | str, *keys: str) -> list[np.ndarray]:
    """Arrays of any npz file, by their keys, within the limits of archives; pickled ones are refused."""
    with _open_members(path, any_keys=True) as members:
        return [members.read_any(key) for key in keys]


@contextmanager
def _open_members(path: Path | str, *, any_keys: bool = False) -> Iterator[_Members]:
    path = Path(path)
    try:
        archive = zipfile.ZipFile(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as fault:
        found = "a folder" if isinstance(fault, IsADirectoryError) else "nothing"
        raise ArchiveError(path, "file", found, "an npz archive", "check the path") from None
    except _ZIP_FAULTS as fault:
        advice = "check the path, or download or make this file again"
        raise ArchiveError(path, "file", f"no readable zip ({_shorten(fault)})", "an npz archive", advice) from None
    with archive:
        members = _Members(path, archive)
        if not any_keys:
            members.check_kind()
        yield members


def _shorten(fault: BaseException) -> str:
    """The fault in one line of bounded length; numpy repeats a header whole."""
    return f"{' '.join(str(fault).split()) or type(fault).__name__:.200}"


@dataclass(frozen=True)
class _Header:
    """The header of an npy member."""

    shape: tuple[int, ...]
    dtype: np.dtype
    order: Literal["C", "F"]


class _Members:
    """The arrays of one open archive, whose declared sizes are checked against their headers."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._archive = path, archive
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        if len(names) > _MAX_MEMBERS:
            raise ArchiveError(path, "file", f"{len(names):,} members", f"at most {_MAX_MEMBERS}, one per key")
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise ArchiveError(path, f"{', '.join(sorted(repeated)):.200}", "the key more than once", "each key once")
        self.names = names
        self.is_layout = "node_config_feat" in names
        for info in archive.infolist():
            self._check_size(info)

    def check_kind(self) -> None:
        """Refuses what is neither a layout archive nor a tile archive."""
        if self.is_layout == ("config_feat" in self.names):
            found = "both" if self.is_layout else f"neither among {self._list_names()}"
            raise self.fail("kind", found, "one of node_config_feat (layout) and config_feat (tile)")

    def _list_names(self) -> str:
        return f"{', '.join(sorted(self.names)) or 'no keys':.200}"

    def fail(self, key: str, found: str, expected: str) -> ArchiveError:
        return ArchiveError(self.path, key, found, expected)

    @contextmanager
    def open(self, key: str) -> Iterator[tuple[_Header, IO[bytes]]]:
        """The array's header, and a stream positioned at the array's first byte."""
        if key not in self.names:
            raise self.fail(key, f"keys {self._list_names()}", "this key")
        try:
            with self._archive.open(f"{key}.npy") as member:
                yield self._read_header(key, member), member
        except ArchiveError:
            raise
        except _ZIP_FAULTS as fault:
            raise self.fail(key, f"unreadable data ({_shorten(fault)})", "an intact npy member") from None

    def _check_size(self, info: zipfile.ZipInfo) -> None:
        """Refuses, by the zip's directory alone, what is too large or packed as no archive is."""
        key = info.filename.removesuffix(".npy")
        limit = _MAX_CANDIDATE_BYTES if key == "node_config_feat" else _MAX_BYTES
        if info.file_size > limit:
            raise self.fail(key, f"{info.file_size:,} bytes", f"at most {limit:,}")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self.fail(key, f"zip method {info.compress_type}", "a stored or deflated member")
        if info.file_size > max(_ALWAYS_EXPANDED, _MAX_EXPANSION * info.compress_size):
            found = f"{info.compress_size:,} bytes that expand to {info.file_size:,}"
            raise self.fail(key, found, f"at most {_MAX_EXPANSION}-fold")

    def _read_header(self, key: str, member: IO[bytes]) -> _Header:
        version = np.lib.format.read_magic(member)
        if version not in ((1, 0), (2, 0)):
            raise self.fail(key, f"npy version {version}", "1.0 or 2.0")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(member)
        if dtype.hasobject:
            raise self.fail(key, "a pickled object array", "numbers (pickled data is never loaded)")
        declared = self._archive.getinfo(f"{key}.npy").file_size - member.tell()
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != declared:
            raise self.fail(key, f"{declared} bytes of data", f"shape {shape!s:.80} of {dtype!s:.80}")
        if math.prod(max(size, 1) for size in shape) * dtype.itemsize > _MAX_CANDIDATE_BYTES:
            raise self.fail(key, f"shape {shape!s:.80}", "sizes that numpy can hold")  # of no values, such as (0, 2^70)
        return _Header(shape, dtype, "F" if is_fortran else "C")

    def header(self, key: str) -> _Header:
        """Shape, dtype and memory order of an array; its data is not read."""
        with self.open(key) as (header, _):
            return header

    def read(self, key: str, kinds: str, shape: tuple[int | None, ...]) -> np.ndarray:
        """A C-ordered array whose dtype kind is one of `kinds` and whose shape matches (None matches any size)."""
        with self.open(key) as (header, member):
            self.check_type(key, header.dtype, kinds)
            found = header.shape
            if len(found) != len(shape) or any(want not in (None, got) for got, want in zip(found, shape, strict=True)):
                expected = ", ".join("any" if size is None else str(size) for size in shape)
                raise self.fail(key, f"shape {found}", f"shape ({expected})")
            return self._read_values(header, member)

    def read_any(self, key: str) -> np.ndarray:
        """An array of whatever type and shape."""
        with self.open(key) as (header, member):
            return self._read_values(header, member)

    @staticmethod
    def _read_values(header: _Header, member: IO[bytes]) -> np.ndarray:
        size = math.prod(header.shape) * header.dtype.itemsize
        # Read by its size: without one, zipfile expands all that follows before it cuts.
        values = np.frombuffer(member.read(size), header.dtype, count=math.prod(header.shape))
        return np.ascontiguousarray(values.reshape(header.shape, order=header.order))

    def check_type(self, key: str, dtype: np.dtype, kinds: str) -> None:
        if dtype.kind not in kinds:
            raise self.fail(key, f"dtype {dtype}", "floats" if "f" in kinds else "integers")

    def read_floats(self, key: str, shape: tuple[int | None, ...]) -> np.ndarray:
        """A finite float32 array; wider floats are narrowed."""
        values = self.read(key, "f", shape)
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32, copy=False)
        bad = np.flatnonzero(~np.isfinite(narrow))
        if bad.size:
            where = tuple(int(i) for i in np.unravel_index(bad[0], values.shape))
            raise self.fail(key, f"{values[where]} at {where}", "finite numbers")
        return narrow

    def read_integers(self, key: str, shape: tuple[int | None, ...], low: int, high: int, what: str) -> np.ndarray:
        """An int64 array with values in low..high; `what` says what they are, for the error."""
        values = self.read(key, "iu", shape)
        if values.size and (values.min() < low or values.max() > high):
            found = values.min() if values.min() < low else values.max()
            raise self.fail(key, str(found), f"{what} in {low}..{high}")
        return values.astype(np.int64, copy=False)


_INT64_MAX = np.iinfo(np.int64).max


def _read_graph(members: _Members) -> dict[str, np.ndarray]:
    node_feat = members.read_floats("node_feat", (None, NUM_NODE_FEATURES))
    num_nodes = len(node_feat)
    if not num_nodes:
        raise members.fail("node_feat", "no rows", "at least one node")
    opcodes = members.read_integers("node_opcode", (num_nodes,), 0, NUM_OPCODES - 1, "opcode ids")
    edges = members.read_integers("edge_index", (None, 2), 0, num_nodes - 1, "node positions")
    runtimes = members.read_integers("config_runtime", (None,), 0, _INT64_MAX, "nanoseconds")
    if not len(runtimes):
        raise members.fail("config_runtime", "no values", "at least one candidate")
    if runtimes.any() and not runtimes.all():
        raise members.fail("config_runtime", "zeros among measured runtimes", "all measured, or all 0 (hidden)")
    operands = None
    if "node_operands" in members.names:
        highest = (1 << NUM_OPERAND_BITS) - 1
        operands = members.read_integers("node_operands", (num_nodes,), 0, highest, "packed operands")
    return {
        "node_feat": node_feat,
        "node_opcode": opcodes.astype(np.uint8),
        "edge_index": edges,
        "config_runtime": runtimes,
        "node_operands": operands,
    }


def _read_tile(members: _Members, graph: dict[str, np.ndarray]) -> TileArchive:
    count = len(graph["config_runtime"])
    return TileArchive(
        path=members.path,
        config_feat=members.read_floats("config_feat", (count, NUM_TILE_FEATURES)),
        config_runtime_normalizers=members.read_integers(
            "config_runtime_normalizers", (count,), 1, _INT64_MAX, "nanoseconds"
        ),
        **graph,
    )


def _read_layout(members: _Members, graph: dict[str, np.ndarray], with_candidates: bool) -> LayoutArchive:
    num_nodes = len(graph["node_feat"])
    config_ids = members.read_integers("node_config_ids", (None,), 0, num_nodes - 1, "node positions")
    if len(np.unique(config_ids)) != len(config_ids):
        raise members.fail("node_config_ids", "a node twice", "each config node once")
    header = members.header("node_config_feat")
    members.check_type("node_config_feat", header.dtype, "fiu")
    expected = (len(graph["config_runtime"]), len(config_ids), NUM_LAYOUT_FEATURES)
    if header.shape != expected:
        raise members.fail(
            "node_config_feat", f"shape {header.shape}", f"shape {expected} (candidates, nodes, features)"
        )
    candidates = None
    if with_candidates:
        candidates = np.empty(expected, np.int8)
        start = 0
        for block in _iterate_layouts(members):
            candidates[start : start + len(block)] = block
            start += len(block)
    splits = _read_splits(members, num_nodes)
    return LayoutArchive(
        path=members.path, node_config_ids=config_ids, node_splits=splits, node_config_feat=candidates, **graph
    )


def _read_splits(members: _Members, num_nodes: int) -> np.ndarray:
    """Official files hold (1, s); some copies hold (s,), some none."""
    if "node_splits" not in members.names:
        return np.zeros(0, np.int64)
    expected = (1, None) if len(members.header("node_splits").shape) == 2 else (None,)
    splits = members.read_integers("node_splits", expected, 0, num_nodes, "node positions").reshape(-1)
    if (np.diff(splits) < 0).any():
        raise members.fail("node_splits", "a decreasing position", "ascending positions")
    return splits


def _iterate_layouts(members: _Members) -> Iterator[np.ndarray]:
    key = "node_config_feat"
    with members.open(key) as (header, member):
        members.check_type(key, header.dtype, "fiu")
        shape = header.shape
        if len(shape) != 3 or shape[2] != NUM_LAYOUT_FEATURES:
            raise members.fail(key, f"shape {shape}", f"shape (any, any, {NUM_LAYOUT_FEATURES})")
        row_values = shape[1] * shape[2]
        rows = max(1, _BLOCK_BYTES // max(1, row_values * header.dtype.itemsize))
        if header.order == "F":
            yield from _transpose_layouts(members, header, member, rows)
            return
        for start in range(0, shape[0], rows):
            count = min(rows, shape[0] - start)
            data = member.read(count * row_values * header.dtype.itemsize)
            block = np.frombuffer(data, header.dtype).reshape(count, *shape[1:])
            yield _to_int8(members, block)


def _transpose_layouts(members: _Members, header: _Header, member: IO[bytes], rows: int) -> Iterator[np.ndarray]:
    """Blocks of `rows` candidates of an array in Fortran order: [18, nc, c] on disk, c varying fastest."""
    if not math.prod(header.shape):
        yield np.zeros(header.shape, np.int8)
        return
    with tempfile.TemporaryFile(prefix="tpugraphs-") as file:
        values = _BLOCK_BYTES // header.dtype.itemsize
        while data := member.read(values * header.dtype.itemsize):
            file.write(_to_int8(members, np.frombuffer(data, header.dtype)))
        file.flush()
        columns = np.memmap(file, np.int8, "r", shape=header.shape[::-1])
        for start in range(0, header.shape[0], rows):
            yield np.ascontiguousarray(columns[:, :, start : start + rows].T)


def _to_int8(members: _Members, block: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # NaN and large values become unequal ones, which are refused below
        small = block.astype(np.int8)
    if small.size and (not np.array_equal(small, block) or small.min() < LAYOUT_MIN or small.max() > LAYOUT_MAX):
        wrong = (small != block) | (small < LAYOUT_MIN) | (small > LAYOUT_MAX)
        raise members.fail("node_config_feat", str(block[wrong][0]), f"integers in {LAYOUT_MIN}..{LAYOUT_MAX}")
    return small

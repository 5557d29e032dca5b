"""Archives made to do harm: each is refused in about a second, by one line, in little memory."""

import io
import os
import re
import resource
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.small_archives import layout_arrays, tile_arrays, write_tree
from tests.small_datasets import LAYOUT
from tpugraphs_polynormer.archives.npz import ArchiveError, read_archive
from tpugraphs_polynormer.archives.writer import Blocks, write_npz
from tpugraphs_polynormer.cli.main import main
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.ranking.submission import read_prediction
from tpugraphs_polynormer.ranking.submission_rules import SubmissionError

GIGABYTE = 1 << 30


def npy(header: bytes, data: bytes = b"") -> bytes:
    """An npy file with any header."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def described(dtype: object, shape: object, data: bytes = b"") -> bytes:
    return npy(f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode(), data)


def write_members(path: Path, arrays: dict[str, np.ndarray | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, value in arrays.items():
            buffer = io.BytesIO()
            if not isinstance(value, bytes):
                np.save(buffer, value)
            archive.writestr(f"{key}.npy", value if isinstance(value, bytes) else buffer.getvalue())
    return path


def forge_size(path: Path, member: str, size: int) -> Path:
    """Changes the size that a zip's directory declares of a member, in a zip64 field where it must."""
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    while data[at + 46 : at + 46 + len(member)] != member.encode():
        at = data.index(b"PK\x01\x02", at + 4)
    struct.pack_into("<I", data, at + 24, size)
    path.write_bytes(data)
    return path


def zeros(shape: tuple[int, ...], dtype: type = np.float32) -> Blocks:
    rows = max(1, (16 << 20) // max(1, int(np.prod(shape[1:])) * 4))
    counts = [min(rows, shape[0] - start) for start in range(0, shape[0], rows)]
    return Blocks(shape, dtype, (np.zeros((count, *shape[1:]), dtype) for count in counts))


def a_bomb_of_nodes(path: Path, monkeypatch=None) -> Path:
    count = GIGABYTE // 560
    write_npz(path, layout_arrays() | {"node_feat": zeros((count, 140))})
    return path


def a_bomb_of_candidates(path: Path, monkeypatch) -> Path:
    count = GIGABYTE // (3 * 18 * 4)
    runtimes = {"config_runtime": np.ones(count, np.int64)}
    monkeypatch.setattr("tpugraphs_polynormer.archives.writer._COMPRESSION_LEVEL", 9)  # packs zeros four times closer
    write_npz(path, layout_arrays() | runtimes | {"node_config_feat": zeros((count, 3, 18))})
    return path


def a_bomb_that_declares_little(path: Path, monkeypatch=None) -> Path:
    write_npz(path, tile_arrays() | {"node_feat": zeros((GIGABYTE // 560, 140))})
    return forge_size(path, "node_feat.npy", 128 + 5 * 140 * 4)


def many_members(path: Path, monkeypatch=None) -> Path:
    return write_members(path, {f"key{number}": b"" for number in range(60_000)})


def sizes_of_no_memory(path: Path, monkeypatch=None) -> Path:
    count = 42 * 10**9 // (3 * 18 * 4)
    arrays = layout_arrays() | {"node_config_feat": described("<f4", (count, 3, 18))}
    path = write_members(path, arrays | {"config_runtime": np.ones(count // 10**6, np.int64)})
    return forge_size(path, "node_config_feat.npy", 0xFFFFFFF0)


BOMBS = {
    "a bomb of nodes": (a_bomb_of_nodes, "node_feat: found 1,07"),
    "a bomb of candidates": (a_bomb_of_candidates, "node_config_feat: found .* bytes that expand to 1,07"),
    "a bomb that declares little": (a_bomb_that_declares_little, "node_feat: found"),
    "60,000 members": (many_members, "found 60,000 members, expected at most 100"),
    "42 GB that are not there": (sizes_of_no_memory, "node_config_feat: found .* bytes that expand to 4,29"),
}
READ = """
import resource, sys, time
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.archives.npz import read_archive
started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_archive(sys.argv[1])
except UserError as fault:
    print(fault)
print(time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_an_archive_that_would_take_all_memory_or_time_is_refused_at_once(tmp_path, monkeypatch, name) -> None:
    make, said = BOMBS[name]
    path = make(tmp_path / "bomb.npz", monkeypatch)
    assert path.stat().st_size < 8 << 20
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (4 * GIGABYTE, 4 * GIGABYTE))  # noqa: E731
    ended = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True, preexec_fn=limit
    )
    told, numbers = ended.stdout.splitlines()
    assert told.startswith(f"{path}: ") and len(told) < 1000
    assert re.search(said, told)
    seconds, kilobytes = map(float, numbers.split())
    assert seconds < 5 and kilobytes < 100_000  # a second on a machine that does nothing else


FORGED = {
    "no values of an impossible size": described("<f4", (0, 1 << 70)),
    "no values of a large size": described("<f4", (0, 1 << 62, 140)),
    "no bytes per value": described("|S0", (5, 140)),
    "void": described("|V0", (5, 140)),
    "sub-array": described(("<f4", (2,)), (5, 70), bytes(2800)),
    "fields": described([("a", "<f4")], (5, 140), bytes(2800)),
    "a list as a key": npy(b"{[]: 1}\n"),
    "a list as a shape": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': [5, 140]}\n"),
    "a truth value as a shape": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (True, 140)}\n", bytes(560)),
    "a shape of text": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': ('5', 140)}\n"),
    "deep": npy(b"(" * 9000 + b"\n"),
    "deep lists": npy(b"[" * 4000 + b"]" * 4000 + b"\n"),
    "long": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1," * 20_000 + b")}\n"),
    "many dimensions": described("<f4", tuple([1] * 70), bytes(4)),
    "indented": npy(b"  {'descr': '<f4'}\n x\n"),
    "unfinished text": npy(b"{'descr': '''\n"),
    "null bytes": npy(b"\0" * 100),
    "an object": described("|O", (5, 140)),
    "dates": described("<M8[ns]", (5, 140), bytes(5600)),
    "complex": described("<c8", (5, 140), bytes(5600)),
    "negative": described("<f4", (-5, -140), bytes(2800)),
    "an unknown unit": described("<M8[nonsense]", (5, 140), bytes(5600)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("key", ["node_feat", "node_config_feat", "node_splits", "config_runtime"])
def test_a_forged_header_is_refused(tmp_path, name, key) -> None:
    path = write_members(tmp_path / "g.npz", layout_arrays() | {key: FORGED[name]})
    with pytest.raises(ArchiveError) as caught:
        read_archive(path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 800
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.filterwarnings("ignore")
def test_thousands_of_mutated_headers_give_one_error_or_the_same_arrays(tmp_path) -> None:
    random = np.random.default_rng(0)
    arrays, path = layout_arrays(3, 1, 2), tmp_path / "g.npz"
    words = [
        b"0",
        b"9",
        b"-",
        b"(",
        b")",
        b",",
        b"'",
        b"<f4",
        b"|O",
        b"True",
        b"1" * 30,
        b"\0",
        b"[",
        b"#",
        b"\n",
        b"e9",
    ]
    for _ in range(1500):
        key = random.choice(list(arrays))
        buffer = io.BytesIO()
        np.save(buffer, arrays[key])
        data = bytearray(buffer.getvalue())
        for _ in range(random.integers(1, 4)):
            at = int(random.integers(0, 128))
            word = words[random.integers(len(words))]
            data[at : at + len(word)] = word
        write_members(path, arrays | {str(key): bytes(data)})
        try:
            archive = read_archive(path)
        except ArchiveError as fault:
            assert str(path) in str(fault)
        else:
            assert archive.num_candidates == 2 and archive.node_feat.shape == (3, 140)


@pytest.mark.filterwarnings("ignore")
def test_a_job_that_may_skip_survives_every_forged_archive(tmp_path) -> None:
    write_tree(tmp_path / "in", LAYOUT, {"train": {"whole": layout_arrays()}})
    folder = tmp_path / "in" / "npz" / LAYOUT.replace(":", "/") / "train"
    for number, value in enumerate(FORGED.values()):
        write_members(folder / f"forged{number}.npz", layout_arrays() | {"node_feat": value})
    many_members(folder / "many.npz")
    sizes_of_no_memory(folder / "large.npz")
    options = ["--collections", LAYOUT, "--on-error", "skip", "--runner=FnApiRunner"]
    assert main(["preprocess", "--archives", f"{tmp_path}/in", "--datasets", f"{tmp_path}/out", *options]) == 0
    dataset = RankingDataset(tmp_path / "out" / LAYOUT.replace(":", "/"))
    assert [graph.name for graph in dataset.split("train").graphs] == ["whole"]
    assert dataset.manifest.num_rejected == len(FORGED) + 2


def test_predictions_have_the_same_limits(tmp_path) -> None:
    write_npz(tmp_path / "p.npz", {"ranking": zeros((GIGABYTE // 8,), np.int64), "scores": np.zeros(3, np.float32)})
    assert os.path.getsize(tmp_path / "p.npz") < 8 << 20
    with pytest.raises(
        SubmissionError, match=r"p\.npz: expected an archive with ranking, scores, but ranking: found 1,0"
    ):
        read_prediction(tmp_path / "p.npz")


def test_the_error_for_a_damaged_member_name_is_one_printable_line(tmp_path) -> None:
    path = write_members(tmp_path / "g.npz", layout_arrays() | {"node\n\x1b[2Jfeat" * 30: b"x"})
    forge_size(path, "node\n", GIGABYTE)
    with pytest.raises(ArchiveError) as caught:
        read_archive(path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 800

"""Atomic writes: a file is replaced as a whole, or not changed; what killed writers left behind is removed."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tpugraphs_polynormer.files import (
    hash_file,
    name_temporary,
    only_writer,
    remove_leftovers,
    replacing,
    write_text,
)


def test_text_is_replaced(tmp_path: Path):
    path = tmp_path / "a.txt"
    write_text(path, "old\n")
    write_text(path, "neu: ü\n")
    assert path.read_bytes() == "neu: ü\n".encode()
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    path = tmp_path / "a.txt"
    write_text(path, "old\n")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise RuntimeError
    assert path.read_text() == "old\n"
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("size", [0, 1, 3_000_001])
def test_the_checksum_is_of_all_bytes(tmp_path: Path, size: int):
    content = bytes(range(251)) * (size // 251 + 1)
    (tmp_path / "a").write_bytes(content[:size])
    assert hash_file(tmp_path / "a") == hashlib.sha256(content[:size]).hexdigest()


HOLD_AND_WAIT = """
import sys
from pathlib import Path
from tpugraphs_polynormer.files import replacing, temporary_folder
with replacing(Path(sys.argv[1]) / "a.npz"), temporary_folder(Path(sys.argv[1]) / "model"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_kept(tmp_path):
    (tmp_path / ".a.npz.tmp").touch()  # not a name of ours
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD_AND_WAIT, str(tmp_path)], **pipes) as process:
        assert process.stdout.readline() == "held\n"
        remove_leftovers(tmp_path)
        assert len(list(tmp_path.glob(".*.tmp"))) == 3
        process.kill()
        process.wait()
        remove_leftovers(tmp_path, "other.npz")
        assert len(list(tmp_path.glob(".*.tmp"))) == 3
        remove_leftovers(tmp_path, "a.npz")
        assert len(list(tmp_path.glob(".*.tmp"))) == 2
        remove_leftovers(tmp_path.parent)
    assert [path.name for path in tmp_path.iterdir()] == [".a.npz.tmp"]


def test_the_next_writer_of_a_folder_removes_leftovers(tmp_path):
    (tmp_path / "deep").mkdir()
    name_temporary(tmp_path / "deep" / "graph.npz").touch()
    with only_writer(tmp_path):
        assert not list((tmp_path / "deep").iterdir())

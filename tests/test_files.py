"""Atomic writes: a file is replaced as a whole, or not changed."""

import hashlib
from pathlib import Path

import pytest

from tpugraphs_polynormer.files import hash_file, replacing, write_text


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

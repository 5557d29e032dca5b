"""Files that are the old one or the new one, never half of it, whenever the writer is killed; checksums; names."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tpugraphs_polynormer.errors import UserError

_MAX_NAME_BYTES = 200  # file systems allow 255, of which suffixes and `replacing` take some
_NOT_IN_NAMES = '/\\:*?"<>|'  # what some file system does not allow


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Yields a temporary name beside `path`; what was written there takes its place at the end, unless an error did."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path | str, text: str) -> None:
    """Writes a whole text file, UTF-8 with plain newlines."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def hash_file(path: Path | str) -> str:
    """The sha256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()  # the standard library has a function for this only from Python 3.11 on
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_name(name: str, where: str) -> str:
    """The name, if it can be one part of a path; raises a UserError that begins with `where` if it cannot.

    Names of graphs and shards come from files that others made. Whatever makes a path of one asks here first, so that
    no name leads out of the folder it is meant for.
    """
    if (
        not name
        or name.startswith(".")
        or not name.isprintable()
        or any(character in _NOT_IN_NAMES for character in name)
        or len(name.encode(errors="replace")) > _MAX_NAME_BYTES
    ):
        expected = f"1 to {_MAX_NAME_BYTES} printable characters, no dot at the start and none of {_NOT_IN_NAMES}"
        raise UserError(f"{where}: found the name {name!r:.80}, expected {expected}")
    return name

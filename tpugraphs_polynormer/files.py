"""Atomic writes, which leave the old or the new file after a kill, and checksums."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """A context that yields a temporary path beside `path`, and renames that file to `path` unless an error occurs."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path | str, text: str) -> None:
    """Writes a text file atomically, as UTF-8 with LF line ends."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def hash_file(path: Path | str) -> str:
    """The sha256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()  # the function of hashlib for files is newer than Python 3.10
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()

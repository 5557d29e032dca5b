"""Files that are the old one or the new one, never half of it, whenever the writer is killed; and checksums."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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

"""Atomic writes, which leave the old or the new file after a kill; one writer per folder; checksums; names.

A temporary file or folder is held by a lock of the system (flock) while its process lives, so that the next stage can
tell what a killed one left behind, and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tpugraphs_polynormer.errors import UserError

_MAX_NAME_BYTES = 200  # file systems allow 255, of which suffixes and `replacing` take some
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{32}\.tmp")
_NOT_IN_NAMES = '/\\:*?"<>|'  # what some file system does not allow


@contextmanager
def replacing(path: Path | str, *, durable: bool = False) -> Iterator[Path]:
    """A context that yields a temporary path beside `path`, and renames that file to `path` unless an error occurs.

    A durable file is on the disk before it takes its name, and its name before this returns. It is for the file that
    marks a stage as finished: after a power cut that mark must not exist without the data. It takes some milliseconds.
    """
    path = Path(path)
    temporary = name_temporary(path)
    held = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
    try:
        _try_lock(held)
        yield temporary
        if durable:
            sync(temporary)
        os.replace(temporary, path)
        if durable:
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(held)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A context that yields an empty folder beside `path`, which is removed at the end."""
    temporary = name_temporary(path)
    temporary.mkdir()
    held = os.open(temporary, os.O_RDONLY)
    try:
        _try_lock(held)
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(held)


def name_temporary(path: Path) -> Path:
    """A new temporary name beside a path, which `remove_leftovers` knows."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Removes the temporary files and folders that killed processes left below a folder.

    With a name: only those of that name, and only in the folder itself. What a living process holds is kept.
    """
    for parent, folders, files in os.walk(folder):
        for each in (*folders, *files):
            match = _TEMPORARY.fullmatch(each)
            if match and name in (None, match[1]):
                _remove_unheld(Path(parent, each))
        if name is not None:
            return


def _remove_unheld(path: Path) -> None:
    with contextlib.suppress(OSError):  # gone meanwhile, or not ours
        held = os.open(path, os.O_RDONLY)
        try:
            if _try_lock(held):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        finally:
            os.close(held)


def _try_lock(file: int) -> bool:
    """Whether this process now holds an open file or folder; False if another does, or the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sync(path: Path) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write_text(path: Path | str, text: str, *, durable: bool = False) -> None:
    """Writes a text file atomically, as UTF-8 with LF line ends."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def writing(place: Path | str, option: str = "--output") -> Iterator[None]:
    """A context in which a failure to write is a UserError that names the place, and the option to change."""
    try:
        yield
    except OSError as fault:
        raise UserError(f"{place}: cannot be written ({fault.strerror}); choose another {option}") from None


@contextmanager
def only_writer(folder: Path | str) -> Iterator[None]:
    """Holds a folder, which is made if it is not there; a UserError if another process holds it.

    What killed processes left in it is removed.

    The lock is the system's (flock, on the folder itself, so that no file is left behind): it ends with the process,
    whatever ended that. Where a file system knows no such locks, nothing is held.
    """
    folder = Path(folder)
    with writing(folder, "folder"):
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY)  # children do not inherit it
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            advice = "wait until it has finished, or choose another folder"
            raise UserError(f"{folder}: another process writes to this folder; {advice}") from None
        except OSError:
            pass
        remove_leftovers(folder)
        yield
    finally:
        os.close(held)


def hash_file(path: Path | str) -> str:
    """The sha256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()  # the function of hashlib for files is newer than Python 3.10
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

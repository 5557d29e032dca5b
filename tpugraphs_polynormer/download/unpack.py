"""Unpacks downloaded archives so that nothing lands outside its folder and nothing is left half-done."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from tpugraphs_polynormer.errors import UserError

_MAX_GROWTH = 10  # the published archives hold files that are already compressed: more growth than this is a bomb


class UnpackError(UserError):
    """An archive is damaged, or holds something that must not be unpacked."""


def unpack_archive(archive: Path, out: Path) -> dict[str, int]:
    """Unpacks a .tar or .zip below `out` and returns the size of each file by its path.

    Everything is checked, then unpacked into a temporary folder beside its target, then moved: a folder that is new
    appears in one rename. A killed run leaves only the temporary folder, which the next one removes.
    """
    staging = out / f".unpacking-{archive.name}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        sizes = _unpack_zip(archive, staging) if archive.suffix == ".zip" else _unpack_tar(archive, staging)
        _move_into(staging, out)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise UnpackError(f"{archive}: damaged archive ({error})") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return sizes


def _unpack_tar(archive: Path, staging: Path) -> dict[str, int]:
    with tarfile.open(archive, "r:") as tar:
        members = tar.getmembers()
        for member in members:
            if not (member.isreg() or member.isdir()):
                raise UnpackError(f"{archive}: {member.name!r} is a link or a device; only plain files are unpacked")
        sizes = _check_names(archive, ((member.name, member.size, member.isdir()) for member in members))
        tar.extractall(staging, members, filter="data")
    return sizes


def _unpack_zip(archive: Path, staging: Path) -> dict[str, int]:
    with zipfile.ZipFile(archive) as bundle:
        infos = bundle.infolist()
        for info in infos:
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise UnpackError(f"{archive}: {info.filename!r} is a link or a device; only plain files are unpacked")
        sizes = _check_names(archive, ((info.filename, info.file_size, info.is_dir()) for info in infos))
        bundle.extractall(staging)
    return sizes


def _check_names(archive: Path, members: Iterable[tuple[str, int, bool]]) -> dict[str, int]:
    """Refuses names that leave the folder and more bytes than such an archive can hold; sizes of the files by path."""
    limit = _MAX_GROWTH * archive.stat().st_size
    sizes: dict[str, int] = {}
    for name, size, is_folder in members:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            raise UnpackError(f"{archive}: {name!r} would be written outside of the folder")
        if not is_folder:
            sizes[str(path)] = size
    total = sum(sizes.values())
    if total > limit:
        raise UnpackError(f"{archive}: would unpack to {total:,} bytes, expected at most {limit:,}")
    return sizes


def _move_into(source: Path, target: Path) -> None:
    """Moves what is in `source` into the folder `target`, whole folders at once where the target has none."""
    for entry in sorted(source.iterdir()):
        target_path = target / entry.name
        if entry.is_dir() and target_path.is_dir():
            _move_into(entry, target_path)
        else:
            os.replace(entry, target_path)

"""Unpacks downloaded archives: nothing is written outside their folder, and no incomplete file is left."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from tpugraphs_polynormer.errors import UserError

_MAX_GROWTH = 10  # the published archives contain compressed files; more growth than this is a decompression bomb


class UnpackError(UserError):
    """An archive is damaged, or contains something that must not be unpacked."""


def unpack_archive(archive: Path, out: Path, folder: str = "") -> dict[str, int]:
    """The size of each file by its path below `out`, after unpacking a .tar or .zip there.

    All files must be in the folder `folder` of `out`. The list of files is checked, then the archive is unpacked to a
    temporary folder in `out`, then its files are moved; a new folder is moved as a whole. A killed run leaves only the
    temporary folder, which the next run removes.
    """
    if not hasattr(tarfile, "data_filter"):
        raise UnpackError(f"{archive}: cannot be unpacked safely by this Python; use 3.10.12, 3.11.4, or newer")
    staging = out / f".unpacking-{archive.name}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        with zipfile.ZipFile(archive) if archive.suffix == ".zip" else tarfile.open(archive, "r:") as bundle:
            if isinstance(bundle, tarfile.TarFile):
                bundle.extraction_filter = tarfile.data_filter
                members = [member for member in bundle.getmembers() if not member.isdir()]
                listed = [(member.name, member.size, member.isreg()) for member in members]
            else:
                members = [info for info in bundle.infolist() if not info.is_dir()]
                listed = [(info.filename, info.file_size, _is_plain(info)) for info in members]
            sizes = _check(listed, archive, PurePosixPath(folder))
            bundle.extractall(staging, members)
        _move_into(staging, out)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise UnpackError(f"{archive}: damaged archive ({error})") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return sizes


def _is_plain(info: zipfile.ZipInfo) -> bool:
    return stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)


def _check(listed: list[tuple[str, int, bool]], archive: Path, folder: PurePosixPath) -> dict[str, int]:
    """Sizes by path of the members (name, size, whether it is a plain file); UnpackError unless all are allowed."""
    sizes: dict[str, int] = {}
    for name, size, is_plain in listed:
        path = PurePosixPath(name)
        if not is_plain:
            raise UnpackError(f"{archive}: {name!r} is a link or a device; only plain files are unpacked")
        if path.is_absolute() or ".." in path.parts or "\\" in name or folder not in path.parents:
            raise UnpackError(f"{archive}: {name!r} would be written outside of the folder {folder}")
        sizes[str(path)] = size
    total, limit = sum(size for _, size, _ in listed), _MAX_GROWTH * archive.stat().st_size
    if not sizes:
        raise UnpackError(f"{archive}: holds no files")
    if total > limit:
        raise UnpackError(f"{archive}: would unpack to {total:,} bytes, expected at most {limit:,}")
    return sizes


def _move_into(source: Path, target: Path) -> None:
    """Moves the content of `source` to the folder `target`; folders that `target` lacks are moved as a whole."""
    for entry in sorted(source.iterdir()):
        target_path = target / entry.name
        if entry.is_dir() and target_path.is_dir():
            _move_into(entry, target_path)
        else:
            os.replace(entry, target_path)

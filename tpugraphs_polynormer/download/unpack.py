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
_MAX_NAME_BYTES = 255  # of one part of a path, on every usual file system


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
                members = [member for member in _list_members(bundle) if not member.isdir()]
                listed = [(member.name, member.size, member.isreg()) for member in members]
            else:
                members = [info for info in bundle.infolist() if not info.is_dir()]
                listed = [(info.filename, info.file_size, _is_plain(info)) for info in members]
            sizes = _check(listed, archive, PurePosixPath(folder))
            _check_present([PurePosixPath(name) for name in sizes], archive, out)
            bundle.extractall(staging, members)
        _move_into(staging, out)
    except UnpackError:
        raise
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise UnpackError(f"{archive}: damaged archive ({' '.join(str(error).split()):.200})") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return sizes


def _list_members(bundle: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """The members of a tar, which must end as tars do: tarfile takes a damaged header for the end of the file."""
    try:
        members = bundle.getmembers()
        bundle.fileobj.seek(bundle.offset)
        rest = bundle.fileobj.read(tarfile.BLOCKSIZE)
    except OSError as error:  # a position that no file has, made of a forged size
        raise tarfile.ReadError(f"its sizes lead out of the file: {error}") from None
    if rest.strip(b"\0") or len(rest) % tarfile.BLOCKSIZE:
        raise tarfile.ReadError(f"no header where the next file should begin, at byte {bundle.offset:,}")
    return members


def _is_plain(info: zipfile.ZipInfo) -> bool:
    return stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)


def _check(listed: list[tuple[str, int, bool]], archive: Path, folder: PurePosixPath) -> dict[str, int]:
    """Sizes by path of the members (name, size, whether it is a plain file); UnpackError unless all are allowed."""
    sizes: dict[str, int] = {}
    parents: set[PurePosixPath] = set()
    for name, size, is_plain in listed:
        path = PurePosixPath(name)
        if not is_plain:
            raise UnpackError(f"{archive}: {name!r:.200} is a link or a device; only plain files are unpacked")
        if path.is_absolute() or ".." in path.parts or "\\" in name or folder not in path.parents:
            raise UnpackError(f"{archive}: {name!r:.200} would be written outside of the folder {folder}")
        if not name.isprintable() or any(len(part.encode()) > _MAX_NAME_BYTES for part in path.parts):
            raise UnpackError(f"{archive}: {name!r:.200} is not a name that every disk can hold")
        sizes[str(path)] = size
        parents.add(path.parent)
    folders = {str(folder) for parent in parents for folder in (parent, *parent.parents)}
    if both := folders & sizes.keys():
        raise UnpackError(f"{archive}: {min(both)!r:.200} is both a file and a folder")
    total, limit = sum(size for _, size, _ in listed), _MAX_GROWTH * archive.stat().st_size
    if not sizes:
        raise UnpackError(f"{archive}: holds no files")
    if total > limit:
        raise UnpackError(f"{archive}: would unpack to {total:,} bytes, expected at most {limit:,}")
    return sizes


def _check_present(paths: list[PurePosixPath], archive: Path, out: Path) -> None:
    """UnpackError if a file would take the place of a folder of `out`, or a folder that of a file."""
    folders = {folder for parent in {path.parent for path in paths} for folder in (parent, *parent.parents)}
    for path in (out / folder for folder in folders):
        if path.exists() and not path.is_dir():
            raise UnpackError(f"{archive}: needs a folder where {path} is a file; remove that file")
    for path in (out / path for path in paths):
        if path.is_dir():
            raise UnpackError(f"{archive}: has a file where {path} is a folder; check the address")


def _move_into(source: Path, target: Path) -> None:
    """Moves the content of `source` to the folder `target`; folders that `target` lacks are moved as a whole."""
    for entry in sorted(source.iterdir()):
        target_path = target / entry.name
        if entry.is_dir() and target_path.is_dir():
            _move_into(entry, target_path)
        else:
            os.replace(entry, target_path)

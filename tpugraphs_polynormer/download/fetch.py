"""Downloads the TpuGraphs collections and the node-classification benchmarks: resumable, checked and recorded."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tpugraphs_polynormer.archives.indices import read_index_file
from tpugraphs_polynormer.download.http import (
    DownloadError,
    DownloadOptions,
    ask_size,
    fetch_file,
    part_path,
    size_of,
)
from tpugraphs_polynormer.download.sources import (
    INDEX_FOLDER,
    RemoteFile,
    list_benchmark_files,
    list_collection_files,
    list_index_files,
)
from tpugraphs_polynormer.download.unpack import UnpackError, unpack_archive
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import write_text

__all__ = [
    "DownloadError",
    "DownloadOptions",
    "DownloadRecord",
    "download_benchmarks",
    "download_collections",
    "download_files",
    "read_records",
]

RECORDS_NAME = "downloads.json"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DownloadRecord:
    """One finished download as kept in downloads.json; `members` are the sizes of an archive's files by path."""

    address: str
    size: int
    sha256: str
    members: dict[str, int] | None = None


def download_collections(
    collections: Sequence[str],
    out: Path,
    *,
    base_address: str | None = None,
    with_indices: bool = True,
    options: DownloadOptions | None = None,
) -> dict[str, DownloadRecord]:
    """Fetches the tar files of the collections and unpacks them into out/npz/...; the records by file name.

    With indices it also fetches the official validation index files of the layout collections, to out/eval_indices/.
    """
    kinds = [list_index_files, list_collection_files] if with_indices else [list_collection_files]  # small files first
    files = [file for list_files in kinds for name in collections for file in list_files(name, base_address)]
    return download_files(files, out, options=options)


def download_benchmarks(
    names: Sequence[str], out: Path, *, mirror: str | None = None, options: DownloadOptions | None = None
) -> dict[str, DownloadRecord]:
    """Fetches the published files of the benchmarks to where `read_benchmark(name, out)` finds them."""
    files = [file for name in names for file in list_benchmark_files(name, mirror)]
    return download_files(files, out, options=options)


def download_files(
    files: Iterable[RemoteFile], out: Path, *, options: DownloadOptions | None = None
) -> dict[str, DownloadRecord]:
    """Fetches what is not yet complete below `out`, after checking that the disk has room for all of it."""
    options = options or DownloadOptions()
    files = list(dict.fromkeys(files))
    out.mkdir(parents=True, exist_ok=True)
    records = read_records(out)
    pending = [file for file in files if not _is_complete(file, out, records)]
    for file in files:
        if file not in pending:
            _logger.info("%s is already complete, skipped", out / file.path)
    _check_disk(pending, out, options)
    for file in pending:
        _download(file, out, records, options)
    return {file.path: records[file.path] for file in files}


def read_records(out: Path) -> dict[str, DownloadRecord]:
    """The finished downloads of a folder by path; empty where there are none."""
    path = out / RECORDS_NAME
    if not path.exists():
        return {}
    try:
        return {name: DownloadRecord(**fields) for name, fields in json.loads(path.read_text())["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        advice = "delete it and run the download again, which then fetches every file anew"
        raise DownloadError(str(path), f"not a record of downloads ({error!r})", advice) from error


def _write_record(out: Path, records: dict[str, DownloadRecord], path: str, record: DownloadRecord | None) -> None:
    """Sets one record, or removes it, and writes them all."""
    if record is None:
        del records[path]
    else:
        records[path] = record
    content = {"files": {name: asdict(records[name]) for name in sorted(records)}}
    write_text(out / RECORDS_NAME, json.dumps(content, indent=1))


def _is_complete(file: RemoteFile, out: Path, records: dict[str, DownloadRecord]) -> bool:
    """The record is of this address, and what it lists is on disk in the recorded size."""
    record = records.get(file.path)
    if record is None or record.address != file.address:
        return False
    if not file.is_archive:
        return _has_size(out / file.path, record.size)
    return record.members is not None and all(_has_size(out / path, size) for path, size in record.members.items())


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _check_disk(files: Sequence[RemoteFile], out: Path, options: DownloadOptions) -> None:
    """Room for all the files; an archive needs its size again while it is unpacked, and for good if it is kept."""
    needed = largest_archive = 0
    for file in files:
        size = ask_size(file, options)
        if size is None:
            _logger.warning("%s: the server does not tell the size, so the disk is not checked for it", file.address)
            continue
        path = out / file.path
        needed += max(size - size_of(path) - size_of(part_path(path)), 0)
        if file.is_archive:
            needed += size if options.keep_archives else 0
            largest_archive = max(largest_archive, size)
    needed += 0 if options.keep_archives else largest_archive
    free = shutil.disk_usage(out).free
    if needed > free:
        happened = f"{len(files)} files from there need {needed:,} bytes, but {out} has {free:,} bytes free"
        raise DownloadError(files[0].address, happened, "free space, or choose another output folder")


def _download(file: RemoteFile, out: Path, records: dict[str, DownloadRecord], options: DownloadOptions) -> None:
    """Fetch and record; then unpack and record again, so that a kill in between costs no second fetch."""
    path = out / file.path
    record = records.get(file.path)
    if record is None or record.address != file.address or not _has_size(path, record.size):
        record = DownloadRecord(file.address, *fetch_file(file, path, options))
        if file.path.startswith(f"{INDEX_FOLDER}/"):
            _check_indices(file, path)
        _write_record(out, records, file.path, record)
    if file.is_archive:
        members = _unpack(file, path, out, records)
        _write_record(out, records, file.path, replace(record, members=members))
        if not options.keep_archives:
            path.unlink()


def _check_indices(file: RemoteFile, path: Path) -> None:
    try:
        read_index_file(path)
    except UserError as error:
        path.unlink()
        advice = "it was deleted; check the address, or leave index files out with --no-indices"
        raise DownloadError(file.address, str(error), advice) from error


def _unpack(file: RemoteFile, path: Path, out: Path, records: dict[str, DownloadRecord]) -> dict[str, int]:
    try:
        return unpack_archive(path, out)
    except UnpackError as error:
        # Forgotten, so that a rerun does not take the bad archive for a finished download.
        path.unlink()
        _write_record(out, records, file.path, None)
        advice = "nothing of it was unpacked; check the address, then run again"
        raise DownloadError(file.address, str(error), advice) from error
    except OSError as error:
        raise DownloadError(file.address, f"cannot be unpacked into {out} ({error})", "mend that, run again") from error

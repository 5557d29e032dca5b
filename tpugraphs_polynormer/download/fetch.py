"""Downloads the TpuGraphs collections and the node-classification benchmarks; resumes, checks and records files."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tpugraphs_polynormer.archives.estimated import DOWNLOADS_NAME
from tpugraphs_polynormer.archives.indices import read_index_file
from tpugraphs_polynormer.download.http import DownloadError, DownloadOptions, ask_size, fetch_file, part_path, size_of
from tpugraphs_polynormer.download.sources import (
    INDEX_FOLDER,
    RemoteFile,
    list_benchmark_files,
    list_collection_files,
    list_index_files,
)
from tpugraphs_polynormer.download.unpack import unpack_archive
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import only_writer, write_text

RECORDS_NAME = DOWNLOADS_NAME
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DownloadRecord:
    """An entry of downloads.json: one finished download; `members` has the sizes of an archive's files by path."""

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
    """The records by file name, after downloading the tar files of the collections and unpacking them to `<out>/npz`.

    Args:
      collections: their names.
      out: the output folder.
      base_address: of the files; by default the official one.
      with_indices: whether to download the official validation index files of layout collections to eval_indices/.
      options: of the downloads.
    """
    kinds = [list_index_files, list_collection_files] if with_indices else [list_collection_files]  # small files first
    files = [file for list_files in kinds for name in collections for file in list_files(name, base_address)]
    return download_files(files, out, options=options)


def download_benchmarks(
    names: Sequence[str], out: Path, *, mirror: str | None = None, options: DownloadOptions | None = None
) -> dict[str, DownloadRecord]:
    """The records by file name, after downloading the benchmarks' files to the paths that `read_benchmark` expects."""
    files = [file for name in names for file in list_benchmark_files(name, mirror)]
    return download_files(files, out, options=options)


def download_files(
    files: Iterable[RemoteFile], out: Path, *, options: DownloadOptions | None = None
) -> dict[str, DownloadRecord]:
    """The records by file name, after downloading the incomplete files to `out`; checks the free disk space first."""
    options = options or DownloadOptions()
    files = list(dict.fromkeys(files))
    with only_writer(out):
        records = read_records(out)
        pending = [file for file in files if not _is_complete(file, out, records.get(file.path))]
        for file in files:
            if file not in pending:
                _logger.info("%s is already complete, skipped", out / file.path)
        _check_disk(pending, out, options)
        for file in pending:
            _download(file, out, records, options)
    return {file.path: records[file.path] for file in files}


def read_records(out: Path) -> dict[str, DownloadRecord]:
    """The finished downloads of a folder by path; empty without downloads.json."""
    path = out / RECORDS_NAME
    if not path.exists():
        return {}
    try:
        return {name: DownloadRecord(**fields) for name, fields in json.loads(path.read_text())["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        advice = "delete it and run the download again, which then fetches every file anew"
        raise DownloadError(str(path), f"not a record of downloads ({error!r})", advice) from error


def _write_records(out: Path, records: dict[str, DownloadRecord]) -> None:
    content = {"files": {name: asdict(records[name]) for name in sorted(records)}}
    write_text(out / RECORDS_NAME, json.dumps(content, indent=1))


def _is_fetched(file: RemoteFile, path: Path, record: DownloadRecord | None) -> bool:
    """Whether the file at `path` is from this address and has the recorded size."""
    return record is not None and record.address == file.address and size_of(path) == record.size


def _is_complete(file: RemoteFile, out: Path, record: DownloadRecord | None) -> bool:
    """Whether the file, or every unpacked file of an archive, is on disk with the recorded size."""
    if not file.is_archive:
        return _is_fetched(file, out / file.path, record)
    members = record.members if record and record.address == file.address else None
    return bool(members) and all(size_of(out / path) == size for path, size in members.items())


def _check_disk(files: Sequence[RemoteFile], out: Path, options: DownloadOptions) -> None:
    """Raises if the disk has not enough space. An archive needs its size twice while it is unpacked, or if kept."""
    needed, archives = 0, [0]
    for file in files:
        size = ask_size(file, options)
        if size is None:
            _logger.warning("%s: the server does not tell the size, so the disk is not checked for it", file.address)
            continue
        path = out / file.path
        needed += max(size - size_of(path) - size_of(part_path(path)), 0)
        archives += [size] if file.is_archive else []
    needed += sum(archives) if options.keep_archives else max(archives)
    free = shutil.disk_usage(out).free
    if needed > free:
        happened = f"{len(files)} files from there need {needed:,} bytes, but {out} has {free:,} bytes free"
        raise DownloadError(files[0].address, happened, "free space, or choose another output folder")


def _download(file: RemoteFile, out: Path, records: dict[str, DownloadRecord], options: DownloadOptions) -> None:
    """Downloads and records a file, then unpacks it and records that; a kill in between needs no second download."""
    path, record = out / file.path, records.pop(file.path, None)
    if not _is_fetched(file, path, record):
        record = DownloadRecord(file.address, *fetch_file(file, path, options))
    try:
        if file.path.startswith(f"{INDEX_FOLDER}/"):
            read_index_file(path)
        _write_records(out, records | {file.path: record})
        if file.is_archive:
            record = replace(record, members=unpack_archive(path, out, file.folder))
    except UserError as error:
        # Without the file and its record, a rerun downloads it again.
        path.unlink()
        _write_records(out, records)
        advice = "nothing of it was kept; check the address, then run again (--no-indices leaves index files out)"
        raise DownloadError(file.address, str(error), advice) from error
    except OSError as error:
        raise DownloadError(file.address, f"cannot be unpacked into {out} ({error})", "mend that, run again") from error
    records[file.path] = record
    _write_records(out, records)
    if file.is_archive and not options.keep_archives:
        path.unlink()

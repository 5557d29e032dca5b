"""Datasets of an object store as a folder on this machine, for the stages that read a few rows of many files.

A request to an object store takes tens of milliseconds whatever its size. Forty steps of training on 52 simulated
graphs made 1,219 reads of 126 MB in total, from 26 files of 31 MB (docs/results.md): so each file is copied once, by a
request for every 16 MB, and read from the disk.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from tpugraphs_polynormer.beam.commit import is_remote
from tpugraphs_polynormer.beam.plan import folder_of
from tpugraphs_polynormer.catalog import find_collection
from tpugraphs_polynormer.checksums import compare_file
from tpugraphs_polynormer.datasets.manifest import MANIFEST_NAME, DatasetError, read_manifest
from tpugraphs_polynormer.datasets.schema import SCHEMA_NAME
from tpugraphs_polynormer.datasets.split_files import shard_files
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import only_writer, replacing, temporary_folder
from tpugraphs_polynormer.progress import Progress

CACHE_VARIABLE = "TPUGRAPHS_CACHE"
_CACHE = "~/.cache/tpugraphs"


@contextmanager
def reaching(*places: str) -> Iterator[None]:
    """A context in which a failure of a remote file system is a UserError that names those of the places it has."""
    logging.getLogger().addFilter(_is_no_traceback)  # Beam logs the traceback of what it raises
    try:
        yield
    except UserError:
        raise
    except Exception as fault:  # the class depends on the file system
        remote = " and ".join(filter(is_remote, places))
        if not remote:
            raise
        reason = (str(fault).strip() or repr(fault)).splitlines()[0]
        raise UserError(
            f"{remote}: cannot be reached ({reason}); check the address and the credentials, and that the extra for it "
            "is installed: tpugraphs-polynormer[s3], or apache-beam[gcp] for gs://"
        ) from fault
    finally:
        logging.getLogger().removeFilter(_is_no_traceback)


def _is_no_traceback(record: logging.LogRecord) -> bool:
    return "Traceback" not in record.getMessage()


def copy_datasets(source: str, collections: Iterable[str]) -> Path:
    """The local folder with these collections' datasets of a remote folder; all copied bytes agree with the manifests.

    The folder is in $TPUGRAPHS_CACHE, or ~/.cache/tpugraphs, under a name made of the address. Files that are there and
    whole are kept, so that a killed copy continues, and a second run copies nothing but the manifest.
    """
    FileSystems.set_options(PipelineOptions([]))
    name = hashlib.sha256(source.rstrip("/").encode()).hexdigest()[:16]
    cache = Path(os.environ.get(CACHE_VARIABLE) or _CACHE).expanduser() / name
    for collection in collections:
        with reaching(source):
            _copy_collection(folder_of(source, collection), cache / find_collection(collection).folder)
    return cache


def _copy_collection(source: str, folder: Path) -> None:
    address = FileSystems.join(source, MANIFEST_NAME)
    if not FileSystems.exists(address):
        raise DatasetError(f"{address}: not found, expected a finished dataset; run `tpugraphs preprocess` to the end")
    with FileSystems.open(address) as stream:
        content = stream.read()
    with only_writer(folder):
        path = folder / MANIFEST_NAME
        if path.exists() and path.read_bytes() == content:
            return  # the manifest is copied last
        path.unlink(missing_ok=True)
        with temporary_folder(folder / "manifest") as temporary:
            (temporary / MANIFEST_NAME).write_bytes(content)
            manifest = read_manifest(temporary)
        shards = [shard for split in manifest.splits.values() for shard in split.shards]
        files = {shard.name + suffix: told for shard in shards for suffix, told in shard_files(shard).items()}
        with Progress(len(files), f"copy {manifest.collection}", "file") as progress:
            for name, (size, sha256) in files.items():
                if compare_file(folder / name, size, sha256):
                    _copy(source, folder, name)
                    fault = compare_file(folder / name, size, sha256)
                    if fault:
                        advice = "run `tpugraphs preprocess` again"
                        raise DatasetError(f"{source}/{name}: {fault.found}, expected {fault.expected}; {advice}")
                progress.update()
        for name in (SCHEMA_NAME, MANIFEST_NAME):
            _copy(source, folder, name)


def _copy(source: str, folder: Path, name: str) -> None:
    with (
        replacing(folder / name) as temporary,
        FileSystems.open(FileSystems.join(source, name)) as stream,
        temporary.open("wb") as target,
    ):
        shutil.copyfileobj(stream, target, 16 << 20)

"""checksums.json: the size and sha256 of the files of a finished folder (a run, predictions), and what differs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tpugraphs_polynormer.files import hash_file, sync, write_text

CHECKSUMS_NAME = "checksums.json"


class Fault(NamedTuple):
    """One file that is not what it should be."""

    path: Path
    found: str
    expected: str


def write_checksums(folder: Path, paths: Iterable[Path], planned: Mapping[str, str] | None = None) -> None:
    """Lists files below a folder by their relative names; `planned` are texts of files that are written next.

    All of them are on the disk before the list is.
    """
    paths = sorted(paths)
    for path in paths:
        sync(path)
    files = {path.relative_to(folder).as_posix(): (path.stat().st_size, hash_file(path)) for path in paths}
    for name, text in (planned or {}).items():
        data = text.encode()
        files[name] = len(data), hashlib.sha256(data).hexdigest()
    content = {name: {"bytes": size, "sha256": checksum} for name, (size, checksum) in files.items()}
    write_text(folder / CHECKSUMS_NAME, json.dumps({"files": content}, indent=1) + "\n", durable=True)


def compare_folder(folder: Path) -> tuple[dict[str, int], list[Fault]]:
    """({name: bytes} of the files that checksums.json lists, those of them that differ)."""
    path = folder / CHECKSUMS_NAME
    try:
        files: Mapping[str, Any] = json.loads(path.read_text())["files"]
        listed = {name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as fault:
        return {}, [Fault(path, f"not readable ({fault})", "the checksums of the finished folder")]
    outside = [name for name in listed if Path(name).is_absolute() or ".." in Path(name).parts]
    if outside:
        return {}, [Fault(path, f"the name {outside[0]!r:.80}", "names of files in its folder")]
    faults = [compare_file(folder / name, *expected) for name, expected in listed.items()]
    return {name: size for name, (size, _) in listed.items()}, [fault for fault in faults if fault]


def compare_file(path: Path, size: int, sha256: str) -> Fault | None:
    """What is wrong with a file, or None; its content is read only if its size is right."""
    try:
        found = path.stat().st_size
        if found != size:
            return Fault(path, f"{found:,} bytes", f"{size:,} bytes")
        checksum = hash_file(path)
    except FileNotFoundError:
        return Fault(path, "nothing", f"{size:,} bytes")
    except OSError as fault:
        return Fault(path, f"not readable ({fault.strerror})", f"{size:,} bytes")
    return None if checksum == sha256 else Fault(path, f"sha256 {checksum[:16]}...", f"sha256 {sha256[:16]}...")

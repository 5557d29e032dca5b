"""Tells who made the runtimes of archives, the TPU compiler, the simulator or a TPU: by a file beside their tree."""

from __future__ import annotations

import json
from pathlib import Path

LABELS_NAME = "labels.json"
SIMULATION_NAME = "simulation.jsonl"
DOWNLOADS_NAME = "downloads.json"
UNKNOWN = "unknown"
_DEPTH = 6  # folders above an archive: npz/layout/xla/random/train, and their tree


def describe_origin(path: Path | str) -> str | None:
    """Who estimated the runtimes of an archive, in words; None if no labels.json above it names the archive."""
    path = Path(path).resolve()
    for folder in path.parents[:_DEPTH]:
        try:
            content = json.loads((folder / LABELS_NAME).read_text(encoding="utf-8"))
            named = path.stem in {each["name"] for each in content["labelled"]}
            chip, versions = content["topology"], content["versions"]
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if named:
            return f"estimated by the TPU compiler for {chip} (libtpu {versions.get('libtpu', '?')}), not measured"
    return None


def name_origin(path: Path | str) -> str:
    """Where the runtimes of an archive come from, in words; UNKNOWN if no file above it tells."""
    estimated = describe_origin(path)
    if estimated is not None:
        return estimated
    if "://" in str(path):  # an object store, which is not searched
        return UNKNOWN
    measured = "measured on TPUs, as TpuGraphs publishes them"
    names = {SIMULATION_NAME: "simulated, not measured", DOWNLOADS_NAME: measured}
    for folder in Path(path).resolve().parents[:_DEPTH]:
        for name, origin in names.items():
            if (folder / name).is_file():
                return origin
    return UNKNOWN

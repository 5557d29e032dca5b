"""Tells archives whose runtimes the TPU compiler estimated from measured ones: by a file beside their tree."""

from __future__ import annotations

import json
from pathlib import Path

LABELS_NAME = "labels.json"


def describe_origin(path: Path | str) -> str | None:
    """Who estimated the runtimes of an archive, in words; None if no labels.json above it names the archive."""
    path = Path(path).resolve()
    for folder in path.parents[:6]:  # npz/layout/xla/random/train
        try:
            content = json.loads((folder / LABELS_NAME).read_text(encoding="utf-8"))
            named = path.stem in {each["name"] for each in content["labelled"]}
            chip, versions = content["topology"], content["versions"]
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if named:
            return f"estimated by the TPU compiler for {chip} (libtpu {versions.get('libtpu', '?')}), not measured"
    return None

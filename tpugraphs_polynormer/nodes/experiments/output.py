"""Writes the numbers and the figure of an experiment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tpugraphs_polynormer.files import replacing, write_text


def make_figure(width: float, height: float) -> Figure:
    """A figure that needs no display and does not change matplotlib's global state."""
    return Figure(figsize=(width, height), layout="constrained")


def write_experiment(out: Path, name: str, result: Mapping[str, Any], figure: Figure) -> None:
    """Writes NAME.json and NAME.png to the folder `out`, each atomically."""
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / f"{name}.json", json.dumps(result, indent=1) + "\n")
    with replacing(out / f"{name}.png") as temporary:
        figure.savefig(temporary, dpi=150, format="png")

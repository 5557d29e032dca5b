"""How a case ended, and the cases of a row on disk, by which a killed benchmark continues."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

_LARGEST = "longest"  # a count with this beginning is the largest of its cases, not their sum


@dataclass(frozen=True)
class Outcome:
    """The end of a case: how many faults it had, how many of them ended as they should, what was counted, what not."""

    faults: int
    clean: int
    counts: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # one per fault that was not clean


@dataclass(frozen=True)
class Row:
    """One class of faults: `run` makes the case of a number."""

    name: str
    title: str
    num_cases: int
    run: Callable[[int], Outcome]


def run_row(row: Row, folder: Path) -> list[Outcome]:
    """The outcomes of a row's cases; those with a file in `folder` are not run again."""
    folder = folder / row.name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for number in range(row.num_cases):
        path = folder / f"{number:03d}.json"
        if not path.exists():
            outcome = row.run(number)
            path.with_suffix(".tmp").write_text(json.dumps(asdict(outcome), indent=1))
            os.replace(path.with_suffix(".tmp"), path)
            for note in outcome.notes:
                print(f"{row.name}, case {number}: {note}", file=sys.stderr, flush=True)
        outcomes.append(Outcome(**json.loads(path.read_text())))
    return outcomes


def format_row(row: Row, outcomes: list[Outcome]) -> str:
    """A line of the table."""
    counts: dict[str, float] = {}
    for outcome in outcomes:
        for name, value in outcome.counts.items():
            before = counts.get(name, 0)
            counts[name] = max(before, value) if name.startswith(_LARGEST) else before + value
    told = ", ".join(f"{value:,.1f} s {name}" if name.startswith(_LARGEST) else f"{value:,} {name}"
                     for name, value in counts.items())  # fmt: skip
    faults, clean = sum(each.faults for each in outcomes), sum(each.clean for each in outcomes)
    return f"| {row.title} | {faults:,} | {clean:,} | {told} |"

"""Plain-text tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as text: columns padded to their widest cell, the first left-aligned, the others right-aligned."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def format_number(value: float | None) -> str:
    """The number with four decimals; a dash for None."""
    return "-" if value is None else f"{value:.4f}"


def guard_cell(value: Any) -> Any:
    """A cell of a csv file for people: text that a spreadsheet would compute as a formula gets a quote in front."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value

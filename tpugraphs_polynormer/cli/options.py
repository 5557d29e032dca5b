"""Options that several stages share."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Adds --set, which changes one field of the config."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", dest="overrides", help="change one field; repeatable"
    )


def parse_numbers(text: str) -> list[int]:
    """The numbers of a list such as "0,1,2"."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected numbers such as 0,1,2") from None


def add_runs(parser: argparse.ArgumentParser, many: str) -> None:
    """Adds --run-dir, for one or several, and --datasets; `many` says what several of them mean."""
    parser.add_argument("--run-dir", type=Path, nargs="+", required=True, metavar="DIR", dest="run_dirs", help=many)
    parser.add_argument("--datasets", type=Path, required=True, help="folder of the preprocessed datasets")


def conclude(text: str) -> None:
    """Logs the last line of a stage: what it read, what it wrote and where, and how many were left out."""
    logging.getLogger("tpugraphs_polynormer").info("%s", text)

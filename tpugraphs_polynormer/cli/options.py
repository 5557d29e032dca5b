"""Options that several stages share: their numbers, their paths, and whether an output can be written."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import name_temporary, remove_leftovers

MAX_SEED = 2**31 - 1  # TensorFlow's and numpy's generators both take it
_PROBE = bytes(1 << 14)  # written where an output will be: a disk without room for this has no room for any output


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """A parser of whole numbers in low..high (None: no end), for `type=`."""
    expected = f"a whole number of at least {low}" if high is None else f"a whole number in {low}..{high}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"found {text!r:.80}, expected {expected}")
        return value

    return parse


def parse_numbers(text: str) -> list[int]:
    """The numbers of a list such as "0,1,2"; each at least 0, none twice."""
    try:
        numbers = [whole_number(0, MAX_SEED)(part) for part in text.split(",")]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"found {text!r:.80}, expected whole numbers such as 0,1,2") from None
    repeated = sorted({number for number in numbers if numbers.count(number) > 1})
    if repeated:
        raise argparse.ArgumentTypeError(f"found {repeated[0]} more than once in {text!r:.80}, expected each once")
    return numbers


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Adds --set, which changes one field of the config."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=C",
        dest="overrides",
        help="change one field of the config, such as training.epochs=50; repeatable",
    )


def add_seed(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds --seed; `what` says what it draws."""
    parser.add_argument("--seed", type=whole_number(0, MAX_SEED), default=0, metavar="N", help=f"seed of {what}")


def add_runs(parser: argparse.ArgumentParser, many: str) -> None:
    """Adds --run-dir, for one or several, and --datasets; `many` says what several of them mean."""
    parser.add_argument("--run-dir", type=Path, nargs="+", required=True, metavar="DIR", dest="run_dirs", help=many)
    add_datasets(parser)


def add_datasets(parser: argparse.ArgumentParser) -> None:
    """Adds --datasets, as the stages after preprocess read it."""
    parser.add_argument(
        "--datasets", type=Path, required=True, metavar="DIR", help="folder of the preprocessed datasets"
    )


def check_output_file(option: str, path: Path, *inputs: Path | None) -> None:
    """Raises a UserError unless a file can be written at `path`; see `_check_output`."""
    _check_output(option, path, "file", [each for each in inputs if each is not None])


def check_output_folder(option: str, path: Path | str, *inputs: Path | str | None) -> None:
    """Raises a UserError unless files can be written into the folder `path`; see `_check_output`."""
    if "://" not in str(path):  # Beam writes to object stores itself
        _check_output(option, Path(path), "folder", [Path(each) for each in inputs if each is not None])


def _check_output(option: str, path: Path, kind: str, inputs: Sequence[Path]) -> None:
    """Tries the output before the work: makes the missing folders and a file beside the output, and removes them.

    An output that is one of the inputs, or is there as something else than `kind`, is refused. What an earlier run left
    behind when it was killed is removed.
    """
    made: list[Path] = []
    folder = path if kind == "folder" else path.parent
    probe = name_temporary(folder / path.name)
    try:
        if any(path.exists() and each.exists() and path.samefile(each) for each in inputs):
            raise UserError(f"{option} {path}: found the input itself, expected another {kind}; name another {option}")
        if path.exists() and not (path.is_dir() if kind == "folder" else path.is_file()):
            found = "a folder" if path.is_dir() else "a file" if path.is_file() else "a device"
            raise UserError(f"{option} {path}: found {found}, expected a {kind}; choose another {option}")
        for each in reversed([folder, *folder.parents]):
            if not each.exists():
                each.mkdir()
                made.append(each)
        remove_leftovers(folder, path.name)
        with probe.open("xb") as stream:
            stream.write(_PROBE)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as fault:
        raise UserError(f"{option} {path}: cannot be written ({fault.strerror}); choose another {option}") from None
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
        for each in reversed(made):
            with contextlib.suppress(OSError):
                each.rmdir()


def conclude(text: str) -> None:
    """Logs the last line of a stage: what it read, what it wrote and where, and how many were left out."""
    logging.getLogger("tpugraphs_polynormer").info("%s", text)

"""Options that several stages share: their numbers, their paths, and whether an output can be written."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tpugraphs_polynormer.compiler.topologies import CHIPS
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import name_temporary, remove_leftovers, sync, writing

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


def add_path(parser: argparse.ArgumentParser, name: str, metavar: str, text: str, **settings: Any) -> None:
    """Adds an option or an argument that is a path; `text` is its help."""
    parser.add_argument(name, type=Path, metavar=metavar, help=text, **settings)


def add_number(
    parser: argparse.ArgumentParser, name: str, low: int, text: str, *, high: int | None = None, default: Any = None
) -> None:
    """Adds an option that is a whole number in low..high; `text` is its help."""
    parser.add_argument(name, type=whole_number(low, high), metavar="N", default=default, help=text)


def add_names(
    parser: argparse.ArgumentParser,
    option: str,
    metavar: str,
    choices: Iterable[str],
    text: str,
    default: Sequence[str] | None = None,
) -> None:
    """Adds an option that takes some of the names in `choices`; `text` is its help."""
    parser.add_argument(option, nargs="+", metavar=metavar, choices=choices, default=default, help=text)


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
    add_number(parser, "--seed", 0, f"seed of {what}", high=MAX_SEED, default=0)


def add_operands(parser: argparse.ArgumentParser) -> None:
    """Adds --operands: what models with `operand_features` read."""
    text = "also write node_operands, which official archives do not have: operand order, contracting dimensions"
    parser.add_argument("--operands", action="store_true", help=text)


def add_topology(parser: argparse.ArgumentParser, text: str, **settings: Any) -> None:
    """Adds --topology, the TPU whose compiler is asked; `text` is its help, to which examples are added."""
    examples = ", ".join(chip.example for chip in CHIPS.values())
    parser.add_argument("--topology", metavar="CHIP:SHAPE", help=f"{text}; such as {examples}", **settings)


def add_runs(parser: argparse.ArgumentParser, many: str) -> None:
    """Adds --run-dir, for one or several, and --datasets; `many` says what several of them mean."""
    add_path(parser, "--run-dir", "DIR", many, nargs="+", required=True, dest="run_dirs")
    add_datasets(parser)


def add_datasets(parser: argparse.ArgumentParser) -> None:
    """Adds --datasets, as the stages after preprocess read it; see `local_datasets`."""
    text = "folder of the preprocessed datasets; one of an object store, such as s3://BUCKET/DIR, is copied first"
    parser.add_argument("--datasets", type=_folder_or_address, metavar="DIR", help=text, required=True)


def _folder_or_address(text: str) -> Path | str:
    return text if "://" in text else Path(text)


def local_datasets(datasets: Path | str, collections: Callable[[], Iterable[str]]) -> Path:
    """The folder of the datasets on this machine; those of an object store are copied, the named collections alone."""
    if isinstance(datasets, Path):
        return datasets
    from tpugraphs_polynormer.beam.local_copy import copy_datasets

    return copy_datasets(datasets, collections())


def add_strategy(parser: argparse.ArgumentParser, *, several_machines: bool = True) -> None:
    """Adds --strategy, --devices and --tpu: on what TensorFlow computes."""
    choices = ("auto", "cpu", "gpu", "tpu", *(("multiworker",) if several_machines else ()))
    parser.add_argument("--strategy", default="auto", choices=choices, help="what computes; auto: GPUs, else CPU")
    devices = "GPUs to use, or virtual CPU devices (default: all GPUs, one CPU)"
    add_number(parser, "--devices", 1, devices, high=1024)
    parser.add_argument(
        "--tpu", default="local", metavar="NAME", help="with --strategy tpu: its name; local on a TPU VM"
    )


def make_chosen_strategy(args: argparse.Namespace) -> Any:
    """The tf.distribute strategy of the options of `add_strategy`; call it before TensorFlow makes a tensor."""
    from tpugraphs_polynormer.training.distribution import make_strategy

    return make_strategy(args.strategy, tpu=args.tpu, num_devices=args.devices or 0)


def read_config_option(name: str | None, overrides: Sequence[str]) -> Any:
    """The config of --config, a path or the name of a shipped one, and --set; the defaults without a name."""
    from tpugraphs_polynormer.config.loader import find_config
    from tpugraphs_polynormer.config.schema import load_config

    return load_config(name and find_config(name), overrides)


def check_output(option: str, path: Path | str, *inputs: Path | str | None, kind: str = "folder") -> None:
    """Raises a UserError unless the output, a "file" or a "folder" of files, can be written.

    It is tried before the work: the missing folders and a file beside the output are made, and removed. An output that
    is one of the inputs, or is there as something else than `kind`, is refused. What an earlier run left behind when it
    was killed is removed. Beam writes to object stores itself.
    """
    if kind == "folder" and "://" in str(path):
        return
    path, inputs = Path(path), [Path(each) for each in inputs if each is not None]
    made: list[Path] = []
    folder = path if kind == "folder" else path.parent
    probe = name_temporary(folder / path.name)
    try:
        with writing(f"{option} {path}", option):
            if any(path.exists() and each.exists() and path.samefile(each) for each in inputs):
                raise UserError(
                    f"{option} {path}: found the input itself, expected another {kind}; name another {option}"
                )
            if path.exists() and not (path.is_dir() if kind == "folder" else path.is_file()):
                found = "a folder" if path.is_dir() else "a file" if path.is_file() else "a device"
                raise UserError(f"{option} {path}: found {found}, expected a {kind}; choose another {option}")
            for each in reversed([folder, *folder.parents]):
                if not each.exists():
                    each.mkdir()
                    made.append(each)
            remove_leftovers(folder, path.name)
            probe.write_bytes(_PROBE)
            sync(probe)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
        for each in reversed(made):
            with contextlib.suppress(OSError):
                each.rmdir()


def conclude(text: str) -> None:
    """Logs the last line of a stage: what it read, what it wrote and where, and how many were left out."""
    logging.getLogger("tpugraphs_polynormer").info("%s", text)

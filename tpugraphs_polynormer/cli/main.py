"""The command `tpugraphs <stage>`: its parser; the modules of a stage are imported when it runs."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tpugraphs_polynormer import __version__
from tpugraphs_polynormer.cli import data, nodes, ranking, train, tune
from tpugraphs_polynormer.cli.options import add_path, add_seed, check_output
from tpugraphs_polynormer.cli.parser import HelpFormatter, StageParser, add_stage, describe_stages
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.process import OWNER, Terminated, end_with_process, interrupted_by_sigterm


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one stage; bad input is one line on stderr and exit code 2, never a traceback. Without a stage: the help."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # see import_tensorflow; children inherit it
    if OWNER in os.environ:  # started by a demo, without which it must not go on
        end_with_process(int(os.environ[OWNER]))
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:  # the shell asks how the command line can be completed
        importlib.import_module("argcomplete").autocomplete(parser)
    try:
        args, args.beam_arguments = parser.parse_known_args(argv)
        if args.beam_arguments and not args.takes_beam_arguments:
            parser.error(f"{args.stage}: unrecognized arguments: {' '.join(args.beam_arguments)}")
    except SystemExit as ended:  # an error that was told, or --help
        return ended.code
    if args.stage is None:
        parser.print_help()
        return 0
    _start_logging(args.log_level)
    try:
        with interrupted_by_sigterm():
            args.run(args)
    except UserError as error:
        return _fail(args.stage, str(error))
    except BrokenPipeError:  # the reader of a pipe (head, less) went away: not an error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a disk that filled up, a file that vanished
        advice = "mend that, then run the same command again"
        return _fail(args.stage, f"{error.filename or 'a file'}: {error.strerror or error}; {advice}")
    except MemoryError:
        return _fail(args.stage, "not enough memory; close other programs, or ask for fewer candidates at once")
    except KeyboardInterrupt as interrupt:
        print(f"tpugraphs {args.stage}: interrupted; run the same command again to continue", file=sys.stderr)
        return 143 if isinstance(interrupt, Terminated) else 130
    return 0


def _start_logging(level: str) -> None:
    """Our own lines go to the terminal even while a Beam job has moved stderr; those of other packages do not."""
    handlers = [_StderrHandler(), logging.StreamHandler(sys.stderr)]
    handlers[0].addFilter(_is_own)
    handlers[1].addFilter(lambda record: not _is_own(record))
    form = "%(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.ERROR, format=form, handlers=handlers, force=True)
    logging.getLogger("tpugraphs_polynormer").setLevel(level)


def _is_own(record: logging.LogRecord) -> bool:
    return record.name.startswith("tpugraphs_polynormer")


def _fail(stage: str, message: str) -> int:
    print(f"tpugraphs {stage}: error: {message}", file=sys.stderr)
    return 2


class _StderrHandler(logging.StreamHandler):
    """Writes to what sys.stderr is at that moment, which a Beam job moves while it runs, above the progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode(file=sys.stderr):
            super().emit(record)

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        pass


def build_parser() -> argparse.ArgumentParser:
    """The parser of every stage."""
    parser = StageParser(
        prog="tpugraphs",
        usage="tpugraphs [--version] [--log-level LEVEL] STAGE ...",
        description="Predict which compiler choices make a program fast (TpuGraphs, Polynormer).",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tpugraphs {__version__}", help="print the version")
    parser.add_argument(
        "--log-level",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        metavar="LEVEL",
        help="how much is told on stderr",
    )
    parser.set_defaults(takes_beam_arguments=False)
    stages = parser.add_subparsers(dest="stage", metavar="STAGE", prog="tpugraphs", help=argparse.SUPPRESS)
    groups = []
    adders_of = {"first": [_add_demo]} | {each.TITLE: each.STAGES for each in (data, train, ranking, nodes)}
    adders_of[ranking.TITLE] = (*ranking.STAGES, *tune.STAGES)
    for title, adders in adders_of.items():
        num_before = len(stages._choices_actions)
        for add in adders:
            add(stages)
        groups.append((title, [(each.dest, each.help) for each in stages._choices_actions[num_before:]]))
    more = "`tpugraphs STAGE --help` explains a stage, its options and their defaults, with examples."
    parser.epilog = f"{describe_stages(groups)}\n\n{more}"
    return parser


def _add_demo(stages: argparse._SubParsersAction) -> None:
    demo = add_stage(
        stages,
        "demo",
        "everything from simulated data to a scored submission and a page",
        _run_demo,
        ["", "--output demo-1 --seed 1"],
        note="Takes some minutes on two cores and less than 1 GB of disk. A rerun continues where it stopped.",
    )
    add_path(demo, "--output", "DIR", "folder for everything", default=Path("demo"))
    add_seed(demo, "the simulated data and the weights")


def _run_demo(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.demo import run_demo

    check_output("--output", args.output)
    print(run_demo(args.output, args.seed))


if __name__ == "__main__":
    sys.exit(main())

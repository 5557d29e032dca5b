"""The command `tpugraphs <stage>`: its parser; the modules of a stage are imported when it runs."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tpugraphs_polynormer import __version__
from tpugraphs_polynormer.cli import data, nodes, ranking, train
from tpugraphs_polynormer.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one stage; bad input is one line on stderr and exit code 2, never a traceback."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # see import_tensorflow; children inherit it
    parser = build_parser()
    args, args.beam_arguments = parser.parse_known_args(argv)
    if args.beam_arguments and not args.takes_beam_arguments:
        parser.error(f"unrecognized arguments: {' '.join(args.beam_arguments)}")
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("tpugraphs_polynormer").setLevel(args.log_level)
    try:
        args.run(args)
    except UserError as error:
        print(f"tpugraphs {args.stage}: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe (head, less) went away: not an error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print(f"tpugraphs {args.stage}: interrupted", file=sys.stderr)
        return 130
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of every stage."""
    parser = argparse.ArgumentParser(
        prog="tpugraphs", description="Predict which compiler choices make a program fast (TpuGraphs, Polynormer)."
    )
    parser.add_argument("--version", action="version", version=f"tpugraphs {__version__}")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    parser.set_defaults(takes_beam_arguments=False)
    stages = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")
    for group in (train, data, nodes, ranking):
        group.add_stages(stages)
    _add_demo(stages)
    return parser


def _add_demo(stages: argparse._SubParsersAction) -> None:
    demo = stages.add_parser("demo", help="everything from simulated data to a scored submission and a page")
    demo.add_argument("--output", type=Path, default=Path("demo"))
    demo.add_argument("--seed", type=int, default=0)
    demo.set_defaults(run=_run_demo)


def _run_demo(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.demo import run_demo

    print(run_demo(args.output, args.seed))


if __name__ == "__main__":
    sys.exit(main())

"""`tpugraphs <stage>`: one parser; each stage's work is imported only when it runs."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tpugraphs_polynormer import __version__
from tpugraphs_polynormer.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one stage; bad input is one line on stderr and exit code 2, never a traceback."""
    args = _build_parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
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


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tpugraphs", description="Predict which compiler choices make a program fast (TpuGraphs, Polynormer)."
    )
    parser.add_argument("--version", action="version", version=f"tpugraphs {__version__}")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    stages = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")
    _add_config(stages)
    _add_simulate(stages)
    _add_inspect(stages)
    return parser


def _add_config(stages: argparse._SubParsersAction) -> None:
    config = stages.add_parser("config", help="show a config with every field's meaning")
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print the resolved config")
    show.add_argument("file", nargs="?", type=Path, help="YAML file (default: the built-in defaults)")
    _add_overrides(show)
    show.set_defaults(run=_run_config_show)


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", dest="overrides", help="change one field; repeatable"
    )


def _run_config_show(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.config import load_config
    from tpugraphs_polynormer.settings import describe_config

    print(describe_config(load_config(args.file, args.overrides)))


def _add_simulate(stages: argparse._SubParsersAction) -> None:
    simulate = stages.add_parser("simulate", help="write the five collections from the simulated TPU")
    simulate.add_argument("--out", type=Path, required=True, help="folder for npz/ and truth/")
    simulate.add_argument("--scale", choices=("tiny", "small", "full"), default="tiny")
    simulate.add_argument("--seed", type=int, default=0)
    simulate.set_defaults(run=_run_simulate)


def _run_simulate(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.simulation.simulate import simulate

    for collection, num_graphs in simulate(args.out, args.scale, args.seed).items():
        print(f"{collection}: {num_graphs} graphs")


def _add_inspect(stages: argparse._SubParsersAction) -> None:
    inspect = stages.add_parser("inspect", help="summarise one npz archive")
    inspect.add_argument("file", type=Path)
    inspect.add_argument("--plot", type=Path, metavar="PNG", help="also draw runtimes and opcodes")
    inspect.set_defaults(run=_run_inspect)


def _run_inspect(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.inspection import inspect_archive, plot_inspection

    inspection = inspect_archive(args.file)
    print(inspection)
    if args.plot:
        plot_inspection(inspection, args.plot)


if __name__ == "__main__":
    sys.exit(main())

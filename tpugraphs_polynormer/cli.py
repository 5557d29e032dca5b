"""`tpugraphs <stage>`: one parser; each stage's work is imported only when it runs."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tpugraphs_polynormer import __version__
from tpugraphs_polynormer.catalog import BENCHMARKS, COLLECTIONS
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.startup import import_tensorflow


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one stage; bad input is one line on stderr and exit code 2, never a traceback."""
    parser = _build_parser()
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


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tpugraphs", description="Predict which compiler choices make a program fast (TpuGraphs, Polynormer)."
    )
    parser.add_argument("--version", action="version", version=f"tpugraphs {__version__}")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    parser.set_defaults(takes_beam_arguments=False)
    stages = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")
    _add_config(stages)
    _add_simulate(stages)
    _add_inspect(stages)
    _add_download(stages)
    _add_preprocess(stages)
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

    for collection, counts in simulate(args.out, args.scale, args.seed).items():
        print(f"{collection}: {counts['graphs']:,} graphs, {counts['candidates']:,} candidates (simulated)")


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


def _add_download(stages: argparse._SubParsersAction) -> None:
    download = stages.add_parser("download", help="fetch the official collections or the benchmarks' files")
    download.add_argument("--collections", nargs="+", default=[], metavar="ID", choices=COLLECTIONS)
    download.add_argument("--benchmarks", nargs="+", default=[], metavar="NAME", choices=BENCHMARKS)
    download.add_argument("--out", type=Path, required=True)
    download.add_argument(
        "--base-address", help="where the tar files of the collections lie, if not the official place"
    )
    download.add_argument("--mirror", help="where the files of the benchmarks lie, if not their official places")
    download.add_argument("--keep-archives", action="store_true", help="keep tar and zip files after unpacking")
    download.set_defaults(run=_run_download)


def _run_download(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.data.addresses import TPUGRAPHS_ADDRESS
    from tpugraphs_polynormer.data.download import DownloadSettings, download_benchmarks, download_collections

    if not args.collections and not args.benchmarks:
        raise UserError("nothing to fetch: name --collections or --benchmarks")
    settings = DownloadSettings(keep_archives=args.keep_archives)
    address = args.base_address or TPUGRAPHS_ADDRESS
    records = download_collections(args.collections, args.out, base_address=address, settings=settings)
    records |= download_benchmarks(args.benchmarks, args.out, mirror=args.mirror, settings=settings)
    for name, record in records.items():
        print(f"{name}: {record.size:,} bytes, sha256 {record.sha256}")


def _add_preprocess(stages: argparse._SubParsersAction) -> None:
    preprocess = stages.add_parser(
        "preprocess",
        help="turn npz archives into GraphTensor datasets (Beam)",
        epilog="All other options are Beam's, such as --runner; without one, all cores of this machine are used.",
        allow_abbrev=False,
    )
    preprocess.add_argument("--input", required=True, help="folder that holds npz/ (local, or one that Beam reads)")
    preprocess.add_argument("--output", required=True, help="folder for the datasets")
    preprocess.add_argument("--collections", nargs="+", default=list(COLLECTIONS), metavar="ID", choices=COLLECTIONS)
    preprocess.add_argument("--on-error", choices=("fail", "skip"), default="fail", help="what a bad archive does")
    preprocess.add_argument("--max-nodes", type=int, default=0, help="prune larger graphs around configurable nodes")
    preprocess.add_argument("--hops", type=int, default=3, help="with --max-nodes: how far around them")
    preprocess.add_argument("--graphs-per-shard", type=int, default=0, help="default: 4 layout or 256 tile graphs")
    preprocess.set_defaults(run=_run_preprocess, takes_beam_arguments=True)


def _run_preprocess(args: argparse.Namespace) -> None:
    import_tensorflow()
    from pipelines.preprocess import run

    for collection in run(args, args.beam_arguments):
        print(f"{collection}: {args.output}")


if __name__ == "__main__":
    sys.exit(main())

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
    _add_featurize(stages)
    _add_train(stages)
    _add_benchmark(stages)
    _add_experiment(stages)
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


def _add_featurize(stages: argparse._SubParsersAction) -> None:
    featurize = stages.add_parser("featurize", help="turn HLO protobufs into the official npz archives")
    featurize.add_argument("input", type=Path, help="a .pb file (module or tuning data), or a folder of them")
    featurize.add_argument("--output", type=Path, required=True, help="an npz file, or a folder for a folder")
    featurize.add_argument("--candidates", type=int, default=1, help="candidates to draw for a plain module")
    featurize.add_argument("--seed", type=int, default=0)
    featurize.set_defaults(run=_run_featurize)


def _run_featurize(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.hlo.featurize import featurize_path

    result = featurize_path(args.input, args.output, num_candidates=args.candidates, seed=args.seed)
    for path in result.written:
        print(path)
    if result.failed:
        raise UserError("; ".join(f"{path}: {reason}" for path, reason in result.failed.items()))


def _add_train(stages: argparse._SubParsersAction) -> None:
    train = stages.add_parser("train", help="train a model that ranks candidates; rerun to go on")
    train.add_argument("--config", type=Path, help="YAML file, such as configs/demo/layout_xla_random.yaml")
    train.add_argument("--data", type=Path, required=True, help="folder of the preprocessed datasets")
    train.add_argument("--run-dir", type=Path, required=True)
    train.add_argument("--seeds", type=_parse_numbers, metavar="0,1,2", help="one run per seed, and their spread")
    train.add_argument("--indices", type=Path, help="folder of the official validation index files")
    train.add_argument("--strategy", default="auto", choices=("auto", "cpu", "gpu", "tpu", "multiworker"))
    train.add_argument("--devices", type=int, default=0, help="GPUs to use, or virtual CPU devices")
    train.add_argument("--tpu", default="local", help="name of the TPU; local on a TPU VM")
    _add_overrides(train)
    train.set_defaults(run=_run_train)


def _parse_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected numbers such as 0,1,2") from None


def _run_train(args: argparse.Namespace) -> None:
    import json

    from tpugraphs_polynormer.config import load_config

    config = load_config(args.config, args.overrides)
    import_tensorflow()
    from tpugraphs_polynormer.distribution import make_strategy
    from tpugraphs_polynormer.training import train, train_seeds

    strategy = make_strategy(args.strategy, tpu=args.tpu, num_devices=args.devices)
    shared = {"strategy": strategy, "indices_dir": args.indices}
    if args.seeds:
        result = train_seeds(config, args.seeds, args.data, args.run_dir, **shared)
    else:
        result = train(config, args.data, args.run_dir, **shared)
    print(json.dumps(result, indent=1))


def _add_benchmark(stages: argparse._SubParsersAction) -> None:
    benchmark = stages.add_parser("benchmark", help="node classification on the Polynormer paper's data sets")
    which = benchmark.add_mutually_exclusive_group(required=True)
    which.add_argument("--dataset", choices=BENCHMARKS, metavar="NAME")
    which.add_argument("--all", action="store_true", help="print which data sets are present")
    benchmark.add_argument("--data", type=Path, required=True, help="folder of the downloaded files")
    benchmark.add_argument("--run-dir", type=Path, help="default: runs/<dataset>")
    benchmark.add_argument("--config", type=Path, help="default: configs/benchmarks/<dataset>.yaml")
    benchmark.add_argument("--splits", type=_parse_numbers, metavar="0,1,2", help="default: all official ones")
    _add_overrides(benchmark)
    benchmark.set_defaults(run=_run_benchmark)


def _run_benchmark(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.config import load_config

    config_path = args.config or Path("configs/benchmarks") / f"{args.dataset}.yaml"
    config = None if args.all else load_config(config_path, args.overrides)
    import_tensorflow()
    from tpugraphs_polynormer.node_classification import describe_present, format_results, run_benchmark

    if config is None:
        print(describe_present(args.data))
        return
    run_dir = args.run_dir or Path("runs") / args.dataset
    print(format_results([run_benchmark(config, args.data, run_dir, args.splits)]))


def _add_experiment(stages: argparse._SubParsersAction) -> None:
    experiment = stages.add_parser("experiment", help="the Polynormer paper's other experiments, each with a picture")
    experiment.add_argument("name", choices=("scaling", "heatmaps", "ablation", "circular_skip_links", "monomials"))
    experiment.add_argument("--out", type=Path, required=True, help="folder for the JSON file and the picture")
    experiment.add_argument("--data", type=Path, help="folder of the benchmarks' files (heatmaps, ablation)")
    experiment.set_defaults(run=_run_experiment)


def _run_experiment(args: argparse.Namespace) -> None:
    import_tensorflow()
    from tpugraphs_polynormer.experiments import run_experiment

    print(run_experiment(args.name, args.out, args.data))


if __name__ == "__main__":
    sys.exit(main())

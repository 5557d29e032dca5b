"""`tpugraphs <stage>`: one parser; each stage's work is imported only when it runs."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tpugraphs_polynormer import __version__
from tpugraphs_polynormer.catalog import BENCHMARKS, COLLECTIONS, NUM_TEST_GRAPHS
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.process import import_tensorflow, keep_freed_memory


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one stage; bad input is one line on stderr and exit code 2, never a traceback."""
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
    _add_config(stages)
    _add_simulate(stages)
    _add_inspect(stages)
    _add_download(stages)
    _add_preprocess(stages)
    _add_featurize(stages)
    _add_train(stages)
    _add_benchmark(stages)
    _add_experiment(stages)
    _add_rank(stages)
    _add_evaluate(stages)
    _add_predict(stages)
    _add_submit(stages)
    _add_report(stages)
    _add_export(stages)
    _add_demo(stages)
    return parser


def _add_config(stages: argparse._SubParsersAction) -> None:
    config = stages.add_parser("config", help="show a config with every field's meaning")
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print the resolved config")
    show.add_argument("file", nargs="?", help="YAML file, or the name of a shipped one (default: the defaults)")
    _add_overrides(show)
    show.set_defaults(run=_run_config_show)
    docs = actions.add_parser("docs", help="print docs/config.md: every field, its default and meaning")
    docs.set_defaults(run=_run_config_docs)


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", dest="overrides", help="change one field; repeatable"
    )


def _run_config_show(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.config.loader import describe_config, find_config
    from tpugraphs_polynormer.config.schema import load_config

    print(describe_config(load_config(args.file and find_config(args.file), args.overrides)))


def _run_config_docs(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.config.schema import document_config

    print(document_config(), end="")


def _add_simulate(stages: argparse._SubParsersAction) -> None:
    simulate = stages.add_parser("simulate", help="write the five collections from the simulated TPU")
    simulate.add_argument("--archives", type=Path, required=True, help="folder for npz/ and truth/")
    simulate.add_argument("--scale", choices=("tiny", "demo", "small", "full"), default="tiny")
    simulate.add_argument("--seed", type=int, default=0)
    simulate.add_argument("--collections", nargs="+", default=list(COLLECTIONS), metavar="ID", choices=COLLECTIONS)
    simulate.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    simulate.set_defaults(run=_run_simulate)


def _run_simulate(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.simulator.write import simulate

    if args.workers < 1:
        raise UserError(f"--workers: found {args.workers}, expected at least 1")
    summary = simulate(args.archives, args.scale, args.seed, collections=args.collections, num_workers=args.workers)
    for collection, counts in summary.items():
        print(f"{collection}: {counts['graphs']:,} graphs, {counts['candidates']:,} candidates (simulated)")


def _add_inspect(stages: argparse._SubParsersAction) -> None:
    inspect = stages.add_parser("inspect", help="summarise one npz archive")
    inspect.add_argument("file", type=Path)
    inspect.add_argument("--plot", type=Path, metavar="PNG", help="also draw runtimes and opcodes")
    inspect.set_defaults(run=_run_inspect)


def _run_inspect(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.archives.inspect import inspect_archive, plot_inspection

    inspection = inspect_archive(args.file)
    print(inspection)
    if args.plot:
        plot_inspection(inspection, args.plot)


def _add_download(stages: argparse._SubParsersAction) -> None:
    download = stages.add_parser("download", help="fetch the official collections or the benchmarks' files")
    download.add_argument("--collections", nargs="+", default=[], metavar="ID", choices=COLLECTIONS)
    download.add_argument("--benchmarks", nargs="+", default=[], metavar="NAME", choices=BENCHMARKS)
    download.add_argument("--archives", type=Path, metavar="DIR", help="with --collections: folder for npz/")
    download.add_argument("--files", type=Path, metavar="DIR", help="with --benchmarks: folder for their files")
    download.add_argument(
        "--base-address",
        help="where the collections' tar files and eval_indices/ are, if not at the official addresses",
    )
    download.add_argument("--mirror", help="where the files of the benchmarks lie, if not their official places")
    download.add_argument("--no-indices", action="store_true", help="leave out the official validation index files")
    download.add_argument("--keep-archives", action="store_true", help="keep tar and zip files after unpacking")
    download.set_defaults(run=_run_download)


def _run_download(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.download.fetch import DownloadOptions, download_benchmarks, download_collections

    if not args.collections and not args.benchmarks:
        raise UserError("nothing to fetch: name --collections or --benchmarks")
    for names, flag in (("collections", "archives"), ("benchmarks", "files")):
        if getattr(args, names) and not getattr(args, flag):
            raise UserError(f"--{names}: name the folder to put them in with --{flag}")
    options = DownloadOptions(keep_archives=args.keep_archives)
    records = {}
    if args.collections:
        collections = {"base_address": args.base_address, "with_indices": not args.no_indices, "options": options}
        records |= download_collections(args.collections, args.archives, **collections)
    if args.benchmarks:
        records |= download_benchmarks(args.benchmarks, args.files, mirror=args.mirror, options=options)
    for name, record in records.items():
        print(f"{name}: {record.size:,} bytes, sha256 {record.sha256}")


def _add_preprocess(stages: argparse._SubParsersAction) -> None:
    preprocess = stages.add_parser(
        "preprocess",
        help="turn npz archives into GraphTensor datasets (Beam)",
        epilog="All other options are Beam's, such as --runner; without one, all cores of this machine are used.",
        allow_abbrev=False,
    )
    preprocess.add_argument("--archives", required=True, help="folder that holds npz/ (local, or one that Beam reads)")
    preprocess.add_argument("--datasets", required=True, help="folder for the datasets")
    preprocess.add_argument("--format", choices=("npz", "pb"), default="npz", help="pb: layout tuning protobufs")
    preprocess.add_argument("--collections", nargs="+", default=list(COLLECTIONS), metavar="ID", choices=COLLECTIONS)
    preprocess.add_argument("--on-error", choices=("fail", "skip"), default="fail", help="what a bad archive does")
    preprocess.add_argument(
        "--exclude",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="graphs to leave out; unet* means all such",
    )
    preprocess.add_argument("--exclude-file", type=Path, metavar="FILE", help="the same, one name per line")
    preprocess.add_argument("--max-nodes", type=int, default=0, help="prune larger graphs around config nodes")
    preprocess.add_argument("--hops", type=int, default=3, help="with --max-nodes: how far around them")
    preprocess.add_argument("--graphs-per-shard", type=int, default=0, help="default: 4 layout or 256 tile graphs")
    preprocess.set_defaults(run=_run_preprocess, takes_beam_arguments=True)


def _run_preprocess(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.beam.preprocess import run

    for collection, num_excluded in run(args, args.beam_arguments).items():
        print(f"{collection}: {args.datasets}" + (f", excluded graphs: {num_excluded:,}" if num_excluded else ""))


def _add_featurize(stages: argparse._SubParsersAction) -> None:
    featurize = stages.add_parser("featurize", help="turn HLO protobufs into the official npz archives")
    featurize.add_argument("input", type=Path, help="a .pb file (module or tuning data), or a folder of them")
    featurize.add_argument("--output", type=Path, required=True, help="an npz file, or a folder for a folder")
    featurize.add_argument("--candidates", type=int, default=1, help="candidates to draw for a plain module")
    featurize.add_argument("--seed", type=int, default=0)
    featurize.set_defaults(run=_run_featurize)


def _run_featurize(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.archives.featurize import featurize_path

    result = featurize_path(args.input, args.output, num_candidates=args.candidates, seed=args.seed)
    for path in result.written:
        print(path)
    if result.failed:
        raise UserError("; ".join(f"{path}: {reason}" for path, reason in result.failed.items()))


def _add_train(stages: argparse._SubParsersAction) -> None:
    train = stages.add_parser("train", help="train a model that ranks candidates; rerun to go on")
    train.add_argument("--config", help="YAML file, or the name of a shipped one, such as demo/layout_xla_random")
    train.add_argument("--datasets", type=Path, required=True, help="folder of the preprocessed datasets")
    train.add_argument("--run-dir", type=Path, required=True)
    train.add_argument("--seeds", type=_parse_numbers, metavar="0,1,2", help="one run per seed, and their spread")
    train.add_argument("--indices", type=Path, help="the folder eval_indices that `download` made (official protocol)")
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

    from tpugraphs_polynormer.config.loader import find_config
    from tpugraphs_polynormer.config.schema import load_config

    config = load_config(args.config and find_config(args.config), args.overrides)
    keep_freed_memory()
    import_tensorflow()
    from tpugraphs_polynormer.ranking.train import train, train_seeds
    from tpugraphs_polynormer.training.distribution import make_strategy

    strategy = make_strategy(args.strategy, tpu=args.tpu, num_devices=args.devices)
    shared = {"strategy": strategy, "indices_dir": args.indices}
    if args.seeds:
        result = train_seeds(config, args.seeds, args.datasets, args.run_dir, **shared)
    else:
        result = train(config, args.datasets, args.run_dir, **shared)
    print(json.dumps(result, indent=1))


def _add_benchmark(stages: argparse._SubParsersAction) -> None:
    benchmark = stages.add_parser("benchmark", help="node classification on the Polynormer paper's data sets")
    which = benchmark.add_mutually_exclusive_group(required=True)
    which.add_argument("--name", choices=BENCHMARKS, metavar="NAME")
    which.add_argument("--list", action="store_true", help="print which data sets are present")
    benchmark.add_argument("--files", type=Path, required=True, help="folder of the downloaded files")
    benchmark.add_argument("--run-dir", type=Path, help="default: runs/<dataset>")
    benchmark.add_argument("--config", help="YAML file, or the name of a shipped one (default: nodes/<name>)")
    benchmark.add_argument("--splits", type=_parse_numbers, metavar="0,1,2", help="default: all official ones")
    _add_overrides(benchmark)
    benchmark.set_defaults(run=_run_benchmark)


def _run_benchmark(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.config.loader import find_config
    from tpugraphs_polynormer.config.schema import load_config

    config = None if args.list else load_config(find_config(args.config or f"nodes/{args.name}"), args.overrides)
    keep_freed_memory()
    import_tensorflow()
    from tpugraphs_polynormer.nodes.benchmark import describe_present, format_results, run_benchmark

    if config is None:
        print(describe_present(args.files))
        return
    run_dir = args.run_dir or Path("runs") / args.name
    print(format_results([run_benchmark(config, args.files, run_dir, args.splits)]))


def _add_experiment(stages: argparse._SubParsersAction) -> None:
    experiment = stages.add_parser("experiment", help="the Polynormer paper's other experiments, each with a picture")
    experiment.add_argument("name", choices=("scaling", "heatmaps", "ablation", "circular_skip_links", "monomials"))
    experiment.add_argument("--output", type=Path, required=True, help="folder for the JSON file and the picture")
    experiment.add_argument("--files", type=Path, help="heatmaps, ablation: folder of the benchmarks' files")
    experiment.add_argument("--benchmark", choices=BENCHMARKS, metavar="NAME", default="minesweeper")
    experiment.add_argument(
        "--config", help="YAML file, or the name of a shipped one (default: nodes/small/<benchmark>)"
    )
    _add_overrides(experiment)
    experiment.set_defaults(run=_run_experiment)


def _run_experiment(args: argparse.Namespace) -> None:
    import importlib
    import json

    from tpugraphs_polynormer.config.loader import find_config
    from tpugraphs_polynormer.config.schema import load_config

    needs_data = args.name in ("heatmaps", "ablation")
    if needs_data and not args.files:
        raise UserError(f"{args.name} trains on a benchmark: name the folder of its files with --files")
    config = None
    if needs_data:
        config = load_config(find_config(args.config or f"nodes/small/{args.benchmark}"), args.overrides)
    keep_freed_memory()
    import_tensorflow()
    run = getattr(importlib.import_module(f"tpugraphs_polynormer.nodes.experiments.{args.name}"), f"run_{args.name}")
    if needs_data:
        from tpugraphs_polynormer.nodes.datasets import read_benchmark

        result = run(args.output, read_benchmark(args.benchmark, args.files), config)
    else:
        result = run(args.output)
    print(json.dumps(result, indent=1))


def _add_runs(parser: argparse.ArgumentParser, many: str) -> None:
    parser.add_argument("--run-dir", type=Path, nargs="+", required=True, metavar="DIR", dest="run_dirs", help=many)
    parser.add_argument("--datasets", type=Path, required=True, help="folder of the preprocessed datasets")


def _add_evaluate(stages: argparse._SubParsersAction) -> None:
    evaluate = stages.add_parser("evaluate", help="metrics of trained runs, graph by graph")
    _add_runs(evaluate, "run directories, or folders of runs by seed; each is evaluated alone")
    evaluate.add_argument("--split", default="valid", choices=("train", "valid", "test"))
    evaluate.add_argument(
        "--indices", type=Path, help="the folder eval_indices that `download` made (official protocol)"
    )
    evaluate.add_argument("--output", type=Path, help="folder for the csv and JSON files (default: the run directory)")
    evaluate.set_defaults(run=_run_evaluate)


def _run_evaluate(args: argparse.Namespace) -> None:
    import_tensorflow()
    from tpugraphs_polynormer.ranking.evaluate_runs import evaluate_runs, format_evaluations

    results = evaluate_runs(
        args.run_dirs, args.datasets, split=args.split, indices_dir=args.indices, output=args.output
    )
    print(format_evaluations(results))


def _add_predict(stages: argparse._SubParsersAction) -> None:
    predict = stages.add_parser(
        "predict",
        help="rank the candidates of every test graph; rerun to go on",
        epilog="All other options are Beam's, such as --runner, and imply --beam.",
        allow_abbrev=False,
    )
    _add_runs(predict, "run directories, or folders of runs by seed; those of one collection are averaged")
    predict.add_argument("--output", type=Path, required=True, help="folder for the predictions")
    predict.add_argument("--split", default="test", choices=("valid", "test"))
    predict.add_argument("--average", default="rank", choices=("rank", "score"), help="how an ensemble is averaged")
    predict.add_argument("--beam", action="store_true", help="score in a Beam job (default runner: all cores)")
    predict.set_defaults(run=_run_predict, takes_beam_arguments=True)


def _run_predict(args: argparse.Namespace) -> None:
    import_tensorflow()
    from tpugraphs_polynormer.ranking.predict import plan_predictions, predict

    plan = plan_predictions(args.run_dirs, args.datasets, args.output, split=args.split, average=args.average)
    if args.beam or args.beam_arguments:
        from tpugraphs_polynormer.beam.score import run

        count = run(plan, args.beam_arguments)
    else:
        count = predict(plan)
    print(f"{args.output}: {len(plan.tasks):,} graphs, {count:,} predicted now")


def _add_submit(stages: argparse._SubParsersAction) -> None:
    submit = stages.add_parser("submit", help="write, check or score a contest csv")
    submit.add_argument(
        "--archives", type=Path, help="folder that holds npz/ (not the preprocessed one); --check works without it"
    )
    submit.add_argument("--predictions", type=Path, help="folder that `tpugraphs predict` wrote")
    submit.add_argument("--output", type=Path, default=Path("submission.csv"), help="with --predictions")
    submit.add_argument("--check", type=Path, metavar="FILE", help="check this file instead of writing one")
    submit.add_argument("--truth", type=Path, metavar="DIR", help="hidden runtimes, if known: print the score")
    submit.set_defaults(run=_run_submit)


def _run_submit(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.ranking.submission import expected_rows, read_rankings, score_submission, write_submission
    from tpugraphs_polynormer.ranking.submission_check import check_submission
    from tpugraphs_polynormer.ranking.submission_rules import SubmissionError
    from tpugraphs_polynormer.ranking.tables import format_number, format_table

    if (args.check is None) == (args.predictions is None):
        raise UserError("give either --predictions to write a submission, or --check to validate one")
    for flag, value in (("--predictions", args.predictions), ("--truth", args.truth)):
        if value and not args.archives:
            raise UserError(f"{flag} needs the names of the test graphs: give the folder that holds npz/ as --archives")
    rows = expected_rows(args.archives) if args.archives else None
    path = args.check or args.output
    if args.predictions:
        write_submission(path, read_rankings(args.predictions), rows)
    elif violations := check_submission(path, rows):
        scope = (
            ""
            if args.archives
            else " for the official test split (for other data, such as simulated data, give --archives)"
        )
        raise SubmissionError("\n  ".join([f"{path}: not a valid submission{scope}", *map(str, violations)]))
    if not args.archives:
        advice = "give --archives to check graph names and candidate counts"
        print(f"{path}: {NUM_TEST_GRAPHS} rows, valid as far as can be told without the data ({advice})")
        return
    print(f"{path}: {len(rows):,} rows, valid")
    if args.truth:
        scores = score_submission(path, args.truth, rows)
        print(format_table(["collection", "score"], [[name, format_number(value)] for name, value in scores.items()]))


def _add_report(stages: argparse._SubParsersAction) -> None:
    report = stages.add_parser("report", help="one self-contained HTML page about trained runs")
    _add_runs(report, "run directories, or folders of runs by seed; several of one collection are compared")
    report.add_argument("--output", type=Path, default=Path("report.html"))
    report.add_argument("--split", default="valid", choices=("train", "valid"))
    report.add_argument("--candidates", type=int, default=1000, help="at most so many of each graph; 0 all")
    report.add_argument("--heatmap", metavar="GRAPH", help="graph whose attention is drawn (default: a small one)")
    report.add_argument("--title", default="TpuGraphs ranking report")
    report.add_argument("--note", default="", help='a line below the title, such as "simulated data"')
    report.set_defaults(run=_run_report)


def _run_report(args: argparse.Namespace) -> None:
    import_tensorflow()
    from tpugraphs_polynormer.ranking.report.page import write_report

    print(
        write_report(
            args.run_dirs,
            args.datasets,
            args.output,
            split=args.split,
            most=args.candidates,
            heatmap_graph=args.heatmap,
            title=args.title,
            note=args.note,
        )
    )


def _add_export(stages: argparse._SubParsersAction) -> None:
    export = stages.add_parser("export", help="write a SavedModel that TF Serving can load")
    export.add_argument("--run-dir", type=Path, required=True)
    export.add_argument("--datasets", type=Path, required=True, help="folder of the preprocessed datasets")
    export.add_argument("--output", type=Path, required=True, help="folder of the SavedModel, such as models/ranker/1")
    export.set_defaults(run=_run_export)


def _run_export(args: argparse.Namespace) -> None:
    import_tensorflow()
    from tpugraphs_polynormer.ranking.export import export_ranker

    print(export_ranker(args.run_dir, args.datasets, args.output))


def _add_demo(stages: argparse._SubParsersAction) -> None:
    demo = stages.add_parser("demo", help="everything from simulated data to a scored submission and a page")
    demo.add_argument("--output", type=Path, default=Path("demo"))
    demo.add_argument("--seed", type=int, default=0)
    demo.set_defaults(run=_run_demo)


def _run_demo(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.demo import run_demo

    print(run_demo(args.output, args.seed))


def _add_rank(stages: argparse._SubParsersAction) -> None:
    rank = stages.add_parser("rank", help="rank layout candidates of your own program (HLO protobuf)")
    rank.add_argument("program", type=Path, help="serialized HloProto or HloModuleProto, such as program.hlo.pb")
    rank.add_argument("--run-dir", type=Path, required=True, help="a run trained on a layout collection")
    rank.add_argument("--candidates", type=int, default=1000, help="how many to draw and score")
    rank.add_argument("--mode", choices=("default", "random", "consistent"), default="default", help="how to draw")
    rank.add_argument("--seed", type=int, default=0)
    rank.add_argument("--top", type=int, default=5, help="how many of the best to print")
    rank.add_argument("--output", type=Path, help="also write candidates, scores and ranking to this npz file")
    rank.set_defaults(run=_run_rank)


def _run_rank(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.archives.featurize import read_program

    module = read_program(args.program)
    import_tensorflow()
    from tpugraphs_polynormer.archives.npz import write_npz
    from tpugraphs_polynormer.ranking.own_program import rank_program

    ranking = rank_program(args.run_dir, module, num_candidates=args.candidates, seed=args.seed, mode=args.mode)
    logging.getLogger("tpugraphs_polynormer").warning("%s", ranking.novelty)
    print(ranking.describe(args.top))
    if args.output:
        arrays = {"node_config_feat": ranking.candidates, "scores": ranking.scores, "ranking": ranking.order}
        write_npz(args.output, arrays)


if __name__ == "__main__":
    sys.exit(main())

"""The stages after training: evaluate, predict, submit, report, export, rank."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from tpugraphs_polynormer.catalog import COLLECTIONS, NUM_TEST_GRAPHS
from tpugraphs_polynormer.cli.options import (
    add_datasets,
    add_runs,
    add_seed,
    check_output_file,
    check_output_folder,
    conclude,
    whole_number,
)
from tpugraphs_polynormer.cli.parser import add_stage
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.process import import_tensorflow

TITLE = "judging and using trained runs"


def add_stages(stages: argparse._SubParsersAction) -> None:
    """Adds the parsers of these stages."""
    _add_evaluate(stages)
    _add_predict(stages)
    _add_submit(stages)
    _add_report(stages)
    _add_export(stages)
    _add_rank(stages)


def _add_split(parser: argparse.ArgumentParser, default: str, choices: Sequence[str]) -> None:
    parser.add_argument("--split", default=default, choices=choices, help="which graphs")


def _add_evaluate(stages: argparse._SubParsersAction) -> None:
    evaluate = add_stage(
        stages,
        "evaluate",
        "metrics of trained runs, graph by graph",
        _run_evaluate,
        [
            "tpugraphs evaluate --run-dir runs/xla_random --datasets datasets",
            "tpugraphs evaluate --run-dir runs/a runs/b --datasets datasets --indices data/eval_indices",
        ],
    )
    add_runs(evaluate, "run directories, or folders of runs by seed; each is evaluated alone")
    _add_split(evaluate, "valid", ("train", "valid", "test"))
    evaluate.add_argument(
        "--indices", type=Path, metavar="DIR", help="the folder eval_indices that `download` made (official protocol)"
    )
    evaluate.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for the csv and JSON files (default: the run directory)"
    )


def _run_evaluate(args: argparse.Namespace) -> None:
    if args.output:
        check_output_folder("--output", args.output, args.datasets)
    import_tensorflow()
    from tpugraphs_polynormer.ranking.evaluate import evaluate_runs, format_evaluations

    results = evaluate_runs(
        args.run_dirs, args.datasets, split=args.split, indices_dir=args.indices, output=args.output
    )
    print(format_evaluations(results))
    num_graphs = sum(len(result.graphs) for result in results)
    where = args.output or ", ".join(map(str, args.run_dirs))
    conclude(
        f"{where}: evaluation-{args.split}.csv and .json of {len(results):,} runs on {num_graphs:,} {args.split} "
        f"graphs of {args.datasets}, none left out"
    )


def _add_predict(stages: argparse._SubParsersAction) -> None:
    predict = add_stage(
        stages,
        "predict",
        "rank the candidates of every test graph; a rerun continues",
        _run_predict,
        [
            "tpugraphs predict --run-dir runs/xla_random --datasets datasets --output predictions",
            "tpugraphs predict --run-dir runs/seed-0 runs/seed-1 --datasets datasets --output predictions --beam",
        ],
        note="All other options are Beam's, such as --runner, and imply --beam.",
        allow_abbrev=False,
    )
    add_runs(predict, "run directories, or folders of runs by seed; those of one collection are averaged")
    predict.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for the predictions")
    _add_split(predict, "test", ("valid", "test"))
    predict.add_argument("--average", default="rank", choices=("rank", "score"), help="how an ensemble is averaged")
    predict.add_argument("--beam", action="store_true", help="score in a Beam job (default runner: all cores)")
    predict.set_defaults(takes_beam_arguments=True)


def _run_predict(args: argparse.Namespace) -> None:
    check_output_folder("--output", args.output, args.datasets, *args.run_dirs)
    import_tensorflow()
    from tpugraphs_polynormer.ranking.predict import plan_predictions, predict

    plan = plan_predictions(args.run_dirs, args.datasets, args.output, split=args.split, average=args.average)
    if args.beam or args.beam_arguments:
        from tpugraphs_polynormer.beam.score import run

        count = run(plan, args.beam_arguments)
    else:
        count = predict(plan)
    print(f"{args.output}: {len(plan.tasks):,} graphs, {count:,} predicted now")
    num_runs = sum(map(len, plan.runs.values()))
    conclude(
        f"{args.output}: predictions of {num_runs:,} runs for {len(plan.tasks):,} {args.split} graphs of "
        f"{args.datasets}, none left out"
    )


def _add_submit(stages: argparse._SubParsersAction) -> None:
    submit = add_stage(
        stages,
        "submit",
        "write, check or score a contest csv",
        _run_submit,
        [
            "tpugraphs submit --predictions predictions --archives data --output submission.csv",
            "tpugraphs submit --check submission.csv --archives data --truth data/truth",
            "tpugraphs submit --predictions predictions --archives data --collections layout:xla:random",
        ],
    )
    submit.add_argument(
        "--archives",
        type=Path,
        metavar="DIR",
        help="folder that holds npz/ (not the preprocessed one); --check works without it",
    )
    submit.add_argument("--predictions", type=Path, metavar="DIR", help="folder that `tpugraphs predict` wrote")
    submit.add_argument(
        "--collections",
        nargs="+",
        metavar="ID",
        choices=COLLECTIONS,
        help="collections that the csv has; the contest wants all (default: those with test graphs in --archives)",
    )
    submit.add_argument(
        "--output", type=Path, default=Path("submission.csv"), metavar="FILE", help="with --predictions: the csv"
    )
    submit.add_argument("--check", type=Path, metavar="FILE", help="check this file instead of writing one")
    submit.add_argument("--truth", type=Path, metavar="DIR", help="hidden runtimes, if known: print the score")


def _run_submit(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.ranking.submission import expected_rows, read_rankings, score_submission, write_submission
    from tpugraphs_polynormer.ranking.submission_check import check_submission
    from tpugraphs_polynormer.ranking.submission_rules import SubmissionError
    from tpugraphs_polynormer.ranking.tables import format_number, format_table

    if (args.check is None) == (args.predictions is None):
        raise UserError("give either --predictions to write a submission, or --check to validate one")
    needs = (("--predictions", args.predictions), ("--truth", args.truth), ("--collections", args.collections))
    for flag, value in needs:
        if value and not args.archives:
            raise UserError(f"{flag} needs the names of the test graphs: give the folder that holds npz/ as --archives")
    if args.predictions:
        check_output_file("--output", args.output)
    rows = expected_rows(args.archives, args.collections) if args.archives else None
    path = args.check or args.output
    if args.predictions:
        rankings = read_rankings(args.predictions, args.collections)
        write_submission(path, rankings, rows)
        conclude(f"{path}: {len(rows):,} rows of {len(rankings):,} predictions in {args.predictions}, none left out")
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
    scope = f" for {', '.join(args.collections)} alone" if args.collections else ""
    print(f"{path}: {len(rows):,} rows, valid{scope}")
    if args.truth:
        scores = score_submission(path, args.truth, rows)
        print(format_table(["collection", "score"], [[name, format_number(value)] for name, value in scores.items()]))


def _add_report(stages: argparse._SubParsersAction) -> None:
    report = add_stage(
        stages,
        "report",
        "one self-contained HTML page about trained runs",
        _run_report,
        [
            "tpugraphs report --run-dir runs/xla_random --datasets datasets --output report.html",
            "tpugraphs report --run-dir runs/a runs/b --datasets datasets --note 'simulated data' --candidates 0",
        ],
    )
    add_runs(report, "run directories, or folders of runs by seed; several of one collection are compared")
    report.add_argument("--output", type=Path, default=Path("report.html"), metavar="FILE", help="the page")
    _add_split(report, "valid", ("train", "valid"))
    report.add_argument(
        "--candidates",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="candidates of each graph to score at most; 0: all",
    )
    report.add_argument(
        "--submission",
        type=Path,
        metavar="FILE",
        help="also show the test scores of this csv (default: none); needs --archives and --truth",
    )
    report.add_argument(
        "--archives", type=Path, metavar="DIR", help="folder that holds npz/ with the test graphs (default: none)"
    )
    report.add_argument(
        "--truth", type=Path, metavar="DIR", help="folder of the hidden runtimes of the test graphs (default: none)"
    )
    report.add_argument("--heatmap", metavar="GRAPH", help="graph whose attention is drawn (default: a small one)")
    report.add_argument("--title", default="TpuGraphs ranking report", metavar="TEXT", help="the page's title")
    report.add_argument("--note", default="", metavar="TEXT", help='a line below the title, such as "simulated data"')


def _run_report(args: argparse.Namespace) -> None:
    check_output_file("--output", args.output)
    import_tensorflow()
    from tpugraphs_polynormer.ranking.report.page import write_report

    test = (args.submission, args.archives, args.truth)
    if any(test) and not all(test):
        raise UserError("--submission, --archives and --truth belong together: give all three, or none")
    path = write_report(
        args.run_dirs,
        args.datasets,
        args.output,
        split=args.split,
        most=args.candidates,
        heatmap_graph=args.heatmap,
        title=args.title,
        note=args.note,
        test=test if all(test) else None,
    )
    print(path)
    limit = f"at most {args.candidates:,} candidates" if args.candidates else "all candidates"
    conclude(f"{path}: {', '.join(map(str, args.run_dirs))} on {limit} of each {args.split} graph of {args.datasets}")


def _add_export(stages: argparse._SubParsersAction) -> None:
    export = add_stage(
        stages,
        "export",
        "write a SavedModel that TF Serving can load",
        _run_export,
        [
            "tpugraphs export --run-dir runs/xla_random --datasets datasets --output models/ranker/1",
            "tpugraphs export --run-dir runs/tile/seed-0 --datasets datasets --output models/tile/1",
        ],
    )
    export.add_argument("--run-dir", type=Path, required=True, metavar="DIR", help="a trained run")
    add_datasets(export)
    export.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder of the SavedModel, such as models/ranker/1"
    )


def _run_export(args: argparse.Namespace) -> None:
    check_output_folder("--output", args.output, args.run_dir, args.datasets)
    import_tensorflow()
    from tpugraphs_polynormer.ranking.export import export_ranker

    print(export_ranker(args.run_dir, args.datasets, args.output))
    size = sum(path.stat().st_size for path in args.output.rglob("*") if path.is_file())
    conclude(f"{args.output}: a SavedModel of {size:,} bytes, of the best weights in {args.run_dir}")


def _add_rank(stages: argparse._SubParsersAction) -> None:
    rank = add_stage(
        stages,
        "rank",
        "rank layout candidates of your own program (HLO protobuf)",
        _run_rank,
        [
            "tpugraphs rank program.hlo.pb --run-dir runs/xla_random",
            "tpugraphs rank program.hlo.pb --run-dir runs/xla_random --candidates 5000 --output ranking.npz",
        ],
    )
    rank.add_argument(
        "program", type=Path, metavar="FILE", help="serialized HloProto or HloModuleProto, such as program.hlo.pb"
    )
    rank.add_argument("--run-dir", type=Path, required=True, metavar="DIR", help="a run trained on a layout collection")
    rank.add_argument(
        "--candidates", type=whole_number(1), default=1000, metavar="N", help="how many to draw and score"
    )
    rank.add_argument("--mode", choices=("default", "random", "consistent"), default="default", help="how to draw")
    add_seed(rank, "the drawn candidates")
    rank.add_argument("--top", type=whole_number(1), default=5, metavar="N", help="how many of the best to print")
    rank.add_argument(
        "--output", type=Path, metavar="FILE", help="also write candidates, scores and ranking to this npz file"
    )


def _run_rank(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.archives.featurize import read_program

    if args.output:
        check_output_file("--output", args.output, args.program)
    module = read_program(args.program)
    import_tensorflow()
    from tpugraphs_polynormer.archives.writer import write_npz
    from tpugraphs_polynormer.ranking.own_program import rank_program

    ranking = rank_program(args.run_dir, module, num_candidates=args.candidates, seed=args.seed, mode=args.mode)
    logging.getLogger("tpugraphs_polynormer").warning("%s", ranking.novelty)
    print(ranking.describe(args.top))
    if args.output:
        arrays = {"node_config_feat": ranking.candidates, "scores": ranking.scores, "ranking": ranking.order}
        write_npz(args.output, arrays)
    where = (
        f"all in {args.output}" if args.output else f"the best {args.top:,} above, none written (--output writes all)"
    )
    conclude(f"{args.program}: {len(ranking.order):,} candidates ranked by {args.run_dir}, {where}")

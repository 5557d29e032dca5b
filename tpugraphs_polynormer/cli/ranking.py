"""The stages after training: evaluate, predict, submit, report, export, rank."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from tpugraphs_polynormer.catalog import NUM_TEST_GRAPHS
from tpugraphs_polynormer.cli.options import add_runs, conclude
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.process import import_tensorflow


def add_stages(stages: argparse._SubParsersAction) -> None:
    """Adds the parsers of these stages."""
    _add_evaluate(stages)
    _add_predict(stages)
    _add_submit(stages)
    _add_report(stages)
    _add_export(stages)
    _add_rank(stages)


def _add_evaluate(stages: argparse._SubParsersAction) -> None:
    evaluate = stages.add_parser("evaluate", help="metrics of trained runs, graph by graph")
    add_runs(evaluate, "run directories, or folders of runs by seed; each is evaluated alone")
    evaluate.add_argument("--split", default="valid", choices=("train", "valid", "test"))
    evaluate.add_argument(
        "--indices", type=Path, help="the folder eval_indices that `download` made (official protocol)"
    )
    evaluate.add_argument("--output", type=Path, help="folder for the csv and JSON files (default: the run directory)")
    evaluate.set_defaults(run=_run_evaluate)


def _run_evaluate(args: argparse.Namespace) -> None:
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
    predict = stages.add_parser(
        "predict",
        help="rank the candidates of every test graph; a rerun continues",
        epilog="All other options are Beam's, such as --runner, and imply --beam.",
        allow_abbrev=False,
    )
    add_runs(predict, "run directories, or folders of runs by seed; those of one collection are averaged")
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
    num_runs = sum(map(len, plan.runs.values()))
    conclude(
        f"{args.output}: predictions of {num_runs:,} runs for {len(plan.tasks):,} {args.split} graphs of "
        f"{args.datasets}, none left out"
    )


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
        rankings = read_rankings(args.predictions)
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
    print(f"{path}: {len(rows):,} rows, valid")
    if args.truth:
        scores = score_submission(path, args.truth, rows)
        print(format_table(["collection", "score"], [[name, format_number(value)] for name, value in scores.items()]))


def _add_report(stages: argparse._SubParsersAction) -> None:
    report = stages.add_parser("report", help="one self-contained HTML page about trained runs")
    add_runs(report, "run directories, or folders of runs by seed; several of one collection are compared")
    report.add_argument("--output", type=Path, default=Path("report.html"))
    report.add_argument("--split", default="valid", choices=("train", "valid"))
    report.add_argument("--candidates", type=int, default=0, help="at most so many of each graph; 0 all")
    report.add_argument("--submission", type=Path, metavar="FILE", help="show its test scores too; needs the next two")
    report.add_argument("--archives", type=Path, metavar="DIR", help="folder that holds npz/ with the test graphs")
    report.add_argument("--truth", type=Path, metavar="DIR", help="hidden runtimes of the test graphs, if known")
    report.add_argument("--heatmap", metavar="GRAPH", help="graph whose attention is drawn (default: a small one)")
    report.add_argument("--title", default="TpuGraphs ranking report")
    report.add_argument("--note", default="", help='a line below the title, such as "simulated data"')
    report.set_defaults(run=_run_report)


def _run_report(args: argparse.Namespace) -> None:
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
    export = stages.add_parser("export", help="write a SavedModel that TF Serving can load")
    export.add_argument("--run-dir", type=Path, required=True)
    export.add_argument("--datasets", type=Path, required=True, help="folder of the preprocessed datasets")
    export.add_argument("--output", type=Path, required=True, help="folder of the SavedModel, such as models/ranker/1")
    export.set_defaults(run=_run_export)


def _run_export(args: argparse.Namespace) -> None:
    import_tensorflow()
    from tpugraphs_polynormer.ranking.export import export_ranker

    print(export_ranker(args.run_dir, args.datasets, args.output))
    size = sum(path.stat().st_size for path in args.output.rglob("*") if path.is_file())
    conclude(f"{args.output}: a SavedModel of {size:,} bytes, of the best weights in {args.run_dir}")


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

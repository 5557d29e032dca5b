"""The stages after training: evaluate, predict, submit, report, export."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tpugraphs_polynormer.catalog import COLLECTIONS, NUM_TEST_GRAPHS
from tpugraphs_polynormer.cli.options import (
    add_datasets,
    add_names,
    add_number,
    add_path,
    add_runs,
    add_strategy,
    check_output,
    conclude,
    local_datasets,
    make_chosen_strategy,
)
from tpugraphs_polynormer.cli.parser import add_stage
from tpugraphs_polynormer.cli.rank import add_rank
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.process import import_tensorflow

TITLE = "judging and using trained runs"


def _add_split(parser: argparse.ArgumentParser, default: str, choices: Sequence[str]) -> None:
    parser.add_argument("--split", default=default, choices=choices, help="which graphs")


def _add_evaluate(stages: argparse._SubParsersAction) -> None:
    evaluate = add_stage(
        stages,
        "evaluate",
        "metrics of trained runs, graph by graph",
        _run_evaluate,
        [
            "--run-dir runs/xla_random --datasets datasets",
            "--run-dir runs/a runs/b --datasets datasets --indices data/eval_indices",
        ],
    )
    add_runs(evaluate, "run directories, or folders of runs by seed; each is evaluated alone")
    _add_split(evaluate, "valid", ("train", "valid", "test"))
    add_path(evaluate, "--indices", "DIR", "the folder eval_indices that `download` made (official protocol)")
    add_path(evaluate, "--output", "DIR", "folder for the csv and JSON files (default: the run directory)")
    add_strategy(evaluate, several_machines=False)


def _datasets_of(datasets: Path | str, run_dirs: Sequence[Path]) -> Path:
    """The local folder of the datasets that these runs were trained on."""
    from tpugraphs_polynormer.ranking.runs import group_runs

    return local_datasets(datasets, lambda: group_runs(run_dirs))


def _run_evaluate(args: argparse.Namespace) -> None:
    if args.output:
        check_output("--output", args.output, args.datasets)
    import_tensorflow()
    from tpugraphs_polynormer.ranking.evaluate import evaluate_runs, format_evaluations

    chosen = {"split": args.split, "indices_dir": args.indices, "output": args.output}
    with make_chosen_strategy(args).scope():
        results = evaluate_runs(args.run_dirs, _datasets_of(args.datasets, args.run_dirs), **chosen)
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
            "--run-dir runs/xla_random --datasets datasets --output predictions",
            "--run-dir runs/seed-0 runs/seed-1 --datasets datasets --output predictions --beam",
        ],
        note="All other options are Beam's, such as --runner, and imply --beam.",
        allow_abbrev=False,
    )
    add_runs(predict, "run directories, or folders of runs by seed; those of one collection are averaged")
    add_path(predict, "--output", "DIR", "folder for the predictions", required=True)
    _add_split(predict, "test", ("valid", "test"))
    predict.add_argument("--average", default="rank", choices=("rank", "score"), help="how an ensemble is averaged")
    predict.add_argument("--beam", action="store_true", help="score in a Beam job (default runner: all cores)")
    add_strategy(predict, several_machines=False)
    predict.set_defaults(takes_beam_arguments=True)


def _run_predict(args: argparse.Namespace) -> None:
    check_output("--output", args.output, args.datasets, *args.run_dirs)
    import_tensorflow()
    from tpugraphs_polynormer.ranking.predict import plan_predictions, predict

    datasets = _datasets_of(args.datasets, args.run_dirs)
    plan = plan_predictions(args.run_dirs, datasets, args.output, split=args.split, average=args.average)
    if args.beam or args.beam_arguments:
        from tpugraphs_polynormer.beam.score import run

        count = run(plan, args.beam_arguments)
    else:
        with make_chosen_strategy(args).scope():
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
            "--predictions predictions --archives data --output submission.csv",
            "--check submission.csv --archives data --truth data/truth",
            "--predictions predictions --archives data --collections layout:xla:random",
        ],
    )
    add_path(submit, "--archives", "DIR", "folder that holds npz/ (not the preprocessed one); --check works without it")
    add_path(submit, "--predictions", "DIR", "folder that `tpugraphs predict` wrote")
    which = "collections that the csv has; the contest wants all (default: those with test graphs in --archives)"
    add_names(submit, "--collections", "ID", COLLECTIONS, which)
    add_path(submit, "--output", "FILE", "with --predictions: the csv", default=Path("submission.csv"))
    add_path(submit, "--check", "FILE", "check this file instead of writing one")
    add_path(submit, "--truth", "DIR", "hidden runtimes, if known: print the score")


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
        check_output("--output", args.output, kind="file")
    rows = expected_rows(args.archives, args.collections) if args.archives else None
    path = args.check or args.output
    if args.predictions:
        rankings = read_rankings(args.predictions, args.collections)
        write_submission(path, rankings, rows)
        conclude(f"{path}: {len(rows):,} rows of {len(rankings):,} predictions in {args.predictions}, none left out")
    elif violations := check_submission(path, rows):
        scope = " for the official test split (for other data, such as simulated data, give --archives)"
        told = f"{path}: not a valid submission{'' if args.archives else scope}"
        raise SubmissionError("\n  ".join([told, *map(str, violations)]))
    if not args.archives:
        advice = "give --archives to check graph names and candidate counts"
        print(f"{path}: {NUM_TEST_GRAPHS} rows, valid as far as can be told without the data ({advice})")
        return
    scope = f" for {', '.join(args.collections)} alone" if args.collections else ""
    print(f"{path}: {len(rows):,} rows, valid{scope}")
    if args.truth:
        scores = score_submission(path, args.truth, rows)
        print(
            format_table(["collection", "score"], [[name, format_number(value)] for name, (value, _) in scores.items()])
        )


def _add_report(stages: argparse._SubParsersAction) -> None:
    report = add_stage(
        stages,
        "report",
        "one self-contained HTML page about trained runs",
        _run_report,
        [
            "--run-dir runs/xla_random --datasets datasets --output report.html",
            "--run-dir runs/a runs/b --datasets datasets --note 'simulated data' --candidates 0",
        ],
    )
    add_runs(report, "run directories, or folders of runs by seed; several of one collection are compared")
    add_path(report, "--output", "FILE", "the page", default=Path("report.html"))
    _add_split(report, "valid", ("train", "valid"))
    add_number(report, "--candidates", 0, "candidates of each graph to score at most; 0: all", default=0)
    add_path(
        report,
        "--submission",
        "FILE",
        "also show the test scores of this csv (default: none); needs --archives and --truth",
    )
    add_path(report, "--archives", "DIR", "folder that holds npz/ with the test graphs (default: none)")
    add_path(report, "--truth", "DIR", "folder of the hidden runtimes of the test graphs (default: none)")
    report.add_argument("--heatmap", metavar="GRAPH", help="graph whose attention is drawn (default: a small one)")
    report.add_argument("--title", default="TpuGraphs ranking report", metavar="TEXT", help="the page's title")
    report.add_argument("--note", default="", metavar="TEXT", help='a line below the title, such as "simulated data"')


def _run_report(args: argparse.Namespace) -> None:
    check_output("--output", args.output, kind="file")
    import_tensorflow()
    from tpugraphs_polynormer.ranking.report.page import write_report

    test = (args.submission, args.archives, args.truth)
    if any(test) and not all(test):
        raise UserError("--submission, --archives and --truth belong together: give all three, or none")
    path = write_report(
        args.run_dirs,
        _datasets_of(args.datasets, args.run_dirs),
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
            "--run-dir runs/xla_random --datasets datasets --output models/ranker/1",
            "--run-dir runs/tile/seed-0 --datasets datasets --output models/tile/1",
        ],
    )
    add_path(export, "--run-dir", "DIR", "a trained run", required=True)
    add_datasets(export)
    add_path(export, "--output", "DIR", "folder of the SavedModel, such as models/ranker/1", required=True)


def _run_export(args: argparse.Namespace) -> None:
    check_output("--output", args.output, args.run_dir, args.datasets)
    import_tensorflow()
    from tpugraphs_polynormer.ranking.export import export_ranker

    print(export_ranker(args.run_dir, _datasets_of(args.datasets, [args.run_dir]), args.output))
    size = sum(path.stat().st_size for path in args.output.rglob("*") if path.is_file())
    conclude(f"{args.output}: a SavedModel of {size:,} bytes, of the best weights in {args.run_dir}")


STAGES = (_add_evaluate, _add_predict, _add_submit, _add_report, _add_export, add_rank)

"""The stages config, compile and train."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpugraphs_polynormer.cli.compile import add_compile
from tpugraphs_polynormer.cli.options import (
    add_datasets,
    add_overrides,
    add_path,
    add_strategy,
    check_output,
    conclude,
    local_datasets,
    make_chosen_strategy,
    parse_numbers,
    read_config_option,
)
from tpugraphs_polynormer.cli.parser import HelpFormatter, add_stage
from tpugraphs_polynormer.process import import_tensorflow, keep_freed_memory

TITLE = "training"


def _add_config(stages: argparse._SubParsersAction) -> None:
    examples = ["show demo/layout_xla_random", "show --set model.encoder=graphsage", "docs"]
    config = add_stage(stages, "config", "show a config with every field's meaning", _run_config_show, examples)
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print the resolved config", formatter_class=HelpFormatter)
    show.add_argument(
        "file", nargs="?", metavar="FILE", help="YAML file, or the name of a shipped one (default: the defaults)"
    )
    add_overrides(show)
    show.set_defaults(run=_run_config_show)
    docs = actions.add_parser("docs", help="print docs/config.md: every field, its default and meaning")
    docs.set_defaults(run=_run_config_docs)


def _run_config_show(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.config.loader import describe_config

    print(describe_config(read_config_option(args.file, args.overrides)))


def _run_config_docs(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.config.schema import document_config

    print(document_config(), end="")


def _add_train(stages: argparse._SubParsersAction) -> None:
    train = add_stage(
        stages,
        "train",
        "train a model that ranks candidates; a rerun continues",
        _run_train,
        [
            "--config demo/layout_xla_random --datasets datasets --run-dir runs/xla_random",
            "--config demo/tile_xla --datasets datasets --run-dir runs/tile --seeds 0,1,2 --set training.epochs=20",
            "--config demo/layout_xla_random --datasets real --run-dir runs/tuned --init-from runs/xla_random "
            "--set data.max_candidates=100",
        ],
        note="A finished run is extended by the same command with a larger training.epochs.",
    )
    train.add_argument(
        "--config", metavar="FILE", help="YAML file, or the name of a shipped one (default: the built-in settings)"
    )
    add_datasets(train)
    add_path(train, "--run-dir", "DIR", "folder for the config, metrics and checkpoints", required=True)
    train.add_argument(
        "--seeds",
        type=parse_numbers,
        metavar="0,1,2",
        help="one run per seed, each in its folder, and their spread (default: one run, of the config's seed)",
    )
    add_path(train, "--init-from", "RUN", "start from the best weights of this run, of the same model settings")
    add_path(train, "--indices", "DIR", "the folder eval_indices that `download` made (official protocol)")
    add_strategy(train)
    add_overrides(train)


def _run_train(args: argparse.Namespace) -> None:
    config = read_config_option(args.config, args.overrides)
    check_output("--run-dir", args.run_dir, args.datasets)
    datasets = local_datasets(args.datasets, lambda: config.data.names)
    keep_freed_memory()
    import_tensorflow()
    from tpugraphs_polynormer.ranking.task import train_ranking

    chosen = {"strategy": make_chosen_strategy(args), "seeds": args.seeds, "indices_dir": args.indices}
    result = train_ranking(config, datasets, args.run_dir, **chosen, init_from=args.init_from)
    print(_format_result(result, args.run_dir))
    trained = f"{len(args.seeds):,} runs" if args.seeds else f"a run of {result['epochs']:,} epochs"
    conclude(f"{args.run_dir}: {trained}, trained on {', '.join(config.data.names)} of {args.datasets}")


def _format_result(result: Mapping[str, Any], run_dir: Path) -> str:
    """A line per run with the metrics of its best epoch, their mean where there are several, and what was written."""
    from tpugraphs_polynormer.ranking.tables import format_number, format_table

    runs = result["runs"] if "runs" in result else [{"run": run_dir.name, **result["best"]}]
    names = [name for name, value in runs[0]["metrics"]["valid"].items() if isinstance(value, float | None)]
    rows = [
        [run["run"], str(run["epoch"]), *(format_number(run["metrics"]["valid"][name]) for name in names)]
        for run in runs
    ]
    if "runs" in result:
        means = result["metrics"]["valid"]
        rows.append(["mean", "", *(format_number(means[name]["mean"]) for name in names)])
        rows.append(["deviation", "", *(format_number(means[name]["std"]) for name in names)])
    written = "summary.json, seed-*/" if "runs" in result else "result.json, metrics.jsonl, checkpoints/, tensorboard/"
    table = format_table(["run (valid)", "best epoch", *names], rows)
    return f"{table}\n{run_dir}: {written}"


STAGES = (_add_config, add_compile, _add_train)

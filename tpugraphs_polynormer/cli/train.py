"""The stages config and train."""

from __future__ import annotations

import argparse
from pathlib import Path

from tpugraphs_polynormer.cli.options import add_overrides, conclude, parse_numbers
from tpugraphs_polynormer.process import import_tensorflow, keep_freed_memory


def add_stages(stages: argparse._SubParsersAction) -> None:
    """Adds the parsers of these stages."""
    _add_config(stages)
    _add_train(stages)


def _add_config(stages: argparse._SubParsersAction) -> None:
    config = stages.add_parser("config", help="show a config with every field's meaning")
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print the resolved config")
    show.add_argument("file", nargs="?", help="YAML file, or the name of a shipped one (default: the defaults)")
    add_overrides(show)
    show.set_defaults(run=_run_config_show)
    docs = actions.add_parser("docs", help="print docs/config.md: every field, its default and meaning")
    docs.set_defaults(run=_run_config_docs)


def _run_config_show(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.config.loader import describe_config, find_config
    from tpugraphs_polynormer.config.schema import load_config

    print(describe_config(load_config(args.file and find_config(args.file), args.overrides)))


def _run_config_docs(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.config.schema import document_config

    print(document_config(), end="")


def _add_train(stages: argparse._SubParsersAction) -> None:
    train = stages.add_parser("train", help="train a model that ranks candidates; a rerun continues")
    train.add_argument("--config", help="YAML file, or the name of a shipped one, such as demo/layout_xla_random")
    train.add_argument("--datasets", type=Path, required=True, help="folder of the preprocessed datasets")
    train.add_argument("--run-dir", type=Path, required=True)
    train.add_argument("--seeds", type=parse_numbers, metavar="0,1,2", help="one run per seed, and their spread")
    train.add_argument("--indices", type=Path, help="the folder eval_indices that `download` made (official protocol)")
    train.add_argument("--strategy", default="auto", choices=("auto", "cpu", "gpu", "tpu", "multiworker"))
    train.add_argument("--devices", type=int, default=0, help="GPUs to use, or virtual CPU devices")
    train.add_argument("--tpu", default="local", help="name of the TPU; local on a TPU VM")
    add_overrides(train)
    train.set_defaults(run=_run_train)


def _run_train(args: argparse.Namespace) -> None:
    import json

    from tpugraphs_polynormer.config.loader import find_config
    from tpugraphs_polynormer.config.schema import load_config

    config = load_config(args.config and find_config(args.config), args.overrides)
    keep_freed_memory()
    import_tensorflow()
    from tpugraphs_polynormer.ranking.task import train_ranking
    from tpugraphs_polynormer.training.distribution import make_strategy

    strategy = make_strategy(args.strategy, tpu=args.tpu, num_devices=args.devices)
    result = train_ranking(
        config, args.datasets, args.run_dir, strategy=strategy, seeds=args.seeds, indices_dir=args.indices
    )
    print(json.dumps(result, indent=1))
    trained = f"{len(args.seeds):,} runs" if args.seeds else f"a run of {result['epochs']:,} epochs"
    conclude(f"{args.run_dir}: {trained}, trained on {config.data.collection} of {args.datasets}")

"""The stage compile."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpugraphs_polynormer.cli.options import (
    add_number,
    add_overrides,
    add_path,
    add_topology,
    check_output,
    read_config_option,
)
from tpugraphs_polynormer.cli.parser import add_stage
from tpugraphs_polynormer.compiler.topologies import GIB, find_chip
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.process import import_tensorflow

if TYPE_CHECKING:  # jax belongs to an extra, and the record's module to the stage alone
    from tpugraphs_polynormer.compiler.record import CompileRecord


def add_compile(stages: argparse._SubParsersAction) -> None:
    """Adds the parser of the stage."""
    stage = add_stage(
        stages,
        "compile",
        "compile a config's step for a TPU, without one: does it fit, and how fast is it?",
        _run_compile,
        [
            "--config ranking/polynormer/layout_xla_random --topology v4:2x2x1",
            "--config demo/tile_xla --datasets datasets --topology v3:2x2 v5e:2x2 --output step.json",
        ],
        note="Needs the extra tpu-compiler. Takes one to five minutes for each topology at the official sizes.",
    )
    stage.add_argument(
        "--config", metavar="FILE", help="YAML file, or the name of a shipped one (default: the built-in settings)"
    )
    where = stage.add_mutually_exclusive_group()
    where.add_argument("--datasets", type=Path, metavar="DIR", help="pad to the sizes of these datasets instead")
    where.add_argument(
        "--sizes", choices=("official",), default="official", help="pad to the sizes of the official collections"
    )
    add_topology(stage, "what to compile for", nargs="+", required=True)
    stage.add_argument("--step", choices=("train", "score"), default="train", help="the step to compile")
    add_number(stage, "--replicas", 1, "devices that sum their gradients", high=64, default=1)
    add_number(stage, "--time-limit", 1, "seconds of one compilation", default=1800)
    add_path(stage, "--output", "FILE", "also write the records as JSON")
    add_overrides(stage)


def _run_compile(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.compiler.xla import check_versions

    for topology in args.topology:
        find_chip(topology)
    check_versions()
    config = read_config_option(args.config, args.overrides)
    if args.output:
        check_output("--output", args.output, kind="file")
    import_tensorflow()
    from tpugraphs_polynormer.compiler.compile import compile_for_tpu, serialize_records
    from tpugraphs_polynormer.files import write_text
    from tpugraphs_polynormer.progress import track

    modules, facts = _trace(config, args)
    jobs = [(name, module, topology) for topology in args.topology for name, module in modules]
    records = [
        (name, compile_for_tpu(module, topology, num_replicas=args.replicas, time_limit=args.time_limit))
        for name, module, topology in track(jobs, len(jobs), "compile", "module")
    ]
    print(format_records(records, facts))
    if args.output:
        write_text(args.output, serialize_records(records, facts))
    failed = [f"{record.topology}: {record.error}" for _, record in records if record.error]
    if failed:
        raise UserError("; ".join(failed))


def _trace(config: Any, args: argparse.Namespace) -> tuple[list[tuple[str, bytes]], dict[str, Any]]:
    """The modules of the step, by name, and facts of its batches."""
    from tpugraphs_polynormer.config.schema import NodeConfig

    if isinstance(config, NodeConfig):
        if args.datasets or args.step == "score":
            raise UserError("--config: node classification is compiled with --step train at the official sizes only")
        from tpugraphs_polynormer.nodes.traced_step import trace_node_step

        return [("train", trace_node_step(config, num_replicas=args.replicas))], {}
    from tpugraphs_polynormer.ranking import traced_steps

    sizes = (
        traced_steps.dataset_batches(config, args.datasets) if args.datasets else traced_steps.official_batches(config)
    )
    facts = {"described": str(sizes), **dataclasses.asdict(sizes)}
    if args.step == "train":
        return [("train", traced_steps.trace_ranking_step(config, sizes.limits, num_replicas=args.replicas))], facts
    if args.datasets:
        raise UserError("--step score: found --datasets, expected --sizes official, which pads to the largest graph")
    return traced_steps.trace_scoring_steps(config), facts


def format_records(records: Sequence[tuple[str, CompileRecord]], facts: dict[str, Any]) -> str:
    """The records as a table, the batch that they were compiled for, and the costliest ops of the last one."""
    from tpugraphs_polynormer.ranking.tables import format_table

    header = ["step", "topology", "compiles", "HBM", "of it", "Mcycles", "ms", "ops", "without estimate", "seconds"]
    rows = [
        [
            name,
            record.topology,
            "yes" if record.compiles else "no",
            f"{record.total_bytes / GIB:.2f} GiB",
            f"{100 * record.hbm_share:.0f} %",
            f"{record.cycles / 1e6:.2f}",
            f"{record.milliseconds:.2f}",
            f"{record.num_estimated + sum(record.unestimated.values()):,}",
            f"{sum(record.unestimated.values()):,}",
            f"{record.seconds:.0f}",
        ]
        for name, record in records
    ]
    lines = [format_table(header, rows)]
    if facts:
        lines.append(f"batch: {facts['described']}")
    last = records[-1][1]
    if last.compiles:
        counted = ", ".join(f"{count} {name}" for name, count in last.unestimated.items())
        lines.append(f"ops without an estimate, which the cycles leave out: {counted}")
        costly = [[op.source or op.name, f"{op.cycles:,}"] for op in last.costly]
        lines.append(format_table([f"costliest ops on {last.topology}", "cycles"], costly))
    return "\n".join(lines)

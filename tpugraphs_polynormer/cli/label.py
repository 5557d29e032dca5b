"""The stage label."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tpugraphs_polynormer.cli.options import add_number, add_operands, add_seed, add_topology, check_output, conclude
from tpugraphs_polynormer.cli.parser import add_stage
from tpugraphs_polynormer.compiler.topologies import find_chip
from tpugraphs_polynormer.errors import UserError


def add_label(stages: argparse._SubParsersAction) -> None:
    """Adds the parser of the stage."""
    stage = add_stage(
        stages,
        "label",
        "write layout archives whose runtimes the real TPU compiler estimates (Beam)",
        _run_label,
        [
            "--programs zoo --archives labels --count 40 --candidates 60",
            "--programs dumps --archives labels --topology v4:2x2x1 --search default --workers 2",
        ],
        note="Needs the extra tpu-compiler, and one to five seconds for each candidate. A killed job continues when it "
        "is run again. All other options are Beam's, such as --runner.",
        allow_abbrev=False,
    )
    stage.add_argument(
        "--programs",
        required=True,
        metavar="SOURCE",
        help="zoo (small networks in JAX), simulated (those of the simulated TPU), or a folder of HLO .pb files",
    )
    stage.add_argument(
        "--archives",
        required=True,
        metavar="DIR",
        help="folder for npz/, truth/ (the test runtimes), labels/ and labels.json; all workers must see it",
    )
    add_topology(stage, "what to compile for", default="v3:2x2")
    add_number(stage, "--count", 1, "programs (default: 40, or all files of a folder)", high=100_000)
    add_number(stage, "--candidates", 2, "candidates of each program", high=100_000, default=60)
    stage.add_argument(
        "--search",
        choices=("random", "default"),
        default="random",
        help="draw layouts at random, or near the compiler's own; decides the collection, layout:xla:SEARCH",
    )
    add_seed(stage, "programs, candidates and splits")
    add_operands(stage)
    add_number(stage, "--time-limit", 1, "seconds of one candidate, after which it counts as refused", default=120)
    add_number(stage, "--workers", 1, "processes (default: one per core)", default=os.cpu_count() or 1)
    stage.set_defaults(takes_beam_arguments=True)


def _run_label(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.beam.label import LabelJob, plan_tasks, run
    from tpugraphs_polynormer.compiler.labelling import LabelOptions
    from tpugraphs_polynormer.compiler.xla import check_versions

    find_chip(args.topology)
    if "://" in args.archives:
        raise UserError(f"--archives {args.archives}: found a remote folder; expected one that all workers mount")
    check_output("--archives", args.archives, args.programs)
    options = LabelOptions(
        args.topology, args.candidates, args.search, args.seed, float(args.time_limit), args.operands
    )
    tasks = plan_tasks(args.programs, args.count, args.seed)
    job = LabelJob(Path(args.archives).resolve(), args.programs, tasks, options, check_versions())
    done = run(job, args.beam_arguments, args.workers)
    for title, reason in done.refused_programs.items():
        print(f"{title}: no archive: {reason}")
    splits = ", ".join(f"{count:,} {split}" for split, count in done.programs.items())
    print(f"layout:xla:{args.search}: {splits} (estimated by the TPU compiler, not measured)")
    conclude(
        f"{args.archives}: labelled {sum(done.programs.values()):,} programs with {done.candidates:,} candidates; "
        f"refused: {len(done.refused_programs):,} programs, {done.refused_candidates:,} candidates of the others"
    )

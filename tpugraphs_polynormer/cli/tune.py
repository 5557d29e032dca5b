"""The stage tune."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tpugraphs_polynormer.cli.options import add_number, add_path, add_seed, add_topology, check_output, conclude
from tpugraphs_polynormer.cli.parser import add_stage
from tpugraphs_polynormer.compiler.topologies import find_chip
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.process import import_tensorflow

if TYPE_CHECKING:
    from tpugraphs_polynormer.hlo.layout_program import LayoutProgram
    from tpugraphs_polynormer.ranking.judges import Judge
    from tpugraphs_polynormer.ranking.tuner import Prior

JUDGES = ("compiler", "simulator", "command")
_TOPOLOGY = "v3:2x2"  # for --judge compiler without --topology


def _add_tune(stages: argparse._SubParsersAction) -> None:
    tune = add_stage(
        stages,
        "tune",
        "measure, learn, propose: find fast layouts of your own program; a rerun continues",
        _run_tune,
        [
            "program.hlo.pb --judge compiler --topology v3:2x2 --run-dir runs/xla_random --output tuned",
            "program.txt --judge simulator --measurements 32 --output tuned",
            "program.txt --judge command --output tuned --command python measure.py",
        ],
        note="A candidate is judged by the TPU compiler's estimate (extra tpu-compiler), by the simulated TPU, or by "
        "your own command: it gets the path of a JSON file with the layouts as its last argument, and prints seconds, "
        "or a time such as 12.3 ms, as its last line.",
    )
    add_path(tune, "program", "FILE", "HLO text, HloProto or HloModuleProto, such as program.txt or program.hlo.pb")
    tune.add_argument("--judge", required=True, choices=JUDGES, help="who tells the time of a candidate")
    which = "runs trained on layout collections, or folders of runs by seed: the prior (default: the cost model)"
    add_path(tune, "--run-dir", "DIR", which, nargs="+", default=[], dest="run_dirs")
    as_compiled = "tune the program as this TPU's compiler sees it, with its own default"
    default = f"{_TOPOLOGY} with --judge compiler; the program as given with the others"
    add_topology(tune, f"{as_compiled} (default: {default})")
    add_number(tune, "--measurements", 1, "how many in all, the default's included", default=64)
    add_number(tune, "--batch", 1, "how many between two times of learning", high=1024, default=8)
    add_number(tune, "--time-limit", 1, "seconds of one measurement, after which it has failed", default=600)
    add_seed(tune, "the search, and of the simulator's noise")
    add_path(tune, "--output", "DIR", "folder for the log and the best candidate", required=True)
    tune.add_argument(
        "--command",
        nargs=argparse.REMAINDER,
        default=[],
        metavar="WORD",
        help="with --judge command: program and arguments, the last option; no shell reads them (default: none)",
    )


def _run_tune(args: argparse.Namespace) -> None:
    if bool(args.command) != (args.judge == "command"):
        raise UserError(
            f"--judge {args.judge}: found {'a' if args.command else 'no'} --command; give --command, as the last "
            "option, with --judge command, and with no other judge"
        )
    check_output("--output", args.output, args.program, *args.run_dirs)
    from tpugraphs_polynormer.archives.featurize import read_program
    from tpugraphs_polynormer.hlo.layout_program import presume_layouts

    module = read_program(args.program)  # what cannot be read is refused before a compiler or TensorFlow starts
    if args.judge == "compiler" and args.topology is None:
        args.topology = _TOPOLOGY
    facts = {"program": hashlib.sha256(args.program.read_bytes()).hexdigest(), "seed": args.seed}
    if args.topology is None:
        _tune(args, facts, presume_layouts(module), None)
        return
    from tpugraphs_polynormer.compiler.program import compile_program
    from tpugraphs_polynormer.compiler.session import CompilerSession
    from tpugraphs_polynormer.compiler.xla import check_versions

    find_chip(args.topology)
    versions = check_versions()
    with CompilerSession(args.topology, time_limit=args.time_limit) as session:
        program = compile_program(args.program.read_bytes(), args.topology, session=session)
        _tune(args, facts | {"compiler": versions}, program, session)


def _tune(args: argparse.Namespace, facts: dict[str, Any], program: LayoutProgram, session: Any) -> None:
    import numpy as np

    from tpugraphs_polynormer.files import only_writer
    from tpugraphs_polynormer.ranking.tuner import Tuner, search_source
    from tpugraphs_polynormer.ranking.tuning_log import BEST_JSON, BEST_NPZ, LOG_NAME, tune, write_best

    judge = _choose_judge(args, program, session, facts.get("compiler", {}))
    default = np.zeros((1, len(program.choices.counts)), np.int64)
    with _open_prior(args, program) as (prior, members), only_writer(args.output):
        tuner = Tuner(program.choices, search_source(program.choices), prior, starts=default, seed=args.seed)
        facts = facts | {"topology": program.topology, "prior": members}
        log = tune(tuner, judge, args.output, facts, measurements=args.measurements, batch=args.batch)
        measured = log.measured()
        print(write_best(args.output, program, measured, judge))
    failed = int(np.isnan(measured.seconds).sum())
    conclude(
        f"{args.output}: {LOG_NAME} with {len(log):,} measurements by the {args.judge}, {failed:,} of them failed; "
        f"the best candidate is in {BEST_JSON} and {BEST_NPZ}"
    )


def _choose_judge(args: argparse.Namespace, program: Any, session: Any, versions: dict[str, str]) -> Judge:
    from tpugraphs_polynormer.ranking import judges

    if args.judge == "compiler":
        return judges.CompilerJudge(program, session, versions)
    if args.judge == "simulator":
        return judges.SimulatorJudge(program, seed=args.seed)
    return judges.CommandJudge(args.command, program, args.output, time_limit=args.time_limit)


@contextmanager
def _open_prior(args: argparse.Namespace, program: LayoutProgram) -> Iterator[tuple[Prior, list[str]]]:
    """The prior, and what it is: the hashes of the runs' weights, or the cost model."""
    from tpugraphs_polynormer.ranking.judges import score_by_cost

    if not args.run_dirs:
        yield score_by_cost(program), ["cost model"]
        return
    import_tensorflow()
    from tpugraphs_polynormer.ranking.program_scorer import ProgramScorer
    from tpugraphs_polynormer.training.checkpoints import checkpoint_path, hash_weights

    with ProgramScorer(args.run_dirs, program, seed=args.seed) as scorer:
        yield scorer.score, [hash_weights(checkpoint_path(run)) for run in scorer.runs]


STAGES = (_add_tune,)

"""The stage tune."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tpugraphs_polynormer.cli.options import add_number, add_path, add_seed, check_output, conclude
from tpugraphs_polynormer.cli.parser import add_stage
from tpugraphs_polynormer.compiler.topologies import CHIPS, find_chip
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.process import import_tensorflow

if TYPE_CHECKING:
    from tpugraphs_polynormer.hlo.layout_program import LayoutProgram
    from tpugraphs_polynormer.ranking.judges import Judge
    from tpugraphs_polynormer.ranking.tuner import Prior

JUDGES = ("compiler", "simulator", "command")
BEST_JSON, BEST_NPZ, BEST_MODULE = "best.json", "best.npz", "best.hlo.pb"
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
    tune.add_argument(
        "--topology",
        metavar="CHIP:SHAPE",
        help="tune the program as the TPU compiler sees it, with its own default: "
        f"{', '.join(chip.example for chip in CHIPS.values())} (default: {_TOPOLOGY} with --judge compiler; the "
        "program as given with the others)",
    )
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
    from tpugraphs_polynormer.files import only_writer
    from tpugraphs_polynormer.hlo.layout_program import presume_layouts

    module = read_program(args.program)  # what cannot be read is refused before a compiler or TensorFlow starts
    if args.judge == "compiler" and args.topology is None:
        args.topology = _TOPOLOGY
    facts = {"program": hashlib.sha256(args.program.read_bytes()).hexdigest(), "seed": args.seed}
    with only_writer(args.output):
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

    from tpugraphs_polynormer.ranking.tuner import Tuner, search_source
    from tpugraphs_polynormer.ranking.tuning_log import LOG_NAME, tune

    judge = _choose_judge(args, program, session, facts.get("compiler", {}))
    default = np.zeros((1, len(program.choices.counts)), np.int64)
    with _open_prior(args, program) as (prior, members):
        source = search_source(program.choices)
        tuner = Tuner(program.choices, source, prior, starts=default, seed=args.seed)
        facts = facts | {"topology": program.topology, "prior": members}
        how = {"measurements": args.measurements, "batch": args.batch}
        log = tune(tuner, judge, args.output, facts, **how)
    measured = log.measured()
    print(_write_best(args, program, measured))
    failed = int(np.isnan(measured.seconds).sum())
    conclude(
        f"{args.output}: {LOG_NAME} with {len(log):,} measurements by the {args.judge}, {failed:,} of them failed; "
        f"the best candidate in {BEST_JSON} and {BEST_NPZ}"
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


def _write_best(args: argparse.Namespace, program: LayoutProgram, measured: Any) -> str:
    """Writes the best candidate; the summary."""
    import json

    import numpy as np

    from tpugraphs_polynormer.archives.writer import write_npz
    from tpugraphs_polynormer.compiler.program import CompiledProgram
    from tpugraphs_polynormer.files import replacing, write_text
    from tpugraphs_polynormer.hlo.sampling import gather_layouts
    from tpugraphs_polynormer.ranking.judges import describe_layouts

    best, default = measured.best, float(measured.seconds[0])  # the default is measured first
    candidate, seconds = measured.indices[best], float(measured.seconds[best])
    gain = None if np.isnan(default) else 1 - seconds / default
    times = {"seconds": seconds, "default_seconds": None if gain is None else default, "gain": gain}
    told = {**describe_layouts(program, candidate), **times, "measurement": best + 1, "judge": args.judge}
    write_text(args.output / BEST_JSON, json.dumps(told, indent=1) + "\n")
    layouts = gather_layouts(program.choices, candidate[None])
    write_npz(
        args.output / BEST_NPZ,
        {"node_config_ids": program.choices.node_ids, "node_config_feat": layouts, "choices": candidate},
    )
    if isinstance(program, CompiledProgram):
        with replacing(args.output / BEST_MODULE) as temporary:
            temporary.write_bytes(program.force(candidate))
    changed = int((candidate != 0).sum())
    found = f"best: {1e6 * seconds:,.3f} us, measurement {best + 1} of {len(measured.seconds)}"
    if gain is None:
        return f"{found}; the default could not be measured"
    if not changed:
        return f"{found}: the default; nothing measured was faster"
    beside = f"the default: {1e6 * default:,.3f} us; {100 * gain:+.2f} % time saved by {changed} changed nodes"
    return f"{found}; {beside} ({program.provenance})"


STAGES = (_add_tune,)

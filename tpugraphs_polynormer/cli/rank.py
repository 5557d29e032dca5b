"""The stage `rank`: layouts of the user's own program."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tpugraphs_polynormer.cli.options import (
    add_number,
    add_path,
    add_seed,
    add_topology,
    check_output,
    conclude,
)
from tpugraphs_polynormer.cli.parser import add_stage
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.hlo.sampling import MAX_CANDIDATES
from tpugraphs_polynormer.process import import_tensorflow

if TYPE_CHECKING:
    import numpy as np

    from tpugraphs_polynormer.compiler.program import CompiledProgram
    from tpugraphs_polynormer.compiler.session import CompilerSession
    from tpugraphs_polynormer.hlo.layout_program import LayoutProgram
    from tpugraphs_polynormer.hlo.module import Module
    from tpugraphs_polynormer.ranking.program_ranking import ProgramRanking


def add_rank(stages: argparse._SubParsersAction) -> None:
    """Adds the stage `rank`."""
    rank = add_stage(
        stages,
        "rank",
        "rank layout candidates of your own program (HLO text or protobuf), with reasons",
        _run_rank,
        [
            "program.txt",
            "program.hlo.pb --run-dir runs/a runs/b --budget 5000 --output report.html",
            "program.txt --topology v3:2x2 --verify 5 --apply hlo --output best.json",
        ],
        note="Without --run-dir the ranker in the box is used, which was trained on simulated runtimes. --topology, "
        "--verify and --apply need the extra tpu-compiler.",
    )
    add_path(rank, "program", "FILE", "HLO text, HloProto or HloModuleProto, such as program.txt or program.hlo.pb")
    several = "runs trained on layout collections, or folders of runs by seed; several are averaged (default: the box)"
    add_path(rank, "--run-dir", "DIR", several, nargs="+", dest="run_dirs")
    add_number(rank, "--budget", 1, "distinct candidates to score at most", high=MAX_CANDIDATES, default=1000)
    add_number(rank, "--seconds", 1, "stop scoring after this time (default: no limit)")
    add_number(rank, "--top", 1, "how many of the best to explain", default=5)
    add_seed(rank, "the candidates and the scale of scores")
    add_path(rank, "--output", "FILE", "also write a page (.html), all facts (.json) or all scores (.npz)")
    as_compiled = "rank the program as this TPU's compiler sees it, with its own default"
    add_topology(rank, f"{as_compiled} (default: the program as given)")
    add_number(rank, "--verify", 1, "let the compiler estimate the default and so many of the best (default: none)")
    apply = (
        "the best, by the compiler's word if --verify is given: write HLO with its layouts forced, beside --output, or "
    )
    apply += "print JAX's constraints"
    rank.add_argument("--apply", choices=("hlo", "jax"), help=f"{apply} (default: nothing)")
    add_number(rank, "--time-limit", 1, "seconds of one compilation", default=600)


def _run_rank(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.archives.featurize import read_program

    _check(args)
    module = read_program(args.program)  # what cannot be read is refused before a compiler or TensorFlow starts
    if args.topology is None:
        _rank(args, module)
        return
    from tpugraphs_polynormer.compiler.program import compile_program, use_session

    with use_session(None, args.topology, args.time_limit) as session:
        program = compile_program(args.program.read_bytes(), args.topology, session=session)
        ranking = _rank(args, program)
        number, name = int(ranking.order[0]), "rank 1"
        if args.verify:
            from tpugraphs_polynormer.ranking.program_judging import verify_ranking

            found = verify_ranking(ranking, session, count=args.verify)
            print(f"\n{found.describe()}")
            number, name = found.numbers[found.best], found.names[found.best]
        if args.apply:
            _apply(args, program, ranking.indices[number], name, session)


def _check(args: argparse.Namespace) -> None:
    if args.output:
        check_output("--output", args.output, args.program, kind="file")
    for flag, value in (("--verify", args.verify), ("--apply", args.apply)):
        if value and args.topology is None:
            raise UserError(f"{flag} {value}: needs the TPU compiler; give its --topology, such as v3:2x2")
    if args.apply == "hlo" and not args.output:
        raise UserError("--apply hlo: found no --output; give one, the HLO is written beside it")


def _rank(args: argparse.Namespace, program: Module | LayoutProgram) -> ProgramRanking:
    """Ranks, prints and writes."""
    import_tensorflow()
    from tpugraphs_polynormer.ranking.own_program import rank_program
    from tpugraphs_polynormer.ranking.program_files import check_suffix, write_ranking

    if args.output:
        check_suffix(args.output)
    chosen = {"budget": args.budget, "seconds": args.seconds, "top": args.top, "seed": args.seed}
    ranking = rank_program(args.run_dirs, program, **chosen)
    print(ranking.describe())
    if args.output:
        write_ranking(args.output, ranking)
    where = f"written to {args.output}" if args.output else "none written (--output writes them)"
    conclude(
        f"{args.program}: {len(ranking.order):,} distinct candidates ranked by {len(ranking.members):,} runs, "
        f"the best {len(ranking.best):,} above, {where}"
    )
    return ranking


def _apply(
    args: argparse.Namespace, program: CompiledProgram, best: np.ndarray, name: str, session: CompilerSession
) -> None:
    """Prints or writes the layouts of one candidate: the best verified one, or that of rank 1."""
    if args.apply == "jax":
        from tpugraphs_polynormer.compiler.jax_layouts import describe_constraints

        print("\nfrom jax.experimental.layout import Layout, with_layout_constraint")
        print(f"\n# the layouts of {name}\n{describe_constraints(program, best)}")
        return
    from tpugraphs_polynormer.ranking.program_judging import write_applied

    written = write_applied(args.output, program, best, session)
    conclude(f"{' and '.join(map(str, written))}: the layouts of {name}, forced by LayoutConstraint calls")

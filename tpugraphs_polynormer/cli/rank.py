"""The stage `rank`: layouts of the user's own program."""

from __future__ import annotations

import argparse

from tpugraphs_polynormer.cli.options import (
    add_number,
    add_path,
    add_seed,
    check_output,
    conclude,
)
from tpugraphs_polynormer.cli.parser import add_stage
from tpugraphs_polynormer.hlo.sampling import MAX_CANDIDATES
from tpugraphs_polynormer.process import import_tensorflow


def add_rank(stages: argparse._SubParsersAction) -> None:
    """Adds the stage `rank`."""
    rank = add_stage(
        stages,
        "rank",
        "rank layout candidates of your own program (HLO text or protobuf), with reasons",
        _run_rank,
        [
            "program.hlo.pb --run-dir runs/xla_random",
            "program.txt --run-dir runs/a runs/b --budget 5000 --output report.html",
        ],
    )
    add_path(rank, "program", "FILE", "HLO text, HloProto or HloModuleProto, such as program.txt or program.hlo.pb")
    several = "runs trained on layout collections, or folders of runs by seed; several are averaged"
    add_path(rank, "--run-dir", "DIR", several, nargs="+", required=True, dest="run_dirs")
    add_number(rank, "--budget", 1, "distinct candidates to score at most", high=MAX_CANDIDATES, default=1000)
    add_number(rank, "--seconds", 1, "stop scoring after this time (default: no limit)")
    add_number(rank, "--top", 1, "how many of the best to explain", default=5)
    add_seed(rank, "the candidates and the scale of scores")
    add_path(rank, "--output", "FILE", "also write a page (.html), all facts (.json) or all scores (.npz)")


def _run_rank(args: argparse.Namespace) -> None:
    from tpugraphs_polynormer.archives.featurize import read_program

    if args.output:
        check_output("--output", args.output, args.program, kind="file")
    module = read_program(args.program)
    import_tensorflow()
    from tpugraphs_polynormer.ranking.own_program import rank_program
    from tpugraphs_polynormer.ranking.program_files import check_suffix, write_ranking

    if args.output:
        check_suffix(args.output)
    chosen = {"budget": args.budget, "seconds": args.seconds, "top": args.top, "seed": args.seed}
    ranking = rank_program(args.run_dirs, module, **chosen)
    print(ranking.describe())
    if args.output:
        write_ranking(args.output, ranking)
    where = f"written to {args.output}" if args.output else "none written (--output writes them)"
    conclude(
        f"{args.program}: {len(ranking.order):,} distinct candidates ranked by {len(ranking.members):,} runs, "
        f"the best {len(ranking.best):,} above, {where}"
    )

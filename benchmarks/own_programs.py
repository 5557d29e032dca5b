"""From a function or an HLO dump to layouts that the real TPU compiler has judged: the ranker in the box, and tuning.

    python benchmarks/own_programs.py             # a CNN and a transformer in JAX, and an HLO text dump
    python benchmarks/own_programs.py --quick     # one program, few candidates: does it run?

Needs the extra `tpu-compiler`. Of each program the compiler estimates its own default, the best candidates of the
ranker in the box, random candidates, and what tuning by its own estimates finds. Estimates have no noise.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.compiler.from_functions import compile_jax
from tpugraphs_polynormer.compiler.program import CompiledProgram, Judgement, compile_program, judge_candidates
from tpugraphs_polynormer.compiler.session import CompilerSession
from tpugraphs_polynormer.compiler.xla import check_versions, set_environment
from tpugraphs_polynormer.hlo.sampling import draw_indices
from tpugraphs_polynormer.process import import_tensorflow

NUM_BEST = 5
NUM_RANDOM = 10


def compile_programs(session: CompilerSession, topology: str, *, quick: bool) -> Iterator[tuple[str, CompiledProgram]]:
    """The programs as the compiler sees them."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.hlo.jax_programs import small_cnn, small_transformer  # the programs of the slow test of `rank`

    (cnn, cnn_args), (transformer, transformer_args) = small_cnn(), small_transformer()
    if not quick:
        yield "CNN in JAX", compile_jax(cnn, *cnn_args, topology=topology, session=session)
        yield "transformer in JAX", compile_jax(transformer, *transformer_args, topology=topology, session=session)
    import jax

    gradients = jax.jit(jax.grad(lambda *args: cnn(*args).sum(), argnums=(0, 1)))
    dump = gradients.lower(*cnn_args).as_text(dialect="hlo")
    yield "the CNN's gradients, HLO text dump", compile_program(dump.encode(), topology, session=session)


def tune(program: CompiledProgram, session: CompilerSession, measurements: int) -> int:
    """The cycles of the best candidate that tuning by the compiler's own estimates finds."""
    from tpugraphs_polynormer.ranking.box import box_runs
    from tpugraphs_polynormer.ranking.judges import CompilerJudge
    from tpugraphs_polynormer.ranking.program_scorer import ProgramScorer
    from tpugraphs_polynormer.ranking.tuner import Tuner, search_source
    from tpugraphs_polynormer.ranking.tuning_log import tune as run_tuning

    default = np.zeros((1, len(program.choices.counts)), np.int64)
    with ProgramScorer(box_runs(), program) as scorer, tempfile.TemporaryDirectory() as folder:
        tuner = Tuner(program.choices, search_source(program.choices), scorer.score, starts=default, seed=0)
        judge = CompilerJudge(program, session, check_versions())
        log = run_tuning(tuner, judge, Path(folder), {}, measurements=measurements, batch=8)
        measured = log.measured()
    (judgement,) = judge_candidates(program, measured.indices[[measured.best]], session)
    return judgement.cycles


def describe(name: str, program: CompiledProgram, session: CompilerSession, args: argparse.Namespace) -> str:
    """A line of the table."""
    from tpugraphs_polynormer.ranking.own_program import rank_program
    from tpugraphs_polynormer.ranking.program_judging import verify_ranking

    ranking = rank_program(None, program, budget=args.budget, top=1, seed=0)
    found = verify_ranking(ranking, session, count=args.best)
    drawn = draw_indices(program.choices, args.random + 1, seed=0, mode="random", tied=False)[1:]
    random = [each.cycles for each in judge_candidates(program, drawn, session) if not each.error]
    default, best = found.judgements[0].cycles, [_cycles(each) for each in found.judgements[1 : 1 + args.best]]
    tuned = tune(program, session, args.measurements)
    cells = [
        name,
        f"{len(program.choices.counts)}",
        f"{program.unforced_judgement.cycles:,}",
        *(_beside(each, default) for each in (default, best[0], min(best), tuned)),
        f"{_beside(min(random), default)} / {_beside(statistics.median(random), default)}",
        f"{found.tau:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _cycles(judgement: Judgement) -> float:
    return float("inf") if judgement.error else judgement.cycles


def _beside(cycles: float, default: float) -> str:
    return f"{cycles:,.0f} ({cycles / default:.3f})"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="v3:2x2")
    parser.add_argument("--budget", type=int, default=1000, help="candidates that the ranker scores")
    parser.add_argument("--measurements", type=int, default=48, help="of the tuning")
    parser.add_argument("--quick", action="store_true", help="one program, few candidates")
    args = parser.parse_args()
    args.best, args.random = (1, 1) if args.quick else (NUM_BEST, NUM_RANDOM)
    if args.quick:
        args.budget, args.measurements = 16, 2
    import_tensorflow()
    set_environment()  # before JAX is imported: it would look for a TPU
    columns = [
        *("program", "config nodes", "not forced", "default, forced", "rank 1", f"best of ranks 1 to {args.best}"),
        *(f"tuned, {args.measurements} estimates", "random: best / median", "tau"),
    ]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|", flush=True)
    with CompilerSession(args.topology) as session:
        for name, program in compile_programs(session, args.topology, quick=args.quick):
            print(describe(name, program, session, args), flush=True)


if __name__ == "__main__":
    main()

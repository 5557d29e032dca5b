"""Measurements until a tuner finds a fast candidate, replayed on the measured candidates of real archives.

    python benchmarks/tune.py [--run-dir DIR ...] [--real FOLDER] [--archive FILE ...] [--seeds 20]
    python benchmarks/tune.py --quick    # 400 of alexnet's rows, two seeds, the cost model as prior

A search proposes batches of 8 of the archive's distinct candidates; a candidate's time is the mean of its runtimes.
Compared are `tpugraphs tune` with the ensemble of --run-dir as prior, with the analytic cost model as prior, and
without one; ridge regression of log times on one-hot layouts, which proposes the 8 candidates that it predicts to be
fastest; and random search. The first table has the mean number of measurements until a candidate is within a margin of
the best of all. Where not every seed reached it within 500, those count as 500, and the share of the others is given.
The second table has how much slower than the best of all the best found is. The best of all has the luckiest
measurement: a margin below the noise is reached by luck as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from real_alexnet import NAME, fit_ridge
from real_data import REAL_DATA

from tpugraphs_polynormer.archives.npz import read_archive
from tpugraphs_polynormer.archives.observed import ObservedProgram, observe_program
from tpugraphs_polynormer.process import import_tensorflow
from tpugraphs_polynormer.ranking.judges import TableJudge, score_by_cost
from tpugraphs_polynormer.ranking.tuner import Measured, Prior, Tuner

BATCH, MOST = 8, 500
MARGINS = (0.001, 0.0005, 0.0002)
AFTER = (8, 16, 32, 64, 128, 256)
RIDGE_STRENGTH = 0.1  # that of benchmarks/real_alexnet.py
QUICK_ROWS = 400

Search = Callable[[ObservedProgram, int], Iterator[list[int]]]  # (program, seed) -> batches of rows to measure


def search_at_random(program: ObservedProgram, seed: int) -> Iterator[list[int]]:
    """Rows in random order."""
    order = np.random.default_rng(seed).permutation(len(program.indices)).tolist()
    return (order[start : start + BATCH] for start in range(0, len(order), BATCH))


def search_by_ridge(program: ObservedProgram, seed: int) -> Iterator[list[int]]:
    """Rows that a ridge regression on all earlier ones predicts to be fastest, after a random first batch."""
    rng, codes = np.random.default_rng(seed), program.indices
    one_hot = np.concatenate([np.eye(count)[codes[:, node]] for node, count in enumerate(program.choices.counts)], 1)
    features = np.pad(one_hot, [[0, 0], [0, 1]], constant_values=1)
    rows: list[int] = []
    costs = np.zeros(len(codes))
    while len(rows) < len(codes):
        yield (batch := np.lexsort((rng.random(len(costs)), costs))[: min(BATCH, len(codes) - len(rows))].tolist())
        rows += batch
        targets = np.log(program.seconds[rows] / program.seconds[rows].min())
        costs = features @ fit_ridge(features[rows], targets, RIDGE_STRENGTH)
        costs[rows] = np.inf


def search_by_tuner(prior: Prior | None) -> Search:
    """Rows that `tpugraphs tune` proposes."""

    def search(program: ObservedProgram, seed: int) -> Iterator[list[int]]:
        judge = TableJudge(program.indices, program.seconds)
        row_of = {candidate.tobytes(): row for row, candidate in enumerate(program.indices)}
        tuner = Tuner(program.choices, lambda *_: program.indices, prior, seed=seed)
        rows: list[int] = []
        seconds: list[float] = []
        while len(rows) < len(program.indices):
            proposed = tuner.propose(Measured(program.indices[rows], np.array(seconds)), BATCH)
            yield (batch := [row_of[candidate.tobytes()] for candidate in proposed])
            rows += batch
            seconds += [judge.judge(candidate).seconds for candidate in proposed]

    return search


def follow(search: Search, program: ObservedProgram, seed: int, most: int) -> np.ndarray:
    """[n]: how much slower than the best of all the best found is, after each measurement.

    It ends after `most`, or earlier where nothing more is asked: after 256, within the smallest margin.
    """
    excess, found = program.seconds / program.seconds.min() - 1, np.zeros(0)
    for batch in search(program, seed):
        found = np.concatenate([found, excess[batch]])[:most]
        if len(found) == most or (len(found) >= AFTER[-1] and found.min() <= MARGINS[-1]):
            break
    return np.minimum.accumulate(found)


def remember(prior: Prior, program: ObservedProgram) -> Prior:
    """The same scores, computed once for all candidates of the program."""
    scores = prior(program.indices)
    row_of = {candidate.tobytes(): row for row, candidate in enumerate(program.indices)}
    return lambda indices: scores[:, [row_of[candidate.tobytes()] for candidate in indices]]


def compare(name: str, program: ObservedProgram, args: argparse.Namespace) -> None:
    """Prints the two tables of an archive."""
    searches = {"random search": search_at_random, "ridge regression": search_by_ridge}
    searches["tune, no prior"] = search_by_tuner(None)
    searches["tune, cost model"] = search_by_tuner(remember(score_by_cost(program), program))
    if args.run_dirs:
        import_tensorflow()
        from tpugraphs_polynormer.ranking.program_scorer import ProgramScorer

        with ProgramScorer(args.run_dirs, program) as scorer:
            searches[f"tune, ensemble of {len(scorer.runs)}"] = search_by_tuner(remember(scorer.score, program))
    excess = program.seconds / program.seconds.min() - 1
    most = min(args.most, len(excess))
    print(f"{name}: {len(excess):,} distinct candidates, {args.seeds} seeds; ", end="")
    print(", ".join(f"{(excess <= margin).sum():,} within {100 * margin:g} %" for margin in MARGINS) + " of the best\n")
    curves = {}
    print(f"| search | {' | '.join(f'until within {100 * margin:g} %' for margin in MARGINS)} |")
    print("|---" * (1 + len(MARGINS)) + "|")
    for title, search in searches.items():
        found = [follow(search, program, seed, most) for seed in range(args.seeds)]
        print(f"| {title} | {' | '.join(describe_until(found, margin, most) for margin in MARGINS)} |", flush=True)
        curves[title] = found
    after = [number for number in AFTER if number <= most]
    print(f"\n| search, best found after | {' | '.join(map(str, after))} |\n" + "|---" * (1 + len(after)) + "|")
    for title, found in curves.items():
        cells = (f"{100 * np.mean([each[number - 1] for each in found]):.3f} %" for number in after)
        print(f"| {title} | {' | '.join(cells)} |")
    print()


def describe_until(found: list[np.ndarray], margin: float, most: int) -> str:
    """The mean number of measurements; where some searches did not reach the margin, a lower bound and how many did."""
    numbers = [int(np.argmax(each <= margin)) + 1 if each[-1] <= margin else most for each in found]
    reached = np.mean([each[-1] <= margin for each in found])
    return f"{np.mean(numbers):.1f}" if reached == 1 else f"> {np.mean(numbers):.1f} ({100 * reached:.0f} % of seeds)"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-dir", type=Path, nargs="+", default=[], dest="run_dirs", help="the ensemble")
    parser.add_argument("--real", type=Path, default=REAL_DATA)
    parser.add_argument("--archive", type=Path, nargs="+", default=[], help="other archives than alexnet's")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--most", type=int, default=MOST)
    parser.add_argument("--quick", action="store_true", help="few rows and seeds: does it run?")
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.most = 2, 32
    for path in args.archive or [args.real / "tpugraphs" / "layout" / f"{NAME}.npz"]:
        program = observe_program(read_archive(path))
        if args.quick:
            rows = np.random.default_rng(0).permutation(len(program.indices))[:QUICK_ROWS]
            program = ObservedProgram(program.arrays, program.choices, program.indices[rows], program.seconds[rows])
        compare(path.stem, program, args)


if __name__ == "__main__":
    main()

"""Regret of the search for layouts beside random search, by the number of scored candidates, on simulated programs.

    python benchmarks/search.py [--run-dir RUN --budgets 64 256 1024]
    python benchmarks/search.py --quick    # two tiny programs, to check that it runs

The regret of a candidate is its noiseless simulated seconds over those of the program's fastest candidate, minus 1. The
table has the mean over programs and seeds, in percent. Random search scores the first distinct candidates of
`draw_indices`, in its modes, with and without ties; like the search, it has the compiler's default among them.

In the simulator the layouts of outputs decide nearly everything, and the search tries outputs first. Two conditions
take help away. "any default": choice 0 of each node is any of its choices. "hidden layouts": what the search reads as
the layouts of a choice are those of another choice, so that neither outputs nor links tell it anything.

With a run, its scores decide what is found, and the simulated seconds of the best 1, or of the best 10 if a user
measures those, judge it. The search is not told the cost model's optimum, which is the answer.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.hlo.choices import Choices, enumerate_choices
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.layout_program import LayoutProgram
from tpugraphs_polynormer.hlo.sampling import draw_index_blocks
from tpugraphs_polynormer.ranking.search import MAX_BLOCK, Score, SearchResult, search_layouts
from tpugraphs_polynormer.simulator.costs import LayoutCosts, price_choices
from tpugraphs_polynormer.simulator.optimum import find_optimum
from tpugraphs_polynormer.simulator.programs import SOURCES, draw_program
from tpugraphs_polynormer.simulator.scales import SCALES

FAMILIES = (*SOURCES["xla"], *5 * SOURCES["nlp"])
PROGRAM_SEED = 18  # other programs than those of `simulate` and than those that the search was designed on
MAX_DRAWN = 32_768  # by a random search; it does not score repeats

CONDITIONS = ("any default", "hidden layouts")

# (program, its costs, its fastest seconds)
Priced = tuple[LayoutProgram, LayoutCosts, float]
Finder = Callable[[Score, Choices, Sequence[int], int], list[SearchResult]]


def price_programs(count: int, scale: str, condition: str = "") -> list[Priced]:
    """Simulated programs of all families in turn, under one of the CONDITIONS."""
    found = []
    for number in range(count):
        rng = np.random.default_rng([PROGRAM_SEED, number])
        module = draw_program(FAMILIES[number * len(FAMILIES) // count], SCALES[scale].size, rng)
        priced = seen = enumerate_choices(module)
        if condition == "any default":
            priced = seen = renumber_choices(seen, rng, first=0)
        elif condition == "hidden layouts":
            seen = renumber_choices(seen, rng, first=1)
        costs = price_choices(featurize_module(module), priced)
        optimum = find_optimum(costs)
        if not optimum.is_exact:
            raise SystemExit(f"program {number} ({module.name}): its optimum is not known; draw another one")
        found.append((LayoutProgram(module, seen), costs, optimum.seconds))
    return found


def renumber_choices(choices: Choices, rng: np.random.Generator, *, first: int) -> Choices:
    """The same choices of each node in random order from choice `first` on."""
    table = choices.table.copy()
    for start, count in sorted(set(zip(choices.starts.tolist(), choices.counts.tolist(), strict=True))):
        table[start + first : start + count] = rng.permutation(table[start + first : start + count])
    return dataclasses.replace(choices, table=table)


def search(score: Score, choices: Choices, budgets: Sequence[int], seed: int) -> list[SearchResult]:
    """What the search scores with each budget."""
    return [search_layouts(score, choices, budget=budget, seed=seed) for budget in budgets]


def drawer(mode: str, *, tied: bool) -> Finder:
    """A random search: what it scores is drawn; a larger budget adds to a smaller one."""

    def draw(score: Score, choices: Choices, budgets: Sequence[int], seed: int) -> list[SearchResult]:
        found: dict[bytes, np.ndarray] = {}
        for block in draw_index_blocks(choices, MAX_DRAWN, seed=seed, mode=mode, tied=tied):
            for row in block:
                found.setdefault(row.tobytes(), row)
            if len(found) >= max(budgets):
                break
        indices = np.stack(list(found.values())[: max(budgets)])
        blocks = [score(indices[start : start + MAX_BLOCK]) for start in range(0, len(indices), MAX_BLOCK)]
        scores = np.concatenate(blocks)
        return [SearchResult(indices[:budget], scores[:budget]) for budget in budgets]

    return draw


FINDERS: dict[str, Finder] = {
    "search": search,
    "drawn, random": drawer("random", tied=True),
    "drawn, default": drawer("default", tied=True),
    "drawn, default, not tied": drawer("default", tied=False),
    "drawn, consistent": drawer("consistent", tied=False),
}


def find_regret(found: SearchResult, costs: LayoutCosts, fastest: float, top: int) -> float:
    """The regret of the fastest of the `top` best by score."""
    best = np.argsort(-found.scores, kind="stable")[:top]
    return float(costs.seconds(found.indices[best]).min() / fastest - 1)


def simulated_scores(programs: Sequence[Priced]) -> Iterator[tuple[Priced, Score]]:
    """Yields each program with the simulator's own seconds as the score."""
    for each in programs:
        yield each, lambda indices, costs=each[1]: -costs.seconds(indices)


def trained_scores(programs: Sequence[Priced], run: Path) -> Iterator[tuple[Priced, Score]]:
    """Yields each program with the scores of a trained run; a score that was computed before is remembered."""
    from tpugraphs_polynormer.ranking.program_scorer import ProgramScorer

    for each in programs:
        with ProgramScorer([run], each[0]) as scorer:
            known: dict[bytes, float] = {}

            def score(indices: np.ndarray, scorer: ProgramScorer = scorer, known: dict = known) -> np.ndarray:
                keys = [row.tobytes() for row in indices]
                new = [number for number, key in enumerate(keys) if key not in known]
                if new:
                    scores = scorer.score(indices[new]).mean(axis=0).tolist()
                    known.update(zip((keys[number] for number in new), scores, strict=True))
                return np.array([known[key] for key in keys])

            yield each, score


def print_rows(
    name: str, scored: Iterator[tuple[Priced, Score]], budgets: Sequence[int], seeds: int, tops: Sequence[int] = (1,)
) -> None:
    """Prints, for each number of best candidates, a row of the table per way of finding, and the search's share."""
    regrets: dict[tuple[str, int, int], list[float]] = {}
    for (program, costs, fastest), score in scored:
        for (way, find), seed in itertools.product(FINDERS.items(), range(seeds)):
            for budget, found in zip(budgets, find(score, program.choices, budgets, seed), strict=True):
                for top in tops:
                    regrets.setdefault((way, budget, top), []).append(find_regret(found, costs, fastest, top))
    means = {key: statistics.mean(each) for key, each in regrets.items()}
    for top in tops:
        label = f"{name}, best {top}" if len(tops) > 1 else name
        for way in FINDERS:
            cells = " | ".join(f"{100 * means[way, budget, top]:.3f}" for budget in budgets)
            print(f"| {label} | {way} | {cells} |", flush=True)
        drawn = [min(means[way, budget, top] for way in FINDERS if way != "search") for budget in budgets]
        shares = [
            means["search", budget, top] / least if least else 1.0 for budget, least in zip(budgets, drawn, strict=True)
        ]
        print(f"| {label} | search / best drawn | {' | '.join(f'{share:.2f}' for share in shares)} |", flush=True)


def compare(args: argparse.Namespace) -> None:
    """Prints the table."""
    scale = "tiny" if args.quick else "small"
    known = price_programs(args.programs, scale)
    print(f"| score | found by | {' | '.join(f'{budget:,}' for budget in args.budgets)} |")
    print(f"|---|---|{'---|' * len(args.budgets)}")
    print_rows("simulator", simulated_scores(known), args.budgets, args.seeds)
    for condition in CONDITIONS:
        other = price_programs(args.programs, scale, condition)
        print_rows(f"simulator, {condition}", simulated_scores(other), args.budgets, args.seeds)
    if args.run_dir is not None:
        print_rows("run", trained_scores(known, args.run_dir), args.budgets, 1, (1, 10))
    nothing = [costs.seconds(np.zeros((1, len(program.choices.counts)), int))[0] for program, costs, _ in known]
    regrets = [seconds / fastest - 1 for seconds, (_, _, fastest) in zip(nothing, known, strict=True)]
    print(f"\nthe default: {100 * statistics.mean(regrets):.3f} % in the mean of {len(known)} programs", end="; ")
    print(f"{sum(regret > 0.001 for regret in regrets)} programs above 0.1 %")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=12)
    parser.add_argument("--budgets", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--seeds", type=int, default=5, help="with a run, one seed")
    parser.add_argument("--run-dir", type=Path, help="a run of a layout collection whose scores are searched as well")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.programs, args.budgets, args.seeds = 2, [16, 64], 1
    compare(args)


if __name__ == "__main__":
    main()

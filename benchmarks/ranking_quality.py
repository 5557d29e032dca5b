"""Ranking metrics of GraphSAGE, Polynormer-local and Polynormer on unseen simulated programs, over seeds.

    python benchmarks/ranking_quality.py                              # five collections, three models, three seeds
    python benchmarks/ranking_quality.py --collections layout:nlp:random --seeds 0 --set model.dropout_rate=0.1
    python benchmarks/ranking_quality.py --quick    # two tiny collections, one model, four steps, to check that it runs

Simulates `--scale small`, preprocesses it, and trains configs/ranking/<model>/<collection>.yaml, made smaller for two
cores (trials.py): all models have the same width, heads, fusion, candidates and number of steps. The weights after the
last step are judged, on all candidates of the test graphs, with the hidden runtimes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trials import (
    MODELS,
    QUICK,
    Judged,
    Result,
    Trial,
    format_spread,
    judge_baseline,
    run_trials,
    simulate,
    small_overrides,
)

from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.ranking.baselines import RandomScorer

SHOWN = ("tau", "opa", "slowdown_1", "slowdown_5")


def show(results: dict[tuple[str, str], list[Result]], judged: dict[str, Judged]) -> None:
    """Prints a Markdown table of means and, with several seeds, standard deviations over them."""
    print(f"| collection | model | {' | '.join(SHOWN)} |\n|---|---|{'---|' * len(SHOWN)}")
    collections = list(dict.fromkeys(name for name, _ in results))
    for name in collections:
        chance = judge_baseline(judged[name], RandomScorer())
        print(f"| {name} | random order | {format_cells([{metric: chance.mean(metric) for metric in SHOWN}])} |")
        for model in MODELS:
            if (name, model) in results:
                seeds = [{metric: run.mean(metric) for metric in SHOWN} for run in results[name, model]]
                print(f"| {name} | {MODELS[model]} | {format_cells(seeds)} |")
    for model in MODELS:
        of_model = [results[name, model] for name in collections if (name, model) in results]
        if len(of_model) > 1:
            seeds = [
                {metric: statistics.mean(run.mean(metric) for run in seed) for metric in SHOWN}
                for seed in zip(*of_model, strict=True)
            ]
            print(f"| mean | {MODELS[model]} | {format_cells(seeds)} |")


def format_cells(seeds: Sequence[dict[str, float]]) -> str:
    """The table cells of one row, from the metrics of each seed."""
    return " | ".join(format_spread([seed[metric] for seed in seeds]) for metric in SHOWN)


def main() -> None:
    """Trains the missing runs and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/ranking_quality"))
    parser.add_argument("--collections", default=",".join(COLLECTIONS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="change a field for every run")
    parser.add_argument("--programs", type=int, help="train programs, if not those of the scale; in a DIR of its own")
    parser.add_argument("--name", default="default", help="of this set of runs, where overrides differ")
    parser.add_argument("--quick", action="store_true", help="tiny data, one short run of each: does it run?")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        if args.quick:
            args.work, args.models, args.seeds = Path(folder), "polynormer", "0"
            args.collections, args.overrides = "tile:xla,layout:xla:random", [*QUICK, *args.overrides]
        compare(args)


def compare(args: argparse.Namespace) -> None:
    """Writes the data, trains every model on every collection with every seed, and prints the table."""
    names, models = args.collections.split(","), args.models.split(",")
    simulated = names if args.quick else list(COLLECTIONS)
    archives, datasets = simulate(args.work, "tiny" if args.quick else "small", simulated, num_programs=args.programs)
    judged = {name: Judged(str(datasets), name, "test", str(archives / "truth")) for name in names}
    trials = {}
    for seed in args.seeds.split(","):
        for name in names:
            for model in models:
                stem = name.replace(":", "_")
                trials[seed, name, model] = Trial(
                    config=f"{model}/{stem}",
                    datasets=str(datasets),
                    run=str(args.work / "runs" / args.name / model / stem / f"seed-{seed}"),
                    judged=(judged[name],),
                    overrides=(*small_overrides(model, name), *args.overrides, f"seed={seed}"),
                )
    results: dict[tuple[str, str], list[Result]] = {}
    for (_, name, model), result in zip(trials, run_trials(list(trials.values())), strict=True):
        results.setdefault((name, model), []).append(result)
    show(results, judged)


if __name__ == "__main__":
    main()

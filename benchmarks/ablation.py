"""What each option of the ranking model is worth: tau with it minus tau without it, over collections and seeds.

    python benchmarks/ablation.py --work DIR [--labels ARCHIVES]      # every option alone, then the best together
    python benchmarks/ablation.py --work DIR --shipped --options polynormer_local graphsage cross_candidates
    python benchmarks/ablation.py --work DIR --options max_readout ema --collections layout:xla:default
    python benchmarks/ablation.py --quick    # tiny data, one option, to check that it runs

The base is configs/ranking/polynormer, made smaller for two cores (trials.py), without the options that these configs
have (PLAIN) or, with --shipped, with them; trained on 144 programs. Every trial with an option has a partner without
it: same collection, same seed. The table has the mean of these differences over all pairs, its interval of 95 %
(Student's t), and the time of a training step relative to the partner's. `together` has the options whose interval is
above 0. A trial is judged on the 8 test programs and on 48 of another simulation: 8 are too few, their mean changes by
0.1 from seed to seed. ARCHIVES are those of `tpugraphs label --operands`; models trained on their train split are
judged on their test split. Finished trials are reused.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scipy.stats import t as student
from trials import QUICK, Judged, Result, Trial, run_once, run_trials, simulate, small_overrides

LAYOUTS = ("layout:xla:default", "layout:xla:random", "layout:nlp:default", "layout:nlp:random")
PROGRAMS, JUDGES = 144, 48  # for training, and others that judge beside the test split
LABELLED = "compiler"  # the collection of compiler-labelled archives
MODEL = "polynormer"
# What the shipped configs have because of this benchmark, turned off.
PLAIN = ("model.layout_agreement=false",)
OPTIONS: dict[str, tuple[str, ...]] = {
    "readout_sizes": ("model.readout_sizes=true",),
    "layout_agreement": ("model.layout_agreement=true",),
    "cross_candidates": ("model.cross_candidates=nodes",),
    "graph_norm": ("model.graph_norm=true",),
    "squeeze_excite": ("model.squeeze_excite=true",),
    "directed": ("model.directed=true",),
    "max_readout": ("model.max_readout=true",),
    "layout_positions": ("model.layout_features=both",),
    "layout_dimensions": ("model.layout_features=dimensions",),
    "operands": ("model.operand_features=true",),
    "size_tiles": ("model.size_features=tiles",),
    "ema": ("training.ema_decay=0.99",),
    "drop_edge": ("model.edge_dropout_rate=0.1",),
    "dropout": ("model.dropout_rate=0.2",),
    "input_dropout": ("model.input_dropout_rate=0.2",),
    "weight_decay": ("training.weight_decay=0.1",),
    "score_spread": ("loss.score_spread=4",),
    "relative_error": ("loss.relative_error=0.1",),
    "list_mle": ("loss.list_mle=1", "loss.pairwise_logistic=0"),
    "pre_norm": ("model.pre_norm=true",),
    "warm_up": ("training.local_epochs=4", "training.epochs=8"),
    "parallel_attention": ("model.attention=local_and_global",),
    "polynormer_local": (),
    "graphsage": (),
    "physics_features": ("model.physics=features",),
    "physics_residual": ("model.physics=residual",),
}
# Other models, by the name of their configs, and the simulator's own answer: never part of `together`.
OTHER_MODELS = ("polynormer_local", "graphsage")
APART = (*OTHER_MODELS, "physics_features", "physics_residual")


def make_trial(work: Path, name: str, overrides: Sequence[str], collection: str, seed: str, sets: dict) -> Trial:
    """The trial of a set of overrides on one collection."""
    datasets, judged = sets[collection]
    stored = "layout:xla:random" if collection == LABELLED else collection
    stem = stored.replace(":", "_")
    model = name if name in OTHER_MODELS else MODEL
    return Trial(
        config=f"{model}/{stem}",
        datasets=datasets,
        run=str(work / "runs" / name / collection.replace(":", "_") / f"seed-{seed}"),
        judged=judged,
        overrides=(*small_overrides(model, stored), *overrides, f"seed={seed}"),
    )


def find_gains(results: Sequence[Result], partners: Sequence[Result]) -> list[float]:
    """The difference of tau of each pair."""
    return [a.mean("tau") - b.mean("tau") for a, b in zip(results, partners, strict=True)]


def format_row(name: str, results: Sequence[Result], partners: Sequence[Result]) -> str:
    """A line of the table."""
    gains = find_gains(results, partners)
    low, high = interval(gains)
    costs = [a.step_seconds / b.step_seconds for a, b in zip(results, partners, strict=True)]
    tau = statistics.mean(each.mean("tau") for each in results)
    return (
        f"| {name} | {tau:.3f} | {statistics.mean(gains):+.3f} | {low:+.3f} to {high:+.3f} "
        f"| {statistics.median(costs):.2f} |"
    )


def interval(gains: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of paired differences; all numbers if there is one pair."""
    mean = statistics.mean(gains)
    if len(gains) < 2:
        return float("-inf"), float("inf")
    half = student.ppf(0.975, len(gains) - 1) * statistics.stdev(gains) / len(gains) ** 0.5
    return mean - half, mean + half


def compare(args: argparse.Namespace) -> None:
    """Trains the missing trials and prints the table, line by line."""
    names, scale = list(args.collections), "tiny" if args.quick else "demo"
    programs, judges = (None, None) if args.quick else (PROGRAMS, JUDGES)
    archives, datasets = simulate(args.work, scale, names, num_programs=programs)
    _, others = simulate(args.work / "judges", scale, names, num_programs=judges, seed=1)
    sets: dict[str, tuple[str, tuple[Judged, ...]]] = {}
    for name in names:
        test = Judged(str(datasets), name, "test", str(archives / "truth"))
        sets[name] = (str(datasets), (test, Judged(str(others), name, "train")))
    if args.labels is not None:
        found = args.work / "compiler_data"
        options = ["--archives", str(args.labels), "--datasets", str(found), "--collections", "layout:xla:random"]
        run_once(args.work, "preprocess_compiler", ["preprocess", *options])
        test = Judged(str(found), "layout:xla:random", "test", str(args.labels / "truth"))
        sets[LABELLED] = (str(found), (test,))
    runs, plain = (args.work / "shipped", ()) if args.shipped else (args.work, PLAIN)
    pairs = [(collection, seed) for seed in args.seeds for collection in sets]

    def run(name: str, overrides: Sequence[str]) -> list[Result]:
        changed = (*plain, *overrides, *args.overrides)
        return run_trials([make_trial(runs, name, changed, *pair, sets) for pair in pairs])

    print(f"{len(pairs)} pairs: {', '.join(sets)}; seeds {', '.join(args.seeds)}\n")
    print("| option | tau | gain | 95 % interval of the gain | step time |\n|---|---|---|---|---|")
    base = run("base", ())
    print(format_row("base", base, base), flush=True)
    paying = []
    for name in args.options:
        results = run(name, OPTIONS[name])
        print(format_row(name, results, base), flush=True)
        if interval(find_gains(results, base))[0] > 0 and name not in APART:
            paying.append(name)
    if len(paying) > 1:
        joined = [each for name in paying for each in OPTIONS[name]]
        print(format_row(f"together: {', '.join(paying)}", run("together", joined), base))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--labels", type=Path, help="archives that `tpugraphs label` wrote")
    parser.add_argument("--options", nargs="+", choices=list(OPTIONS), default=list(OPTIONS))
    parser.add_argument("--collections", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--seeds", type=lambda text: text.split(","), default=["0", "1", "2"])
    parser.add_argument("--shipped", action="store_true", help="the base has the options that shipped configs have")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="change a field for every run")
    parser.add_argument("--quick", action="store_true", help="tiny data, one option: does it run?")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        if args.quick:
            args.work, args.seeds, args.options = Path(folder), ["0"], ["ema"]
            args.collections, args.overrides = ["layout:xla:random"], [*QUICK, *args.overrides]
        compare(args)


if __name__ == "__main__":
    main()

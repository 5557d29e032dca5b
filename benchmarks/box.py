"""Makes the ranker in the box: trains its members on simulated programs, judges them on real runtimes, packs both.

    python benchmarks/box.py --work DIR                            # trains, judges, prints the card
    python benchmarks/box.py --work DIR --output tpugraphs_polynormer/box    # also replaces the box of the package
    python benchmarks/box.py --quick                               # tiny data, two short runs: does it run?

Members differ by their seed. They learn from all four simulated layout collections, with what the analytic cost model
knows as input and as what they correct (model.physics=residual). No real runtime is used in training or to select an
epoch; the real archives (../shared/real) only judge. Finished runs are reused.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from real_alexnet import REAL_DATA
from transfer import find_real, prepare_real
from trials import QUICK, Judged, Trial, judge_baseline, read_truth, run_trials, simulate, small_overrides

from tpugraphs_polynormer.catalog import COLLECTIONS, find_collection
from tpugraphs_polynormer.process import import_tensorflow
from tpugraphs_polynormer.ranking.baselines import CostScorer
from tpugraphs_polynormer.ranking.metrics import GraphMetrics, graph_metrics

TRAINED_ON = tuple(name for name, collection in COLLECTIONS.items() if collection.kind == "layout")
SHOWN = ("tau", "tau_beyond_noise", "slowdown_1", "slowdown_5")


def train_members(work: Path, seeds: Sequence[str], scale: str, overrides: Sequence[str]) -> tuple[list[Path], Path]:
    """The run directories of the members, and the folder of their datasets."""
    _, datasets = simulate(work, scale, TRAINED_ON)
    chosen = (f"data.collections=[{','.join(TRAINED_ON)}]", "model.physics=residual", "training.epochs=24")
    trials = [
        Trial(
            config="polynormer/layout_xla_random",
            datasets=str(datasets),
            run=str(work / "runs" / f"seed-{seed}"),
            judged=tuple(Judged(str(datasets), name, "valid") for name in TRAINED_ON),
            overrides=(*small_overrides("polynormer", TRAINED_ON[0]), *chosen, *overrides, f"seed={seed}"),
        )
        for seed in seeds
    ]
    run_trials(trials)
    return [Path(trial.run) for trial in trials], datasets


def judge_members(runs: Sequence[Path], judged: Judged) -> list[GraphMetrics]:
    """The metrics of the members' mean score on each graph, every member's scores first brought to one scale."""
    from tpugraphs_polynormer.ranking.runs import load_ranker

    tasks = [load_ranker(run, judged.datasets, collection=judged.collection) for run in runs]
    scorers, split = [task.make_scorer() for task in tasks], tasks[0].collection.split(judged.split)
    found = []
    for number, entry in enumerate(split.graphs):
        scores = np.stack([scorer.score_graph(split, number) for scorer in scorers])
        scores = (scores - scores.mean(axis=1, keepdims=True)) / np.maximum(scores.std(axis=1, keepdims=True), 1e-12)
        runtimes, normalizers = read_truth(judged, entry.name, split, number)
        names = {"collection": judged.collection, "graph": entry.name, "noise": split.noise(number)}
        kind = find_collection(judged.collection).kind
        found.append(graph_metrics(kind, runtimes, scores.mean(axis=0), normalizers, **names))
    return found


def make_card(args: argparse.Namespace, runs: Sequence[Path], datasets: Path) -> dict:
    """What a user should know of the box (JSON values): data, command, and agreement with each real archive."""
    card = {
        "trained_on": "runtimes of the simulated TPU (docs/simulation.md); no measured runtime",
        "collections": list(TRAINED_ON),
        "programs": {name: len(_open(datasets, name).split("train")) for name in TRAINED_ON},
        "command": "python benchmarks/box.py --work DIR --output tpugraphs_polynormer/box",
        "members": len(runs),
        "simulated": {},
        "real": [],
    }
    for name in TRAINED_ON:
        found = judge_members(runs, Judged(str(datasets), name, "valid"))
        card["simulated"][name] = float(np.mean([each.tau for each in found]))
    real = find_real(args.real)
    if all(path.exists() for path in real.values()):
        layouts, _ = prepare_real(args.work, real)
        costs = {each.graph: each for each in judge_baseline(layouts, CostScorer()).graphs}
        for each in judge_members(runs, layouts):
            row = {"graph": each.graph, "candidates": asdict(each).get("num_candidates")}
            row |= {metric: getattr(each, metric) for metric in SHOWN}
            row |= {f"cost_model_{metric}": getattr(costs[each.graph], metric) for metric in SHOWN}
            card["real"].append(row)
    return card


def _open(datasets: Path, name: str):
    from tpugraphs_polynormer.datasets.reader import open_dataset

    return open_dataset(datasets / find_collection(name).folder)


def print_card(card: dict) -> None:
    """Prints the card as Markdown."""
    print(f"{card['members']} members, trained on {card['trained_on']}; programs: {card['programs']}\n")
    print("| simulated valid split | tau |\n|---|---|")
    for name, tau in card["simulated"].items():
        print(f"| {name} | {tau:.3f} |")
    print(f"\n| real graph | {' | '.join(SHOWN)} | {' | '.join(f'cost model {each}' for each in SHOWN)} |")
    print("|---" * (2 * len(SHOWN) + 1) + "|")
    for row in card["real"]:
        cells = [f"{row[key]:.3f}" for key in (*SHOWN, *(f"cost_model_{each}" for each in SHOWN))]
        print(f"| {row['graph']} | {' | '.join(cells)} |")


def make_box(args: argparse.Namespace) -> None:
    """Trains what is missing, prints the card, and packs the box."""
    runs, datasets = train_members(args.work, args.seeds, "tiny" if args.quick else "small", args.overrides)
    import_tensorflow()
    from tpugraphs_polynormer.ranking.box import write_box
    from tpugraphs_polynormer.ranking.calibration import calibrate_run

    for run in runs:
        calibrate_run(run, datasets)
    card = make_card(args, runs, datasets)
    print_card(card)
    if args.output:
        write_box(args.output, runs, card)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/box"))
    parser.add_argument("--real", type=Path, default=REAL_DATA)
    parser.add_argument("--output", type=Path, help="folder of the box")
    parser.add_argument("--seeds", type=lambda text: text.split(","), default=["0", "1", "2", "3"])
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="change a field for every run")
    parser.add_argument("--quick", action="store_true", help="tiny data, two short runs: does it run?")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        if args.quick:
            args.work, args.seeds, args.overrides = Path(folder), ["0", "1"], [*QUICK, *args.overrides]
        make_box(args)


if __name__ == "__main__":
    main()

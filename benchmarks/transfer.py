"""How rankers trained without one TPU measurement order the real candidates in shared/real.

    python benchmarks/transfer.py --work DIR [--labels ARCHIVES]
    python benchmarks/transfer.py --work DIR [--labels ARCHIVES] --few-shot
    python benchmarks/transfer.py --quick    # tiny data, one short run of each, to check that it runs

Trains on `simulate --scale small`, on the archives that `tpugraphs label` wrote to ARCHIVES, and on both, with each
value of model.physics, and ranks every candidate of the real layout archives and tile kernels. No real runtime is used
in training or to select an epoch. `--few-shot` then fine-tunes on 10 to 300 candidates of each real layout archive and
ranks the others, beside a ridge regression from scratch on the same candidates. Finished trials in DIR are reused.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from real_alexnet import fit_ridge, one_hot
from real_data import REAL_DATA
from trials import (
    QUICK,
    Judged,
    Result,
    Trial,
    format_spread,
    judge_baseline,
    link,
    run_once,
    run_trials,
    simulate,
    small_overrides,
)

from tpugraphs_polynormer.archives.npz import LayoutArchive, read_archive
from tpugraphs_polynormer.archives.writer import write_archive, write_npz
from tpugraphs_polynormer.cli.main import main as run_command
from tpugraphs_polynormer.ranking.baselines import BASELINES
from tpugraphs_polynormer.ranking.metrics import kendall_tau

MODEL = "polynormer"
TRAINED_ON = ["layout:xla:random", "layout:xla:default"]
PHYSICS = ("none", "features", "residual")
SHOTS = (10, 30, 100, 300)
MOST_JUDGED = 2000  # candidates of a real archive that judge a fine-tuned model
FINE_TUNING = ("training.epochs=4", "training.steps_per_epoch=25", "training.learning_rate=5e-4")


def find_real(folder: Path) -> dict[str, Path]:
    """The real archives with runtimes, by a short name; one of two equal names has its collection's search added."""
    base = folder / "tpugraphs"
    layouts = {
        "alexnet": base / "layout" / "alexnet_train_batch_32.npz",
        "unet3d": base / "official/npz/layout/xla/default/train/unet3d.npz",
        "unet_3d default": base / "official/npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz",
        "unet_3d random": base / "layout" / "unet_3d.4x4.bf16.npz",
    }
    official = base / "official" / "npz" / "tile" / "xla"
    kernels = [*sorted((base / "tile").glob("*.npz")), *sorted(official.glob("*/*.npz"))]
    return layouts | {path.stem.split("_")[0]: path for path in kernels}


def prepare_real(work: Path, real: Mapping[str, Path]) -> tuple[Judged, Judged]:
    """The datasets of the real layout archives and of the real tile kernels."""
    tree, datasets = work / "real", work / "real_data"
    names = {"layout:xla:default": "layout/xla/default", "tile:xla": "tile/xla"}
    for name, path in real.items():
        archive = read_archive(path)
        folder = names["layout:xla:default" if isinstance(archive, LayoutArchive) else "tile:xla"]
        target = tree / "npz" / folder / "valid" / f"{name.replace(' ', '_')}.npz"
        link(path, target)
    arguments = ["preprocess", "--archives", str(tree), "--datasets", str(datasets), "--collections", *names]
    run_once(work, "preprocess_real", arguments)
    return tuple(Judged(str(datasets), name, "valid") for name in names)


def prepare_training(work: Path, labels: Path | None, scale: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """What layout rankers train on: name -> (folder of datasets, collections)."""
    archives, datasets = simulate(work, scale, [*TRAINED_ON, "tile:xla"])
    sets = {"simulated": (str(datasets), tuple(TRAINED_ON))}
    if labels is None:
        return sets
    for name, sources in {"compiler": [labels], "both": [labels, archives]}.items():
        tree, found = work / f"{name}_tree", work / f"{name}_data"
        for source in sources:
            for path in sorted((source / "npz" / "layout").glob("*/*/*/*.npz")):
                link(path, tree / path.relative_to(source))
        collections = [each for each in TRAINED_ON if (tree / "npz" / each.replace(":", "/")).exists()]
        options = ["--archives", str(tree), "--datasets", str(found), "--collections", *collections]
        run_once(work, f"preprocess_{name}", ["preprocess", *options])
        sets[name] = (str(found), tuple(collections))
    return sets


def make_trials(
    work: Path, sets: Mapping[str, tuple[str, tuple[str, ...]]], judged: tuple[Judged, Judged], args: argparse.Namespace
) -> dict[tuple[str, str, str], Trial]:
    """The trials by (kind and training data, physics, seed)."""
    trials = {}
    layouts, kernels = judged
    for seed in args.seeds:
        for physics in PHYSICS:
            for name, (datasets, collections) in sets.items():
                chosen = [f"data.collections=[{','.join(collections)}]"] if len(collections) > 1 else []
                overrides = (*small_overrides(MODEL, TRAINED_ON[0]), *chosen, f"model.physics={physics}")
                trials[name, physics, seed] = Trial(
                    config=f"{MODEL}/layout_xla_random",
                    datasets=datasets,
                    run=str(work / "runs" / name / physics / f"seed-{seed}"),
                    judged=(layouts,),
                    overrides=(*overrides, *args.overrides, f"seed={seed}"),
                )
            overrides = (*small_overrides(MODEL, "tile:xla"), f"model.physics={physics}", *args.overrides)
            trials["tile", physics, seed] = Trial(
                config=f"{MODEL}/tile_xla",
                datasets=sets["simulated"][0],
                run=str(work / "runs" / "tile" / physics / f"seed-{seed}"),
                judged=(kernels,),
                overrides=(*overrides, f"seed={seed}"),
            )
    return trials


def print_layouts(rows: Mapping[str, list[Result]]) -> None:
    """Prints tau, tau beyond noise and slowdowns of each real layout graph, and their means."""
    graphs = [each.graph for each in rows["random order"][0].graphs]
    for metric, title in (
        ("tau", "Kendall's tau"),
        ("tau_beyond_noise", "tau over pairs that differ by more than the noise"),
        ("slowdown_1", "slowdown of the first-ranked candidate"),
        ("slowdown_5", "slowdown of the best of the first five"),
    ):
        print(f"\n{title}\n\n| trained on, physics | {' | '.join(graphs)} | mean |\n{'|---' * (len(graphs) + 2)}|")
        for name, results in rows.items():
            per_seed = [[_of_graph(each, graph, metric) for graph in graphs] for each in results]
            cells = [format_spread(values) for values in zip(*per_seed, strict=True)]
            print(f"| {name} | {' | '.join(cells)} | {format_spread([statistics.mean(each) for each in per_seed])} |")


def _of_graph(result: Result, graph: str, metric: str) -> float:
    return next(getattr(each, metric) for each in result.graphs if each.graph == graph)


def print_tiles(rows: Mapping[str, list[Result]]) -> None:
    """Prints the mean metrics over the real tile kernels."""
    print("\nReal tile kernels\n\n| trained on, physics | top 5 score | tau | slowdown_1 |\n|---|---|---|---|")
    for name, results in rows.items():
        metrics = ("contest_score", "tau", "slowdown_1")
        cells = [format_spread([each.mean(metric) for each in results]) for metric in metrics]
        print(f"| {name} | {' | '.join(cells)} |")


def compare(args: argparse.Namespace) -> None:
    """Trains the missing runs and prints the tables."""
    work, real = args.work, find_real(args.real)
    layouts, kernels = prepare_real(work, real)
    sets = prepare_training(work, args.labels, "tiny" if args.quick else "small")
    trials = make_trials(work, sets, (layouts, kernels), args)
    results: dict[tuple[str, str], list[Result]] = {}
    for (name, physics, _), result in zip(trials, run_trials(list(trials.values())), strict=True):
        results.setdefault((name, physics), []).append(result)
    for judged, show in ((layouts, print_layouts), (kernels, print_tiles)):
        rows = {label: [judge_baseline(judged, scorer)] for label, scorer in BASELINES.items()}
        is_tile = judged is kernels
        rows |= {
            f"{'simulated' if is_tile else name}, {physics}": found
            for (name, physics), found in results.items()
            if (name == "tile") == is_tile
        }
        show(rows)
    if args.few_shot:
        print_few_shot(work, real, trials, args)


def print_few_shot(
    work: Path, real: Mapping[str, Path], trials: Mapping[tuple[str, str, str], Trial], args: argparse.Namespace
) -> None:
    """Prints tau on the other candidates after fine-tuning on a few of a real archive, beside a ridge regression."""
    best = "both" if args.labels else "simulated"
    tuned: dict[tuple[str, int, str, str], Trial] = {}
    ridge: dict[tuple[str, int], list[float]] = {}
    for name, path in real.items():
        archive = read_archive(path)
        if not isinstance(archive, LayoutArchive):
            continue
        for shots in SHOTS:
            for seed in args.seeds:
                rows, others = draw_shots(archive, shots, int(seed))
                folder = work / "few_shot" / f"{name.replace(' ', '_')}-{shots}-{seed}"
                datasets = write_shots(folder, path, rows, others)
                ridge.setdefault((name, shots), []).append(judge_ridge(archive, rows, others))
                for physics in ("none", "residual"):
                    start = trials[best, physics, seed]
                    changed = (*start.overrides, "data.collections=[]", "data.collection=layout:xla:default")
                    tuned[name, shots, physics, seed] = Trial(
                        config=start.config,
                        datasets=datasets,
                        run=str(folder / physics),
                        judged=(Judged(datasets, "layout:xla:default", "test", str(folder / "truth")),),
                        overrides=(*changed, *FINE_TUNING),
                        init_from=start.run,
                    )
    found: dict[tuple[str, int, str], list[float]] = {}
    for (name, shots, physics, _), result in zip(tuned, run_trials(list(tuned.values())), strict=True):
        found.setdefault((name, shots, physics), []).append(result.mean("tau"))
    print(f"\nFew-shot: tau on the other candidates\n\n| graph | ranker | {' | '.join(map(str, SHOTS))} |")
    print(f"{'|---' * (len(SHOTS) + 2)}|")
    for name in dict.fromkeys(name for name, _ in ridge):
        print(f"| {name} | ridge, from scratch | {' | '.join(format_spread(ridge[name, each]) for each in SHOTS)} |")
        for physics in ("none", "residual"):
            cells = [format_spread(found[name, each, physics]) for each in SHOTS]
            print(f"| {name} | {best}, {physics}, fine-tuned | {' | '.join(cells)} |")


def draw_shots(archive: LayoutArchive, shots: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on, and at most MOST_JUDGED of the others; an archive with few rows keeps half of them."""
    order = np.random.default_rng(seed).permutation(len(archive.config_runtime))
    count = min(shots, len(order) // 2)
    return order[:count], order[count:][:MOST_JUDGED]


def write_shots(folder: Path, source: Path, rows: np.ndarray, others: np.ndarray) -> str:
    """A folder of datasets whose train and valid splits have the drawn rows, and whose test split has the others."""
    datasets = folder / "data"
    if not datasets.exists():
        with np.load(source, allow_pickle=False) as arrays:
            whole = dict(arrays)
        part = Path("layout") / "xla" / "default"
        for split, chosen in (("train", rows), ("valid", rows), ("test", others)):
            taken = whole | {key: whole[key][chosen] for key in ("node_config_feat", "config_runtime")}
            write_archive(folder / "tree" / "npz" / part / split / source.name, taken)
        hidden = {"config_runtime": whole["config_runtime"][others]}
        write_npz(folder / "truth" / part / "test" / source.name, hidden)
        run_command(
            [
                *("preprocess", "--archives", str(folder / "tree"), "--datasets", str(datasets)),
                *("--collections", "layout:xla:default", "--runner=FnApiRunner", "--direct_num_workers=1"),
            ]
        )
    return str(datasets)


def judge_ridge(archive: LayoutArchive, rows: np.ndarray, others: np.ndarray) -> float:
    """Tau of a ridge regression on one-hot candidates, fitted to the drawn rows."""
    features = one_hot(archive.node_config_feat[np.concatenate([rows, others])])
    features = np.pad(features, [[0, 0], [0, 1]], constant_values=1)
    targets = archive.config_runtime[rows] / archive.config_runtime[rows].min() - 1
    costs = features[len(rows) :] @ fit_ridge(features[: len(rows)], targets, 0.1)
    return kendall_tau(archive.config_runtime[others], -costs)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", type=Path, default=REAL_DATA)
    parser.add_argument("--work", type=Path, default=Path("runs/transfer"))
    parser.add_argument("--labels", type=Path, help="archives that `tpugraphs label` wrote")
    parser.add_argument("--seeds", type=lambda text: text.split(","), default=["0", "1", "2"])
    parser.add_argument("--few-shot", action="store_true", help="also fine-tune on few real candidates")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="change a field for every run")
    parser.add_argument("--quick", action="store_true", help="tiny data, one short run of each: does it run?")
    args = parser.parse_args()
    if not any(path.exists() for path in find_real(args.real).values()):
        sys.exit(f"no real archives below {args.real}/tpugraphs: set TPUGRAPHS_REAL_DATA")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        if args.quick:
            args.work, args.seeds, args.overrides = Path(folder), ["0"], [*QUICK, *args.overrides]
        compare(args)


if __name__ == "__main__":
    main()

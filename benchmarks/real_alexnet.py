"""Rank correlation on held-out candidates of the 8,000 real ones of alexnet, compared with ridge regressions.

    python benchmarks/real_alexnet.py [--real FOLDER] [--work FOLDER] [--seeds 0,1,2] [--set A.B=C ...]
    python benchmarks/real_alexnet.py --quick    # 400 of the rows, two short runs, to check that it runs

Held out are the rows numpy.random.default_rng(0).permutation(8000)[:2000]. The last 600 of the others are for
validation, which selects the epoch; the rest are for training. The table has Kendall's tau on all held-out rows, and on
those whose candidate is not among the 6,000. Its last row is the tau that a perfect model could reach: the order of the
regression on pairs, compared with itself after adding the noise of repeated candidates.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import combinations
from pathlib import Path

import numpy as np
from real_data import REAL_DATA

from tpugraphs_polynormer.archives.noise import group_equal, pair_repeats
from tpugraphs_polynormer.archives.npz import LayoutArchive, read_archive
from tpugraphs_polynormer.archives.writer import write_archive
from tpugraphs_polynormer.cli.main import main as run_command
from tpugraphs_polynormer.process import import_tensorflow, keep_freed_memory
from tpugraphs_polynormer.ranking.metrics import kendall_tau, rank_candidates, slowdown

NUM_ROWS, NUM_HELD_OUT, NUM_VALIDATION = 8000, 2000, 600
NAME = "alexnet_train_batch_32"
CONFIG = Path(__file__).resolve().parents[1] / "configs" / "real" / "alexnet.yaml"
QUICK_SHARE = 20  # of the rows with --quick: one in 20
QUICK = (
    *(f"model.{each}" for each in ("hidden_dim=8", "num_heads=2", "num_local_layers=1")),
    *(f"training.{each}" for each in ("epochs=1", "local_epochs=0", "steps_per_epoch=2", "steps_per_execution=1")),
)


def split_rows(share: int) -> dict[str, np.ndarray]:
    """The rows of each split, or one in `share` of them; "test" has the held-out ones."""
    order = np.random.default_rng(0).permutation(NUM_ROWS)
    parts = np.split(order, [NUM_HELD_OUT, NUM_ROWS - NUM_VALIDATION])
    return {split: rows[: len(rows) // share] for split, rows in zip(("test", "train", "valid"), parts, strict=True)}


def write_tree(source: Path, tree: Path, rows_of: dict[str, np.ndarray]) -> None:
    """Writes the real archive as an official tree with one graph per split."""
    with np.load(source, allow_pickle=False) as arrays:
        whole = dict(arrays)
    for split, rows in rows_of.items():
        part = whole | {key: whole[key][rows] for key in ("node_config_feat", "config_runtime")}
        write_archive(tree / "npz" / "layout" / "xla" / "default" / split / f"{NAME}.npz", part)


def one_hot(candidates: np.ndarray) -> np.ndarray:
    """[c, features]: one-hot codes of the layout of each node, for candidates [c, nc, 18]."""
    return np.concatenate([_one_hot(candidates[:, node]) for node in range(candidates.shape[1])], 1)


def one_hot_pairs(candidates: np.ndarray) -> np.ndarray:
    """[c, features]: one-hot codes of each node and of each pair of nodes; nodes that always agree count as one."""
    codes = [np.unique(each, axis=0, return_inverse=True)[1].ravel() for each in candidates.transpose(1, 0, 2)]
    distinct = np.unique(np.stack(codes, 1), axis=1)
    pairs = [_one_hot(distinct[:, list(pair)]) for pair in combinations(range(distinct.shape[1]), 2)]
    return np.concatenate([one_hot(candidates), *pairs], 1)


def _one_hot(rows: np.ndarray) -> np.ndarray:
    _, codes = np.unique(rows, axis=0, return_inverse=True)
    return np.eye(codes.max() + 1, dtype=np.float32)[codes.ravel()]


def fit_ridge(features: np.ndarray, targets: np.ndarray, strength: float) -> np.ndarray:
    """The weights of a ridge regression."""
    gram = features.T @ features + strength * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ targets)


def repeat_noise(archive: LayoutArchive) -> np.ndarray:
    """The relative deviations of single measurements, from pairs of rows with the same candidate."""
    first, second = pair_repeats(group_equal(archive.node_config_feat))
    return np.log(archive.config_runtime[second] / archive.config_runtime[first]) / np.sqrt(2)


def report(name: str, runtimes: np.ndarray, scores: np.ndarray, is_new: np.ndarray, seconds: float) -> None:
    """Prints one line of the table."""
    best = slowdown(runtimes, rank_candidates(scores), 1)
    taus = kendall_tau(runtimes, scores), kendall_tau(runtimes[is_new], scores[is_new])
    print(f"| {name} | {taus[0]:.3f} | {taus[1]:.3f} | {100 * best:.2f} % | {seconds:.0f} |", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", type=Path, default=REAL_DATA)
    parser.add_argument("--work", type=Path, default=Path("runs/real_alexnet"))
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--quick", action="store_true", help="few rows, two short runs: does it run?")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        if args.quick:
            args.work, args.seeds, args.overrides = Path(folder), "0,1", [*QUICK, *args.overrides]
        compare(args)


def compare(args: argparse.Namespace) -> None:
    """Fits the regressions, trains the seeds, prints the table."""
    source = args.real / "tpugraphs" / "layout" / f"{NAME}.npz"
    archive, rows = read_archive(source), split_rows(QUICK_SHARE if args.quick else 1)
    known = {archive.node_config_feat[row].tobytes() for part in ("train", "valid") for row in rows[part]}
    held_out = rows["test"]
    is_new = np.array([archive.node_config_feat[row].tobytes() not in known for row in held_out])
    runtimes = archive.config_runtime[held_out]
    print(f"{len(held_out)} held-out candidates, {is_new.sum()} of configurations absent from training")
    print("| model | tau, all | tau, absent | slowdown at 1 | CPU seconds |\n|---|---|---|---|---|")
    fitted = np.concatenate([rows["train"], rows["valid"]])
    targets = archive.config_runtime[fitted] / archive.config_runtime[fitted].min() - 1
    for name, encode, strength in (("one-hot candidates", one_hot, 0.1), ("pairs of them", one_hot_pairs, 0.01)):
        started = time.process_time()
        features = encode(archive.node_config_feat[np.concatenate([fitted, held_out])])
        features = np.pad(features, [[0, 0], [0, 1]], constant_values=1)
        costs = features[len(fitted) :] @ fit_ridge(features[: len(fitted)], targets, strength)
        report(f"ridge on {name}", runtimes, -costs, is_new, time.process_time() - started)
    noise = np.random.default_rng(0).choice(repeat_noise(archive), len(held_out))
    truth = 1 + costs
    write_tree(source, args.work / "tree", rows)
    collections = ["--collections", "layout:xla:default", "--runner=FnApiRunner", "--direct_num_workers=1"]
    run_command(
        ["preprocess", "--archives", str(args.work / "tree"), "--datasets", str(args.work / "data"), *collections]
    )
    total = np.zeros(len(held_out))
    started = time.process_time()
    for seed in args.seeds.split(","):
        began = time.process_time()
        scores = train_and_score(args, int(seed))
        report(f"Polynormer, seed {seed}", runtimes, scores, is_new, time.process_time() - began)
        total += np.argsort(np.argsort(scores, kind="stable"))
    if "," in args.seeds:
        report("mean of their ranks", runtimes, total, is_new, time.process_time() - started)
    report("a perfect model", truth * np.exp(noise), -truth, is_new, 0)


def train_and_score(args: argparse.Namespace, seed: int) -> np.ndarray:
    """The scores of the held-out rows, with the weights of the best epoch."""
    keep_freed_memory()
    import_tensorflow()
    from tpugraphs_polynormer.config.schema import load_config
    from tpugraphs_polynormer.ranking.runs import load_ranker
    from tpugraphs_polynormer.ranking.task import train_ranking
    from tpugraphs_polynormer.training.distribution import make_strategy

    config = load_config(args.config, [*args.overrides, f"seed={seed}"])
    run = args.work / f"seed-{seed}"
    train_ranking(config, args.work / "data", run, strategy=make_strategy("cpu"))
    task = load_ranker(run, args.work / "data")
    return task.make_scorer().score_graph(task.collection.split("test"), 0)


if __name__ == "__main__":
    main()

"""Preprocessing and the first training batch, compared with the simple way: load all, concatenate, cache, tf.data.

    python benchmarks/preprocess.py [--input TREE] [--graphs 6] [--candidates 20000] [--repeats 3]
    python benchmarks/preprocess.py --quick    # two graphs of 300 candidates, once, to check that it runs

Without --input it simulates one collection of that many graphs and candidates. Every measurement runs in its own
process; memory is the largest sum over its process tree; the two ways alternate, and medians are printed. "First batch"
is the time from the start of the process, imports included, to a batch of 4 graphs with 64 candidates each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from process_tree import run_measured

_COLLECTION, _FOLDER = "layout:nlp:random", "layout/nlp/random"
_GRAPHS_PER_BATCH, _NUM_DRAWN, _NUM_DRAWS = 4, 64, 50
_MEGA = 1e6


def make_archives(root: Path, num_graphs: int, num_candidates: int) -> None:
    """Simulated train graphs in the official format."""
    from tpugraphs_polynormer.simulator.scales import SCALES
    from tpugraphs_polynormer.simulator.write import simulate_graph

    for number in range(num_graphs):
        simulate_graph(root, Path(_FOLDER) / "train", SCALES["small"], 0, number, num_candidates)


def list_archives(root: Path) -> list[Path]:
    """The train archives."""
    return sorted((root / "npz" / _FOLDER / "train").glob("*.npz"))


def run_step(command: list[str], log: Path) -> dict[str, float]:
    """The seconds and the peak memory of a command and its children, and the JSON of its last line, if any."""
    used = run_measured(command, log)
    printed = [line for line in log.read_text().splitlines() if line.startswith("{")]
    return {"seconds": used.wall_seconds, "peak": float(used.peak_bytes)} | (json.loads(printed[-1]) if printed else {})


def prepare_obviously(tree: Path, cache: Path) -> None:
    """Loads all archives, concatenates each key, and writes one compressed cache."""
    parts: dict[str, list[np.ndarray]] = {}
    for path in list_archives(tree):
        with np.load(path, allow_pickle=False) as archive:
            features = archive["node_config_feat"]
            parts.setdefault("shapes", []).append(np.array([[len(archive["node_feat"]), *features.shape[:2]]]))
            parts.setdefault("candidates", []).append(features.reshape(-1, features.shape[2]))
            for key in ("node_feat", "node_opcode", "edge_index", "config_runtime", "node_config_ids"):
                parts.setdefault(key, []).append(archive[key])
    np.savez_compressed(cache, **{key: np.concatenate(values) for key, values in parts.items()})


def feed_obviously(cache: Path) -> dict[str, float]:
    """The times of tf.data over the cache in memory."""
    import tensorflow as tf

    with np.load(cache, allow_pickle=False) as archive:
        arrays = {key: tf.convert_to_tensor(archive[key]) for key in archive.files}
    num_nodes, num_candidates, num_config = arrays["shapes"].numpy().T
    node_starts, candidate_starts = (np.cumsum([0, *sizes]) for sizes in (num_nodes, num_candidates))
    row_starts = np.cumsum([0, *(num_candidates * num_config)])

    def draw(number: tf.Tensor) -> dict[str, tf.Tensor]:
        total, num_nconfig = tf.gather(num_candidates, number), tf.gather(num_config, number)
        chosen = tf.random.uniform([_NUM_DRAWN], maxval=total, dtype=tf.int64)
        rows = tf.gather(row_starts, number) + chosen[:, None] * num_nconfig + tf.range(num_nconfig)
        nodes = tf.range(tf.gather(node_starts, number), tf.gather(node_starts, number + 1))
        return {
            "node_feat": tf.gather(arrays["node_feat"], nodes),
            "candidates": tf.gather(arrays["candidates"], rows),
            "runtimes": tf.gather(arrays["config_runtime"], tf.gather(candidate_starts, number) + chosen),
        }

    dataset = tf.data.Dataset.range(len(num_nodes)).shuffle(len(num_nodes)).repeat().map(draw)
    next(iter(dataset.padded_batch(_GRAPHS_PER_BATCH)))
    first = _seconds_since_start()
    random = np.random.default_rng(0)
    dense, runtimes = arrays["candidates"].numpy(), arrays["config_runtime"].numpy()

    def draw_one() -> None:
        number = random.integers(len(num_nodes))
        chosen = random.choice(num_candidates[number], _NUM_DRAWN, replace=False)
        block = dense[row_starts[number] : row_starts[number + 1]].reshape(-1, num_config[number], 18)
        _ = block[chosen], runtimes[candidate_starts[number] + chosen]

    return {"first_batch": first, "draw": _median_seconds(draw_one)}


def feed_ours(folder: Path) -> dict[str, float]:
    """The times of our input pipeline over our dataset."""
    from tpugraphs_polynormer.config.schema import RankingDataConfig
    from tpugraphs_polynormer.datasets.input_pipeline import make_training_dataset
    from tpugraphs_polynormer.datasets.reader import RankingDataset

    collection = RankingDataset(folder)
    config = RankingDataConfig(graphs_per_batch=_GRAPHS_PER_BATCH, candidates_per_graph=_NUM_DRAWN)
    next(iter(make_training_dataset(collection, config, seed=0)))
    first = _seconds_since_start()
    split, random = collection.split("train"), np.random.default_rng(0)

    def draw_one() -> None:
        number = int(random.integers(len(split)))
        total = split.graphs[number].num_candidates
        chosen = random.choice(total, min(_NUM_DRAWN, total), replace=False)
        _ = split.read_codes(number, chosen), split.read_column(number, "runtimes", chosen)

    return {"first_batch": first, "draw": _median_seconds(draw_one)}


def _seconds_since_start() -> float:
    return time.time() - psutil.Process().create_time()


def _median_seconds(work: Callable[[], None]) -> float:
    seconds = []
    for _ in range(_NUM_DRAWS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure_both(tree: Path, scratch: Path, repeats: int) -> dict[str, list[dict[str, dict[str, float]]]]:
    """{way: [{"prepare": ..., "feed": ...} of each repeat]}; the two ways alternate."""
    script = [sys.executable, str(Path(__file__).resolve()), "--input", str(tree)]
    log = scratch / "log.txt"
    found: dict[str, list] = {"ours": [], "obvious": []}
    for repeat in range(repeats):
        ours, cache = scratch / f"ours{repeat}", scratch / f"cache{repeat}.npz"
        command = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", "preprocess", "--archives", str(tree)]
        prepared = run_step([*command, "--datasets", str(ours), "--collections", _COLLECTION], log)
        size = sum(path.stat().st_size for path in (ours / _FOLDER).glob("*.candidates"))
        fed = run_step([*script, "--way", "feed-ours", "--made", str(ours / _FOLDER)], log)
        found["ours"].append({"prepare": prepared | {"size": size}, "feed": fed})
        prepared = run_step([*script, "--way", "prepare-obviously", "--made", str(cache)], log)
        fed = run_step([*script, "--way", "feed-obviously", "--made", str(cache)], log)
        found["obvious"].append({"prepare": prepared | {"size": cache.stat().st_size}, "feed": fed})
    return found


def report(found: dict[str, list], archive_bytes: int, dense_bytes: int) -> str:
    """A Markdown table; the last column is the ratio of the simple way to ours."""
    rows: list[tuple[str, Callable[[dict], float], bool]] = [
        ("archives read, MB/s", lambda each: archive_bytes / _MEGA / each["prepare"]["seconds"], True),
        ("prepared, s", lambda each: each["prepare"]["seconds"], False),
        ("peak memory while preparing, MB", lambda each: each["prepare"]["peak"] / _MEGA, False),
        ("on disk / dense float32 candidates", lambda each: each["prepare"]["size"] / dense_bytes, False),
        ("first batch, s", lambda each: each["feed"]["first_batch"], False),
        ("peak memory while feeding, MB", lambda each: each["feed"]["peak"] / _MEGA, False),
        (f"draw {_NUM_DRAWN} candidates, ms", lambda each: each["feed"]["draw"] * 1e3, False),
    ]
    lines = ["| | ours | obvious way | ours is better by |", "|---|---|---|---|"]
    for name, read, more_is_better in rows:
        ours, obvious = (statistics.median(map(read, found[way])) for way in ("ours", "obvious"))
        times = ours / obvious if more_is_better else obvious / ours
        lines.append(f"| {name} | {ours:,.3g} | {obvious:,.3g} | {times:,.2f} x |")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    """The parsed command line; --way and --made are for the processes that this script starts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, help=f"a tree that holds npz/{_FOLDER}/train; default: simulated")
    parser.add_argument("--graphs", type=int, default=6)
    parser.add_argument("--candidates", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--way", choices=("feed-ours", "prepare-obviously", "feed-obviously"), help=argparse.SUPPRESS)
    parser.add_argument("--made", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="two small graphs, one repeat: does it run?")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.graphs, arguments.candidates, arguments.repeats = 2, 300, 1
    return arguments


def main() -> None:
    """Measures both ways and prints the table; in a child process, runs one step of one way."""
    arguments = parse_arguments()
    if arguments.way == "prepare-obviously":
        prepare_obviously(arguments.input, arguments.made)
        return
    if arguments.way:
        feed = feed_ours if arguments.way == "feed-ours" else feed_obviously
        print(json.dumps(feed(arguments.made)))
        return
    from tpugraphs_polynormer.archives.npz import read_shapes

    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        tree = arguments.input or Path(scratch) / "tree"
        if arguments.input is None:
            make_archives(tree, arguments.graphs, arguments.candidates)
        archives = list_archives(tree)
        if not archives:
            raise SystemExit(f"{tree / 'npz' / _FOLDER / 'train'}: no archives; name another --input")
        archive_bytes = sum(path.stat().st_size for path in archives)
        dense_bytes = sum(4 * int(np.prod(read_shapes(path)["node_config_feat"])) for path in archives)
        found = measure_both(tree, Path(scratch), arguments.repeats)
    print(
        f"{len(archives)} archives, {archive_bytes / _MEGA:,.0f} MB, {dense_bytes / _MEGA:,.0f} MB of dense float32 "
        f"candidates; medians of {arguments.repeats} repeats\n\n{report(found, archive_bytes, dense_bytes)}"
    )


if __name__ == "__main__":
    main()

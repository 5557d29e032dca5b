"""A mini-batch epoch and an evaluation in chunks at the size of ogbn-products, on a random graph: time and memory.

    python benchmarks/large_graph.py                      # 2,449,029 nodes, 61,859,140 edges
    python benchmarks/large_graph.py --name pokec         # 1,632,803 nodes, 30,622,564 edges
    python benchmarks/large_graph.py --share 0.1          # a tenth of the nodes and edges
    python benchmarks/large_graph.py --quick              # a thousandth, narrow: does it run?

The config is that of configs/nodes: random partitions train, and the whole graph is evaluated layer by layer. Features
and labels are drawn: scores mean nothing. A random graph has no close nodes, so a gather misses the cache as often as
it can. Each phase is a child process of its own, whose peak of resident memory is that of the table.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from child import run_child

from tpugraphs_polynormer.catalog import find_benchmark
from tpugraphs_polynormer.config.loader import find_config
from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.process import import_tensorflow, keep_freed_memory

EPOCHS = {
    "local": ("training.local_epochs=1", "training.epochs=0"),
    "global": ("training.local_epochs=0", "training.epochs=1"),
}
QUICK = ("model.hidden_dim=16", "model.num_local_layers=1", "model.num_global_layers=1")
QUICK += ("training.nodes_per_batch=1000", "training.chunk_nodes=1000")


def draw_dataset(name: str, share: float, seed: int):
    """A random graph with a share of a benchmark's nodes and edges; 8 % of the nodes train, 2 % validate."""
    from tpugraphs_polynormer.nodes.datasets import NodeDataset, NodeSplit, make_undirected

    sizes, random = find_benchmark(name), np.random.default_rng(seed)
    num_nodes, num_edges = (max(100, int(count * share)) for count in (sizes.num_nodes, sizes.num_edges))
    edges = make_undirected(random.integers(0, num_nodes, [2, num_edges]).T, num_nodes)
    order = random.permutation(num_nodes)
    return NodeDataset(
        name=name,
        features=random.standard_normal((num_nodes, sizes.num_features), np.float32),
        labels=random.integers(0, sizes.num_classes, num_nodes),
        edges=edges,
        splits=(NodeSplit(*np.split(order, [num_nodes * 8 // 100, num_nodes // 10])),),
        num_classes=sizes.num_classes,
        metric=sizes.metric,
    )


def measure(name: str, share: float, overrides: list[str]) -> dict:
    """The times of one epoch and one evaluation, and the peak of this process."""
    keep_freed_memory()
    import_tensorflow()
    from tpugraphs_polynormer.nodes.benchmark import run_dataset
    from tpugraphs_polynormer.training.run_directory import RunDirectory

    config = load_config(find_config(f"nodes/{name}"), overrides)
    started = time.time()
    dataset = draw_dataset(name, share, seed=0)
    found = {"nodes": dataset.num_nodes, "edges": len(dataset.edges), "drawing_seconds": time.time() - started}
    with tempfile.TemporaryDirectory(prefix="tpugraphs-") as folder:
        run_dataset(config, dataset, folder, [0])
        (record,) = RunDirectory.open(Path(folder) / "split_0").read_metrics()
    times = {key: record[key] for key in ("phase", "train_seconds", "evaluation_seconds")}
    return found | times | {"peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def main() -> None:
    """Prints the table, line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", choices=("ogbn-products", "pokec"), default="ogbn-products")
    parser.add_argument("--share", type=float, default=1.0, help="of the nodes and edges")
    parser.add_argument("--phases", nargs="+", choices=list(EPOCHS), default=list(EPOCHS))
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", dest="overrides")
    parser.add_argument("--quick", action="store_true", help="a thousandth, narrow: does it run?")
    args = parser.parse_args()
    if args.quick:
        args.share, args.overrides = 0.001, [*QUICK, *args.overrides]
    print("| phase | nodes | edges, both ways and loops | s per training epoch | s per evaluation | peak, GB |")
    print("|---|---|---|---|---|---|", flush=True)
    for phase in args.phases:
        row = run_child("large_graph", args.name, args.share, [*EPOCHS[phase], *args.overrides])
        times = f"{row['train_seconds']:.1f} | {row['evaluation_seconds']:.1f}"
        print(f"| {phase} | {row['nodes']:,} | {row['edges']:,} | {times} | {row['peak_gigabytes']:.2f} |", flush=True)


if __name__ == "__main__":
    main()

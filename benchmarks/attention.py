"""Time and peak memory of one attention layer, forward and backward, by formulation and against PyG's GATConv.

    python benchmarks/attention.py                              # a random graph of minesweeper's size
    python benchmarks/attention.py --nodes 100000 --head-dim 64 --chunk-elements 262144
    python benchmarks/attention.py --graph minesweeper.npz      # the edges of a Yandex npz
    python benchmarks/attention.py --quick                      # a few hundred nodes, to check that it runs

Times are medians over rounds in which the formulations alternate, so that other load affects all of them equally. Peak
memory is that of a new process that runs one formulation, minus its memory before the first step. torch and
torch_geometric are optional: without them the table has no row for PyG.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np

from tpugraphs_polynormer.process import keep_freed_memory

OURS = ("fused", "segments", "unsorted", "xla")
PEER = "pyg"


def make_graph(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, int]:
    """Undirected pairs (source, target) and the number of nodes."""
    if options.graph:
        with np.load(options.graph, allow_pickle=False) as file:
            pairs, num_nodes = file["edges"], len(file["node_labels"])
        return pairs[:, 0], pairs[:, 1], num_nodes
    pairs = np.random.default_rng(options.seed).integers(0, options.nodes, [2, options.pairs])
    return pairs[0], pairs[1], options.nodes


def build_step(name: str, options: argparse.Namespace) -> Callable[[], None]:
    """A function that runs one complete forward and backward pass of `name`."""
    keep_freed_memory()
    return build_pyg_step(options) if name == PEER else build_our_step(name, options)


def build_our_step(name: str, options: argparse.Namespace) -> Callable[[], None]:
    import tpugraphs_polynormer  # noqa: F401  (before TensorFlow, because it selects Keras 2)
    import tensorflow as tf  # isort: skip

    from tpugraphs_polynormer.layers.convolutions import GraphAttention
    from tpugraphs_polynormer.layers.edge_index import build_undirected_edge_index
    from tpugraphs_polynormer.layers.ops import attention

    attention.CHUNK_ELEMENTS = options.chunk_elements or attention.CHUNK_ELEMENTS
    source, target, num_nodes = make_graph(options)
    edges = build_undirected_edge_index(source, target, num_nodes).as_tensors()
    formulation = "unsorted" if name == "xla" else name
    layer = GraphAttention(num_heads=options.heads, head_dim=options.head_dim, formulation=formulation)
    states = tf.random.stateless_normal([num_nodes, options.heads * options.head_dim], [options.seed, 0])
    layer.build(states.shape)

    @tf.function(jit_compile=name == "xla")
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(states)
            loss = tf.reduce_sum(tf.square(layer(states, edges)))
        gradients = tape.gradient(loss, [states, *layer.trainable_weights])
        return tf.add_n([tf.reduce_sum(gradient) for gradient in gradients])

    return lambda: step().numpy()


def build_pyg_step(options: argparse.Namespace) -> Callable[[], None]:
    import torch
    from torch_geometric.nn import GATConv
    from torch_geometric.utils import add_self_loops, remove_self_loops, to_undirected

    source, target, num_nodes = make_graph(options)
    edge_index = to_undirected(torch.tensor(np.stack([source, target]).astype(np.int64)), num_nodes=num_nodes)
    edge_index = add_self_loops(remove_self_loops(edge_index)[0], num_nodes=num_nodes)[0]
    width = options.heads * options.head_dim
    layer = GATConv(width, options.head_dim, heads=options.heads, add_self_loops=False, bias=False)
    states = torch.randn(num_nodes, width, requires_grad=True)

    def step() -> None:
        layer.zero_grad()
        states.grad = None
        layer(states, edge_index).square().sum().backward()

    return step


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_memory(name: str, options: argparse.Namespace) -> float:
    """The megabytes that three steps add to the memory of a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_memory_of_steps, (name, options))


def _memory_of_steps(name: str, options: argparse.Namespace) -> float:
    step = build_step(name, options)
    before = peak_megabytes()
    for _ in range(3):
        step()
    return peak_megabytes() - before


def measure_times(names: list[str], options: argparse.Namespace) -> dict[str, float]:
    """The median seconds per step of each formulation; the formulations alternate."""
    steps = {name: build_step(name, options) for name in names}
    for step in steps.values():
        step()
        step()
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def format_table(times: dict[str, float], memory: dict[str, float]) -> str:
    """A Markdown table; the last column is relative to PyG, or to `unsorted` without it."""
    base = PEER if PEER in times else "unsorted" if "unsorted" in times else next(iter(times))
    lines = [f"| formulation | ms | peak MB | time / {base} |", "|---|---|---|---|"]
    for name, seconds in times.items():
        lines.append(f"| {name} | {1e3 * seconds:.1f} | {memory[name]:.0f} | {seconds / times[base]:.2f} |")
    return "\n".join(lines)


def parse_options(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", help="npz with `edges` and `node_labels`, instead of a random graph")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=39_402, help="undirected edges of the random graph")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=8)
    parser.add_argument("--chunk-elements", type=int, help="default: the kernels' own")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--formulations", nargs="+", default=list(OURS), choices=[*OURS, PEER])
    parser.add_argument("--quick", action="store_true", help="a small graph, two rounds: does it run?")
    options = parser.parse_args(argv)
    if options.quick:
        options.nodes, options.pairs, options.heads, options.rounds = 300, 900, 2, 2
    return options


def main(argv: list[str] | None = None) -> None:
    options = parse_options(argv)
    names = list(dict.fromkeys(options.formulations))
    if importlib.util.find_spec("torch_geometric") and PEER not in names:
        names.append(PEER)
    memory = {name: measure_memory(name, options) for name in names}
    print(format_table(measure_times(names, options), memory))


if __name__ == "__main__":
    main()

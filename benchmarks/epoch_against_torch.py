"""Training epochs of Polynormer on minesweeper: our training step compared with PyTorch and PyG's GATConv.

    python benchmarks/epoch_against_torch.py                            # 8 heads x 8, 5 + 2 layers
    python benchmarks/epoch_against_torch.py --full-width --rounds 4    # 8 heads x 64, 10 + 3 layers
    python benchmarks/epoch_against_torch.py --quick                    # 2 heads x 4, one round, to check that it runs

Each runs in its own process; the two alternate, and times are medians over the rounds. Peak memory is that of the
process's resident set over both phases. The peer is the same architecture in plain PyTorch; torch and torch_geometric
are not dependencies of the project: without them the table has only our row.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from real_data import REAL_DATA

from tpugraphs_polynormer.process import keep_freed_memory

PROJECT = Path(__file__).resolve().parents[1]
PHASES = ("local", "global")
QUICK = ("hidden_dim=8", "num_heads=2", "num_local_layers=1", "num_global_layers=1")


def load_settings(options: argparse.Namespace):
    """The config of our trainer; the peer has the same sizes."""
    from tpugraphs_polynormer.config.schema import load_config

    folder = PROJECT / "configs" / "nodes"
    return load_config((folder if options.full_width else folder / "small") / "minesweeper.yaml", options.overrides)


def build_ours(options: argparse.Namespace, phase: str) -> Callable[[], float]:
    """A function that runs one epoch of our trainer, without evaluation."""
    import tensorflow as tf

    from tpugraphs_polynormer.nodes.datasets import read_benchmark
    from tpugraphs_polynormer.nodes.task import NodeInputs, NodeTask
    from tpugraphs_polynormer.training.run_directory import RunDirectory
    from tpugraphs_polynormer.training.trainer import Trainer

    keep_freed_memory()
    config = load_settings(options)
    training = dataclasses.replace(config.training, epochs=1, local_epochs=0 if phase == "global" else 1)
    config = dataclasses.replace(config, training=training)
    inputs = NodeInputs.make(read_benchmark("minesweeper", options.data), config)
    run = RunDirectory.start(Path(tempfile.mkdtemp()) / "run", config)
    task = NodeTask(config, inputs, 0)
    task.enter_phase(phase)
    step = Trainer(task, run).learner.make_train_function()
    batches = iter(task.make_dataset(0, tf.distribute.InputContext()))
    return lambda: float(step(batches)["loss"])


def build_peer(options: argparse.Namespace, phase: str) -> Callable[[], float]:
    """A function that runs the same epoch in PyTorch: forward, backward, Adam."""
    import torch

    from tpugraphs_polynormer.nodes.datasets import read_benchmark

    config = load_settings(options)
    dataset = read_benchmark("minesweeper", options.data)
    torch.set_num_threads(multiprocessing.cpu_count())
    features, labels = torch.tensor(dataset.features), torch.tensor(dataset.labels)
    edges = torch.tensor(dataset.edges.T.copy()).long()
    train = torch.tensor(dataset.splits[0].train)
    model = make_torch_polynormer(config.model, features.shape[1], dataset.num_classes, phase)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.training.learning_rate)

    def epoch() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(features, edges)[train], labels[train])
        loss.backward()
        optimizer.step()
        return loss.item()

    return epoch


def make_torch_polynormer(config, feature_dim: int, num_classes: int, phase: str):
    """The small-graph model in plain PyTorch; gates are learned through a sigmoid."""
    import torch
    from torch_geometric.nn import GATConv

    heads, width = config.num_heads, config.hidden_dim
    per_head = width // heads

    def linears(count: int) -> torch.nn.ModuleList:
        return torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(count))

    def norms(count: int) -> torch.nn.ModuleList:
        return torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(count))

    class Peer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            local, last = config.num_local_layers, config.num_global_layers
            self.enter, self.leave = torch.nn.Linear(feature_dim, width), torch.nn.Linear(width, num_classes)
            self.gated, self.residual, self.norms = linears(local), linears(local), norms(local)
            self.convs = torch.nn.ModuleList(
                GATConv(width, per_head, heads=heads, add_self_loops=False, bias=False) for _ in range(local)
            )
            self.gates = torch.nn.Parameter(torch.zeros(local + last, width))
            self.hidden, self.keys, self.values = linears(last), linears(last), linears(last)
            self.global_norms, self.between, self.project = norms(last), norms(1), linears(1)[0]
            self.drop_in = torch.nn.Dropout(config.input_dropout_rate)
            self.drop_local, self.drop_global = (
                torch.nn.Dropout(rate) for rate in (config.dropout_rate, config.global_dropout_rate)
            )

        def forward(self, features, edges):
            states = self.drop_local(self.enter(self.drop_in(features)))
            total = 0
            for layer, conv in enumerate(self.convs):
                hidden = self.gated[layer](states).relu()
                mixed = self.drop_local((conv(states, edges) + self.residual[layer](states)).relu())
                gate = self.gates[layer].sigmoid()
                states = (1 - gate) * self.norms[layer](hidden * mixed) + gate * mixed
                total = total + states
            if phase == "local":
                return self.leave(total)
            states = self.between[0](total)
            for layer in range(config.num_global_layers):
                states = self.drop_global(self.project(self.attend(layer, states)).relu())
            return self.leave(states)

        def attend(self, layer, states):
            split = (-1, per_head, heads)
            key, value = self.keys[layer](states).sigmoid().view(split), self.values[layer](states).view(split)
            above = torch.einsum("ndh,dmh->nmh", key, torch.einsum("ndh,nmh->dmh", key, value))
            below = torch.einsum("ndh,dh->nh", key, key.sum(0))
            mixed = self.global_norms[layer]((above / below[:, None]).reshape(len(states), -1))
            return mixed * (self.hidden[layer](states) + self.gates[len(self.convs) + layer].sigmoid())

    return Peer()


BUILDERS = {"ours": build_ours, "torch": build_peer}


class Worker:
    """The process of one of the two implementations."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self._pool = multiprocessing.get_context("spawn").Pool(1)
        self._arguments = (name, options)

    def start_phase(self, phase: str) -> None:
        self._pool.apply(_start_phase, (*self._arguments, phase))

    def time_epoch(self) -> float:
        return self._pool.apply(_time_epoch)

    def peak_gigabytes(self) -> float:
        return self._pool.apply(_peak_gigabytes)


_running: list[Callable[[], float]] = []  # in a worker: the epoch function of the current phase


def _start_phase(name: str, options: argparse.Namespace, phase: str) -> None:
    _running[:] = [BUILDERS[name](options, phase)]
    _running[0]()  # the first call traces and allocates memory


def _time_epoch() -> float:
    started = time.perf_counter()
    _running[0]()
    return time.perf_counter() - started


def _peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure_phase(workers: dict[str, Worker], phase: str, rounds: int) -> dict[str, float]:
    """The median seconds of an epoch, by implementation."""
    for worker in workers.values():
        worker.start_phase(phase)
    times = [{name: worker.time_epoch() for name, worker in workers.items()} for _ in range(rounds)]
    return {name: statistics.median(row[name] for row in times) for name in workers}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=REAL_DATA / "nodes")
    parser.add_argument("--full-width", action="store_true", help="the authors' width and depth")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", dest="overrides")
    parser.add_argument("--quick", action="store_true", help="a narrow model, one round: does it run?")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
        options.overrides = [*(f"model.{each}" for each in QUICK), *options.overrides]
    return options


def main() -> None:
    options = parse_options()
    names = ["ours", "torch"]
    if not importlib.util.find_spec("torch_geometric"):
        print("torch and torch_geometric are not installed: nothing to compare with")
        names.remove("torch")
    workers = {name: Worker(name, options) for name in names}
    times = {phase: measure_phase(workers, phase, options.rounds) for phase in PHASES}
    memory = {name: worker.peak_gigabytes() for name, worker in workers.items()}
    print("| | local, s | global, s | peak GB |\n|---|---|---|---|")
    for name in names:
        print(f"| {name} | {times['local'][name]:.3f} | {times['global'][name]:.3f} | {memory[name]:.2f} |")
    if "torch" in names:
        ratios = [times[phase]["ours"] / times[phase]["torch"] for phase in PHASES] + [memory["ours"] / memory["torch"]]
        print("| ours / torch | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")


if __name__ == "__main__":
    main()

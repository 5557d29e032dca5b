"""What checksums cost a training step: the demo's model on simulated layouts, read with and without the checks.

    python benchmarks/checksums.py            # 7 rounds of 40 steps each
    python benchmarks/checksums.py --quick    # 2 rounds of 4 steps: does it run?

Both readers feed the same model in turns; medians over the rounds. The unchecked reader is the one from before the
checksums: one positioned read per candidate, and a record taken out of its frame as it is. A step's time has much noise
on a shared machine, so the draws of a step are timed alone too: the last line is their difference over a step's time,
the whole of it, as if no draw were hidden behind the computation.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.beam.preprocess import run as preprocess
from tpugraphs_polynormer.config.loader import find_config
from tpugraphs_polynormer.config.schema import load_config
from tpugraphs_polynormer.datasets.reader import RankingDataset, RankingSplit
from tpugraphs_polynormer.datasets.records import RECORD_FRAMING
from tpugraphs_polynormer.datasets.sampler import CandidateSampler
from tpugraphs_polynormer.datasets.split_files import CANDIDATE_SUFFIX, RECORD_SUFFIX
from tpugraphs_polynormer.process import import_tensorflow, keep_freed_memory
from tpugraphs_polynormer.simulator.write import simulate

COLLECTION = "layout:xla:random"


class UncheckedSplit(RankingSplit):
    """A split whose reads compare no checksum."""

    def read_record(self, number: int) -> bytes:
        """The record, as it is on disk."""
        entry = self.graphs[number]
        name = self._shards[number].name + RECORD_SUFFIX
        return self._read(name, entry.record_offset, entry.record_length + RECORD_FRAMING)[12:-4]

    def _read_candidates(self, number: int, starts: np.ndarray, size: int) -> bytearray:
        file = self._open(self._shards[number].name + CANDIDATE_SUFFIX)
        return bytearray().join(os.pread(file, size, start) for start in starts.tolist())


class UncheckedDataset(RankingDataset):
    """A dataset of unchecked splits."""

    def split(self, name: str) -> UncheckedSplit:
        """The split, unchecked."""
        return UncheckedSplit(self.folder, self.manifest.kind, self.manifest.splits[name].shards, self._typical_noise)


def make_dataset(folder: Path, scale: str) -> Path:
    """Simulates and preprocesses one collection; returns its folder."""
    simulate(folder / "archives", scale, 0, collections=[COLLECTION], num_workers=2)
    options = {"on_error": "fail", "exclude": [], "exclude_file": None, "format": "npz", "collections": [COLLECTION]}
    sizes = {"max_nodes": 0, "hops": 3, "graphs_per_shard": 0}
    places = {"archives": str(folder / "archives"), "datasets": str(folder / "datasets")}
    preprocess(argparse.Namespace(**options, **sizes, **places), [])
    return folder / "datasets" / COLLECTION.replace(":", "/")


def time_draws(sampler: CandidateSampler, count: int) -> float:
    """Seconds of this thread per draw of a graph and its candidates, without those that others computed."""
    started = time.thread_time()
    for position in range(count):
        sampler.draw(position)
    return (time.thread_time() - started) / count


def make_stepper(dataset: RankingDataset, config: object) -> Callable[[int], float]:
    """A function that trains so many steps and returns the seconds of one, input included."""
    import tensorflow as tf

    from tpugraphs_polynormer.ranking.task import RankingTask
    from tpugraphs_polynormer.training.trainer import Learner

    task = RankingTask(config, dataset)
    learner = Learner(task, 1)
    learner.compile(optimizer=tf.keras.optimizers.Adam(1e-3))
    step = learner.make_train_function()
    batches: Iterator = iter(task.make_dataset(0, tf.distribute.InputContext()))
    step(batches)

    def run(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            step(batches)
        return (time.perf_counter() - started) / count

    return run


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="a tiny dataset, 2 rounds of 4 steps")
    arguments = parser.parse_args()
    rounds, steps, scale = arguments.rounds, arguments.steps, "demo"
    if arguments.quick:
        rounds, steps, scale = 2, 4, "tiny"
    keep_freed_memory()
    import_tensorflow()
    with tempfile.TemporaryDirectory(prefix="tpugraphs-") as folder:
        path = make_dataset(Path(folder), scale)
        config = load_config(find_config("demo/layout_xla_random"))
        datasets = {"unchecked": UncheckedDataset(path), "checked": RankingDataset(path)}
        samplers = {name: CandidateSampler(each.split("train"), config.data, 0) for name, each in datasets.items()}
        steppers = {name: make_stepper(each, config) for name, each in datasets.items()}
        draw_times: dict[str, list[float]] = {name: [] for name in datasets}
        step_times: dict[str, list[float]] = {name: [] for name in datasets}
        for round_number in range(rounds):
            for name in sorted(datasets, reverse=bool(round_number % 2)):  # who is first changes from round to round
                draw_times[name].append(time_draws(samplers[name], 25 * steps))
                step_times[name].append(steppers[name](steps))
    draws, times = ({name: statistics.median(v) for name, v in each.items()} for each in (draw_times, step_times))
    for name in datasets:
        print(f"{name:>10}: {1e6 * draws[name]:8.1f} us a draw of one graph, {1e3 * times[name]:8.2f} ms a step")
    print(f"a step, checked against unchecked: {100 * (times['checked'] / times['unchecked'] - 1):+.2f} %")
    per_step = config.data.graphs_per_batch * (draws["checked"] - draws["unchecked"])
    print(
        f"the checks of {config.data.graphs_per_batch} draws over a step's time: "
        f"{100 * per_step / times['unchecked']:+.2f} %"
    )


if __name__ == "__main__":
    main()

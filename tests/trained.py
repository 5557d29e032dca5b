"""A tiny simulated tree, its datasets and trained runs, created once per test session by the stages themselves."""

import functools
from dataclasses import replace
from pathlib import Path

import tensorflow as tf

from tests.ranking_data import scratch_folder
from tests.small_datasets import LAYOUT, TILE, preprocess_here
from tpugraphs_polynormer.config.schema import (
    RankingConfig,
    RankingDataConfig,
    RankingModelConfig,
    RankingTrainingConfig,
)
from tpugraphs_polynormer.ranking.task import train_ranking
from tpugraphs_polynormer.simulator.scales import SCALES
from tpugraphs_polynormer.simulator.write import simulate_graph, simulate_kernel

SMALL = RankingConfig(
    data=RankingDataConfig(collection=LAYOUT, graphs_per_batch=2, candidates_per_graph=4),
    model=RankingModelConfig(hidden_dim=8, num_heads=2, num_local_layers=1),
    training=RankingTrainingConfig(
        epochs=2, steps_per_epoch=2, steps_per_execution=1, learning_rate=0.01, warmup_steps=0
    ),
)


class Trained:
    """`tree` has npz/ and truth/, `data` has the datasets; `layout`, `layout_seed_1` and `tile` are run directories."""

    def __init__(self, root: Path) -> None:
        self.root, self.tree, self.data = root, root / "tree", root / "data"
        self.runs = root / "runs"
        self.layout, self.layout_seed_1, self.tile = (self.runs / name for name in ("layout", "layout_1", "tile"))
        self._simulate()
        preprocess_here(self.tree, self.data, LAYOUT, TILE)
        self._train(self.layout, SMALL)
        self._train(self.layout_seed_1, replace(SMALL, seed=1))
        self._train(self.tile, replace(SMALL, data=replace(SMALL.data, collection=TILE)))

    def _simulate(self) -> None:
        plan = replace(SCALES["tiny"], test_candidates=20, tile_candidates=(8, 20))
        numbers = {"train": (0, 1, 2), "valid": (100_000, 100_001), "test": (200_000, 200_001, 200_002)}
        for split, members in numbers.items():
            for number in members:
                simulate_graph(self.tree, Path("layout/xla/random") / split, plan, 0, number, 20 + number % 7)
                simulate_kernel(self.tree, Path("tile/xla") / split, plan, 0, number)

    def _train(self, run_dir: Path, config: RankingConfig) -> None:
        train_ranking(config, self.data, run_dir, strategy=tf.distribute.OneDeviceStrategy("CPU:0"))


@functools.cache
def make_trained() -> Trained:
    """The shared tree, datasets and runs; a test that changes files must copy them first."""
    return Trained(scratch_folder())

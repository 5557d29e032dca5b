"""Two small collections whose runtimes can be learned, preprocessed once per test session; and configs to match."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.small_archives import layout_arrays, tile_arrays, write_tree
from tests.small_datasets import LAYOUT, TILE, preprocess_here
from tpugraphs_polynormer.config.schema import RankingConfig, RankingDataConfig, load_config
from tpugraphs_polynormer.datasets.input_pipeline import make_training_dataset
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.hlo.operands import NUM_OPERAND_BITS
from tpugraphs_polynormer.ranking.task import DatasetFacts, build_ranking_model

# Narrow and short: what is tested is the same at any width.
SMALL = (
    "model.hidden_dim=8",
    "model.num_local_layers=2",
    "model.opcode_dim=2",
    "model.layout_dim=2",
    "model.num_fusion_layers=1",
    "data.graphs_per_batch=2",
    "data.candidates_per_graph=4",
    "training.steps_per_epoch=2",
    "training.steps_per_execution=1",
    "training.epochs=2",
    "training.warmup_steps=0",
    "training.learning_rate=0.01",
)
COLLECTIONS = (LAYOUT, TILE)
HEADLESS = ("model.encoder=mlp", "model.encoder=gcn", "model.encoder=graphsage")


def small_config(collection: str = LAYOUT, *overrides: str) -> RankingConfig:
    """The small config of a collection, changed by the overrides, without fields that these make unread."""
    encoder = next((each for each in reversed(overrides) if each.startswith("model.encoder=")), "")
    has_heads = encoder not in HEADLESS or "model.cross_candidates=pooled" in overrides
    heads = ("model.num_heads=2",) if has_heads else ()
    unread = {"model.fusion=early": "model.num_fusion_layers", "model.features=raw": "model.layout_dim"}
    left_out = tuple(name for override, name in unread.items() if override in overrides)
    small = tuple(each for each in SMALL if not each.startswith(left_out or "none of them"))
    return load_config(None, (*small, *heads, f"data.collection={collection}", *overrides))


def draw_operands(num_nodes: int, seed: int) -> np.ndarray:
    """What an archive may say of operands (hlo/operands.py), drawn."""
    return np.random.default_rng(seed).integers(0, 1 << NUM_OPERAND_BITS, num_nodes)


def learnable_layout(num_nodes: int, num_config: int, num_candidates: int, seed: int) -> dict:
    """A graph whose runtime grows with the first minor-to-major entry of every config node; all opcodes among five."""
    arrays = layout_arrays(num_nodes, num_config, num_candidates, seed)
    arrays["node_opcode"] = arrays["node_opcode"] % 5 + 1
    arrays["node_operands"] = draw_operands(num_nodes, seed)
    arrays["config_runtime"] = (1e6 * (10 + arrays["node_config_feat"][:, :, 0].sum(1))).astype(np.int64)
    return arrays


def learnable_tile(num_nodes: int, num_candidates: int, seed: int) -> dict:
    """A kernel whose runtime is the product of its output bounds."""
    arrays = tile_arrays(num_nodes, num_candidates, seed)
    arrays["node_operands"] = draw_operands(num_nodes, seed)
    arrays["config_runtime"] = (1e6 * (1 + arrays["config_feat"][:, 15])).astype(np.int64)
    return arrays


def scratch_folder() -> Path:
    """A folder that is gone when the test session ends."""
    folder = Path(tempfile.mkdtemp(prefix="tpugraphs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def ranking_datasets() -> Path:
    """The folder of both collections; the test split hides its runtimes."""
    root = scratch_folder()
    hidden = layout_arrays(seed=21)
    hidden["config_runtime"] = hidden["config_runtime"] * 0
    layouts = {
        "train": {f"graph{i}": learnable_layout(6 + 2 * i, 2 + i % 2, 40 + i, seed=i) for i in range(4)},
        "valid": {f"valid{i}": learnable_layout(9 + i, 3, 20, seed=10 + i) for i in range(2)},
        "test": {"hidden": hidden},
    }
    tiles = {
        "train": {f"kernel{i}": learnable_tile(3 + i, 20 + i, seed=40 + i) for i in range(4)},
        "valid": {"held": learnable_tile(6, 20, seed=50)},
    }
    write_tree(root / "in", LAYOUT, layouts)
    write_tree(root / "in", TILE, tiles)
    preprocess_here(root / "in", root / "out", LAYOUT, TILE, graphs_per_shard=2)
    return root / "out"


@functools.cache
def collection(name: str = LAYOUT) -> RankingDataset:
    """One of the two, opened."""
    return RankingDataset(ranking_datasets() / name.replace(":", "/"))


def first_batch(config: RankingConfig, step: int = 0):
    """The batch of a training step."""
    return _read_batch(config.data, step)


@functools.cache  # tracing the input pipeline costs more than what most tests do with its batch
def _read_batch(data: RankingDataConfig, step: int):
    return next(iter(make_training_dataset(collection(data.collection), data, seed=3, start_step=step)))


def built_model(config: RankingConfig, seed: int = 0):
    """A model of the config with all its variables, every weight moved off its special values."""
    tf.keras.utils.set_random_seed(seed)
    model = build_ranking_model(config, DatasetFacts.of(collection(config.data.collection).manifest))
    model(first_batch(config), training=False)
    random = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign_add(random.normal(scale=0.1, size=variable.shape).astype(np.float32))
    return model

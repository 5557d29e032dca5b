"""Small archives in the official format: the arrays of a layout file and of a tile file."""

from pathlib import Path

import numpy as np

from tpugraphs_polynormer.archives.writer import order_members, write_archive


def layout_arrays(num_nodes: int = 12, num_config: int = 3, num_candidates: int = 7, seed: int = 0) -> dict:
    """Random but valid arrays of a layout archive, whose graph is a chain with some skip edges."""
    random = np.random.default_rng(seed)
    feat = np.zeros((num_nodes, 140), np.float32)
    feat[:, 21:23] = random.integers(1, 9, (num_nodes, 2)) * 64
    feat[:, 134] = 1
    edges = {(i, i - 1) for i in range(1, num_nodes)} | {(i, int(random.integers(0, i))) for i in range(1, num_nodes)}
    arrays = {
        "node_feat": feat,
        "node_opcode": random.integers(1, 119, num_nodes),
        "edge_index": np.array(sorted(edges)),
        "node_config_ids": np.sort(random.permutation(num_nodes)[:num_config]),
        "node_config_feat": random.integers(-1, 6, (num_candidates, num_config, 18)),
        "config_runtime": random.integers(10**6, 10**9, num_candidates),
        "node_splits": np.array([[0, num_nodes]]),
    }
    return order_members(arrays)


def tile_arrays(num_nodes: int = 5, num_candidates: int = 6, seed: int = 0) -> dict:
    """Random but valid arrays of a tile archive."""
    arrays = layout_arrays(num_nodes, 1, num_candidates, seed)
    for key in ("node_config_ids", "node_config_feat", "node_splits"):
        del arrays[key]
    random = np.random.default_rng(seed + 1)
    bounds = random.integers(1, 5, (num_candidates, 3, 6)).astype(np.float32)
    totals = np.stack([bounds.sum(-1), bounds.prod(-1)], -1)
    arrays["config_feat"] = np.concatenate([bounds, totals], -1).reshape(num_candidates, 24)
    arrays["config_runtime_normalizers"] = np.full(num_candidates, 5 * 10**7)
    return order_members(arrays)


def write_tree(root: Path, collection: str, graphs: dict[str, dict[str, dict]]) -> None:
    """Writes {split: {graph name: arrays}} as a collection of the official tree."""
    for split, members in graphs.items():
        for name, arrays in members.items():
            write_archive(root / "npz" / collection.replace(":", "/") / split / f"{name}.npz", arrays)


def write_long_tree(root: Path, collection: str, num_graphs: int, num_config: int, num_candidates: int) -> Path:
    """Writes layout archives of the train split that take long enough for a job to be interrupted."""
    table = np.random.default_rng(0).integers(-1, 6, (200, 18)).astype(np.float32)
    graphs = {}
    for number in range(num_graphs):
        arrays = layout_arrays(200, num_config, num_candidates, seed=number)
        choice = np.random.default_rng(number).integers(0, 200, (num_candidates, num_config))
        graphs[f"graph{number:02d}"] = arrays | {"node_config_feat": table[choice]}
    write_tree(root, collection, {"train": graphs})
    return root

"""Small datasets, written by the preprocessing job in this process."""

from pathlib import Path

import apache_beam as beam

from tests.small_archives import layout_arrays, tile_arrays, write_tree
from tpugraphs_polynormer.beam.commit import check_commit, clear_commit
from tpugraphs_polynormer.beam.plan import plan_job
from tpugraphs_polynormer.beam.preprocess import Preprocess
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.datasets.shards import PreprocessOptions

LAYOUT, TILE = "layout:xla:random", "tile:xla"


def repeat_rows(arrays: dict, rows: list[int]) -> dict:
    """The arrays with the candidates of the given rows; runtimes are not changed."""
    key = "node_config_feat" if "node_config_feat" in arrays else "config_feat"
    return arrays | {key: arrays[key][rows]}


def small_graphs() -> dict[str, dict[str, dict[str, dict]]]:
    """{collection: {split: {name: arrays}}}: several sizes, repeated candidates, one graph of equal candidates."""
    train = {f"graph{i}": layout_arrays(10 + 3 * i, 2 + i % 3, 5 + 4 * i, seed=i) for i in range(7)}
    train["graph3"] = repeat_rows(train["graph3"], [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 0, 0, 0, 4, 5])
    train["same"] = repeat_rows(layout_arrays(seed=30), [2] * 7)
    kernels = {f"kernel{i}": tile_arrays(3 + i, 4 + 2 * i, seed=40 + i) for i in range(5)}
    kernels["kernel4"] = repeat_rows(kernels["kernel4"], [0, 0, 1, 2, 3, 4, 5, 5, 5, 6, 7, 7])
    hidden = layout_arrays(seed=21)
    hidden["config_runtime"] = hidden["config_runtime"] * 0
    return {
        LAYOUT: {
            "train": train,
            "valid": {
                f"valid{i}": repeat_rows(layout_arrays(15, 3, 12, seed=10 + i), [0, 0, *range(10)]) for i in (0, 1)
            },
            "test": {"hidden": hidden},
        },
        TILE: {"train": kernels, "valid": {"held": tile_arrays(6, 9, seed=50)}},
    }


def write_small_tree(root: Path) -> Path:
    """Writes `small_graphs` as an official tree."""
    for collection, graphs in small_graphs().items():
        write_tree(root, collection, graphs)
    return root


def preprocess_here(source: Path | str, output: Path | str, *collections: str, **settings) -> list[RankingDataset]:
    """The datasets that the job writes with one worker in this process."""
    job = plan_job(str(source), str(output), dict.fromkeys(collections, PreprocessOptions(**settings)))
    clear_commit(job)
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        _ = pipeline | Preprocess(job)
    check_commit(job)
    if "://" in str(output):
        return []
    return [RankingDataset(Path(output) / name.replace(":", "/")) for name in collections]

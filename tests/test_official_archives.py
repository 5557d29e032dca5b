"""All stages on unchanged official archives, as a user runs them; skipped without the archives."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_gnn as tfgnn

from tests.ranking_data import SMALL
from tests.small_datasets import preprocess_here
from tpugraphs_polynormer.archives.inspect import inspect_archive
from tpugraphs_polynormer.datasets.input_pipeline import graph_spec
from tpugraphs_polynormer.datasets.reader import RankingDataset

LAYOUT = "layout:xla:default"
NARROW = [part for each in (*SMALL, f"data.collection={LAYOUT}", "training.epochs=1") for part in ("--set", each)]


@pytest.fixture(scope="module")
def official(real_data) -> Path:
    folder = real_data / "tpugraphs" / "official"
    if not folder.is_dir():
        pytest.skip(f"official archives not found at {folder}")
    return folder


def tpugraphs(*arguments: object) -> str:
    """The stdout of a stage that runs in a new process."""
    command = [sys.executable, "-m", "tpugraphs_polynormer.cli.main", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def link_archives(root: Path, collection: str, split: str, paths: list[Path]) -> None:
    """Makes a tree of links to the real files, which are large."""
    folder = root / "npz" / collection.replace(":", "/") / split
    folder.mkdir(parents=True)
    for path in paths:
        (folder / path.name).symlink_to(path)


def check_against_numpy(collection: RankingDataset, split_name: str, path: Path) -> None:
    """Asserts that the stored graph and its candidates equal the arrays that numpy reads from the archive."""
    split = collection.split(split_name)
    (number,) = [i for i, entry in enumerate(split.graphs) if entry.name == path.name.removesuffix(".npz")]
    graph = tfgnn.parse_single_example(graph_spec(collection.manifest.kind), split.read_record(number))
    codes = split.read_codes(number, np.arange(split.graphs[number].num_candidates))
    features = graph.node_sets["config_value"]["values"].numpy()[codes]
    plain = split[number]  # the same graph, read without TensorFlow
    with np.load(path, allow_pickle=False) as archive:
        assert np.array_equal(plain.features, archive["node_feat"])
        assert np.array_equal(plain.opcodes, archive["node_opcode"])
        assert np.array_equal(plain.edge_index, archive["edge_index"])
        assert np.array_equal(plain.config_values[codes], features)
        assert np.array_equal(graph.node_sets["op"]["features"], archive["node_feat"])
        assert np.array_equal(graph.node_sets["op"]["opcode"], archive["node_opcode"])
        feeds = graph.edge_sets["feed"].adjacency
        assert np.array_equal(np.stack([feeds.target, feeds.source], axis=1), archive["edge_index"])
        assert np.array_equal(split.read_column(number, "runtimes"), archive["config_runtime"])
        if collection.manifest.kind == "layout":
            assert np.array_equal(graph.edge_sets["config"].adjacency.target, archive["node_config_ids"])
            assert np.array_equal(features, archive["node_config_feat"])
            assert np.array_equal(plain.nconfig_ops, archive["node_config_ids"])
            assert np.array_equal(plain.read_costs(), archive["config_runtime"])
        else:
            assert np.array_equal(features.reshape(-1, 24), archive["config_feat"])
            assert np.array_equal(split.read_column(number, "normalizers"), archive["config_runtime_normalizers"])


def test_every_real_archive_passes_inspect_and_preprocess(real_data, tmp_path):
    paths = sorted((real_data / "tpugraphs").rglob("*.npz"))
    assert len(paths) == 16
    by_kind: dict[str, list[Path]] = {"layout": [], "tile": []}
    for path in paths:
        with np.load(path, allow_pickle=False) as archive:
            by_kind["layout" if "node_config_feat" in archive else "tile"].append(path)
    twin = next(path for path in by_kind["layout"] if path.name.startswith("unet_3d") and "official" in path.parts)
    by_kind["layout"].remove(twin)  # two files have this name, so each is in its own collection
    link_archives(tmp_path, LAYOUT, "valid", by_kind["layout"])
    link_archives(tmp_path, "layout:xla:random", "valid", [twin])
    link_archives(tmp_path, "tile:xla", "valid", by_kind["tile"])
    names = (LAYOUT, "layout:xla:random", "tile:xla")
    members_of = (by_kind["layout"], [twin], by_kind["tile"])
    for collection, members in zip(preprocess_here(tmp_path, tmp_path / "out", *names), members_of, strict=True):
        for path in members:
            check_against_numpy(collection, "valid", path)
    for path in paths:
        assert path.name.removesuffix(".npz") in str(inspect_archive(path))
    assert "a perfect model     Kendall tau about 0.49" in tpugraphs("inspect", twin)


def test_the_official_tree_through_all_stages(official, real_data, tmp_path):
    datasets, run_dir = tmp_path / "datasets", tmp_path / "run"
    collections = (LAYOUT, "layout:nlp:random", "tile:xla")
    tpugraphs("preprocess", "--archives", official, "--datasets", datasets, "--collections", *collections)
    manifest = json.loads((datasets / "layout/xla/default/manifest.json").read_text())
    assert {name: split["num_graphs"] for name, split in manifest["splits"].items()} == dict.fromkeys(
        ("train", "valid", "test"), 1
    )
    indices = real_data / "tpugraphs" / "eval_indices"
    data = ("--datasets", datasets)
    tpugraphs("train", *data, "--run-dir", run_dir, "--indices", indices, *NARROW)
    trained = json.loads((run_dir / "result.json").read_text())
    evaluated = tpugraphs("evaluate", "--run-dir", run_dir, *data, "--indices", indices)
    assert "layout:xla:default" in evaluated
    found = json.loads((run_dir / "evaluation-valid.json").read_text())
    assert found["protocol"] == "official indices"
    assert found["overall"]["tau"] == pytest.approx(trained["best"]["metrics"]["valid"]["tau"], abs=1e-6)
    rows = (run_dir / "evaluation-valid.csv").read_text().splitlines()
    assert len(rows) == 2 and "unet_3d.4x4.bf16,1000," in rows[1]

    predictions, csv = tmp_path / "predictions", tmp_path / "submission.csv"
    tpugraphs("predict", "--run-dir", run_dir, *data, "--output", predictions)
    tests = sorted((official / "npz/layout/xla/default/test").glob("*.npz"))
    link_archives(tmp_path / "tree", LAYOUT, "test", tests)
    tree = ("--archives", tmp_path / "tree")
    assert "1 rows, valid" in tpugraphs("submit", "--predictions", predictions, *tree, "--output", csv)
    assert "1 rows, valid" in tpugraphs("submit", "--check", csv, *tree)
    header, row = csv.read_text().splitlines()
    assert header == "ID,TopConfigs"
    row_id, listed = row.split(",")
    assert row_id == "layout:xla:default:cd708819d3f5103afd6460b15e74eaf3"
    assert sorted(map(int, listed.split(";"))) == list(range(1000))

"""manifest.json: it is read as it was written, and errors name what is damaged."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.small_datasets import LAYOUT, preprocess_here, write_small_tree
from tpugraphs_polynormer.datasets.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    DatasetError,
    Manifest,
    read_manifest,
    seal_json,
    serialize_manifest,
)
from tpugraphs_polynormer.datasets.reader import RankingDataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("manifest")
    return preprocess_here(write_small_tree(root / "in"), root / "out", LAYOUT, graphs_per_shard=3)[0].folder


@pytest.fixture
def content(dataset) -> dict:
    return json.loads((dataset / MANIFEST_NAME).read_text())


def read_changed(tmp_path: Path, content) -> Manifest:
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(content))
    return read_manifest(tmp_path)


def test_round_trip(dataset, tmp_path):
    manifest = read_manifest(dataset)
    assert manifest.collection == LAYOUT
    assert [len(shard.graphs) for shard in manifest.splits["train"].shards] == [3, 3, 2]
    (tmp_path / MANIFEST_NAME).write_text(serialize_manifest(manifest))
    assert read_manifest(tmp_path) == manifest
    assert (tmp_path / MANIFEST_NAME).read_bytes() == (dataset / MANIFEST_NAME).read_bytes()


def test_counts_and_sizes(dataset):
    train = read_manifest(dataset).splits["train"]
    graphs = [graph for shard in train.shards for graph in shard.graphs]
    assert train.num_graphs == 8
    assert train.num_candidates == sum(graph.num_candidates for graph in graphs)
    assert train.sizes["nodes"]["max"] == 28
    by_name = {graph.name: graph for graph in graphs}
    assert (by_name["same"].num_candidates, by_name["same"].num_source_candidates) == (1, 7)
    assert (by_name["graph3"].num_candidates, by_name["graph3"].num_source_candidates) == (8, 17)


def paths_of(value, path=()) -> list[tuple]:
    """The path of every value in the JSON, inner ones included; only the first item of a list, no free-form options."""
    children = (
        value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else []
    )
    found = [path] if path else []
    for key, child in children:
        if (*path, key) != ("options",):
            found += paths_of(child, (*path, key))
    return found


def replaced(content, path, value):
    if not path:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[path[0]] = replaced(content[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize("wrong", [{"a": []}, "text", -1.5, True, [None]], ids=repr)
def test_every_field_of_a_wrong_type_is_named(tmp_path, content, wrong):
    for path in paths_of(content):
        right = content
        for key in path:
            right = right[key]
        if isinstance(wrong, type(right)) or (isinstance(wrong, float) and path[0] == "statistics"):
            continue
        with pytest.raises(DatasetError) as caught:
            read_changed(tmp_path, replaced(content, path, wrong))
        assert str(tmp_path / MANIFEST_NAME) in str(caught.value)
        last = next(key for key in reversed(path) if isinstance(key, str))
        assert last in str(caught.value), path
        assert "preprocess again" in str(caught.value)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Manifest) if field.name != "origin"])
def test_a_missing_field_is_named(tmp_path, content, field):
    del content[field]
    with pytest.raises(DatasetError, match=field):
        read_changed(tmp_path, content)


def test_a_dataset_from_before_origins_were_recorded_has_an_unknown_one(tmp_path, content):
    del content["origin"]
    assert read_changed(tmp_path, seal_json(content)).origin == "unknown"


def test_a_foreign_field_is_named(tmp_path, content):
    with pytest.raises(DatasetError, match="surprise"):
        read_changed(tmp_path, content | {"surprise": 1})


def test_a_dataset_of_before_is_refused_with_the_command_that_makes_it_new(tmp_path, content):
    folder = tmp_path / "layout" / "xla" / "random"
    folder.mkdir(parents=True)
    command = f"`tpugraphs preprocess --archives DIR --datasets {tmp_path} --collections {LAYOUT}`"
    with pytest.raises(DatasetError) as caught:
        read_changed(folder, content | {"format_version": 2})
    assert f"format_version 2, expected {FORMAT_VERSION}; preprocess again: {command}" in str(caught.value)


def test_another_version_is_refused(tmp_path, content):
    with pytest.raises(DatasetError, match=f"format_version {FORMAT_VERSION + 1}, expected {FORMAT_VERSION}"):
        read_changed(tmp_path, content | {"format_version": FORMAT_VERSION + 1})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kind",), "tile"),
        (("collection",), "layout:cuda"),
        (("splits", "train", "num_graphs"), 7),
        (("splits", "valid", "num_candidates"), 0),
        (("splits", "train", "sizes", "nodes", "max"), 3),
        (("splits", "train", "shards", 0, "graphs", 0, "noise"), -1e-9),
        (("statistics", "mean"), [0.0] * 139),
        (("statistics", "opcode_counts"), [1]),
    ],
)
def test_values_that_contradict_each_other_are_named(tmp_path, content, path, value):
    with pytest.raises(DatasetError, match=r"\.".join(path[:2])):
        read_changed(tmp_path, replaced(content, path, value))


@pytest.mark.parametrize(
    ("field", "value"),
    [("record_offset", 10**9), ("codes_offset", -8), ("code_bytes", 3), ("record_length", 10**9)],
)
def test_a_graph_outside_its_shard_is_refused_before_anything_is_read(tmp_path, dataset, content, field, value):
    for file in dataset.iterdir():
        (tmp_path / file.name).symlink_to(file)
    path = ("splits", "train", "shards", 0, "graphs", 0, field)
    (tmp_path / MANIFEST_NAME).unlink()
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(seal_json(replaced(content, path, value))))
    with pytest.raises(DatasetError, match="graph0") as caught:
        RankingDataset(tmp_path)
    assert {"record_length": "record_offset"}.get(field, field) in str(caught.value)


def test_a_changed_value_that_contradicts_nothing_is_found_by_the_checksum(tmp_path, content):
    assert read_changed(tmp_path, content)
    mean = content["statistics"]["mean"]
    with pytest.raises(DatasetError, match=f"{MANIFEST_NAME}: sha256 .* damaged; preprocess again"):
        read_changed(tmp_path, replaced(content, ("statistics", "mean"), [mean[0] + 1, *mean[1:]]))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00\xff", "[" * 100_000])
def test_what_is_no_manifest_at_all(tmp_path, text):
    (tmp_path / MANIFEST_NAME).write_text(text, encoding="latin-1")
    with pytest.raises(DatasetError, match=MANIFEST_NAME):
        read_manifest(tmp_path)


def test_no_manifest_means_no_dataset(tmp_path):
    with pytest.raises(DatasetError, match="run `tpugraphs preprocess` to the end"):
        read_manifest(tmp_path)

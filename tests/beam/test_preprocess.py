"""The preprocessing job with one worker in this process: nothing is lost, faults are named, shards are reused."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import ClassVar

import apache_beam as beam
import numpy as np
import pytest
import tensorflow_gnn as tfgnn
from apache_beam.io.filesystem import FileMetadata, FileSystem

from tests.small_archives import layout_arrays, write_tree
from tests.small_datasets import LAYOUT, TILE, preprocess_here, write_small_tree
from tpugraphs_polynormer.beam import preprocess
from tpugraphs_polynormer.beam.commit import (
    FAILURE_NAME,
    REJECTED_NAME,
    RUNNING_NAME,
    check_commit,
    clear_commit,
    commit,
    end_run,
)
from tpugraphs_polynormer.beam.plan import PreprocessError, plan_job
from tpugraphs_polynormer.beam.preprocess import Preprocess, WriteShard
from tpugraphs_polynormer.cli.main import main
from tpugraphs_polynormer.datasets.input_pipeline import graph_spec
from tpugraphs_polynormer.datasets.manifest import MANIFEST_NAME
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.datasets.records import parse_example
from tpugraphs_polynormer.datasets.shards import PreprocessOptions

BAD = "npz/layout/xla/random/train/graph4.npz"
FOLDER = "layout/xla/random"


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return write_small_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture
def own_tree(tree, tmp_path) -> Path:
    """A copy of the tree that the test may damage."""
    return Path(shutil.copytree(tree, tmp_path / "in"))


@pytest.fixture(scope="module")
def expected(tree, tmp_path_factory) -> dict[str, bytes]:
    """The files of an undisturbed run."""
    output = tmp_path_factory.mktemp("expected")
    preprocess_here(tree, output, LAYOUT, TILE, graphs_per_shard=2)
    return contents(output)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(source, output, *more: str, collections: tuple[str, ...] = (LAYOUT, TILE)) -> int:
    arguments = ["--archives", str(source), "--datasets", str(output), "--collections", *collections]
    return main(["preprocess", *arguments, "--graphs-per-shard", "2", "--runner=FnApiRunner", *more])


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    shards = [path for path in folder.rglob("*-of-*") if path.is_file()]
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in shards}


def test_the_command_writes_what_the_transform_writes_and_says_so(tree, tmp_path, expected, capsys):
    assert run(tree, tmp_path) == 0
    assert contents(tmp_path) == expected
    assert len({path.stat().st_mode for path in tmp_path.rglob("*.*") if path.is_file()}) == 1  # equal permissions
    assert capsys.readouterr().out.splitlines() == [f"{LAYOUT}: {tmp_path}", f"{TILE}: {tmp_path}"]


def test_the_tree_may_be_given_with_or_without_its_npz_folder(tree, tmp_path, expected):
    assert run(tree / "npz", tmp_path) == 0
    assert contents(tmp_path) == expected


def test_statistics_are_those_of_all_train_nodes_and_of_no_others(tree, tmp_path, expected):
    statistics = json.loads(expected[f"{FOLDER}/{MANIFEST_NAME}"])["statistics"]
    files = sorted((tree / "npz" / FOLDER / "train").glob("*.npz"))
    feat = np.concatenate([np.load(file, allow_pickle=False)["node_feat"] for file in files]).astype(np.float64)
    heavy = np.abs(feat).max(axis=0) > 8
    scaled = np.where(heavy, np.sign(feat) * np.log1p(np.abs(feat)), feat)
    assert statistics["num_nodes"] == len(feat)
    np.testing.assert_allclose(statistics["mean"], scaled.mean(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(statistics["std"], scaled.std(axis=0), rtol=1e-9, atol=1e-12)


def test_a_bad_archive_stops_the_job_with_its_name(own_tree, tmp_path, capsys, expected):
    good = (own_tree / BAD).read_bytes()
    (own_tree / BAD).write_bytes(good[:-100])
    output = tmp_path / "out"
    assert run(own_tree, output) == 2
    said = capsys.readouterr()
    assert said.err.startswith("tpugraphs preprocess: error: ")
    assert str(own_tree / BAD) in said.err
    assert "--on-error skip" in said.err
    assert "Traceback" not in said.err
    assert len(said.err.splitlines()) == 1
    assert not said.out
    written = contents(output)
    assert not [name for name in written if MANIFEST_NAME in name or ".tmp" in name]
    assert all(data == expected[name] for name, data in written.items() if name != FAILURE_NAME)

    (own_tree / BAD).write_bytes(good)
    before = identities(output)
    assert before
    assert run(own_tree, output) == 0
    assert contents(output) == expected
    assert {name: identities(output)[name] for name in before} == before  # finished shards were not written again


def test_bad_archives_can_be_left_out_and_are_listed(own_tree, tmp_path, expected, capsys):
    shards = tmp_path / "out"
    assert run(own_tree, shards) == 0
    before = identities(shards)
    (own_tree / BAD).write_bytes(b"no zip")
    assert run(own_tree, shards, "--on-error", "skip") == 0
    (line,) = (shards / FOLDER / REJECTED_NAME).read_text().splitlines()
    rejected = json.loads(line)
    assert rejected["path"] == "graph4.npz"
    assert "no readable zip" in rejected["reason"]
    assert str(tmp_path) not in rejected["reason"]  # the bytes do not depend on the path of the tree
    collection = RankingDataset(shards / FOLDER)
    collection.verify()
    assert collection.manifest.num_rejected == 1
    assert "graph4" not in [graph.name for graph in collection.split("train").graphs]
    assert len(collection.split("train")) == 7
    changed = {name for name, identity in identities(shards).items() if before[name] != identity}
    assert {name.split(".")[0] for name in changed} == {"train-00002-of-00004"}
    # Without the permission to skip, a shard that lacks a graph is not finished.
    assert run(own_tree, shards) == 2
    assert "graph4.npz" in capsys.readouterr().err
    assert not (shards / FOLDER / MANIFEST_NAME).exists()


def test_an_archive_of_the_other_kind_is_a_bad_archive(own_tree, tmp_path, capsys):
    shutil.copy(own_tree / "npz/tile/xla/train/kernel0.npz", own_tree / "npz" / FOLDER / "train/graph0.npz")
    assert run(own_tree, tmp_path / "out") == 2
    assert "graph0.npz: kind: found a tile archive, expected a layout archive" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["tfrecord", "candidates", "shard.json"])
def test_a_rerun_repairs_a_flipped_byte_and_touches_nothing_else(tree, tmp_path, expected, suffix):
    assert run(tree, tmp_path) == 0
    before = identities(tmp_path)
    path = tmp_path / FOLDER / f"train-00001-of-00004.{suffix}"
    data = bytearray(path.read_bytes())
    place = data.index(b'"mean": [[') + 10 if suffix == "shard.json" else len(data) // 2  # changes a digit
    data[place] ^= 1
    path.write_bytes(data)
    assert run(tree, tmp_path) == 0
    assert contents(tmp_path) == expected
    changed = {name for name, identity in identities(tmp_path).items() if before[name] != identity}
    assert {name.split(".")[0] for name in changed} == {"train-00001-of-00004"}


def test_changed_settings_rebuild_and_leave_nothing_of_before(tree, tmp_path, expected):
    assert run(tree, tmp_path, "--max-nodes", "9", "--hops", "1") == 0
    pruned = RankingDataset(tmp_path / FOLDER)
    assert max(graph.num_nodes for graph in pruned.split("train").graphs) <= 9
    assert pruned.manifest.options == {"max_nodes": 9, "num_hops": 1, "graphs_per_shard": 2}
    assert main(["preprocess", "--archives", str(tree), "--datasets", str(tmp_path), "--collections", LAYOUT, TILE,
                 "--graphs-per-shard", "5", "--runner=FnApiRunner"]) == 0  # fmt: skip
    assert run(tree, tmp_path) == 0
    assert contents(tmp_path) == expected


def test_a_changed_archive_is_made_anew(own_tree, tmp_path):
    output = tmp_path / "out"
    assert run(own_tree, output) == 0
    before = identities(output)
    write_tree(own_tree, LAYOUT, {"valid": {"valid1": layout_arrays(15, 3, 20, seed=77)}})
    assert run(own_tree, output) == 0
    changed = {name.split(".")[0] for name, identity in identities(output).items() if before[name] != identity}
    assert changed == {"valid-00000-of-00001"}
    assert RankingDataset(output / FOLDER).split("valid").graphs[1].num_candidates == 20


def test_excluded_graphs_are_left_out_and_recorded(tree, tmp_path, expected, capsys):
    (tmp_path / "bad.txt").write_text("valid1  # reported as corrupt\n")
    output = tmp_path / "out"
    exclude = ["--exclude", "graph[34]", "kernel0", "--exclude-file", str(tmp_path / "bad.txt")]
    assert run(tree, output, *exclude) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{LAYOUT}: {output}, excluded graphs: 3",
        f"{TILE}: {output}, excluded graphs: 1",
    ]
    layouts, tiles = (RankingDataset(output / name.replace(":", "/")) for name in (LAYOUT, TILE))
    layouts.verify()
    assert layouts.manifest.excluded == {"train": ("graph3", "graph4"), "valid": ("valid1",)}
    assert tiles.manifest.excluded == {"train": ("kernel0",)}
    names = [graph.name for graph in layouts.split("train").graphs]
    assert names == ["graph0", "graph1", "graph2", "graph5", "graph6", "same"]
    assert [graph.name for graph in layouts.split("valid").graphs] == ["valid0"]
    # The statistics are those of the remaining graphs, as if the excluded ones were not in the tree.
    without = shutil.copytree(tree, tmp_path / "in")
    for path in ("train/graph3", "train/graph4", "valid/valid1"):
        (without / "npz" / FOLDER / f"{path}.npz").unlink()
    preprocess_here(without, tmp_path / "without", LAYOUT, graphs_per_shard=2)
    found, wanted = contents(output / FOLDER), contents(tmp_path / "without" / FOLDER)
    manifests = [json.loads(each.pop(MANIFEST_NAME)) for each in (found, wanted)]
    assert found == wanted
    assert manifests[0].pop("sha256") != manifests[1].pop("sha256")
    assert manifests[0] == manifests[1] | {"excluded": {"train": ["graph3", "graph4"], "valid": ["valid1"]}}
    # A rerun with the same exclusions writes nothing; a rerun without them gives the files of a run without them.
    before = identities(output)
    assert run(tree, output, *exclude) == 0
    assert identities(output) == before
    assert run(tree, output) == 0
    assert contents(output) == expected


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--exclude", "grapf3"], "no graph is named 'grapf3'; did you mean graph3"),
        (["--exclude", "hidden"], "hidden is in the test split of layout:xla:random"),
        (["--exclude", "kernel*"], "no graph is left in the train split of tile:xla"),
        (["--exclude-file", "nowhere.txt"], "nowhere.txt: not readable"),
    ],
)
def test_exclusions_that_cannot_be_meant_are_refused_before_anything_is_touched(tree, tmp_path, more, said, capsys):
    assert run(tree, tmp_path / "out", *more) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_noise_is_measured_before_duplicates_collapse(tmp_path):
    arrays = layout_arrays(num_candidates=24)
    arrays["node_config_feat"][12:] = arrays["node_config_feat"][:12]
    arrays["config_runtime"] = np.concatenate([np.arange(1, 13) * 10**6, np.arange(1, 13) * 10**6 * 1.5]).astype(int)
    hidden = arrays | {"config_runtime": np.zeros(24, np.int64)}
    write_tree(tmp_path / "in", LAYOUT, {"train": {"twice": arrays, "once": layout_arrays()}, "test": {"h": hidden}})
    (collection,) = preprocess_here(tmp_path / "in", tmp_path / "out", LAYOUT)
    graphs = {graph.name: graph for graph in [*collection.split("train").graphs, *collection.split("test").graphs]}
    assert graphs["twice"].num_candidates == 12
    assert graphs["twice"].noise == pytest.approx(0.5)
    assert graphs["once"].noise is None and graphs["h"].noise is None


def test_leftovers_of_killed_runs_are_swept_and_strangers_spared(tree, tmp_path, expected):
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    for name in (".train-00000-of-00004.tfrecord.abc.tmp", "train-00007-of-00009.candidates", ".manifest.json.x.tmp"):
        (folder / name).write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    (tmp_path / FAILURE_NAME).write_text("an earlier failure")
    assert run(tree, tmp_path) == 0
    assert contents(tmp_path) == expected | {f"{FOLDER}/notes.txt": b"mine"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--no-such-option=3"], "unknown options --no-such-option=3"),
        (["--direct_num_wrokers", "2"], "unknown options --direct_num_wrokers 2"),
        (["--max-nodes", "-1"], "--max-nodes: found '-1', expected a whole number of at least 0"),
        (["--hops", "-2"], "--hops: found '-2', expected a whole number of at least 0"),
        (["--graphs-per-shard", "-2"], "--graphs-per-shard: found '-2', expected a whole number of at least 1"),
    ],
)
def test_options_that_mean_nothing_are_refused_before_anything_is_touched(tree, tmp_path, more, said, capsys):
    assert run(tree, tmp_path / "out", *more) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_input_is_named(tmp_path, capsys):
    assert run(tmp_path / "nowhere", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "nowhere/npz/layout/xla/random") in error
    assert "tpugraphs download" in error


def test_an_output_that_cannot_be_written_is_named(tree, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert run(tree, tmp_path / "file" / "out") == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "file/out") in error
    assert "choose another --datasets" in error
    assert "Traceback" not in error


def test_the_plan_depends_on_names_alone(tree, tmp_path):
    options = {LAYOUT: PreprocessOptions(graphs_per_shard=3)}
    plans = plan_job(str(tree), "out", options).plans
    assert [plan.name for plan in plans] == [
        *(f"train-{number:05d}-of-00003" for number in range(3)),
        "valid-00000-of-00001",
        "test-00000-of-00001",
    ]
    names = [Path(path).stem for plan in plans if plan.split == "train" for path in plan.sources]
    assert names == sorted(names)
    assert len(names) == 8


class _LosesLast(beam.DoFn):
    """A broken runner: it processes everything, loses one result, and reports success."""

    def __init__(self, output: str, token: str) -> None:
        self._real = WriteShard(output, token)

    def process(self, plan):
        found = list(self._real.process(plan))
        if plan.name != "train-00003-of-00004":
            yield from found


class _LosesFile(_LosesLast):
    """A worker whose disk no other process can read."""

    def process(self, plan):
        found = list(self._real.process(plan))
        if plan.name == "train-00003-of-00004":
            (Path(self._real._output) / FOLDER / f"{plan.name}.candidates").unlink()
        yield from found


@pytest.mark.parametrize("broken", [_LosesLast, _LosesFile])
def test_what_a_runner_loses_is_noticed(tree, tmp_path, monkeypatch, capsys, broken):
    monkeypatch.setattr(preprocess, "WriteShard", broken)
    assert run(tree, tmp_path, collections=(LAYOUT,)) == 2
    assert "train-00003-of-00004" in capsys.readouterr().err
    assert not (tmp_path / FOLDER / MANIFEST_NAME).exists()


def test_a_run_that_a_cluster_continues_stops_when_a_later_one_writes(tree, tmp_path):
    options = {LAYOUT: PreprocessOptions(graphs_per_shard=2)}
    killed, later = (dataclasses.replace(plan_job(str(tree), str(tmp_path), options), token=each) for each in "ab")
    clear_commit(killed)
    assert list(WriteShard(killed.output, killed.token).process(killed.plans[0]))
    clear_commit(later)
    with pytest.raises(RuntimeError, match="a later run of the job writes here"):
        list(WriteShard(killed.output, killed.token).process(killed.plans[1]))
    with pytest.raises(RuntimeError, match="a later run of the job writes here"):
        list(commit(None, killed, []))
    end_run(killed)
    assert list(WriteShard(later.output, later.token).process(later.plans[1]))
    end_run(later)
    assert not (tmp_path / RUNNING_NAME).exists()
    with pytest.raises(RuntimeError, match="or has finished"):
        list(WriteShard(later.output, later.token).process(later.plans[2]))


def test_success_without_a_manifest_is_noticed(tree, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(preprocess, "commit", lambda *_: [])
    assert run(tree, tmp_path, collections=(LAYOUT,)) == 2
    assert "without writing it" in capsys.readouterr().err


class FolderFileSystem(FileSystem):
    """An object store in a folder: it has keys but no folders, and a file exists once it is closed."""

    root: ClassVar[Path]
    created: ClassVar[list[str]] = []

    @classmethod
    def scheme(cls):
        return "testfs"

    def _local(self, path):
        return self.root / path.removeprefix("testfs://")

    def join(self, basepath, *paths):
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path):
        head, _, tail = path.rpartition("/")
        return head, tail

    def mkdirs(self, path):
        raise NotImplementedError("an object store has no folders")

    def has_dirs(self):
        return False

    def _list(self, dir_or_prefix):
        for path in sorted(self.root.rglob("*")):
            address = f"testfs://{path.relative_to(self.root)}"
            if path.is_file() and address.startswith(dir_or_prefix):
                yield FileMetadata(address, path.stat().st_size, path.stat().st_mtime)

    def create(self, path, mime_type="application/octet-stream", compression_type="auto"):
        self.created.append(self.split(path)[1])
        self._local(path).parent.mkdir(parents=True, exist_ok=True)
        return self._local(path).open("wb")

    def open(self, path, mime_type="application/octet-stream", compression_type="auto"):
        return self._local(path).open("rb")

    def copy(self, source_file_names, destination_file_names):
        raise NotImplementedError

    def rename(self, source_file_names, destination_file_names):
        raise NotImplementedError("an object store has no rename")

    def exists(self, path):
        return self._local(path).is_file()

    def size(self, path):
        return self._local(path).stat().st_size

    def last_updated(self, path):
        return self._local(path).stat().st_mtime

    def checksum(self, path):
        raise NotImplementedError

    def metadata(self, path):
        return FileMetadata(path, self.size(path), self.last_updated(path))

    def delete(self, paths):
        for path in paths:
            self._local(path).unlink()


@pytest.fixture
def store(tmp_path) -> Path:
    FolderFileSystem.root = tmp_path / "store"
    FolderFileSystem.root.mkdir()
    return FolderFileSystem.root


def test_remote_input_and_output_give_the_same_bytes(tree, store, expected, capsys):
    shutil.copytree(tree, store / "in")
    (store / "out" / FOLDER).mkdir(parents=True)
    (store / "out" / FOLDER / "train-00000-of-00099.tfrecord").write_bytes(b"of another plan")
    assert run("testfs://in", "testfs://out") == 0
    assert contents(store / "out") == expected
    FolderFileSystem.created.clear()
    assert run("testfs://in", "testfs://out") == 0
    assert contents(store / "out") == expected
    assert set(FolderFileSystem.created) == {RUNNING_NAME, "manifest.json", "schema.pbtxt"}  # the shards were reused

    (store / "in" / BAD).write_bytes(b"no zip")
    capsys.readouterr()
    assert run("testfs://in", "testfs://out") == 2
    assert f"testfs://in/{BAD}: file: found no readable zip" in capsys.readouterr().err
    assert not (store / "out" / FOLDER / MANIFEST_NAME).exists()


def test_remote_input_and_local_output(tree, store, tmp_path, expected):
    shutil.copytree(tree, store / "in")
    assert run("testfs://in", tmp_path / "out") == 0
    assert contents(tmp_path / "out") == expected


def test_real_archives_come_back_equal_to_numpy(real_data, tmp_path):
    sources = {LAYOUT: real_data / "tpugraphs/layout", TILE: real_data / "tpugraphs/tile"}
    for collection, folder in sources.items():
        for split in ("train", "valid"):
            target = tmp_path / "in/npz" / collection.replace(":", "/") / split
            shutil.copytree(folder, target)
    for collection in preprocess_here(tmp_path / "in", tmp_path / "out", LAYOUT, TILE):
        kind, name = collection.manifest.kind, collection.manifest.collection
        collection.verify()
        for split_name in ("train", "valid"):
            split = collection.split(split_name)
            assert len(split) == len(list(sources[name].glob("*.npz"))) > 1
            for number, entry in enumerate(split.graphs):
                with np.load(sources[name] / f"{entry.name}.npz", allow_pickle=False) as archive:
                    arrays = dict(archive)
                _compare_real(kind, split_name, split, number, arrays)


def _compare_real(kind, split_name, split, number, arrays) -> None:
    entry = split.graphs[number]
    graph = tfgnn.parse_single_example(graph_spec(kind), split.read_record(number))
    assert np.array_equal(graph.node_sets["op"]["features"], arrays["node_feat"])
    assert np.array_equal(graph.node_sets["op"]["opcode"], arrays["node_opcode"])
    adjacency = graph.edge_sets["feed"].adjacency
    assert np.array_equal(np.stack([adjacency.target, adjacency.source], axis=1), arrays["edge_index"])
    dense = arrays["node_config_feat" if kind == "layout" else "config_feat"].reshape(len(arrays["config_runtime"]), -1)
    normalizers = arrays["config_runtime_normalizers"] if kind == "tile" else np.ones(len(dense), np.int64)
    codes = split.read_codes(number, np.arange(entry.num_candidates))
    found = graph.node_sets["config_value"]["values"].numpy()[codes].reshape(len(codes), -1)
    rows = split.read_column(number, "rows")
    assert np.array_equal(found, dense[rows])
    assert np.array_equal(split.read_column(number, "normalizers"), normalizers[rows])
    runtimes = split.read_column(number, "runtimes")
    if split_name == "valid":
        assert np.array_equal(runtimes, arrays["config_runtime"])
        assert np.array_equal(rows, np.arange(len(dense)))
        return
    keys = np.concatenate([dense, normalizers[:, None]], axis=1)
    distinct, inverse, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    means = np.bincount(inverse.reshape(-1), arrays["config_runtime"]) / counts
    places = inverse.reshape(-1)[rows]
    assert sorted(places) == list(range(len(distinct)))
    assert np.array_equal(split.read_column(number, "counts"), counts[places])
    assert np.abs(runtimes - means[places]).max() <= 0.5


def test_settings_that_are_not_recorded_do_not_decide_bytes():
    options = PreprocessOptions(skip_bad=True)
    assert options.recorded() == dataclasses.replace(options, skip_bad=False).recorded()


def test_protobufs_give_what_their_archives_give(real_data, tmp_path):
    folder = Path("layout/xla/default/valid")
    source = real_data / "tpugraphs"
    for place in ("npz", "pb"):
        (tmp_path / place / folder).mkdir(parents=True)
    shutil.copy(source / "layout/unet_3d.4x4.bf16.npz", tmp_path / "npz" / folder / "unet.npz")
    shutil.copy(source / "protobuf/module_tuning_data_layout.pb", tmp_path / "pb" / folder / "unet.pb")
    found = []
    for input_format in ("npz", "pb"):
        options = {"layout:xla:default": PreprocessOptions()}
        job = plan_job(str(tmp_path), str(tmp_path / f"out_{input_format}"), options, input_format=input_format)
        clear_commit(job)
        with beam.Pipeline(runner="FnApiRunner") as pipeline:
            _ = pipeline | Preprocess(job)
        check_commit(job)
        found.append(RankingDataset(tmp_path / f"out_{input_format}/layout/xla/default").split("valid"))
    archived, featurized = found
    assert [graph.name for graph in featurized.graphs] == ["unet"]
    archive, program = (parse_example(split.read_record(0)) for split in found)
    assert not archive["nodes/op.operands"].any() and program["nodes/op.operands"].all()  # the protobuf says more
    assert archive.keys() == program.keys()
    for key in archive.keys() - {"nodes/op.operands"}:
        assert np.array_equal(archive[key], program[key]), key
    assert np.array_equal(archived.read_codes(0, np.arange(112)), featurized.read_codes(0, np.arange(112)))
    with pytest.raises(PreprocessError, match="tpugraphs featurize"):
        plan_job(str(tmp_path), str(tmp_path / "out"), {"tile:xla": PreprocessOptions()}, input_format="pb")

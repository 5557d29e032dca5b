"""The archive reader: it accepts every dtype of known files, and raises ArchiveError for every malformed file."""

import io
import resource
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.small_archives import layout_arrays, tile_arrays
from tpugraphs_polynormer.archives.npz import (
    ArchiveError,
    LayoutArchive,
    TileArchive,
    iterate_layouts,
    read_archive,
    read_shapes,
)
from tpugraphs_polynormer.archives.writer import Blocks, write_archive, write_npz


def save(path, arrays, compressed=True):
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def same(archive, arrays) -> bool:
    return all(
        np.array_equal(getattr(archive, key), np.asarray(value).reshape(-1) if key == "node_splits" else value)
        for key, value in arrays.items()
    )


@pytest.mark.parametrize("compressed", [True, False])
def test_layout_comes_back_with_int8_candidates(tmp_path, compressed):
    arrays = layout_arrays()
    archive = read_archive(save(tmp_path / "g.npz", arrays, compressed))
    assert isinstance(archive, LayoutArchive)
    assert archive.node_config_feat.dtype == np.int8
    assert archive.config_runtime.dtype == np.int64
    assert archive.node_opcode.dtype == np.uint8
    assert same(archive, arrays)


def test_tile_comes_back(tmp_path):
    arrays = tile_arrays()
    archive = read_archive(save(tmp_path / "g.npz", arrays))
    assert isinstance(archive, TileArchive)
    assert same(archive, arrays)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.uint64, ">i4"])
def test_integers_of_every_width(tmp_path, dtype):
    arrays = layout_arrays()
    for key in ("node_opcode", "edge_index", "node_config_ids", "node_splits"):
        arrays[key] = arrays[key].astype(dtype)
    arrays["node_config_feat"] = arrays["node_config_feat"].astype(np.int8)
    assert same(read_archive(save(tmp_path / "g.npz", arrays)), arrays)


@pytest.mark.parametrize("arrays", [layout_arrays(num_candidates=11), tile_arrays()], ids=["layout", "tile"])
def test_every_array_is_read_in_either_memory_order(tmp_path, monkeypatch, arrays):
    monkeypatch.setattr(
        "tpugraphs_polynormer.archives.npz._BLOCK_BYTES", 3 * 18 * 4 * 2
    )  # several blocks, a short last one
    for key in arrays:
        for order in "CF":
            changed = arrays | {key: np.asarray(arrays[key], order=order)}
            archive = read_archive(save(tmp_path / "g.npz", changed))
            assert same(archive, arrays)
            assert all(np.asarray(getattr(archive, name)).flags.c_contiguous for name in arrays)


@pytest.mark.parametrize("damage", [np.nan, 6, 0.5])
def test_candidates_in_fortran_order_are_checked_too(tmp_path, damage):
    arrays = layout_arrays()
    arrays["node_config_feat"][5, 2, 17] = damage
    arrays["node_config_feat"] = np.asfortranarray(arrays["node_config_feat"])
    with pytest.raises(ArchiveError, match="node_config_feat: found"):
        list(iterate_layouts(save(tmp_path / "g.npz", arrays)))


def test_no_candidate_in_fortran_order(tmp_path):
    arrays = layout_arrays(num_config=0) | {"node_config_feat": np.zeros((7, 0, 18), np.float32, order="F")}
    assert read_archive(save(tmp_path / "g.npz", arrays)).node_config_feat.shape == (7, 0, 18)


def test_test_files_with_hidden_runtimes(tmp_path):
    arrays = tile_arrays() | {"config_runtime": np.zeros(6, np.int64), "config_runtime_normalizers": np.ones(6, int)}
    assert read_archive(save(tmp_path / "g.npz", arrays)).is_hidden


def test_one_candidate_without_features_and_no_edges(tmp_path):
    arrays = tile_arrays(num_nodes=1, num_candidates=1)
    arrays |= {"config_feat": np.zeros((1, 24), np.float32), "edge_index": np.zeros((0, 2), np.int64)}
    archive = read_archive(save(tmp_path / "g.npz", arrays))
    assert archive.num_candidates == 1
    assert len(archive.edge_index) == 0


def test_node_splits_of_either_shape_or_absent(tmp_path):
    arrays = layout_arrays()
    flat = arrays | {"node_splits": np.array([0, 12], np.int32)}
    assert read_archive(save(tmp_path / "flat.npz", flat)).node_splits.tolist() == [0, 12]
    del arrays["node_splits"]
    assert read_archive(save(tmp_path / "none.npz", arrays)).node_splits.tolist() == []


def test_runtimes_past_float_precision_stay_apart(tmp_path):
    arrays = layout_arrays(num_candidates=2) | {"config_runtime": np.array([2**53, 2**53 + 1])}
    assert len(set(read_archive(save(tmp_path / "g.npz", arrays)).config_runtime.tolist())) == 2


BREAKS = {
    "missing key": (lambda a: a.pop("edge_index"), "edge_index"),
    "neither kind": (lambda a: a.pop("node_config_feat"), "kind"),
    "both kinds": (lambda a: a.update(config_feat=np.zeros((7, 24), np.float32)), "kind"),
    "wrong rank": (lambda a: a.update(node_feat=a["node_feat"][0]), "node_feat"),
    "wrong width": (lambda a: a.update(node_feat=a["node_feat"][:, :139]), "node_feat"),
    "no nodes": (lambda a: a.update(node_feat=a["node_feat"][:0]), "node_feat"),
    "edge too far": (lambda a: a["edge_index"].__setitem__((0, 0), 12), "edge_index"),
    "edge negative": (lambda a: a["edge_index"].__setitem__((0, 1), -1), "edge_index"),
    "float edges": (lambda a: a.update(edge_index=a["edge_index"].astype(float)), "edge_index"),
    "config id too far": (lambda a: a["node_config_ids"].__setitem__(0, 99), "node_config_ids"),
    "config id twice": (lambda a: a["node_config_ids"].__setitem__(0, a["node_config_ids"][1]), "node_config_ids"),
    "opcode too far": (lambda a: a["node_opcode"].__setitem__(0, 121), "node_opcode"),
    "opcode count": (lambda a: a.update(node_opcode=a["node_opcode"][1:]), "node_opcode"),
    "nan node": (lambda a: a["node_feat"].__setitem__((3, 4), np.nan), "node_feat"),
    "inf node": (lambda a: a["node_feat"].__setitem__((3, 4), np.inf), "node_feat"),
    "nan candidate": (lambda a: a["node_config_feat"].__setitem__((1, 1, 1), np.nan), "node_config_feat"),
    "half candidate": (lambda a: a["node_config_feat"].__setitem__((1, 1, 1), 0.5), "node_config_feat"),
    "six": (lambda a: a["node_config_feat"].__setitem__((1, 1, 1), 6), "node_config_feat"),
    "wraps int8": (lambda a: a["node_config_feat"].__setitem__((1, 1, 1), 256), "node_config_feat"),
    "fewer candidates": (lambda a: a.update(node_config_feat=a["node_config_feat"][1:]), "node_config_feat"),
    "fewer runtimes": (lambda a: a.update(config_runtime=a["config_runtime"][1:]), "node_config_feat"),
    "no candidates": (lambda a: a.update(config_runtime=np.zeros(0, int)), "config_runtime"),
    "negative runtime": (lambda a: a["config_runtime"].__setitem__(0, -1), "config_runtime"),
    "some zero": (lambda a: a["config_runtime"].__setitem__(0, 0), "config_runtime"),
    "uint64 runtime": (lambda a: a.update(config_runtime=np.full(7, 2**63, np.uint64)), "config_runtime"),
    "bool opcodes": (lambda a: a.update(node_opcode=np.ones(12, bool)), "node_opcode"),
    "object array": (lambda a: a.update(node_opcode=np.array([{}] * 12, object)), "node_opcode"),
    "text array": (lambda a: a.update(node_opcode=np.array(["x"] * 12)), "node_opcode"),
    "operands too large": (lambda a: a.update(node_operands=np.full(12, 1 << 27)), "node_operands"),
    "operand count": (lambda a: a.update(node_operands=np.zeros(11, int)), "node_operands"),
    "splits fall": (lambda a: a.update(node_splits=np.array([5, 3])), "node_splits"),
    "splits of rank 3": (lambda a: a.update(node_splits=np.zeros((1, 1, 1), int)), "node_splits"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_malformed_layouts_name_file_and_key(tmp_path, name):
    arrays = layout_arrays()
    damage, key = BREAKS[name]
    damage(arrays)
    with pytest.raises(ArchiveError) as error:
        read_archive(save(tmp_path / "bad.npz", arrays))
    assert error.value.key == key
    assert "bad.npz" in str(error.value)
    assert "found" in str(error.value)
    assert "expected" in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("config_feat", np.zeros((6, 23), np.float32)),
        ("config_feat", np.full((6, 24), np.nan, np.float32)),
        ("config_feat", np.full((6, 24), 1e300)),
        ("config_runtime_normalizers", np.zeros(6, np.int64)),
        ("config_runtime_normalizers", np.ones(5, np.int64)),
    ],
)
def test_malformed_tiles(tmp_path, key, value):
    with pytest.raises(ArchiveError) as error:
        read_archive(save(tmp_path / "bad.npz", tile_arrays() | {key: value}))
    assert error.value.key == key


def test_files_that_are_no_archives(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "empty.npz").write_bytes(b"")
    for name in ("text.npz", "empty.npz", "absent.npz", "."):
        with pytest.raises(ArchiveError):
            read_archive(tmp_path / name)


def test_key_written_twice_is_refused(tmp_path):
    path = save(tmp_path / "g.npz", layout_arrays())
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("node_opcode.npy", b"")
    with pytest.raises(ArchiveError, match="node_opcode"):
        read_archive(path)


def test_declared_size_is_checked_before_memory_is_taken(tmp_path):
    arrays = tile_arrays()
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 140)})
    path = save(tmp_path / "g.npz", {k: v for k, v in arrays.items() if k != "node_feat"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("node_feat.npy", buffer.getvalue())
    with pytest.raises(ArchiveError, match="node_feat"):
        read_archive(path)


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """(bytes, record) of an intact layout archive and of an intact tile archive."""
    folder = tmp_path_factory.mktemp("intact")
    found = []
    for name, arrays in (("layout", layout_arrays()), ("tile", tile_arrays())):
        for compressed in (True, False):
            path = save(folder / f"{name}{compressed}.npz", arrays, compressed)
            found.append((path.read_bytes(), arrays))
    return found


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_corrupted_archives_are_refused_or_unharmed(tmp_path, intact, data):
    """After bytes are cut, flipped, overwritten or spliced, a file is refused or read exactly as the intact file."""
    content, arrays = data.draw(st.sampled_from(intact))
    damaged = bytearray(content)
    way = data.draw(st.sampled_from(["cut", "flip", "overwrite", "splice"]))
    place = data.draw(st.integers(0, len(content) - 1))
    if way == "cut":
        damaged = damaged[:place]
    elif way == "flip":
        damaged[place] ^= data.draw(st.integers(1, 255))
    elif way == "overwrite":
        chunk = data.draw(st.binary(min_size=1, max_size=64))
        damaged[place : place + len(chunk)] = chunk
    else:
        del damaged[place : place + data.draw(st.integers(1, 64))]
    path = tmp_path / "damaged.npz"
    path.write_bytes(damaged)
    try:
        archive = read_archive(path)
    except ArchiveError as error:
        assert "damaged.npz" in str(error)
    else:
        # node_splits is optional: a file whose directory lacks only that member is valid.
        assert same(archive, {key: value for key, value in arrays.items() if key != "node_splits"})


def test_blocks_and_shapes_agree_with_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("tpugraphs_polynormer.archives.npz._BLOCK_BYTES", 3 * 18 * 4 * 2)
    arrays = layout_arrays(num_candidates=7)
    path = save(tmp_path / "g.npz", arrays)
    blocks = list(iterate_layouts(path))
    assert [len(block) for block in blocks] == [2, 2, 2, 1]
    assert np.array_equal(np.concatenate(blocks), arrays["node_config_feat"])
    assert read_shapes(path) == {key: np.shape(value) for key, value in arrays.items()}
    graph = read_archive(path, with_candidates=False)
    assert graph.node_config_feat is None
    assert same(graph, {key: value for key, value in arrays.items() if key != "node_config_feat"})


def test_writer_is_official_deterministic_and_streams(tmp_path):
    arrays = layout_arrays()
    dense = arrays["node_config_feat"]
    streamed = arrays | {
        "node_config_feat": Blocks(dense.shape, np.float32, (dense[i : i + 2] for i in range(0, 7, 2)))
    }
    write_npz(tmp_path / "a.npz", arrays)
    write_npz(tmp_path / "b.npz", streamed)
    with np.load(tmp_path / "b.npz", allow_pickle=False) as loaded:
        assert {key: value.dtype for key, value in loaded.items()} == {k: v.dtype for k, v in arrays.items()}
        assert all(np.array_equal(loaded[key], arrays[key]) for key in arrays)
    write_npz(tmp_path / "c.npz", arrays)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "c.npz").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "b.npz", "c.npz"]


def member_traits(path) -> dict[str, tuple]:
    """{key: (dtype, order in memory, compression)} in the order of the file."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            with archive.open(info) as member:
                assert np.lib.format.read_magic(member) == (1, 0)
                shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(member)
            assert len(shape) in (1, 2, 3)
            found[info.filename] = (dtype, "F" if is_fortran else "C", info.compress_type)
    return found


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_our_archives_have_the_traits_of_the_official_ones(tmp_path, real_data, kind):
    arrays = {"layout": layout_arrays, "tile": tile_arrays}[kind]()
    shuffled = {key: np.asarray(arrays[key], order="F") for key in sorted(arrays)}
    shuffled["node_opcode"] = shuffled["node_opcode"].astype(np.int64)
    write_archive(tmp_path / "g.npz", shuffled)
    official = sorted((real_data / "tpugraphs" / "official" / "npz" / kind).rglob("*.npz"))
    assert len(official) == {"layout": 4, "tile": 2}[kind]
    for path in official:
        assert list(member_traits(path).items()) == list(member_traits(tmp_path / "g.npz").items())
    assert same(read_archive(tmp_path / "g.npz"), arrays)


def test_an_archive_of_other_keys_is_not_written(tmp_path):
    arrays = tile_arrays()
    del arrays["config_runtime"]
    with pytest.raises(ValueError, match="expected node_feat, node_opcode"):
        write_archive(tmp_path / "g.npz", arrays)
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path):
    write_npz(tmp_path / "a.npz", {"x": np.arange(3)})
    before = (tmp_path / "a.npz").read_bytes()
    with pytest.raises(ValueError, match="the blocks hold 2 values"):
        write_npz(tmp_path / "a.npz", {"x": Blocks((5,), np.int64, [np.arange(2)])})
    assert (tmp_path / "a.npz").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_real_archives_hold_what_their_readme_says(real_data):
    folder = real_data / "tpugraphs"
    alexnet = read_archive(folder / "layout" / "alexnet_train_batch_32.npz")
    assert (len(alexnet.node_feat), len(alexnet.edge_index)) == (372, 597)
    assert alexnet.node_config_feat.shape == (8000, 26, 18)
    assert 5.3 < alexnet.config_runtime.max() / alexnet.config_runtime.min() < 5.5
    unet = read_archive(folder / "layout" / "unet_3d.4x4.bf16.npz")
    assert (len(unet.node_feat), len(unet.edge_index)) == (3163, 5112)
    assert unet.node_config_feat.shape == (112, 62, 18)
    assert unet.config_runtime.max() / unet.config_runtime.min() == pytest.approx(1.016, abs=1e-3)
    tiles = [read_archive(path) for path in sorted((folder / "tile").glob("*.npz"))]
    assert len(tiles) == 8
    assert {tile.num_candidates for tile in tiles} >= {2, 61}
    assert [tile.name for tile in tiles if not tile.config_feat.any()] == ["reshape.37_24aa8731e7561309"]


def test_every_real_archive_comes_back_as_numpy_reads_it(real_data):
    paths = sorted((real_data / "tpugraphs").rglob("*.npz"))
    assert len(paths) == 16
    for path in paths:
        with np.load(path, allow_pickle=False) as loaded:
            assert same(read_archive(path), dict(loaded)), path


READ_BIG = """
import resource, sys
from tpugraphs_polynormer.archives.npz import read_archive
archive = read_archive(sys.argv[1])
print(archive.node_config_feat.nbytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_largest_archive_is_read_within_three_gigabytes(tmp_path):
    candidates, nodes = 100_040, 848
    arrays = layout_arrays(num_nodes=1000, num_config=nodes, num_candidates=2)
    block = np.random.default_rng(0).integers(-1, 6, (280, nodes, 18)).astype(np.float32)
    blocks = (block[: min(280, candidates - start)] for start in range(0, candidates, 280))
    arrays["node_config_feat"] = Blocks((candidates, nodes, 18), np.float32, blocks)
    arrays["config_runtime"] = np.arange(1, candidates + 1)
    write_npz(tmp_path / "big.npz", arrays)
    result = subprocess.run(
        [sys.executable, "-c", READ_BIG, str(tmp_path / "big.npz")], capture_output=True, text=True, check=True
    )
    candidate_bytes, peak = map(int, result.stdout.split())
    assert candidate_bytes == candidates * nodes * 18
    assert peak < 3e9
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < 3e9

"""Conversion of tuning files to archives: equal to the official archive, without the rows that it drops."""

import dataclasses

import numpy as np
import pytest

from tests.hlo.programs import small_cnn
from tests.hlo.tuning_files import serialize_layout_tuning, serialize_tile_tuning
from tpugraphs_polynormer.archives.featurize import featurize_bytes
from tpugraphs_polynormer.archives.tuning import layout_tuning_arrays, tile_features
from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.tuning import (
    LayoutTuning,
    TileSizes,
    TileTuning,
    TuningRun,
    parse_layout_tuning,
    parse_tile_tuning,
)

LAYOUTS = np.arange(36, dtype=np.int32).reshape(2, 18) % 7 - 1
RUN = TuningRun(LAYOUTS, 700, has_error=False, is_default=False)
DEFAULT = TuningRun(-np.ones_like(LAYOUTS), 500, has_error=False, is_default=True)


def test_the_real_layout_file_becomes_the_real_archive(real_data):
    data = (real_data / "tpugraphs" / "protobuf" / "module_tuning_data_layout.pb").read_bytes()
    (found,) = featurize_bytes(data)
    with np.load(real_data / "tpugraphs" / "layout" / "unet_3d.4x4.bf16.npz", allow_pickle=False) as archive:
        assert list(found) == list(archive)
        for key in archive:
            assert found[key].dtype == archive[key].dtype, key
            assert np.array_equal(found[key], archive[key]), key


def test_the_real_layout_file_gives_the_arrays_of_the_untouched_official_archive(real_data):
    """The official valid split has the same program with other candidates; order of keys and memory order are equal."""
    data = (real_data / "tpugraphs" / "protobuf" / "module_tuning_data_layout.pb").read_bytes()
    (found,) = featurize_bytes(data)
    folder = real_data / "tpugraphs" / "official" / "npz" / "layout" / "xla" / "default" / "valid"
    with np.load(folder / "unet_3d.4x4.bf16.npz", allow_pickle=False) as archive:
        assert list(found) == list(archive)
        for key in archive:
            official = archive[key]
            assert found[key].dtype == official.dtype, key
            assert np.isfortran(found[key]) == np.isfortran(official), key
            if key not in ("node_config_feat", "config_runtime"):
                assert np.array_equal(found[key], official), key


def test_the_real_layout_file_survives_the_round_trip(real_data):
    data = (real_data / "tpugraphs" / "protobuf" / "module_tuning_data_layout.pb").read_bytes()
    first = parse_layout_tuning(data)
    second = parse_layout_tuning(serialize_layout_tuning(first))
    assert second.module == first.module
    expected, found = layout_tuning_arrays(first), layout_tuning_arrays(second)
    assert all(np.array_equal(found[key], expected[key]) for key in expected)


def test_layout_runs_that_are_dropped():
    runs = (
        RUN,
        dataclasses.replace(RUN, has_error=True),
        dataclasses.replace(RUN, runtime_ns=None),
        dataclasses.replace(RUN, candidate=None),
        DEFAULT,
        dataclasses.replace(RUN, runtime_ns=0),
    )
    (found,) = featurize_bytes(serialize_layout_tuning(LayoutTuning(small_cnn(), (3, 5), runs)))
    assert found["config_runtime"].tolist() == [700, 500, 0]
    # -1 ends the dims of a tensor in the file, so that (-1 0 1 2 3 4), of the first node, becomes (0 1 2 3 4 -1).
    assert found["node_config_feat"][0, 0].tolist()[:6] == [0, 1, 2, 3, 4, -1]
    assert (found["node_config_feat"][1] == -1).all()
    assert found["node_config_ids"].tolist() == [3, 5]
    assert found["node_splits"].tolist() == [[0, 7]]


def test_a_layout_file_without_default_is_refused():
    with pytest.raises(HloError, match="none of its 1 runs is the compiler's default"):
        layout_tuning_arrays(LayoutTuning(small_cnn(), (3, 5), (RUN,)))


def test_a_node_that_does_not_exist_is_named():
    with pytest.raises(HloError, match=r"names row 7, expected 0\.\.6"):
        layout_tuning_arrays(LayoutTuning(small_cnn(), (3, 7), (DEFAULT,)))


def test_tile_features_by_hand():
    found = tile_features(TileSizes(kernel=(2, 3), output=(), input=(1, 2, 1, 2, 1, 2, 5)))
    assert found == [2, 3, 0, 0, 0, 0, 5, 6, *[0] * 8, 1, 2, 1, 2, 1, 2, 14, 40]


def test_real_tile_archives_obey_the_rule(real_data):
    """The published features can be computed from the bounds that they contain."""
    for path in sorted((real_data / "tpugraphs" / "tile").glob("*.npz")):
        with np.load(path, allow_pickle=False) as archive:
            for row in archive["config_feat"].astype(np.int64):
                bounds = [[int(value) for value in row[start : start + 6] if value] for start in (0, 8, 16)]
                assert tile_features(TileSizes(*map(tuple, bounds))) == row.tolist(), path.name


def tile_run(time: int | None, *, error: bool = False, default: bool = False, tiles: bool = True) -> TuningRun:
    return TuningRun(TileSizes(output=(time or 1, 2)) if tiles else None, time, error, default)


def test_tile_kernels_that_are_kept():
    good = (tile_run(30), tile_run(1), tile_run(20, default=True), tile_run(50, error=True), tile_run(None))
    kernels = [
        TileTuning(small_cnn(), good),
        TileTuning(small_cnn(), (tile_run(20, default=True),)),
        TileTuning(small_cnn(), (tile_run(20, default=True), tile_run(30, tiles=False))),
        TileTuning(small_cnn(), (tile_run(20), tile_run(30))),
    ]
    data = serialize_tile_tuning(kernels)
    assert parse_tile_tuning(data) == tuple(kernels)
    (found,) = featurize_bytes(data)
    assert found["config_runtime"].tolist() == [30, 20]
    assert found["config_runtime_normalizers"].tolist() == [20, 20]
    assert found["config_feat"].dtype == np.float32
    assert found["config_feat"][0, 8:16].tolist() == [30, 2, 0, 0, 0, 0, 32, 60]
    assert list(found) == [
        "node_feat", "node_opcode", "edge_index", "config_feat", "config_runtime", "config_runtime_normalizers",
    ]  # fmt: skip

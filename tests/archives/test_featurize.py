"""Conversion of HLO and tuning files, and of folders of them, to archives."""

import numpy as np
import pytest

from tests.hlo.programs import small_cnn
from tests.hlo.tuning_files import serialize_layout_tuning, serialize_tile_tuning
from tpugraphs_polynormer.archives.featurize import featurize_bytes, featurize_file, featurize_path, read_program
from tpugraphs_polynormer.archives.npz import read_archive
from tpugraphs_polynormer.errors import HloError
from tpugraphs_polynormer.hlo.choices import enumerate_choices
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.sampling import draw_candidates
from tpugraphs_polynormer.hlo.text_writer import serialize_text
from tpugraphs_polynormer.hlo.tuning import LayoutTuning, TileSizes, TileTuning, TuningRun
from tpugraphs_polynormer.hlo.writer import serialize_module

KERNEL = TileTuning(
    small_cnn(),
    (TuningRun(TileSizes(output=(8, 2)), 20, False, True), TuningRun(TileSizes(output=(4, 2)), 30, False, False)),
)


def test_a_plain_module_becomes_a_layout_archive_with_hidden_runtimes(tmp_path):
    source = tmp_path / "cnn.hlo.pb"
    source.write_bytes(serialize_module(small_cnn()))
    found = featurize_file(source)
    assert found["node_config_feat"].shape == (1, 3, 18)
    assert found["config_runtime"].tolist() == [0]
    expected = featurize_module(small_cnn())
    assert np.array_equal(found["node_feat"], expected.node_feat)
    assert np.array_equal(found["node_splits"], expected.node_splits[None])

    result = featurize_path(source, tmp_path / "out.npz", num_candidates=20, seed=5, mode="random")
    assert result.written == (tmp_path / "out.npz",)
    archive = read_archive(tmp_path / "out.npz")
    drawn = draw_candidates(enumerate_choices(small_cnn()), 20, seed=5, mode="random")
    assert archive.num_candidates == 20
    assert archive.is_hidden
    with np.load(tmp_path / "out.npz", allow_pickle=False) as written:
        assert np.array_equal(written["node_config_feat"], drawn.astype(np.float32))


def test_a_folder_keeps_its_tree_and_names_what_failed(tmp_path, caplog):
    source, output = tmp_path / "in", tmp_path / "out"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "cnn.hlo.pb").write_bytes(serialize_module(small_cnn()))
    (source / "one.pb").write_bytes(serialize_tile_tuning([KERNEL]))
    (source / "two.pb").write_bytes(serialize_tile_tuning([KERNEL, KERNEL]))
    (source / "text.pb").write_bytes(b"HloModule m")
    (source / "notes.txt").write_bytes(b"not ours")
    result = featurize_path(source, output)
    names = [str(path.relative_to(output)) for path in result.written]
    assert names == ["deep/cnn.npz", "one.npz", "two/0000.npz", "two/0001.npz"]
    assert list(result.failed) == [source / "text.pb"]
    assert "text.pb: HLO text, line 1, column 12: the text ends here" in caplog.text
    assert sorted(path for path in output.rglob("*") if path.is_file()) == sorted(result.written)
    assert read_archive(output / "two" / "0001.npz").num_candidates == 2


def test_text_is_read_like_a_protobuf(tmp_path, caplog):
    source, output = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    text = serialize_text(small_cnn()).encode()
    for name in ("both.txt", "only.txt", "misnamed.pb", "short.hlo"):
        (source / name).write_bytes(text)
    (source / "both.hlo.pb").write_bytes(serialize_module(small_cnn()))
    (source / "only-memory-usage-report.txt").write_bytes(b"Total bytes used: 12")
    (source / "cut.txt").write_bytes(text[: len(text) // 2])
    result = featurize_path(source, output, num_candidates=7)
    assert [path.name for path in result.sources] == ["both.hlo.pb", "cut.txt", "misnamed.pb", "only.txt", "short.hlo"]
    assert [path.name for path in result.written] == ["both.npz", "misnamed.npz", "only.npz", "short.npz"]
    assert list(result.failed) == [source / "cut.txt"] and "cut.txt: HLO text, line" in caplog.text
    archives = [path.read_bytes() for path in result.written]
    assert len(set(archives)) == 1  # the same bytes from text and from protobuf
    assert read_program(source / "only.txt").computations == small_cnn().computations


def test_errors_name_the_file(tmp_path):
    with pytest.raises(HloError, match=r"absent\.pb: cannot be read"):
        featurize_file(tmp_path / "absent.pb")
    (tmp_path / "two.pb").write_bytes(serialize_tile_tuning([KERNEL, KERNEL]))
    with pytest.raises(HloError, match=r"two\.pb: a tile file with 2 kernels"):
        featurize_file(tmp_path / "two.pb")
    (tmp_path / "empty").mkdir()
    with pytest.raises(HloError, match="none of its 0"):
        featurize_path(tmp_path / "empty", tmp_path / "out")


def test_a_tile_file_without_a_usable_kernel_is_refused():
    with pytest.raises(HloError, match="none of which has two runs"):
        featurize_bytes(serialize_tile_tuning([TileTuning(small_cnn(), KERNEL.runs[1:])]))


def test_the_real_file_is_recognised(real_data):
    found = featurize_file(real_data / "tpugraphs" / "protobuf" / "module_tuning_data_layout.pb")
    assert found["config_runtime"].shape == (112,)


def test_what_the_reader_would_refuse_is_not_written(tmp_path, caplog):
    layouts = -np.ones((2, 18), np.int32)
    runs = (TuningRun(layouts, 500, False, True), TuningRun(layouts, 0, False, False))  # one of them took no time
    (tmp_path / "in").mkdir()
    source = tmp_path / "in" / "odd.pb"
    source.write_bytes(serialize_layout_tuning(LayoutTuning(small_cnn(), (3, 5), runs)))
    with pytest.raises(HloError, match=r"odd\.pb: .*config_runtime: zeros among .*; nothing is written"):
        featurize_path(source, tmp_path / "odd.npz")
    (tmp_path / "in" / "fine.pb").write_bytes(serialize_tile_tuning([KERNEL, KERNEL]))
    result = featurize_path(tmp_path / "in", tmp_path / "out")
    assert list(result.failed) == [source] and "odd.pb" in caplog.text
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*") if "in" not in path.parts)
    assert [name for name in written if name.endswith("npz")] == ["out/fine/0000.npz", "out/fine/0001.npz"]
    assert not [name for name in written if name.endswith("tmp")]

"""The summary of an archive, on hand-made and real files."""

import numpy as np

from tests.archives import layout_arrays, tile_arrays
from tpugraphs_polynormer.cli import main
from tpugraphs_polynormer.data.npz import write_archive
from tpugraphs_polynormer.inspection import count_duplicates, inspect_archive, plot_inspection


def test_counts_opcodes_duplicates_and_quantiles(tmp_path):
    arrays = layout_arrays(num_nodes=12, num_config=3, num_candidates=5)
    arrays["node_opcode"][:] = [26] * 2 + [34] * 3 + [75] * 7
    arrays["node_config_ids"] = np.array([0, 2, 5])
    arrays["node_config_feat"][3] = arrays["node_config_feat"][1]
    arrays["config_runtime"] = np.array([400, 100, 300, 200, 500])
    write_archive(tmp_path / "g.npz", arrays)
    found = inspect_archive(tmp_path / "g.npz")
    assert found.opcodes == (("reshape", 7), ("dot", 3), ("convolution", 2))
    assert found.configurable == (("convolution", 1), ("dot", 1), ("reshape", 1))
    assert found.num_duplicates == 1
    shown = str(found)
    assert "0%: 100" in shown
    assert "50%: 300" in shown
    assert "worst / best        5.000" in shown


def test_hidden_runtimes_and_empty_features_are_said(tmp_path):
    arrays = tile_arrays() | {"config_runtime": np.zeros(6, np.int64), "config_feat": np.zeros((6, 24), np.float32)}
    write_archive(tmp_path / "g.npz", arrays)
    found = inspect_archive(tmp_path / "g.npz")
    assert "hidden" in str(found)
    assert "nothing to rank by" in str(found)
    plot_inspection(found, tmp_path / "g.png")
    assert (tmp_path / "g.png").read_bytes()[:4] == b"\x89PNG"


def test_tiles_are_measured_against_their_default(tmp_path):
    arrays = tile_arrays() | {"config_runtime": np.arange(1, 7) * 10, "config_runtime_normalizers": np.full(6, 20)}
    write_archive(tmp_path / "g.npz", arrays)
    assert np.array_equal(inspect_archive(tmp_path / "g.npz").costs, np.arange(1, 7) / 2)


def test_duplicates_by_brute_force():
    rows = np.random.default_rng(0).integers(0, 2, (50, 2, 2))
    expected = sum(any(np.array_equal(rows[i], rows[j]) for j in range(i)) for i in range(50))
    assert count_duplicates(rows) == expected > 0


def test_command_prints_and_refuses_without_a_traceback(tmp_path, capsys):
    write_archive(tmp_path / "g.npz", tile_arrays())
    assert main(["inspect", str(tmp_path / "g.npz"), "--plot", str(tmp_path / "g.png")]) == 0
    assert "candidates          6" in capsys.readouterr().out
    assert (tmp_path / "g.png").exists()
    (tmp_path / "bad.npz").write_text("no")
    assert main(["inspect", str(tmp_path / "bad.npz")]) == 2
    shown = capsys.readouterr()
    assert "bad.npz" in shown.err
    assert "Traceback" not in shown.err


def test_real_archives(real_data):
    shown = str(inspect_archive(real_data / "tpugraphs/layout/alexnet_train_batch_32.npz"))
    assert "convolution 14, dot 9, reshape 3" in shown
    assert "8,000, of them 787 repeat an earlier one" in shown

"""The summary of an archive, on hand-made and real files."""

import numpy as np
import pytest

from tests.small_archives import layout_arrays, tile_arrays
from tpugraphs_polynormer.archives.inspect import inspect_archive, plot_inspection
from tpugraphs_polynormer.archives.writer import write_archive
from tpugraphs_polynormer.cli.main import main


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


def shown_rows(path) -> dict[str, str]:
    """The values that `inspect` prints, by label."""
    return {line[:20].rstrip(): line[20:] for line in str(inspect_archive(path)).splitlines()}


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_repeated_candidates_tell_the_noise(tmp_path, kind):
    arrays = layout_arrays(num_candidates=44) if kind == "layout" else tile_arrays(num_candidates=44)
    key = "node_config_feat" if kind == "layout" else "config_feat"
    rows = np.arange(44)
    rows[22:42] = rows[:20]  # twenty candidates twice, four once
    factors = np.ones(44)
    factors[22:42] = np.where(np.arange(20) % 2, 1.01, 1 / 1.03)  # the second runtime is 1 % more or 3 % less
    runtimes = (np.arange(1, 45) * 10**7)[rows] * factors
    arrays |= {key: arrays[key][rows], "config_runtime": np.round(runtimes).astype(np.int64)}
    write_archive(tmp_path / "g.npz", arrays)
    rows = shown_rows(tmp_path / "g.npz")
    assert rows["candidates"] == "44, of them 20 repeat an earlier one"
    assert rows["repeats"] == "20 candidates were measured more than once"
    assert rows["their difference"] == "2 % (median), 3 % (95 % are within: the noise)"
    # The runtimes of the 24 candidates are 1..22, 43 and 44 times 10 ms: of 276 pairs only (43, 44) is within 3 %.
    assert rows["within the noise"] == "0.4 % of the pairs of different candidates"
    assert rows["their agreement"].startswith("Kendall tau 1.00 ")
    assert rows["a perfect model"] == "Kendall tau about 1.00 against single measurements (estimate)"


def test_what_the_noise_cannot_be_told_from_is_said(tmp_path):
    arrays = layout_arrays(num_candidates=30)
    write_archive(tmp_path / "none.npz", arrays)
    write_archive(tmp_path / "few.npz", arrays | {"node_config_feat": arrays["node_config_feat"][[*range(29), 3]]})
    write_archive(tmp_path / "same.npz", arrays | {"node_config_feat": arrays["node_config_feat"][[3] * 30]})
    hidden = arrays | {"config_runtime": np.zeros(30, np.int64)}
    write_archive(tmp_path / "hidden.npz", hidden | {"node_config_feat": arrays["node_config_feat"][[*range(15)] * 2]})
    assert shown_rows(tmp_path / "none.npz")["noise"] == "no candidate is repeated: the noise cannot be estimated"
    assert "too few" in shown_rows(tmp_path / "few.npz")["noise"]
    assert "all candidates are equal" in shown_rows(tmp_path / "same.npz")["noise"]
    assert not {"noise", "repeats", "a perfect model"} & set(shown_rows(tmp_path / "hidden.npz"))


def test_command_prints_and_refuses_without_a_traceback(tmp_path, capsys):
    write_archive(tmp_path / "g.npz", tile_arrays())
    assert main(["inspect", str(tmp_path / "g.npz"), "--plot", str(tmp_path / "new" / "g.png")]) == 0
    assert "candidates          6" in capsys.readouterr().out
    assert (tmp_path / "new" / "g.png").exists()
    (tmp_path / "bad.npz").write_text("no")
    assert main(["inspect", str(tmp_path / "bad.npz")]) == 2
    shown = capsys.readouterr()
    assert "bad.npz" in shown.err
    assert "Traceback" not in shown.err


def test_real_archives(real_data):
    shown = str(inspect_archive(real_data / "tpugraphs/layout/alexnet_train_batch_32.npz"))
    assert "convolution 14, dot 9, reshape 3" in shown
    assert "8,000, of them 787 repeat an earlier one" in shown
    assert "0.025 % (median), 0.098 % (95 % are within: the noise)" in shown
    assert "a perfect model     Kendall tau about 0.80" in shown

"""Where the runtimes of archives come from: told by the file beside their tree, through preprocessing to the run."""

import pytest

from tests.small_archives import layout_arrays, write_tree
from tests.small_datasets import LAYOUT, preprocess_here
from tpugraphs_polynormer.archives.estimated import DOWNLOADS_NAME, SIMULATION_NAME, UNKNOWN, name_origin
from tpugraphs_polynormer.datasets.joined import JoinedDataset
from tpugraphs_polynormer.ranking.task import DatasetFacts


@pytest.mark.parametrize(
    ("name", "expected"), [(SIMULATION_NAME, "simulated"), (DOWNLOADS_NAME, "measured on TPUs"), ("notes.txt", UNKNOWN)]
)
def test_the_file_beside_the_tree_tells(name, expected, tmp_path):
    archive = tmp_path / "npz" / "layout" / "xla" / "random" / "train" / "a.npz"
    archive.parent.mkdir(parents=True)
    (tmp_path / name).write_text("{}")
    assert name_origin(archive).startswith(expected)
    assert name_origin("gs://bucket/npz/layout/xla/random/train/a.npz") == UNKNOWN


def test_datasets_and_runs_know_it(tmp_path):
    write_tree(tmp_path / "in", LAYOUT, {"train": {"a": layout_arrays(seed=1)}})
    (unknown,) = preprocess_here(tmp_path / "in", tmp_path / "unknown", LAYOUT)
    assert unknown.manifest.origin == UNKNOWN
    (tmp_path / "in" / SIMULATION_NAME).write_text("{}")
    (known,) = preprocess_here(tmp_path / "in", tmp_path / "known", LAYOUT)
    assert known.manifest.origin == DatasetFacts.of(known.manifest).origin == "simulated, not measured"
    joined = JoinedDataset([known, unknown])
    assert joined.manifest.origin == "simulated, not measured; unknown"

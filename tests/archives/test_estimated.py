"""Where the runtimes of archives come from: told by the file beside their tree, through preprocessing to the run."""

import pytest

from tests.ranking_data import ranking_datasets
from tests.simulated_data import simulated
from tests.small_datasets import LAYOUT
from tpugraphs_polynormer.archives.estimated import DOWNLOADS_NAME, SIMULATION_NAME, UNKNOWN, name_origin
from tpugraphs_polynormer.datasets.reader import open_dataset
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


def test_datasets_and_runs_know_it():
    dataset = simulated(LAYOUT)
    assert dataset.manifest.origin == DatasetFacts.of(dataset.manifest).origin == "simulated, not measured"
    assert open_dataset(ranking_datasets() / "layout" / "xla" / "random").manifest.origin == UNKNOWN

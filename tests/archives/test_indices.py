"""The official index files, which name the candidates of each validation graph to evaluate."""

import json

import numpy as np
import pytest

from tests.small_datasets import LAYOUT, TILE
from tpugraphs_polynormer.archives.indices import find_indices, read_indices
from tpugraphs_polynormer.errors import UserError


def write_indices(folder, content) -> None:
    (folder / "xla_random.json").write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    "name, num_graphs", [("xla:default", 7), ("xla:random", 7), ("nlp:default", 20), ("nlp:random", 20)]
)
def test_the_official_files_are_read(real_data, name, num_graphs):
    indices = read_indices(real_data / "tpugraphs" / "eval_indices", f"layout:{name}")
    assert len(indices) == num_graphs
    for numbers in indices.values():
        assert numbers.dtype == np.int64 and 0 < len(numbers) <= 1000


def test_tiles_and_no_folder_have_no_indices(tmp_path):
    assert find_indices(None, LAYOUT) is None
    assert find_indices(tmp_path, TILE) is None
    write_indices(tmp_path, {"valid0": [1]})
    assert find_indices(tmp_path, LAYOUT)["valid0"].tolist() == [1]


@pytest.mark.parametrize(
    "content, reason",
    [
        ("{", "not an index file"),
        ([1, 2], "found a list"),
        ({"valid0": [1.5]}, "valid0: found"),
        ({"valid0": []}, "valid0: found"),
        ({"valid0": "12"}, "valid0: found"),
        ({"valid0": [True]}, "valid0: found"),
        ({"valid0": [[1]]}, "valid0: found"),
        ({"valid0": [3, -1]}, "valid0: found -1"),
    ],
)
def test_bad_index_files_are_refused(tmp_path, content, reason):
    write_indices(tmp_path, content)
    with pytest.raises(UserError, match=rf"xla_random\.json: {reason}"):
        read_indices(tmp_path, LAYOUT)

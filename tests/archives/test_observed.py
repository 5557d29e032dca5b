"""An archive's program: its distinct candidates as choice numbers, their mean times, the nodes that are tied."""

import numpy as np

from tests.tuned import small_program
from tpugraphs_polynormer.archives.npz import read_archive
from tpugraphs_polynormer.archives.observed import observe_program
from tpugraphs_polynormer.archives.tuning import layout_archive
from tpugraphs_polynormer.archives.writer import write_archive
from tpugraphs_polynormer.hlo.sampling import draw_indices, gather_layouts


def test_an_archive_gives_its_candidates_back(tmp_path):
    program = small_program()
    drawn = draw_indices(program.choices, 60, seed=0, mode="random", tied=True)
    layouts = gather_layouts(program.choices, drawn[[*range(60), 5, 5]])
    runtimes = np.array([*range(1000, 1060), 2000, 3000])
    arrays = layout_archive(
        program.arrays, node_config_ids=program.choices.node_ids, node_config_feat=layouts, config_runtime=runtimes
    )
    write_archive(tmp_path / "program.npz", arrays)
    found = observe_program(read_archive(tmp_path / "program.npz"))
    assert np.array_equal(gather_layouts(found.choices, found.indices), layouts[:60])
    assert found.seconds[5] * 1e9 == (1005 + 2000 + 3000) / 3 and found.seconds[6] * 1e9 == 1006
    tied = program.choices.groups[:, None] == program.choices.groups
    assert np.array_equal(found.choices.groups[:, None] == found.choices.groups, tied)
    assert np.array_equal(found.arrays.edge_index, program.arrays.edge_index)

"""A program as a layout archive has it: its graph, and as choices the layouts that occur in its candidates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.archives.noise import group_equal
from tpugraphs_polynormer.archives.npz import LayoutArchive
from tpugraphs_polynormer.hlo.choices import Choices
from tpugraphs_polynormer.hlo.features import ModuleArrays


@dataclass(frozen=True)
class ObservedProgram:
    """The distinct candidates of an archive as choice numbers, and their mean runtimes.

    Which candidate the compiler's default is, an archive does not say: choice 0 is any. `groups` of the choices have
    the nodes that agree in every candidate; the links are not known.
    """

    arrays: ModuleArrays
    choices: Choices
    indices: np.ndarray  # int64 [c, nc]
    seconds: np.ndarray  # float64 [c]


def observe_program(archive: LayoutArchive) -> ObservedProgram:
    """The program of an archive whose runtimes are known; repeated candidates are one, with the mean of their times."""
    rows = group_equal(archive.node_config_feat)
    first = np.unique(rows, return_index=True)[1]
    layouts = archive.node_config_feat[first].astype(np.int8)
    tables, columns = zip(*(_number_layouts(layouts[:, node]) for node in range(layouts.shape[1])), strict=True)
    indices, counts = np.stack(columns, 1), np.array([len(table) for table in tables], np.int64)
    _, groups = np.unique(indices, axis=1, return_inverse=True)
    choices = Choices(
        node_ids=archive.node_config_ids.astype(np.int64),
        table=np.concatenate(tables),
        starts=np.cumsum(counts) - counts,
        counts=counts,
        groups=groups.ravel(),
        links=np.zeros((0, 3), np.int64),
    )
    arrays = ModuleArrays(
        archive.node_feat, archive.node_opcode, archive.edge_index, archive.node_splits, {}, archive.node_operands
    )
    seconds = np.bincount(rows, archive.config_runtime) / np.bincount(rows) / 1e9
    return ObservedProgram(arrays, choices, indices, seconds)


def _number_layouts(layouts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([k, 18], [c]): the distinct layouts of one node, and which of them each candidate [c, 18] has."""
    table, numbers = np.unique(layouts, axis=0, return_inverse=True)
    return table, numbers.ravel()

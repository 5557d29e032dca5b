"""The counts of the catalog, compared with those of the real data set."""

import csv
from collections import Counter

import numpy as np
import pytest

from tpugraphs_polynormer.catalog import (
    BENCHMARKS,
    COLLECTIONS,
    LAYOUT_TEST_CANDIDATES,
    NUM_OPCODES,
    NUM_TEST_GRAPHS,
    SPLITS,
    find_benchmark,
    find_collection,
)
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.hlo.opcodes import OPCODE_NAMES


def test_five_collections_and_thirteen_benchmarks():
    assert list(COLLECTIONS) == [
        "tile:xla",
        "layout:xla:default",
        "layout:xla:random",
        "layout:nlp:default",
        "layout:nlp:random",
    ]
    assert [collection.num_test_graphs for collection in COLLECTIONS.values()] == [844, 8, 8, 17, 17]
    assert NUM_TEST_GRAPHS == 894  # rows of a submission
    assert find_collection("layout:nlp:random").folder == "layout/nlp/random"
    assert len(BENCHMARKS) == 13
    assert len(OPCODE_NAMES) == NUM_OPCODES


@pytest.mark.parametrize(("find", "name"), [(find_collection, "layout:xla"), (find_benchmark, "cora")])
def test_unknown_names_are_answered_with_the_known(find, name):
    with pytest.raises(UserError, match=f"{name}.*choose from"):
        find(name)


def test_layout_counts_are_the_real_ones(real_data):
    with (real_data / "tpugraphs/stats/layout_graph_stats.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    counted = Counter((row["collection"], row["split"]) for row in rows)
    for collection in {row["collection"] for row in rows}:
        assert COLLECTIONS[collection].num_graphs == tuple(counted[collection, split] for split in SPLITS)


def test_official_layout_test_graphs_have_that_many_candidates(real_data):
    paths = sorted((real_data / "tpugraphs/official/npz/layout").glob("*/*/test/*.npz"))
    assert paths
    for path in paths:
        with np.load(path) as archive:
            assert len(archive["config_runtime"]) in LAYOUT_TEST_CANDIDATES

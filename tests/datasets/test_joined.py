"""Several collections as one: the same graphs and candidates, and the statistics of all of them."""

import numpy as np
import pytest

from tests.several_collections import OTHER, SEVERAL, simulated_collections
from tests.small_datasets import LAYOUT
from tpugraphs_polynormer.catalog import find_collection
from tpugraphs_polynormer.config.schema import RankingDataConfig
from tpugraphs_polynormer.datasets.joined import JoinedDataset, measure_statistics
from tpugraphs_polynormer.datasets.manifest import DatasetError
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.datasets.sampler import CandidateSampler


@pytest.fixture(scope="module")
def parts() -> list[RankingDataset]:
    return [RankingDataset(simulated_collections() / "data" / find_collection(name).folder) for name in SEVERAL]


def test_graphs_and_candidates_are_those_of_the_parts_in_order(parts) -> None:
    joined = JoinedDataset(parts)
    assert (joined.manifest.collection, joined.manifest.kind) == (OTHER, "layout")
    for name, count in {"train": 5, "valid": 3, "test": 2}.items():
        whole, splits = joined.split(name), [part.split(name) for part in parts]
        expected = [(split, number) for split in splits for number in range(len(split))]
        assert len(whole) == len(expected) == joined.manifest.splits[name].num_graphs == count
        for number, (split, own) in enumerate(expected):
            assert whole.read_record(number) == split.read_record(own)
            assert whole.graphs[number].name == split.graphs[own].name
            candidates = np.array([2, 0, 1])
            np.testing.assert_array_equal(whole.read_codes(number, candidates), split.read_codes(own, candidates))
            for column in ("runtimes", "rows"):
                np.testing.assert_array_equal(whole.read_column(number, column), split.read_column(own, column))
    joined.verify()
    assert joined.parts == tuple(parts) and parts[0].parts == (parts[0],)


def test_statistics_are_those_of_all_train_nodes(parts) -> None:
    splits = [part.split("train") for part in parts]
    features = np.concatenate([split[i].features for split in splits for i in range(len(split))]).astype(np.float64)
    found = JoinedDataset(parts).manifest.statistics
    logged = np.sign(features) * np.log1p(np.abs(features))
    heavy = np.abs(features).max(0) > 8
    expected = np.where(heavy, logged, features)
    assert found.heavy == tuple(np.flatnonzero(heavy).tolist()) and found.num_nodes == len(features)
    np.testing.assert_allclose(found.mean, expected.mean(0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.std, expected.std(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found.minimum, features.min(0))
    counts = np.sum([part.manifest.statistics.opcode_counts for part in parts], axis=0)
    assert found.opcode_counts == tuple(counts.tolist())


def test_those_of_one_collection_are_those_of_its_manifest(parts) -> None:
    found, expected = measure_statistics(parts[:1]), parts[0].manifest.statistics
    assert (found.heavy, found.constant, found.opcode_counts) == (
        expected.heavy,
        expected.constant,
        expected.opcode_counts,
    )
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.std, expected.std, rtol=1e-12, atol=1e-12)


def test_an_epoch_has_every_graph_of_every_collection_once(parts) -> None:
    joined = JoinedDataset(parts)
    sampler = CandidateSampler(joined.split("train"), RankingDataConfig(collections=SEVERAL), seed=0)
    for epoch in range(3):
        assert sorted(sampler.graph_at(5 * epoch + place) for place in range(5)) == list(range(5))


def test_a_part_without_train_graphs_is_an_error_that_names_it(parts, monkeypatch) -> None:
    monkeypatch.delitem(parts[1].manifest.splits, "train")
    with pytest.raises(DatasetError, match=rf"{LAYOUT.replace(':', '/')}: no split 'train'"):
        JoinedDataset(parts)

"""The draws of training: every graph once per epoch, distinct candidates, the configured share of fast ones."""

import numpy as np
import pytest

from tests.small_archives import layout_arrays, write_tree
from tests.small_datasets import LAYOUT, preprocess_here, write_small_tree
from tpugraphs_polynormer.config.schema import RankingDataConfig
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.datasets.sampler import CandidateSampler, choose_few

CONFIG = RankingDataConfig(graphs_per_batch=3, candidates_per_graph=6)


def test_each_epoch_visits_every_rankable_graph_once(tmp_path):
    (collection,) = preprocess_here(write_small_tree(tmp_path / "in"), tmp_path / "out", LAYOUT)
    split = collection.split("train")
    sampler = CandidateSampler(split, CONFIG, seed=1)
    rankable = sorted(number for number, graph in enumerate(split.graphs) if graph.name != "same")
    assert len(rankable) == 7
    epochs = [[sampler.graph_at(7 * epoch + place) for place in range(7)] for epoch in range(6)]
    assert all(sorted(epoch) == rankable for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> RankingDataset:
    root = tmp_path_factory.mktemp("wide")
    write_tree(root / "in", LAYOUT, {"train": {"wide": layout_arrays(10, 3, 400, seed=2)}})
    return preprocess_here(root / "in", root / "out", LAYOUT)[0]


def test_fast_sampling_draws_its_share_among_the_fastest(wide):
    split = wide.split("train")
    runtimes = split.read_column(0, "runtimes")
    shares = {}
    for sampling in ("uniform", "fast"):
        config = RankingDataConfig(candidates_per_graph=40, sampling=sampling, fast_share=0.5, fast_quantile=0.1)
        sampler = CandidateSampler(split, config, seed=3)
        draws = [sampler.candidates_at(position, 0) for position in range(50)]
        assert all(len(set(draw.tolist())) == 40 for draw in draws)
        limit = np.sort(runtimes)[39]
        shares[sampling] = np.mean([(runtimes[draw] <= limit).mean() for draw in draws])
    assert 0.07 < shares["uniform"] < 0.13
    assert 0.5 <= shares["fast"] < 0.6


def test_uniform_sampling_leaves_no_candidate_out(wide):
    sampler = CandidateSampler(wide.split("train"), RankingDataConfig(candidates_per_graph=40), seed=3)
    counts = np.bincount(np.concatenate([sampler.candidates_at(i, 0) for i in range(300)]), minlength=400)
    assert counts.min() > 0
    assert abs(counts[:200].mean() / counts.mean() - 1) < 0.1


@pytest.mark.parametrize("sampling", ["uniform", "fast"])
def test_few_candidates_are_chosen_once_by_the_seed(wide, sampling):
    split = wide.split("train")

    def drawn(seed: int, **settings) -> set[int]:
        config = RankingDataConfig(candidates_per_graph=8, sampling=sampling, **settings)
        sampler = CandidateSampler(split, config, seed=seed)
        draws = [sampler.candidates_at(position, 0) for position in range(200)]
        assert all(len(set(draw.tolist())) == 8 for draw in draws)
        return set(np.concatenate(draws).tolist())

    few = drawn(3, max_candidates=30)
    assert few == set(choose_few(400, 30, seed=3, number=0).tolist()) and len(few) == 30
    assert drawn(4, max_candidates=30) != few
    assert len(drawn(3, max_candidates=5000)) > 200, "more than there are is all of them"


def test_fewer_candidates_than_a_step_takes_are_padded(wide):
    config = RankingDataConfig(candidates_per_graph=8, max_candidates=5)
    sampler = CandidateSampler(wide.split("train"), config, seed=3)
    _, codes, costs, mask = sampler.draw(0)
    assert codes.shape[1] == 8 and mask.tolist() == [True] * 5 + [False] * 3
    runtimes = wide.split("train").read_column(0, "runtimes")
    assert sorted(costs[:5]) == sorted(runtimes[choose_few(len(runtimes), 5, seed=3, number=0)])

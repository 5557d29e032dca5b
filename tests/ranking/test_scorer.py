"""Scores of graphs in blocks: they do not depend on the size of blocks."""

import numpy as np
import pytest

from tests.ranking_data import COLLECTIONS, LAYOUT, built_model, collection, small_config
from tpugraphs_polynormer.datasets.input_pipeline import iterate_blocks
from tpugraphs_polynormer.ranking import scorer as scoring
from tpugraphs_polynormer.ranking.scorer import Scorer, block_size

CROSS = "model.cross_candidates=pooled"


def scorer_of(name: str, fusion: str, *overrides: str, group: int = 4, seed: int = 0) -> Scorer:
    config = small_config(name, f"model.fusion={fusion}", *overrides)
    return Scorer(built_model(config), collection(name), candidates_per_group=group, seed=seed)


@pytest.mark.parametrize("fusion", ["early", "late"])
@pytest.mark.parametrize("name", COLLECTIONS)
def test_blocks_and_subsets_give_the_scores_of_the_whole(name, fusion, monkeypatch):
    scorer, split = scorer_of(name, fusion), collection(name).split("valid")
    total = split.graphs[0].num_candidates
    whole = next(iter(iterate_blocks(collection(name), split, 0, total)))
    expected = scorer._model(whole.graph).numpy()[0]
    assert np.ptp(expected) > 1e-4
    for block in (1, 3, 16, 64):
        monkeypatch.setattr(scoring, "block_size", lambda *_, block=block: block)
        np.testing.assert_allclose(scorer.score_graph(split, 0), expected, rtol=1e-4, atol=1e-5)
    chosen = np.array([total - 1, 0, 5])
    np.testing.assert_allclose(scorer.score_graph(split, 0, chosen), expected[chosen], rtol=1e-4, atol=1e-5)


def test_groupings_are_drawn_by_seed():
    split = collection(LAYOUT).split("valid")
    first, again, other = (
        scorer_of(LAYOUT, "late", CROSS, "model.encoder=mlp", seed=seed).score_graph(split, 0) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-6


def test_one_group_of_all_is_the_model_itself():
    split = collection(LAYOUT).split("valid")
    total = split.graphs[0].num_candidates
    scorer = scorer_of(LAYOUT, "late", CROSS, "model.encoder=mlp", group=total)
    whole = next(iter(iterate_blocks(collection(LAYOUT), split, 0, total)))
    expected = scorer._model(whole.graph).numpy()[0]
    np.testing.assert_allclose(scorer.score_graph(split, 0), expected, rtol=1e-4, atol=1e-5)


def test_blocks_are_powers_of_two_that_bound_the_memory():
    early, late = small_config(LAYOUT, "model.fusion=early").model, small_config(LAYOUT).model
    assert block_size(late, 10, 3, 20) == 32
    assert block_size(late, 10, 3, 5000) == 1024
    assert block_size(early, 100_000, 3, 5000) == 16  # 16e6 floats / (1e5 nodes * 8) = 20
    assert block_size(late, 100_000, 10_000, 5000) == 128  # 16e6 / 8e4 = 200
    assert block_size(late, 10, 0, 1) == 1

"""Scores of any candidates of a program: those of a dataset of it, alike in any company, one scale in an ensemble."""

import numpy as np
import pytest
import tensorflow as tf

from tests.ranking.test_own_program import matrix_product
from tests.ranking_data import ranking_datasets, scratch_folder, small_config
from tests.small_archives import write_tree
from tests.small_datasets import LAYOUT, preprocess_here
from tpugraphs_polynormer.archives.tuning import layout_archive
from tpugraphs_polynormer.hlo.features import featurize_module
from tpugraphs_polynormer.hlo.layout_program import presume_layouts
from tpugraphs_polynormer.hlo.sampling import draw_indices, gather_layouts
from tpugraphs_polynormer.ranking import scorer as scorer_module
from tpugraphs_polynormer.ranking.program_scorer import ProgramScorer, draw_reference
from tpugraphs_polynormer.ranking.runs import load_ranker
from tpugraphs_polynormer.ranking.scorer import Scorer
from tpugraphs_polynormer.ranking.task import train_ranking


@pytest.fixture(scope="module")
def run_dirs():
    folder = scratch_folder()
    for name, settings in (("plain", []), ("residual", ["model.physics=residual"])):
        config = small_config(LAYOUT, *settings, "training.epochs=1", "training.steps_per_epoch=2")
        train_ranking(config, ranking_datasets(), folder / name, strategy=tf.distribute.OneDeviceStrategy("CPU:0"))
    return [folder / "plain", folder / "residual"]


@pytest.fixture
def scorer(run_dirs):
    with ProgramScorer(run_dirs, presume_layouts(matrix_product())) as made:
        yield made


def test_the_scores_are_those_of_a_dataset_of_the_program(run_dirs, scorer, tmp_path):
    """The program as an archive, preprocessed by the Beam job and scored by the restored run, up to scale."""
    indices = draw_indices(scorer.choices, 20, seed=1, mode="random")
    arrays = layout_archive(
        featurize_module(matrix_product()),
        node_config_ids=scorer.choices.node_ids,
        node_config_feat=gather_layouts(scorer.choices, indices),
        config_runtime=np.arange(1, 21),
    )
    write_tree(tmp_path / "in", LAYOUT, {"valid": {"product": arrays}})
    (dataset,) = preprocess_here(tmp_path / "in", tmp_path / "out", LAYOUT)
    model = load_ranker(run_dirs[0], ranking_datasets()).model
    expected = Scorer(model, dataset, candidates_per_group=4, seed=0).score_graph(dataset.split("valid"), 0)
    found = scorer.score(indices)[0]
    slope, shift = np.polyfit(expected, found, 1)
    assert slope > 0
    np.testing.assert_allclose(found, slope * expected + shift, atol=1e-4)


def test_a_score_does_not_depend_on_what_is_scored_beside_it(scorer, monkeypatch):
    indices = draw_indices(scorer.choices, 40, seed=2, mode="random")
    whole = scorer.score(indices)
    np.testing.assert_allclose(scorer.score(indices[7:9]), whole[:, 7:9], atol=1e-5)
    monkeypatch.setattr(scorer_module, "block_size", lambda *_: 16)
    thrice = scorer.score(np.tile(indices, (3, 1))).reshape(2, 3, 40)
    np.testing.assert_allclose(thrice, np.repeat(whole[:, None], 3, axis=1), atol=1e-5)
    assert len(np.unique(whole[1].round(4))) > 4


def test_members_have_one_scale(scorer):
    """Over the reference every member has mean 0 and deviation 1, so that their mean is fair."""
    scores = scorer.score(draw_reference(scorer.choices, 0))
    np.testing.assert_allclose(scores.mean(axis=1), 0, atol=1e-4)
    np.testing.assert_allclose(scores.std(axis=1), 1, atol=1e-4)
    assert not np.allclose(scores[0], scores[1], atol=0.1)


def test_the_reference_has_every_choice_of_every_node():
    choices = presume_layouts(matrix_product()).choices
    reference = draw_reference(choices, 0)
    for node, count in enumerate(choices.counts.tolist()):
        assert set(reference[:, node].tolist()) == set(range(count))
    assert len(np.unique(reference, axis=0)) == len(reference)


def test_the_cost_model_prices_the_same_candidates(scorer):
    """Without layouts that differ, costs are equal; over the reference their mean is 0."""
    reference = draw_reference(scorer.choices, 0)
    costs = scorer.estimate_cost(reference)
    assert abs(costs.mean()) < 0.2
    assert np.array_equal(scorer.estimate_cost(reference[[3, 3]]), costs[[3, 3]])

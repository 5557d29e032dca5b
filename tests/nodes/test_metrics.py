"""Accuracy and ROC-AUC, compared with brute force."""

from __future__ import annotations

import numpy as np
import pytest

from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.nodes.metrics import accuracy, evaluate_nodes, roc_auc


def brute_force_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels == 1] for b in scores[labels == 0]]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("levels", [2, 5, 10_000])
@pytest.mark.parametrize("seed", range(5))
def test_roc_auc_is_the_share_of_ordered_pairs_with_ties_as_halves(levels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 40)
    labels[:2] = 0, 1
    scores = rng.integers(0, levels, 40).astype(np.float32) / levels
    assert roc_auc(scores, labels) == brute_force_auc(scores, labels)


def test_roc_auc_by_hand() -> None:
    # Positives 3 and 1, negatives 2 and 1: 3 is larger twice, 1 is smaller once and equal once.
    assert roc_auc(np.array([3.0, 1.0, 2.0, 1.0]), np.array([1, 1, 0, 0])) == 2.5 / 4


def test_roc_auc_of_one_class_is_refused() -> None:
    with pytest.raises(UserError, match="3 positive and 0 negative"):
        roc_auc(np.arange(3.0), np.ones(3, int))


def test_scores_by_metric() -> None:
    logits, labels = np.array([[0.0, 3.0], [2.0, 1.0], [5.0, 5.5], [4.0, 3.9]]), np.array([1, 0, 0, 1])
    assert accuracy(logits, labels) == 0.5
    assert evaluate_nodes("accuracy", logits, labels) == 0.5
    # The log odds are 3, -1, 0.5, -0.1: positives 3 and -0.1, negatives -1 and 0.5.
    assert evaluate_nodes("roc_auc", logits, labels) == 3 / 4
    with pytest.raises(UserError, match="roc_auc with 2"):
        evaluate_nodes("roc_auc", np.zeros([4, 3]), labels)

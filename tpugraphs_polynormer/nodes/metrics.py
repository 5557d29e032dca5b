"""Metrics of a node classifier: accuracy, and the exact area under the ROC curve."""

from __future__ import annotations

import numpy as np

from tpugraphs_polynormer.errors import UserError


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Share of nodes whose largest logit is their label; logits [num_nodes, num_classes], labels [num_nodes]."""
    return float(np.mean(np.argmax(logits, -1) == labels))


def roc_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The probability that a positive node has a higher score than a negative one; a tie counts one half.

    Scores [num_nodes], labels [num_nodes] of 0 and 1. Exact, by binary search of positives in the sorted negatives.
    """
    positive, negative = scores[labels == 1], np.sort(scores[labels == 0])
    if not len(positive) or not len(negative):
        raise UserError(f"ROC-AUC: found {len(positive)} positive and {len(negative)} negative nodes, expected both")
    below = np.searchsorted(negative, positive, side="left").astype(np.int64)
    not_above = np.searchsorted(negative, positive, side="right").astype(np.int64)
    return float((below + not_above).sum() / (2 * len(positive) * len(negative)))


def evaluate_nodes(metric: str, logits: np.ndarray, labels: np.ndarray) -> float:
    """The metric of a benchmark, in [0, 1]; `roc_auc` uses the log odds of class 1 as scores."""
    if metric == "accuracy":
        return accuracy(logits, labels)
    if metric != "roc_auc" or logits.shape[-1] != 2:
        raise UserError(f"metric {metric!r} with {logits.shape[-1]} classes: expected accuracy, or roc_auc with 2")
    return roc_auc(logits[:, 1] - logits[:, 0], labels)

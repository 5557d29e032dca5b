"""Whether layouts agree: a candidate's with what the program records, and those of config nodes whose tensors meet.

Where two disagree, a TPU copies the tensor, or computes on it in a worse order. That two lists of numbers are the same
permutation is hard to learn and easy to compute, so it is given.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tpugraphs_polynormer.catalog import LAYOUT_MIN
from tpugraphs_polynormer.models.ranking.batch import Batch
from tpugraphs_polynormer.models.ranking.features import minor_to_major
from tpugraphs_polynormer.models.ranking.layout_sizes import MAX_RANK, TENSORS_OF_LAYOUT

_BASE = MAX_RANK + 1  # of the number that a layout becomes: its entries + 1 are the digits, the minor one first
_NUM_LAYOUTS = len(TENSORS_OF_LAYOUT)  # of a config value: result, input, kernel
# Per config node: 2 of its own; whole and minor of each layout of the other, where it is the first and the second.
NUM_AGREEMENTS = 2 + 2 * 2 * _NUM_LAYOUTS


def number_layouts(layouts: tf.Tensor) -> tf.Tensor:
    """[..., 6] -> [...] int32: equal for equal layouts, 0 for one without entries."""
    digits = tf.constant(_BASE ** np.arange(MAX_RANK), tf.int32)
    return tf.reduce_sum((tf.cast(layouts, tf.int32) - LAYOUT_MIN) * digits, -1)


def complete_layouts(layouts: tf.Tensor) -> tf.Tensor:
    """[..., 6] partial layouts -> [..., 7, 6] int32: completed for a tensor of each rank, 0 to 6.

    Dimensions that are not named follow, the last first, as in the compiler's own order; -1 stands behind the rank. A
    layout that names none stays empty.
    """
    layouts = tf.cast(layouts, tf.int32)
    dims, ranks = tf.range(MAX_RANK), tf.range(MAX_RANK + 1)[:, tf.newaxis]
    is_named = tf.reduce_any(layouts[..., tf.newaxis] == dims, -2)[..., tf.newaxis, :]  # [..., 1, dim]
    is_open = tf.logical_and(~is_named, dims < ranks)  # [..., rank, dim]
    count = tf.reduce_sum(tf.cast(layouts > LAYOUT_MIN, tf.int32), -1)[..., tf.newaxis, tf.newaxis]
    places = count + tf.cumsum(tf.cast(is_open, tf.int32), -1, exclusive=True, reverse=True)
    goes_here = tf.logical_and(is_open[..., tf.newaxis], places[..., tf.newaxis] == dims)  # [..., rank, dim, place]
    rest = tf.reduce_max(tf.where(goes_here, dims[:, tf.newaxis], LAYOUT_MIN), -2)
    named = layouts[..., tf.newaxis, :]
    return tf.where(count > 0, tf.where(named > LAYOUT_MIN, named, rest), LAYOUT_MIN)


def count_disagreements(batch: Batch) -> tf.Tensor:
    """[s, k, NUM_AGREEMENTS] float32: of each config node in each candidate, what disagrees with its result's layout.

    First, whether the whole layout and its minor dimension differ from what the program records. Then, over the config
    nodes that it meets, as the first and as the second of the pair: log(1 + the pairs in which the first's result
    differs from the second's result, input or kernel), again whole and minor. A layout that is not given differs from
    nothing, and so do those of tensors that cannot be one because their ranks differ.
    """
    layouts = complete_layouts(tf.reshape(batch.config_values, [-1, _NUM_LAYOUTS, MAX_RANK]))
    tables = tf.reshape(tf.transpose(number_layouts(layouts), [1, 0, 2]), [_NUM_LAYOUTS, -1])  # [3, v * 7]
    ranks = tf.reduce_sum(tf.cast(batch.nconfig_dims > 0, tf.int32), -1)  # [s, 3]
    places = batch.codes * _BASE

    results = tf.gather(tables[0], places + ranks[:, :1])  # [s, k]
    recorded = number_layouts(tf.gather(minor_to_major(batch.features), batch.nconfig_ops))
    own = _differences(results, recorded[:, tf.newaxis])

    first, second, mask = batch.meetings
    given, first_ranks = tf.gather(results, first), tf.gather(ranks[:, 0], first)  # [p, k], [p]
    second_places, second_ranks = tf.gather(places, second) + first_ranks[:, tf.newaxis], tf.gather(ranks, second)
    is_of_rank = second_ranks == first_ranks[:, tf.newaxis]
    pairs = []
    for layout, tensors in enumerate(TENSORS_OF_LAYOUT):
        fits = tf.reduce_any(tf.stack([is_of_rank[:, each] for each in tensors], -1), -1)
        found = tf.gather(tables[layout], second_places)
        found = tf.where(tf.logical_and(mask, fits)[:, tf.newaxis], found, 0)
        pairs += _differences(given, found)
    per_pair, count = tf.stack(pairs, -1), batch.nconfig_mask.shape[0] or tf.shape(batch.nconfig_mask)[0]
    sums = (tf.math.unsorted_segment_sum(per_pair, tf.where(mask, end, -1), count) for end in (first, second))
    return tf.concat([tf.stack(own, -1), *(tf.math.log1p(each) for each in sums)], -1)


def _differences(one: tf.Tensor, other: tf.Tensor) -> list[tf.Tensor]:
    """float32, 1 where the whole layouts of two numbers differ, and where their minor dimensions do; 0 if one is 0."""
    both = tf.logical_and(one > 0, other > 0)
    return [
        tf.cast(tf.logical_and(both, differs), tf.float32) for differs in (one != other, one % _BASE != other % _BASE)
    ]

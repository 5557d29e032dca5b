"""Agreement of layouts, compared with loops over a small graph of config nodes."""

import numpy as np
import tensorflow as tf

from tests.ranking_data import LAYOUT, first_batch, small_config
from tpugraphs_polynormer.hlo.layout_flow import complete_layout
from tpugraphs_polynormer.models.ranking.agreement import (
    NUM_AGREEMENTS,
    complete_layouts,
    count_disagreements,
    number_layouts,
)
from tpugraphs_polynormer.models.ranking.batch import Batch, unpack_batch
from tpugraphs_polynormer.models.ranking.features import minor_to_major


def named(row: np.ndarray) -> tuple[int, ...]:
    return tuple(int(each) for each in row if each >= 0)


def test_partial_layouts_are_completed_as_the_compiler_does():
    given = [(), (0,), (2, 0), (3, 1, 0, 2), (1, 0, 2, 3, 4, 5)]
    rows = np.full([len(given), 6], -1, np.float32)
    for row, layout in zip(rows, given, strict=True):
        row[: len(layout)] = layout
    found = complete_layouts(tf.constant(rows)).numpy()
    for layout, by_rank in zip(given, found, strict=True):
        for rank in range(max((*layout, 0)) + 1, 7):
            expected = complete_layout(layout, rank) if layout else ()
            assert named(by_rank[rank]) == expected


def test_numbers_tell_layouts_apart():
    rows = np.array([[-1] * 6, [0, 1, -1, -1, -1, -1], [1, 0, -1, -1, -1, -1], [0, -1, -1, -1, -1, -1]])
    found = number_layouts(tf.constant(rows)).numpy()
    assert found[0] == 0 and len(set(found)) == 4
    np.testing.assert_array_equal(found[1:] % 7, [1, 2, 1])


def without_gaps(values: np.ndarray) -> np.ndarray:
    """Config values whose layouts name dimensions from the minor one on, as real ones do."""
    layouts = values.reshape(-1, 6).copy()
    for row in layouts:
        row[:] = (*named(row), *[-1] * (6 - len(named(row))))
    return layouts.reshape(values.shape)


def count_slowly(batch: Batch) -> np.ndarray:
    """`count_disagreements` with loops."""
    values, codes, dims = batch.config_values.numpy(), batch.codes.numpy(), batch.nconfig_dims.numpy()
    recorded = minor_to_major(batch.features).numpy()[batch.nconfig_ops.numpy()]
    ranks = (dims > 0).sum(-1)

    def layout(node: int, k: int, tensor: int, rank: int) -> tuple[int, ...]:
        found = named(values[codes[node, k], 6 * tensor : 6 * tensor + 6])
        return complete_layout(found, rank) if found else ()

    def differ(one: tuple[int, ...], other: tuple[int, ...]) -> np.ndarray:
        return np.array([one != other, one[:1] != other[:1]]) if one and other else np.zeros(2)

    found = np.zeros([*codes.shape, NUM_AGREEMENTS])
    for k in range(codes.shape[1]):
        for node in range(len(codes)):
            found[node, k, :2] = differ(layout(node, k, 0, ranks[node, 0]), named(recorded[node]))
        for first, second, is_there in zip(*(each.numpy() for each in batch.meetings), strict=True):
            rank = ranks[first, 0]
            for tensor, can_be in enumerate((ranks[second, :1], ranks[second, 1:], ranks[second, 1:])):
                if is_there and rank in can_be:
                    differs = differ(layout(first, k, 0, rank), layout(second, k, tensor, rank))
                    found[first, k, 2 + 2 * tensor : 4 + 2 * tensor] += differs
                    found[second, k, 8 + 2 * tensor : 10 + 2 * tensor] += differs
    found[..., 2:] = np.log1p(found[..., 2:])
    return found


def test_disagreements_are_those_of_loops_over_pairs():
    for extras in ((), ("data.batch_nodes=0",)):
        batch = unpack_batch(first_batch(small_config(LAYOUT, *extras)))
        batch = batch._replace(config_values=tf.constant(without_gaps(batch.config_values.numpy())))
        found = count_disagreements(batch).numpy()
        real = batch.nconfig_mask.numpy()
        expected = count_slowly(batch)
        np.testing.assert_allclose(found[real], expected[real], rtol=1e-6)
        assert (expected[real] > 0).any(axis=(0, 1)).sum() >= 8, "the data has most kinds of disagreement"

"""The statistics of the train split equal numpy's on the concatenated nodes to a few bits, for every partition."""

import numpy as np
import pytest

from tpugraphs_polynormer.datasets.statistics import (
    HEAVY_TAIL,
    SIZE_NAMES,
    measure_moments,
    merge,
    signed_log,
    summarize_moments,
    summarize_sizes,
)


def random_parts(seed: int = 0, offset: float = 0.0) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(seed)
    parts = []
    for nodes in (1, 2, 30, 400, 5):
        feat = random.normal(size=(nodes, 140)) + offset
        feat[:, 3] = 1e7 * random.random(nodes)  # heavy-tailed
        feat[:, 4] = -100 * random.random(nodes)  # heavy-tailed, negative
        feat[:, 5] = 7.0  # constant, small
        feat[:, 6] = 1e6  # constant, large
        parts.append((feat.astype(np.float32), random.integers(0, 121, nodes)))
    return parts


def statistics_of(parts):
    return summarize_moments(merge(measure_moments(*part) for part in parts))


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_equal_to_numpy_on_the_whole(offset):
    parts = random_parts(offset=offset)
    found = statistics_of(parts)
    feat = np.concatenate([part[0] for part in parts]).astype(np.float64)
    opcodes = np.concatenate([part[1] for part in parts])
    heavy = np.abs(feat).max(axis=0) > HEAVY_TAIL
    scaled = np.where(heavy, signed_log(feat), feat)
    constant = feat.min(axis=0) == feat.max(axis=0)
    assert found.num_nodes == len(feat) == 438
    assert found.heavy == tuple(np.flatnonzero(heavy))
    assert found.constant == (5, 6)
    assert {3, 4, 6} <= set(found.heavy)
    np.testing.assert_allclose(found.mean, scaled.mean(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.std, np.where(constant, 0.0, scaled.std(axis=0)), rtol=1e-9, atol=1e-15)
    assert found.minimum == tuple(feat.min(axis=0))
    assert found.maximum == tuple(feat.max(axis=0))
    assert found.opcode_counts == tuple(np.bincount(opcodes, minlength=121))


def test_a_small_spread_on_a_large_offset_is_not_cancelled_away():
    random = np.random.default_rng(1)
    feat = np.zeros((20_000, 140), np.float32)
    feat[:, 0] = 2.0**22 + random.integers(0, 2, 20_000)  # exact in float32, unlike its square
    moments = merge(measure_moments(chunk, np.zeros(len(chunk), int)) for chunk in np.split(feat, 100))
    column = feat[:, 0].astype(np.float64)
    assert moments.deviation[0, 0] / moments.count == pytest.approx(column.var(), rel=1e-9)
    assert moments.mean[0, 0] == pytest.approx(column.mean(), rel=1e-15)


def test_the_same_order_gives_the_same_bits_and_any_order_nearly_so():
    parts = [measure_moments(*part) for part in random_parts()]
    shuffled = [parts[i] for i in (3, 0, 4, 2, 1)]
    again = [shuffled[i] for i in (1, 4, 3, 0, 2)]
    assert summarize_moments(merge(again)) == summarize_moments(merge(parts))
    np.testing.assert_allclose(merge(shuffled).deviation, merge(parts).deviation, rtol=1e-9, atol=1e-12)


def test_signed_log_by_hand():
    assert signed_log(np.array([-1.0, 0.0, np.e - 1])).tolist() == pytest.approx([-np.log(2), 0.0, 1.0])


def test_sizes_are_met_not_interpolated():
    sizes = np.arange(1, 11)[:, None] * np.array([1, 10, 100, 500, 1000, 10_000])
    found = summarize_sizes(sizes)
    assert tuple(found) == SIZE_NAMES
    assert found["nodes"] == {"max": 10, "q0.5": 6, "q0.9": 10, "q0.99": 10}
    assert found["candidates"]["q0.5"] == 60_000


def test_sizes_of_no_graphs_are_zero():
    assert summarize_sizes(np.zeros((0,)))["edges"] == {"max": 0, "q0.5": 0, "q0.9": 0, "q0.99": 0}

"""Noise of repeated measurements, compared with hand-computed numbers, brute force, known noise and real archives."""

import math

import numpy as np
import pytest

from tpugraphs_polynormer.archives.noise import (
    MIN_PAIRS,
    group_equal,
    measure_noise,
    pair_repeats,
    study_noise,
    typical_noise,
)
from tpugraphs_polynormer.catalog import TYPICAL_NOISE


def test_equal_rows_get_equal_groups_by_first_appearance():
    rows = np.array([[3, 1], [2, 2], [3, 1], [1, 3], [2, 2]])
    assert group_equal(rows).tolist() == [0, 1, 0, 2, 1]
    assert group_equal(rows, np.array([5, 5, 6, 5, 5])).tolist() == [0, 1, 2, 3, 1]
    assert group_equal(np.zeros((3, 0, 18))).tolist() == [0, 0, 0]
    assert group_equal(np.asfortranarray(rows)).tolist() == [0, 1, 0, 2, 1]


def test_groups_by_brute_force():
    rows = np.random.default_rng(0).integers(0, 2, (50, 2, 2))
    groups = group_equal(rows)
    for i in range(50):
        for j in range(50):
            assert (groups[i] == groups[j]) == np.array_equal(rows[i], rows[j])


def test_each_measurement_is_in_at_most_one_pair():
    groups = np.array([0, 1, 0, 2, 0, 1, 0, 0])  # rows 0, 2, 4, 6, 7 are one candidate, rows 1 and 5 another
    first, second = pair_repeats(groups)
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == [(0, 4), (2, 6), (1, 5)]
    assert not len(pair_repeats(np.arange(5))[0])


def repeated(differences: list[float], num_single: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Costs and groups: a pair of measurements for each relative difference, and candidates measured once."""
    pairs = [
        cost for number, each in enumerate(differences) for cost in (100.0 + number, (100.0 + number) * (1 + each))
    ]
    groups = [group for group in range(len(differences)) for _ in range(2)]
    singles = np.arange(num_single)
    return np.array([*pairs, *(500.0 + singles)]), np.array([*groups, *(len(differences) + singles)])


def test_the_noise_is_the_quantile_of_relative_differences():
    differences = [number / 1000 for number in range(1, 22)]  # 0.001 .. 0.021: the 95 % quantile is the 20th
    costs, groups = repeated(differences)
    assert measure_noise(costs, groups) == pytest.approx(0.020)
    study = study_noise(costs, groups)
    assert (study.num_repeated, len(pair_repeats(groups)[0])) == (21, 21)
    assert study.median == pytest.approx(0.011)
    assert study.noise == pytest.approx(0.020)
    single = [*(100.0 + number for number in range(21)), 500.0, 501.0, 502.0]
    close = [b <= a * 1.02 * (1 + 1e-12) for i, a in enumerate(single) for b in single[i + 1 :]]
    assert study.close_share == pytest.approx(sum(close) / math.comb(24, 2))


@pytest.mark.parametrize(
    "costs, groups",
    [
        (np.arange(1.0, 30.0), np.arange(29)),  # no repeated candidates
        repeated([0.1] * (MIN_PAIRS - 1)),  # too few pairs
        (np.arange(1.0, 61.0), np.zeros(60, np.int64)),  # only one candidate
        (np.zeros(60), np.arange(60) // 2),  # hidden runtimes
    ],
    ids=["no repeats", "few repeats", "one candidate", "hidden"],
)
def test_nothing_is_made_up(costs, groups):
    assert measure_noise(costs, groups) is None
    assert study_noise(costs, groups) is None


def test_repeats_that_agree_leave_a_perfect_order():
    study = study_noise(*repeated([0.0] * 12))
    assert (study.noise, study.close_share, study.perfect_tau) == (0.0, 0.0, 1.0)


def test_the_noise_to_assume_is_the_median_of_the_known():
    assert typical_noise([None, 0.1, None, 0.3, 0.2]) == 0.2
    assert typical_noise([None, None]) == typical_noise([]) == TYPICAL_NOISE


TRUTHS = {
    "normal": lambda random, count: random.normal(0, 0.01, count),
    "uniform": lambda random, count: random.uniform(0, 0.03, count),
    "clusters": lambda random, count: random.choice([0, 0.001, 0.02, 0.5], count) + random.normal(0, 5e-4, count),
    "heavy tail": lambda random, count: np.abs(random.standard_t(2, count)) * 0.01,
}
NOISES = {
    "normal": lambda random, scale, count: random.normal(0, scale, count),
    "two machines": lambda random, scale, count: (
        random.choice([0, 2 * scale], count) + random.normal(0, scale / 5, count)
    ),
    "heavy tail": lambda random, scale, count: scale * random.standard_t(3, count),
}


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("scale, tolerance", [(1e-4, 0.02), (1e-3, 0.04), (4e-3, 0.08)])
def test_the_perfect_tau_is_that_of_the_true_order(truth, noise, scale, tolerance):
    """The estimate uses only measurements. The tolerance grows with the noise; the true tau here is 0.58 to 0.99."""
    random = np.random.default_rng(0)
    logs = TRUTHS[truth](random, 2000)
    repeats = random.choice(2000, 300, replace=False)
    groups = np.concatenate([np.arange(2000), repeats])
    costs = 1e7 * np.exp(logs[groups] + NOISES[noise](random, scale, len(groups)))
    signs = np.sign(logs[:, None] - logs) * np.sign(costs[:2000, None] - costs[:2000])
    actual = signs[np.triu_indices(2000, 1)].mean()
    study = study_noise(costs, groups)
    assert study.perfect_tau == pytest.approx(actual, abs=tolerance)
    assert 0.5 < actual < 1
    assert study == study_noise(costs, groups)  # no random numbers


def test_noise_on_top_of_the_measurements_would_overestimate():
    """The measured differences must be deconvolved, because the measurements already contain noise."""
    random = np.random.default_rng(0)
    logs = random.normal(0, 0.01, 2000)
    measured = logs + random.normal(0, 0.01, 2000)
    repeats = np.concatenate([np.arange(2000), np.arange(500)])
    again = np.concatenate([measured, logs[:500] + random.normal(0, 0.01, 500)])
    pairs = np.triu_indices(2000, 1)

    def tau(a, b):
        return (np.sign(a[:, None] - a) * np.sign(b[:, None] - b))[pairs].mean()

    actual = tau(logs, measured)
    naive = tau(measured, measured + random.normal(0, 0.01, 2000))
    assert actual == pytest.approx(0.5, abs=0.02)
    assert naive > actual + 0.08
    assert study_noise(np.exp(again), repeats).perfect_tau == pytest.approx(actual, abs=0.04)


@pytest.mark.parametrize(
    "path, num_pairs, median, noise, perfect",
    [
        ("layout/alexnet_train_batch_32", 689, 2.5e-4, 9.8e-4, 0.80),
        ("official/npz/layout/xla/default/train/unet3d", 319, 2.8e-6, 1.05e-5, 0.88),
        ("official/npz/layout/xla/default/valid/unet_3d.4x4.bf16", 366, 1.4e-5, 4.4e-5, 0.49),
    ],
)
def test_real_archives(real_data, path, num_pairs, median, noise, perfect):
    file = real_data / "tpugraphs" / f"{path}.npz"
    if not file.is_file():
        pytest.skip(f"{file} not found")
    with np.load(file, allow_pickle=False) as arrays:
        groups = group_equal(arrays["node_config_feat"])
        study = study_noise(arrays["config_runtime"], groups)
    assert len(pair_repeats(groups)[0]) == num_pairs
    assert study.median == pytest.approx(median, rel=0.03)
    assert study.noise == pytest.approx(noise, rel=0.03)
    assert study.perfect_tau == pytest.approx(perfect, abs=0.01)


@pytest.mark.parametrize("width", [0, 1, 7, 8, 9, 40])
def test_groups_agree_with_a_dictionary(width, monkeypatch):
    monkeypatch.setattr("tpugraphs_polynormer.archives.noise._BLOCK_BYTES", 64)  # several blocks
    random = np.random.default_rng(width)
    rows = random.integers(0, 3, (300, width)).astype(np.uint8)
    others = random.integers(0, 2, 300)
    numbers: dict = {}
    expected = [
        numbers.setdefault((row.tobytes(), int(other)), len(numbers)) for row, other in zip(rows, others, strict=True)
    ]
    assert group_equal(rows, others).tolist() == expected


def test_groups_are_right_where_hashes_collide(monkeypatch):
    monkeypatch.setattr(
        "tpugraphs_polynormer.archives.noise._hash_rows", lambda column: np.zeros(len(column), np.uint64)
    )
    assert group_equal(np.array([[3], [1], [3], [2], [1]])).tolist() == [0, 1, 0, 2, 1]

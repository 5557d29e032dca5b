"""Candidates as codes: config_values[codes] equals the archive for every block size; duplicates collapse exactly."""

from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.small_archives import tile_arrays
from tpugraphs_polynormer.archives.noise import group_equal
from tpugraphs_polynormer.datasets.encoding import Candidates, collapse_duplicates, encode_layouts, encode_tiles


def collapse(source: Candidates) -> Candidates:
    return collapse_duplicates(source, group_equal(source.codes))


def split_blocks(dense: np.ndarray, size: int) -> list[np.ndarray]:
    return [dense[start : start + size] for start in range(0, len(dense), size)]


def random_layouts(count: int, nconfigs: int, vocabulary: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    table = random.integers(-1, 6, (vocabulary, 18)).astype(np.int8)
    return table[random.integers(0, vocabulary, (count, nconfigs))]


def candidates_of(codes, runtimes, normalizers=None) -> Candidates:
    rows = np.arange(len(codes), dtype=np.int32)
    normalizers = np.ones(len(codes), np.int64) if normalizers is None else np.asarray(normalizers, np.int64)
    table = np.zeros((int(np.max(codes, initial=0)) + 1, 18), np.float32)
    return Candidates(
        table, np.asarray(codes, np.uint8), np.asarray(runtimes, np.int64), normalizers, rows, np.ones_like(rows)
    )


@pytest.mark.parametrize(
    ("count", "nconfigs", "vocabulary", "dtype"),
    [(50, 4, 7, np.uint8), (300, 3, 600, np.uint16), (17_000, 5, 10**6, np.uint32)],
)
def test_settings_of_codes_are_the_source(count, nconfigs, vocabulary, dtype):
    dense = random_layouts(count, nconfigs, vocabulary)
    table, codes = encode_layouts(split_blocks(dense, 1000), nconfigs)
    assert codes.dtype == dtype
    assert table.dtype == np.float32
    assert np.array_equal(table[codes], dense)
    assert len(np.unique(table, axis=0)) == len(table) == len(np.unique(dense.reshape(-1, 18), axis=0))


def test_the_two_ends_of_the_range_are_told_apart_in_every_place():
    dense = np.full((36, 1, 18), -1, np.int8)
    for place in range(18):
        dense[place, 0, place] = 5
        dense[18 + place] = 5
        dense[18 + place, 0, place] = 4
    table, codes = encode_layouts([dense], 1)
    assert np.array_equal(table[codes], dense)
    assert len(table) == 36


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.integers(0, 4), st.integers(1, 9), st.integers(1, 31), st.integers(0, 2**32))
def test_block_size_changes_nothing_and_codes_come_in_order_of_appearance(count, nconfigs, vocabulary, size, seed):
    dense = random_layouts(count, nconfigs, vocabulary, seed)
    table, codes = encode_layouts(split_blocks(dense, size), nconfigs)
    whole_table, whole_codes = encode_layouts([dense], nconfigs)
    assert np.array_equal(table, whole_table)
    assert np.array_equal(codes, whole_codes)
    assert codes.shape == (count, nconfigs)
    met = list(dict.fromkeys(tuple(config_value) for config_value in dense.reshape(-1, 18).tolist()))
    assert [tuple(config_value) for config_value in table.astype(int).tolist()] == met


def test_a_later_block_may_need_wider_codes():
    dense = random_layouts(400, 2, 10**6)
    table, codes = encode_layouts([dense[:10], dense[10:]], 2)
    assert codes.dtype == np.uint16
    assert np.array_equal(table[codes], dense)


def test_tiles_come_back_by_thirds():
    arrays = tile_arrays(num_candidates=200, seed=3)
    table, codes = encode_tiles(arrays["config_feat"])
    assert codes.shape == (200, 3)
    assert np.array_equal(table[codes].reshape(200, 24), arrays["config_feat"])
    thirds = list(dict.fromkeys(map(tuple, arrays["config_feat"].reshape(-1, 8).tolist())))
    assert list(map(tuple, table.tolist())) == thirds


def test_tiles_without_features_are_one_setting():
    table, codes = encode_tiles(np.zeros((4, 24), np.float32))
    assert table.shape == (1, 8)
    assert not codes.any()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 3), st.integers(0, 2**32))
def test_collapse_agrees_with_a_dictionary(count, nconfigs, seed):
    random = np.random.default_rng(seed)
    source = candidates_of(
        random.integers(0, 2, (count, nconfigs)), random.integers(1, 50, count), random.integers(1, 3, count) * 10
    )
    groups = defaultdict(list)
    for row in range(count):
        groups[(*source.codes[row].tolist(), int(source.normalizers[row]))].append(row)
    expected = []
    for key, rows in groups.items():
        mean = Fraction(int(source.runtimes[rows].sum()), len(rows))
        rounded = int(mean + Fraction(1, 2))  # halves are rounded up; runtimes are positive
        expected.append((rounded / key[-1], rows[0], rounded, key, len(rows)))
    expected.sort(key=lambda item: item[:2])
    found = collapse(source)
    assert found.rows.tolist() == [item[1] for item in expected]
    assert found.runtimes.tolist() == [item[2] for item in expected]
    assert [(*codes, norm) for codes, norm in zip(found.codes.tolist(), found.normalizers.tolist(), strict=True)] == [
        item[3] for item in expected
    ]
    assert found.counts.tolist() == [item[4] for item in expected]
    assert found.counts.sum() == count
    assert (np.diff(found.runtimes / found.normalizers) >= 0).all()


def test_means_by_hand():
    found = collapse(candidates_of([[1], [0], [1], [0], [2]], [10, 7, 13, 7, 9]))
    assert found.runtimes.tolist() == [7, 9, 12]  # 11.5 rounds up
    assert found.counts.tolist() == [2, 1, 2]
    assert found.rows.tolist() == [1, 4, 0]


def test_means_of_the_largest_runtimes_do_not_overflow():
    most = np.iinfo(np.int64).max
    found = collapse(candidates_of([[0]] * 4, [most, most, most, most - 4]))
    assert found.runtimes.tolist() == [most - 1]
    found = collapse(candidates_of([[0]] * 3, [1, most, most]))
    assert found.runtimes.tolist() == [(2 * most + 1 + 1) // 3]


def test_hidden_runtimes_collapse_to_hidden_ones():
    found = collapse(candidates_of([[0], [1], [0]], [0, 0, 0]))
    assert found.runtimes.tolist() == [0, 0]
    assert found.rows.tolist() == [0, 1]

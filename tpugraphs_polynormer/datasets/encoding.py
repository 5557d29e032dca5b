"""Candidates as small codes: for each config node of a candidate, a row of the graph's table of config values.

A *config node* is a node whose layout a candidate decides; a tile kernel has three of them, for the bounds of kernel,
output and input. A *config value* is one distinct value that such a node takes: 18 dims (layout) or 8 numbers (tile).
Programs have few config values (tens), so a code is one byte for most graphs, where the official files hold 72 bytes
per config node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.archives.noise import group_equal
from tpugraphs_polynormer.archives.npz import relative_costs
from tpugraphs_polynormer.catalog import LAYOUT_MAX, LAYOUT_MIN, NUM_LAYOUT_FEATURES, NUM_TILE_FEATURES

NUM_TILE_BOUNDS = 3  # kernel, output and input bounds
CONFIG_VALUE_DIMS = {"layout": NUM_LAYOUT_FEATURES, "tile": NUM_TILE_FEATURES // NUM_TILE_BOUNDS}
# The seven values of a layout feature take three bits, so a config value is one number of 54 bits.
_FEATURE_BITS = (LAYOUT_MAX - LAYOUT_MIN).bit_length()
_WORDS = np.dtype([("first", "<u8"), ("second", "<u8"), ("rest", "<u2")])  # 18 bytes, one per feature
_HASH_BITS = 16
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: distributes close numbers


@dataclass(frozen=True)
class Candidates:
    """The encoded candidates of one graph: `config_values[codes]` are their features."""

    config_values: np.ndarray  # [num_config_values, 18 or 8] float32, in order of first appearance
    codes: np.ndarray  # [c, num_config_nodes] uint8, uint16 or uint32
    runtimes: np.ndarray  # [c] int64
    normalizers: np.ndarray  # [c] int64, all 1 for layouts
    rows: np.ndarray  # [c] int32, the candidate's (first) row in the source archive
    counts: np.ndarray  # [c] int32, how many rows of the archive it represents


def encode_layouts(blocks: Iterable[np.ndarray], num_config_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """(config values [v, 18], codes [c, num_config_nodes]) of int8 blocks [b, num_config_nodes, 18]."""
    known = _KnownNumbers()
    encoded = []
    for block in blocks:
        codes = known.encode(_pack_features(block))
        encoded.append(codes.reshape(len(block), num_config_nodes).astype(_code_type(len(known.numbers))))
    dtype = _code_type(len(known.numbers))
    codes = np.concatenate([np.zeros((0, num_config_nodes), dtype), *encoded], dtype=dtype)
    return _unpack_features(known.numbers), codes


def encode_tiles(config_feat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(config values [v, 8], codes [c, 3]) of float32 [c, 24]: a code each for kernel, output and input bounds."""
    bounds = config_feat.reshape(-1, CONFIG_VALUE_DIMS["tile"])
    codes = group_equal(bounds)
    config_values = bounds[np.unique(codes, return_index=True)[1]]
    return config_values, codes.reshape(-1, NUM_TILE_BOUNDS).astype(_code_type(len(config_values)))


def collapse_duplicates(candidates: Candidates, groups: np.ndarray) -> Candidates:
    """The distinct candidates, with the mean runtime and the count of those that are equal and have equal normalizers.

    They are sorted by runtime over normalizer, so that the fastest candidates of a training graph come first. `groups`
    [c] are those of `group_equal(candidates.codes)`.
    """
    groups = group_equal(groups, candidates.normalizers)
    counts = np.bincount(groups)
    first = np.unique(groups, return_index=True)[1]
    runtimes = _rounded_means(candidates.runtimes, groups, counts)
    normalizers = candidates.normalizers[first]
    order = np.lexsort((first, relative_costs(runtimes, normalizers)))
    return Candidates(
        config_values=candidates.config_values,
        codes=candidates.codes[first[order]],
        runtimes=runtimes[order],
        normalizers=normalizers[order],
        rows=candidates.rows[first[order]],
        counts=counts[order].astype(np.int32),
    )


def _rounded_means(values: np.ndarray, groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """int64: the mean of each group, halves rounded up; values are divided before they are added, against overflow."""
    quotients, remainders = np.divmod(values, counts[groups])
    means, rest = np.zeros((2, len(counts)), np.int64)
    np.add.at(means, groups, quotients)
    np.add.at(rest, groups, remainders)
    return means + (2 * rest + counts) // (2 * counts)


def _pack_features(block: np.ndarray) -> np.ndarray:
    """uint64 [config values] of int8 [..., 18], three bits per feature: equal numbers mean equal config values."""
    words = np.ascontiguousarray(block - np.int8(LAYOUT_MIN)).reshape(-1).view(_WORDS)
    numbers = words["rest"].astype(np.uint64)
    numbers = (numbers & np.uint64(0x7)) | ((numbers >> np.uint64(5)) & np.uint64(0x38))
    for name in ("second", "first"):
        numbers <<= np.uint64(8 * _FEATURE_BITS)
        numbers |= _squeeze_bytes(words[name])
    return numbers


def _squeeze_bytes(words: np.ndarray) -> np.ndarray:
    """The lowest three bits of the eight bytes of each uint64, joined: first pairs, then fours, then all eight."""
    words = np.ascontiguousarray(words)
    for shift, mask in ((5, 0x003F003F003F003F), (10, 0x00000FFF00000FFF), (20, 0x0000000000FFFFFF)):
        moved = words >> np.uint64(shift)
        moved |= words
        moved &= np.uint64(mask)
        words = moved
    return words


def _unpack_features(numbers: np.ndarray) -> np.ndarray:
    shifts = (_FEATURE_BITS * np.arange(NUM_LAYOUT_FEATURES)).astype(np.uint64)
    digits = (numbers[:, None] >> shifts) & np.uint64(2**_FEATURE_BITS - 1)
    return digits.astype(np.float32) + LAYOUT_MIN


class _KnownNumbers:
    """Assigns codes to the distinct values of a stream, in the order of first appearance.

    A hash table finds nearly all codes, in a fifteenth of the time of a binary search in 28 values. Each result is
    compared; where it is wrong, because of a collision or a new value, a binary search follows.
    """

    def __init__(self) -> None:
        self.numbers = np.zeros(0, np.uint64)  # by code
        self._table = np.zeros(1 << _HASH_BITS, np.uint32)

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """uint32 [k]: the codes of uint64 numbers [k]; new numbers get the next codes."""
        if not len(self.numbers):
            self._add(numbers)
        codes = self._table.take(self._hash(numbers))
        wrong = np.flatnonzero(self.numbers.take(codes) != numbers) if numbers.size else np.zeros(0, np.int64)
        if len(wrong):
            codes[wrong] = self._search(numbers[wrong])
        return codes

    def _search(self, numbers: np.ndarray) -> np.ndarray:
        order = np.argsort(self.numbers)
        ascending = self.numbers[order]
        positions = np.minimum(np.searchsorted(ascending, numbers), len(order) - 1)
        is_new = ascending[positions] != numbers
        if is_new.any():
            self._add(numbers[is_new])
            return self._search(numbers)
        return order[positions]

    def _add(self, numbers: np.ndarray) -> None:
        found, first = np.unique(numbers, return_index=True)
        self.numbers = np.concatenate([self.numbers, found[np.argsort(first)]])
        self._table[self._hash(self.numbers)] = np.arange(len(self.numbers))

    @staticmethod
    def _hash(numbers: np.ndarray) -> np.ndarray:
        return (numbers * _HASH_FACTOR) >> np.uint64(64 - _HASH_BITS)


def _code_type(num_config_values: int) -> type[np.unsignedinteger]:
    return np.uint8 if num_config_values <= 2**8 else np.uint16 if num_config_values <= 2**16 else np.uint32

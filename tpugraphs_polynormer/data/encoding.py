"""Candidates as small codes: each slot of a candidate points into the graph's table of distinct settings.

A *slot* is something a candidate decides: a configurable node (layout), or the kernel, output and input bounds (tile).
A *setting* is one value that a slot can take: 18 dims (layout) or 8 numbers (tile). Programs use few distinct settings
(tens), so a code is one byte for most graphs, where the official files hold 72 bytes per configurable node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.catalog import LAYOUT_MAX, LAYOUT_MIN, NUM_LAYOUT_FEATURES, NUM_TILE_FEATURES
from tpugraphs_polynormer.data.noise import group_equal

NUM_TILE_SLOTS = 3  # kernel, output and input bounds
_NUM_LAYOUT_VALUES = LAYOUT_MAX - LAYOUT_MIN + 1
# 7^18 < 2^53: a float64 dot product turns a layout setting into one exact number.
_POWERS = np.power(np.int64(_NUM_LAYOUT_VALUES), np.arange(NUM_LAYOUT_FEATURES))


@dataclass(frozen=True)
class Candidates:
    """The encoded candidates of one graph: `settings[codes]` are their features."""

    settings: np.ndarray  # [num_settings, 18 or 8] float32, in order of first appearance
    codes: np.ndarray  # [c, num_slots] uint8, uint16 or uint32
    runtimes: np.ndarray  # [c] int64
    normalizers: np.ndarray  # [c] int64, all 1 for layouts
    rows: np.ndarray  # [c] int32, the candidate's (first) row in the source archive
    counts: np.ndarray  # [c] int32, how many rows of the archive it stands for


def encode_layouts(blocks: Iterable[np.ndarray], num_slots: int) -> tuple[np.ndarray, np.ndarray]:
    """int8 blocks [b, num_slots, 18] -> (settings, codes); holds the codes and one block at a time."""
    known = np.zeros(0)  # the settings met so far as single numbers, ascending
    known_codes = np.zeros(0, np.int64)  # their codes, by first appearance
    encoded = []
    for block in blocks:
        numbers = ((block.reshape(-1, NUM_LAYOUT_FEATURES) - np.int8(LAYOUT_MIN)) @ _POWERS.astype(np.float64)).reshape(
            len(block), num_slots
        )
        if not _all_known(known, numbers):
            known, known_codes = _add_settings(known, known_codes, numbers)
        codes = known_codes[np.searchsorted(known, numbers)]
        encoded.append(codes.astype(_code_type(len(known))))
    dtype = _code_type(len(known))
    codes = np.concatenate([np.zeros((0, num_slots), dtype), *encoded], dtype=dtype)
    return _unpack_numbers(known[np.argsort(known_codes)]), codes


def encode_tiles(config_feat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[c, 24] float32 -> (settings [num_settings, 8], codes [c, 3]): kernel, output and input bounds apart."""
    bounds = config_feat.reshape(-1, NUM_TILE_FEATURES // NUM_TILE_SLOTS)
    settings, first, inverse = np.unique(bounds, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    codes = places[inverse].reshape(-1, NUM_TILE_SLOTS)
    return settings[order], codes.astype(_code_type(len(settings)))


def collapse_duplicates(candidates: Candidates) -> Candidates:
    """One candidate for all that are equal (and were measured against the same default): mean runtime, count kept.

    Sorted by runtime over normalizer, so that the fastest part of a training graph is a prefix.
    """
    groups = group_equal(candidates.codes, candidates.normalizers)
    counts = np.bincount(groups)
    first = np.zeros(len(counts), np.int64)
    first[groups[::-1]] = np.arange(len(groups))[::-1]
    runtimes = _rounded_means(candidates.runtimes, groups, counts)
    normalizers = candidates.normalizers[first]
    order = np.lexsort((first, runtimes / normalizers))
    return Candidates(
        settings=candidates.settings,
        codes=candidates.codes[first[order]],
        runtimes=runtimes[order],
        normalizers=normalizers[order],
        rows=candidates.rows[first[order]],
        counts=counts[order].astype(np.int32),
    )


def _rounded_means(values: np.ndarray, groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Mean of each group as int64, halves up; each value is divided before it is added, so that no sum overflows."""
    quotients, remainders = np.divmod(values, counts[groups])
    means, rest = np.zeros((2, len(counts)), np.int64)
    np.add.at(means, groups, quotients)
    np.add.at(rest, groups, remainders)
    return means + (2 * rest + counts) // (2 * counts)


def _all_known(known: np.ndarray, numbers: np.ndarray) -> bool:
    if not len(known):
        return not numbers.size
    places = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    return bool((known[places] == numbers).all())


def _add_settings(known: np.ndarray, codes: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found, first = np.unique(numbers, return_index=True)
    new = ~np.isin(found, known)
    fresh = found[new][np.argsort(first[new])]
    merged = np.concatenate([known, fresh])
    merged_codes = np.concatenate([codes, np.arange(len(codes), len(merged))])
    order = np.argsort(merged)
    return merged[order], merged_codes[order]


def _unpack_numbers(numbers: np.ndarray) -> np.ndarray:
    digits = numbers.astype(np.int64)[:, None] // _POWERS % _NUM_LAYOUT_VALUES
    return (digits + LAYOUT_MIN).astype(np.float32)


def _code_type(num_settings: int) -> type[np.unsignedinteger]:
    return np.uint8 if num_settings <= 2**8 else np.uint16 if num_settings <= 2**16 else np.uint32

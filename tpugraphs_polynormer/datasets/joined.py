"""Several preprocessed collections of one kind as one, for a model that is trained on all of them; no TensorFlow."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tpugraphs_polynormer.archives.noise import typical_noise
from tpugraphs_polynormer.datasets.manifest import Manifest, SplitEntry
from tpugraphs_polynormer.datasets.reader import RankingDataset
from tpugraphs_polynormer.datasets.statistics import (
    FeatureStatistics,
    measure_moments,
    merge,
    summarize_moments,
    summarize_sizes,
)


class JoinedDataset(RankingDataset):
    """The graphs of several datasets, those of the first one first; each split has the graphs of that split.

    The manifest has the name of the first collection, and shards whose names begin with the folder of their dataset.
    The feature statistics are those of all train graphs together.

    Args:
      parts: datasets of one kind, each with train graphs.
    """

    def __init__(self, parts: Sequence[RankingDataset]) -> None:
        self._parts = tuple(parts)
        self.folder = Path(os.path.commonpath([part.folder.resolve() for part in parts]))
        names = dict.fromkeys(name for part in parts for name in part.manifest.splits)
        self.manifest: Manifest = dataclasses.replace(
            parts[0].manifest,
            splits={name: self._join_split(name) for name in names},
            statistics=measure_statistics(parts),
            num_rejected=sum(part.manifest.num_rejected for part in parts),
            excluded={},
            origin="; ".join(dict.fromkeys(part.manifest.origin for part in parts)),
        )
        entries = [entry for split in self.manifest.splits.values() for shard in split.shards for entry in shard.graphs]
        self._typical_noise = typical_noise(entry.noise for entry in entries)

    @property
    def parts(self) -> tuple[RankingDataset, ...]:
        """The datasets of single collections that this one is made of."""
        return self._parts

    def _join_split(self, name: str) -> SplitEntry:
        shards = [
            dataclasses.replace(
                shard, name=os.path.join(os.path.relpath(part.folder.resolve(), self.folder), shard.name)
            )
            for part in self._parts
            if name in part.manifest.splits
            for shard in part.manifest.splits[name].shards
        ]
        graphs = [graph for shard in shards for graph in shard.graphs]
        sizes = summarize_sizes(np.array([graph.sizes for graph in graphs]))
        return SplitEntry(len(graphs), sum(graph.num_candidates for graph in graphs), sizes, tuple(shards))


def measure_statistics(parts: Sequence[RankingDataset]) -> FeatureStatistics:
    """The feature statistics of the train graphs of all datasets.

    They are measured again: a manifest has either the plain or the logged moments of a column, and which of the two
    depends on the largest value, which may be in another collection.
    """
    moments = (
        measure_moments(graph.features, graph.opcodes)
        for part in parts
        for split in [part.split("train")]
        for graph in (split[number] for number in range(len(split)))
    )
    return summarize_moments(merge(moments))

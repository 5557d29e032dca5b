"""Scores any layout candidates of one program with one trained run or an ensemble of them."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np

from tpugraphs_polynormer.archives.observed import ObservedProgram
from tpugraphs_polynormer.archives.tuning import layout_archive
from tpugraphs_polynormer.archives.writer import write_archive
from tpugraphs_polynormer.datasets.manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest, serialize_manifest
from tpugraphs_polynormer.datasets.physics import GraphPhysics
from tpugraphs_polynormer.datasets.reader import RankingDataset, RankingGraph, RankingSplit
from tpugraphs_polynormer.datasets.shards import PreprocessOptions, describe_split, write_shard
from tpugraphs_polynormer.files import write_text
from tpugraphs_polynormer.hlo.choices import Choices
from tpugraphs_polynormer.hlo.features import ModuleArrays
from tpugraphs_polynormer.hlo.layout_program import LayoutProgram
from tpugraphs_polynormer.hlo.sampling import draw_indices, gather_layouts
from tpugraphs_polynormer.ranking.runs import expand_runs, open_ranking_run, restore_task
from tpugraphs_polynormer.ranking.task import DatasetFacts
from tpugraphs_polynormer.training.run_directory import RunDirectory, RunError

_SIZES = (32, 256)  # numbers of candidates to which fewer are filled up: a trace of the model takes seconds
NUM_REFERENCE = 512  # candidates of each way of drawing, by which the scores of a member are scaled


class ProgramScorer:
    """The scores of a program's candidates, member by member, comparable between members.

    Every score is in standard deviations over a fixed sample of the program's candidates, the reference: members may
    have scores of any scale. A candidate is a row of choice numbers (hlo/choices.py), 0 for the default. The program's
    features and the reference are files in a temporary folder, so this is a context manager.

    Attributes: `runs` and `facts` of the members; `program`, its `choices`, and `graph`, its arrays.

    Args:
      run_dirs: runs that were trained on layout collections; a folder of runs by seed counts as those runs.
      program: with its choices; that of an archive has no module.
      seed: of the reference.

    Example:
      >>> with ProgramScorer(["runs/a", "runs/b"], presume_layouts(module)) as scorer:
      ...     scores = scorer.score(draw_indices(scorer.choices, 100, seed=0)).mean(axis=0)
    """

    def __init__(
        self, run_dirs: Sequence[Path | str], program: LayoutProgram | ObservedProgram, *, seed: int = 0
    ) -> None:
        self.program, self.choices = program, program.choices
        self.runs = [open_layout_run(path) for path in expand_runs(run_dirs)]
        self.facts = [DatasetFacts.read(run) for run in self.runs]
        self.graph = program.arrays
        reference = draw_reference(self.choices, seed)
        with ExitStack() as resources:  # released here if a run cannot be restored
            folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="tpugraphs-program-"))
            dataset = _write_dataset(Path(folder), self.choices, self.graph, reference)
            self._split = dataset.split("test")
            resources.callback(self._split.close)
            self._code_of = _find_codes(self.choices, self._split[0].config_values)
            tasks = [restore_task(run, facts, dataset) for run, facts in zip(self.runs, self.facts, strict=True)]
            self._scorers = [task.make_scorer() for task in tasks]
            plain = self._score_plainly(reference)
            self._resources = resources.pop_all()
        self._means, self._deviations = plain.mean(axis=1), np.maximum(plain.std(axis=1), 1e-12)

    def __enter__(self) -> ProgramScorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Removes the temporary files; no score can be computed any more."""
        self._resources.close()

    @property
    def spread(self) -> float:
        """The standard deviation of the cost model's log seconds over the reference."""
        return self._physics.spread

    def score(self, indices: np.ndarray) -> np.ndarray:
        """float64 [members, c]: scores of candidates given as choice numbers [c, nc]; higher is faster."""
        return (self._score_plainly(indices) - self._means[:, None]) / self._deviations[:, None]

    def estimate_cost(self, indices: np.ndarray) -> np.ndarray:
        """float64 [c]: the analytic cost model's log seconds of the same candidates, scaled; higher is slower."""
        return self._physics.total(self._encode(indices))

    @property
    def _physics(self) -> GraphPhysics:
        return self._split.physics(0)

    def _encode(self, indices: np.ndarray) -> np.ndarray:
        """[c, nc]: the codes of choice numbers [c, nc]."""
        return self._code_of[self.choices.starts + np.asarray(indices, np.int64)]

    def _score_plainly(self, indices: np.ndarray) -> np.ndarray:
        codes = self._encode(indices)
        found = []
        for run, scorer in zip(self.runs, self._scorers, strict=True):
            rows = codes
            if run.config.model.cross_candidates == "none":  # others would attend to the padding
                size = next((each for each in _SIZES if each >= len(codes)), len(codes))
                rows = np.concatenate([codes, np.repeat(codes[-1:], size - len(codes), axis=0)])
            found.append(scorer.score_graph(GivenCandidates(self._split, rows), 0)[: len(codes)])
        return np.stack(found)


class GivenCandidates:
    """A split of one graph with given candidates in the place of the stored ones, for the scorers of this package.

    The cost model's scale stays that of the stored candidates, so a score does not depend on what is scored beside it.

    Args:
      stored: whose graph 0 is meant. codes: [c, nc], of the candidates.
    """

    def __init__(self, stored: RankingSplit, codes: np.ndarray) -> None:
        self._stored, self._codes, self.kind = stored, codes, stored.kind
        self.graphs = [dataclasses.replace(stored.graphs[0], num_candidates=len(codes))]
        self.read_record, self.physics = stored.read_record, stored.physics

    def __getitem__(self, number: int) -> RankingGraph:
        return self._stored[number]

    def __len__(self) -> int:
        return 1

    def read_codes(self, number: int, candidates: np.ndarray) -> np.ndarray:
        """[k, nc]: the codes of the candidates with numbers [k]."""
        return self._codes[candidates]

    def read_column(self, number: int, name: str, candidates: np.ndarray | None = None) -> np.ndarray:
        """[k]: zeros, because nothing was measured."""
        return np.zeros(len(self._codes) if candidates is None else len(candidates), np.int64)


def open_layout_run(run_dir: Path | str) -> RunDirectory:
    """A run that was trained on a layout collection; RunError otherwise."""
    run = open_ranking_run(run_dir)
    facts = DatasetFacts.read(run)
    if facts.kind != "layout":
        raise RunError(f"{run.path}: trained on {facts.collection}; ranking a program's layouts needs a layout run")
    return run


def draw_reference(choices: Choices, seed: int) -> np.ndarray:
    """int16 [c, nc]: the reference of a program, in which every choice of every node occurs.

    Half is drawn around the default and half at random, as the two kinds of layout collections are.
    """
    covering = np.arange(choices.counts.max())[:, None] % choices.counts
    drawn = [draw_indices(choices, NUM_REFERENCE, seed=seed, mode=mode, tied=False) for mode in ("default", "random")]
    return np.unique(np.concatenate([covering.astype(np.int16), *drawn]), axis=0)


def _find_codes(choices: Choices, config_values: np.ndarray) -> np.ndarray:
    """int32 [t]: for each row of `choices.table` its row among the config values [v, 18], or -1 if no node has it."""
    number = {row.tobytes(): code for code, row in enumerate(config_values.astype(np.int8))}
    return np.array([number.get(row.tobytes(), -1) for row in choices.table], np.int32)


def _write_dataset(folder: Path, choices: Choices, graph: ModuleArrays, reference: np.ndarray) -> RankingDataset:
    """A dataset of one graph, written and read by the same code as any other dataset."""
    arrays = layout_archive(
        graph,
        node_config_ids=choices.node_ids,
        node_config_feat=gather_layouts(choices, reference),
        config_runtime=np.zeros(len(reference), dtype=np.int64),
        operands=True,
    )
    write_archive(folder / "program.npz", arrays)
    source, how = {"program": folder / "program.npz"}, {"kind": "layout", "is_train": False}
    description = write_shard(folder, "program", source, **how, options=PreprocessOptions())
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        collection="layout:xla:random",
        kind="layout",
        options={},
        splits={"test": describe_split([description])},
        statistics=None,
        num_rejected=0,
        excluded={},
    )
    write_text(folder / MANIFEST_NAME, serialize_manifest(manifest))
    return RankingDataset(folder)

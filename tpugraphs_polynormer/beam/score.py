"""Beam job: trained runs and a dataset -> one prediction file per graph, byte for byte those of `tpugraphs predict`.

One chain, as in preprocessing: one DoFn scores a graph and writes its file, and one last step counts the results
against the plan. Workers must see the run directories, the dataset and the output under the same paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import apache_beam as beam
from apache_beam.utils.shared import Shared

from tpugraphs_polynormer.beam.runners import make_options, run_pipeline
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import only_writer
from tpugraphs_polynormer.ranking.predict import PendingGraph, PredictionPlan
from tpugraphs_polynormer.ranking.submission import write_prediction


def run(plan: PredictionPlan, beam_arguments: Sequence[str]) -> int:
    """The number of graphs that were pending and are now scored."""
    options = make_options(beam_arguments)
    with only_writer(plan.output):
        pending = plan.pending()
        if pending:
            run_pipeline(Score(plan, pending), options, plan.count_done, len(plan.tasks), "graph")
        missing = [task.id for task in plan.pending()]
        if missing:  # some runners report success for a failed job
            raise UserError(f"the Beam job ended without predictions for {', '.join(missing[:5])}; run it again")
        plan.list_checksums(pending)
    return len(pending)


class Score(beam.PTransform):
    """PBegin -> one element: the number of graphs scored, counted against the plan."""

    def __init__(self, plan: PredictionPlan, pending: Sequence[PendingGraph]) -> None:
        super().__init__()
        self._plan, self._pending = plan, tuple(pending)

    def expand(self, begin: beam.Pipeline) -> beam.PCollection:
        """Graphs -> prediction files -> the count."""
        scored = (
            begin
            | "Graphs" >> beam.Create(self._pending, reshuffle=True)
            | "Score" >> beam.ParDo(ScoreGraph(self._plan))
        )
        return (
            begin
            | "Once" >> beam.Create([None])
            | "Count" >> beam.Map(_count, self._plan, self._pending, beam.pvalue.AsList(scored))
        )


class ScoreGraph(beam.DoFn):
    """PendingGraph -> its id, once its file is written; each worker process loads a collection's models once."""

    def __init__(self, plan: PredictionPlan) -> None:
        self._plan = plan
        self._shared = {collection: Shared() for collection in plan.runs}
        self._held: dict[str, _Models] = {}  # Shared keeps only the object that was acquired last

    def process(self, task: PendingGraph) -> Iterator[str]:
        """Scores one graph."""
        models = self._shared[task.collection].acquire(lambda: _Models(self._plan, task.collection))
        self._held[task.collection] = models
        write_prediction(self._plan.output, task.id, models.ensemble.score_source(models.split, task.number))
        yield task.id


class _Models:
    """The models and the split that the threads of a worker share."""

    def __init__(self, plan: PredictionPlan, collection: str) -> None:
        self.ensemble = plan.load_ensemble(collection)
        self.split = plan.open_split(collection)


def _count(_: None, plan: PredictionPlan, pending: Sequence[PendingGraph], scored: list[str]) -> int:
    """The number of scored graphs; raises if one was lost, repeated, or has no file in the output."""
    lost = sorted({task.id for task in pending} - set(scored))
    repeated = sorted({each for each in scored if scored.count(each) > 1}) if len(set(scored)) < len(scored) else []
    unwritten = [task.id for task in pending if not plan.is_done(task)]
    if lost or repeated or unwritten:
        raise RuntimeError(f"the runner lost graphs {lost}, repeated {repeated}, and {unwritten} have no whole file")
    return len(scored)

"""What a reader is to conclude: means over graphs, and a sentence in plain words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpugraphs_polynormer.ranking.metrics import summarize
from tpugraphs_polynormer.ranking.report.data import GraphReport, Report, RunReport, bootstrap_interval

_PLACE = "of the first five"


@dataclass(frozen=True)
class Summary:
    """Means over some graphs of a collection; `default` and `speedup` over those whose default is known."""

    num_graphs: int
    score: float
    chance_score: float
    cost_score: float  # of the analytic cost model
    slowdown: float  # of the best of the first five against the best of all
    chance_slowdown: float
    num_known: int  # graphs whose default is known
    default: float | None  # its slowdown against the best
    speedup: float | None  # of the best of the first five over the default; the geometric mean


def summarize_graphs(graphs: Sequence[GraphReport]) -> Summary:
    """The means over graphs of one collection; those of the score and the slowdown are what `evaluate` prints."""
    means = summarize([graph.metrics for graph in graphs])["overall"]
    defaults = [graph.default_slowdown for graph in graphs if graph.default_slowdown is not None]
    speedups = [graph.speedup for graph in graphs if graph.speedup is not None]
    return Summary(
        num_graphs=len(graphs),
        score=means["contest_score"],
        chance_score=float(np.mean([graph.random_contest_score for graph in graphs])),
        cost_score=float(np.mean([graph.cost_contest_score for graph in graphs])),
        slowdown=means["slowdown_5"],
        chance_slowdown=float(np.mean([graph.chance_slowdown for graph in graphs])),
        num_known=len(defaults),
        default=float(np.mean(defaults)) if defaults else None,
        speedup=math.exp(np.mean(np.log(speedups))) if speedups else None,
    )


def write_headline(members: Sequence[RunReport]) -> str:
    """What the runs of one collection achieve, in two sentences."""
    graphs = [graph for report in members for graph in report.graphs]
    found = summarize_graphs(graphs)
    counts = sorted(graph.metrics.num_candidates for graph in graphs)
    candidates = f"{counts[0]:,}" if counts[0] == counts[-1] else f"{counts[0]:,} to {counts[-1]:,}"
    best = f"The best {_PLACE} of {candidates} candidates is"
    if found.slowdown:
        low, high = bootstrap_interval([_average_runs(members)])
        between = f"; 95 % interval {percent(low)} to {percent(high)}" if len(members[0].graphs) > 1 else ""
        first = f"{best} within {percent(found.slowdown)} of the fastest (mean over {_count(members)}{between})"
    else:
        first = f"{best} the fastest one in each of {_count(members)}"
    chance = f"the best of five in random order, within {percent(found.chance_slowdown)}"
    return f"{first}; {chance}. {_judge_default(found, len(members))}"


def write_mean(report: Report) -> str:
    """The mean score over the collections, as the terminal prints it, and that on the test split where it is known."""
    graphs = [graph for run in report.runs for graph in run.graphs]
    score = summarize([graph.metrics for graph in graphs])["overall"]["contest_score"]
    chance = np.mean([summarize_graphs(run.graphs).chance_score for run in report.runs])
    low, high = bootstrap_interval([[graph.metrics.contest_score for graph in run.graphs] for run in report.runs])
    text = f"The mean contest score on the {report.split} split is {score:.4f} (95 % interval {low:.4f} to {high:.4f})"
    cost = np.mean([summarize_graphs(run.graphs).cost_score for run in report.runs])
    text += f"; that of a random order, {chance:.4f}, and of the analytic cost model alone, {cost:.4f}."
    if report.test_scores:
        text += " On the test split it is {:.4f}; that of a random order, {:.4f}.".format(*report.test_scores["mean"])
    return f"{text} 1 is perfect. Each of the {len(report.runs)} collections counts alike."


def _judge_default(found: Summary, num_runs: int) -> str:
    if found.default is None:
        return "Which candidate is the compiler's default is unknown."
    gain = f"the best {_PLACE} is {found.speedup:.2f} times as fast as the default"
    word = "faster" if found.default < 0 else "slower"  # where the default is not among the candidates chosen
    place = f"is {percent(abs(found.default))} {word} than the fastest"
    if found.num_known == found.num_graphs:
        return f"The compiler's default {place}: {gain}."
    graphs = f"{found.num_known // num_runs} of {found.num_graphs // num_runs} graphs"
    known = f"Where the compiler's default is known ({graphs})"
    return f"{known}, it {place}, and {gain}."


def _average_runs(members: Sequence[RunReport]) -> np.ndarray:
    """[g]: the slowdown of each graph, a mean over the runs: graphs are drawn again, not runs of a graph."""
    return np.mean([[graph.metrics.slowdown_5 for graph in report.graphs] for report in members], 0)


def _count(members: Sequence[RunReport]) -> str:
    graphs = f"{len(members[0].graphs):,} graph{'s' * (len(members[0].graphs) > 1)}"
    return graphs if len(members) == 1 else f"{graphs} and {len(members)} runs"


def percent(share: float) -> str:
    """A share as text: 0.3 %, 12 %, 0 %."""
    if 0 < abs(share) < 5e-5:
        return "less than 0.01 %"
    value = 100 * share
    return f"{value:,.0f} %" if abs(value) >= 10 else f"{value:.2g} %"

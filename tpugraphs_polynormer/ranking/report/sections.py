"""The sections of the report, each a function from the runs to HTML."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

import numpy as np

from tpugraphs_polynormer.config.loader import dump_config
from tpugraphs_polynormer.ranking.metrics import METRICS, summarize
from tpugraphs_polynormer.ranking.report.cells import number_cell, render_table, text_cell
from tpugraphs_polynormer.ranking.report.data import TRIED, GraphReport, Report, RunReport, bootstrap_interval
from tpugraphs_polynormer.ranking.report.figures import (
    MANY_RUNS,
    draw_attention,
    draw_learning,
    draw_order,
    draw_regret,
    draw_scores,
    draw_sizes,
    valid_scores,
)
from tpugraphs_polynormer.ranking.report.summary import Summary, summarize_graphs, write_headline, write_mean

_NUM_WORST = 8
_NUM_OPCODES = 8
_SIZES = (100, 1_000, 10_000)  # ends of the bands of graph sizes, in nodes


def _render_headlines(report: Report) -> str:
    cards = [
        f"<article><h3>{escape(name)}</h3><p>{escape(write_headline(members))}</p></article>"
        for name, members in report.by_collection
    ]
    if report.has_mean:
        cards.insert(0, f"<article><h3>All collections</h3><p>{escape(write_mean(report))}</p></article>")
    labels = [run.collection if report.has_mean else f"{run.collection} ({run.label})" for run in report.runs]
    figure = draw_scores(list(zip(labels, report.runs, strict=True)), report.split)
    if len(report.runs) > MANY_RUNS:
        return _grid(cards) + _grid([figure])
    return _grid([figure.replace("<figure", '<figure class="tallest"', 1), *cards])


def _render_scores(report: Report) -> str:
    intro = (
        "<p>The contest's score is 1 at best: for layouts Kendall's tau of the predicted order, for tiles one minus "
        "the slowdown of the best of the first five. What a random order gets is computed, not drawn; the cost model "
        "is the analytic one, which is not trained. Slowdown k: how much slower than the fastest the best of the first "
        "k is. Intervals: 95 %, by drawing the graphs of each collection again 2,000 times.</p>"
    )
    rows = [_score_row(run.label, run.collection, [run]) for run in report.runs]
    if report.has_mean:
        rows.append(_score_row("mean", "", report.runs))
    header = ["run", "collection", "graphs", "contest_score", "95 % interval", "random", "cost model", *_METRICS]
    parts = [intro, render_table([name.replace("_", " ") for name in header], rows, num_text=2)]
    if report.test_scores:
        rows = [[text_cell(name), *map(number_cell, scores)] for name, scores in report.test_scores.items()]
        parts.append(f"<h3>Test split</h3>{render_table(['collection', 'score', 'random'], rows, num_text=1)}")
    return "".join(parts)


def _score_row(label: str, collection: str, runs: Sequence[RunReport]) -> list[str]:
    means = summarize([graph.metrics for run in runs for graph in run.graphs])["overall"]
    found = [summarize_graphs(run.graphs) for run in runs]
    beside = (float(np.mean([getattr(each, name) for each in found])) for name in ("chance_score", "cost_score"))
    interval = bootstrap_interval([[graph.metrics.contest_score for graph in run.graphs] for run in runs])
    return [
        *(
            text_cell(label),
            text_cell(collection),
            number_cell(means["num_graphs"], 0),
            number_cell(means["contest_score"]),
        ),
        f'<td data-value="{interval[0]!r}">{interval[0]:.4f} to {interval[1]:.4f}</td>',
        *map(number_cell, (*beside, *(means[name] for name in _METRICS))),
    ]


def _render_regret(report: Report) -> str:
    intro = (
        "<p>How much slower than the fastest candidate is the best of the first k: what is lost by measuring only k of "
        "them. Shaded: 95 % interval over graphs. A layout's default is recognised by being measured again and again."
        "</p>"
    )
    slowdowns = [max(*graph.regret, *graph.chance_regret) for run in report.runs for graph in run.graphs]
    slowdowns += [graph.default_slowdown or 0.0 for run in report.runs for graph in run.graphs]
    return intro + _grid(draw_regret(*each, top=2 * max(*slowdowns, 0.01)) for each in report.by_collection)


def _render_groups(report: Report) -> str:
    def band(graph: GraphReport) -> str:
        low, high = next(each for each in itertools.pairwise((0, *_SIZES, math.inf)) if graph.num_nodes <= each[1])
        return f"{low + 1:,} to {high:,} nodes" if high < math.inf else f"more than {low:,} nodes"

    tables = [
        f"<h3>By {what}</h3>{_group_table(report, what, key)}"
        for what, key in (("program family", lambda graph: graph.family), ("graph size", band))
    ]
    intro = (
        "<p>A family is the letters that a graph's name begins with. Slowdown 5 is that of the best of the first five, "
        "random slowdown 5 that of five in random order. Speed-up: how many times as fast as the compiler's default it "
        "is; – where the default is unknown.</p>"
    )
    return intro + "".join(tables) + _grid(draw_sizes(*each) for each in report.by_collection)


def _group_table(report: Report, what: str, key: Callable[[GraphReport], str]) -> str:
    rows = []
    for collection, members in report.by_collection:
        groups: dict[str, list[GraphReport]] = {}
        for graph in sorted((graph for run in members for graph in run.graphs), key=lambda graph: graph.num_nodes):
            groups.setdefault(key(graph), []).append(graph)
        rows += [
            [text_cell(collection), text_cell(name), *_summary_cells(summarize_graphs(graphs), len(members))]
            for name, graphs in groups.items()
        ]
    header = ["collection", what, "graphs", "score", "random", "cost model", *_SLOWDOWNS[1:]]
    return render_table(header, rows, num_text=2)


def _summary_cells(found: Summary, num_runs: int) -> list[str]:
    means = (found.score, found.chance_score, found.cost_score, found.slowdown, found.chance_slowdown)
    unknown = [number_cell(found.default), number_cell(found.speedup, 2)]
    return [number_cell(found.num_graphs // num_runs, 0), *map(number_cell, means), *unknown]


def _render_worst(report: Report) -> str:
    parts = [
        "<p>Where the best of the first five loses most against the fastest. Graphs where any order is perfect are "
        "left out: those with at most five candidates, or so many fastest ones that any five include one.</p>"
    ]
    for collection, members in report.by_collection:
        graphs = [(graph, run) for run in members for graph in run.graphs]
        lost = [pair for pair in graphs if pair[0].worst_regret > 0 and pair[0].metrics.slowdown_5 > 0]
        lost.sort(key=lambda pair: (-pair[0].metrics.slowdown_5, -pair[0].metrics.slowdown_1))
        perfect = sum(not graph.worst_regret for graph, _ in graphs)
        counts = f"The best of the first five is not the fastest in {len(lost):,} of {len(graphs) - perfect:,} graphs"
        table = _graph_table(lost[:_NUM_WORST], has_runs=len(members) > 1) if lost else ""
        parts.append(f"<h3>{escape(collection)}</h3><p>{counts} ({perfect:,} left out).</p>{table}")
    return "".join(parts)


def _render_graphs(report: Report) -> str:
    rows = [(graph, run) for run in report.runs for graph in run.graphs]
    table = _graph_table(rows, has_runs=len(report.by_collection) < len(report.runs), sortable=True)
    return f"<p>Press a column's name to sort by it.</p>{table}"


# Beside the contest's score; without slowdown_100, which is 0 nearly everywhere, so that the table fits a screen.
_METRICS = tuple(name for name in METRICS if name not in ("contest_score", "slowdown_100"))
_SLOWDOWNS = ("slowdown 1", f"slowdown {TRIED}", f"random slowdown {TRIED}", "default slowdown", "speed-up")


def _graph_table(rows: Sequence[tuple[GraphReport, RunReport]], *, has_runs: bool, sortable: bool = False) -> str:
    """A row per graph and run; the sortable table holds several collections."""
    header = ["graph", *["collection"] * sortable, *["run"] * has_runs]
    cells = []
    for graph, run in rows:
        metrics = graph.metrics
        tone = "good" if metrics.contest_score > graph.random_contest_score else "bad"
        slowdowns = (metrics.slowdown_1, metrics.slowdown_5, graph.chance_slowdown, graph.default_slowdown)
        cells.append(
            [
                *(
                    text_cell(metrics.graph),
                    *[text_cell(run.collection)] * sortable,
                    *[text_cell(run.label)] * has_runs,
                ),
                *(number_cell(graph.num_nodes, 0), number_cell(metrics.num_candidates, 0)),
                number_cell(metrics.contest_score, tone=tone),
                *map(number_cell, (graph.random_contest_score, graph.cost_contest_score, *slowdowns)),
                number_cell(graph.speedup, 2),
            ]
        )
    numbers = ["nodes", "candidates", "score", "random", "cost model", *_SLOWDOWNS]
    return render_table([*header, *numbers], cells, num_text=len(header), sortable=sortable)


def _render_orders(report: Report) -> str:
    figures = []
    for collection, members in report.by_collection:
        telling = [graph for graph in members[0].graphs if graph.worst_regret] or members[0].graphs
        ordered = sorted(telling, key=lambda graph: -graph.metrics.contest_score)
        for which, graph in (("best", ordered[0]), ("median", ordered[len(ordered) // 2]), ("worst", ordered[-1])):
            score = f"score {graph.metrics.contest_score:.3f}"
            figures.append(draw_order(graph, f"{collection}, {which} graph: {graph.metrics.graph}, {score}"))
    intro = "<p>Each dot is a candidate, at its predicted rank. A perfect model puts all dots on the line.</p>"
    return intro + _grid(figures)


def _render_learning(report: Report) -> str:
    recorded = [(name, [run for run in members if run.records]) for name, members in report.by_collection]
    limits = {run.run.config.training.validation_candidates for run in report.runs}
    most = " or ".join(f"at most {limit:,}" if limit else "all" for limit in sorted(limits))
    intro = (
        "<p>The star is the epoch whose weights were kept. All validation scores have the same scale; during training "
        f"they are measured on {most} candidates of each graph.</p>"
    )
    scores = np.concatenate([[1.0], *(valid_scores(run.records) for run in report.runs)])
    lowest = float(np.nanmin(scores)) - 0.05
    return intro + _grid(draw_learning(name, members, lowest) for name, members in recorded if members)


def _render_attention(report: Report) -> str:
    first = [next((run for run in members if run.attention), None) for _, members in report.by_collection]
    parts = [_attention_figures(run) for run in first if run]
    if not parts:
        return "<p>These models have no global attention that all candidates of a graph share.</p>"
    intro = (
        "<p>Whom the nodes of one graph attend to in the first global layer, nodes in topological order, mean over "
        "heads. 1 is uniform: a pale picture means that the layer treats all nodes alike. The scale is the same in all "
        "pictures. The tables give what a node of each kind receives.</p>"
    )
    return intro + f'<div class="grid">{"".join(parts)}</div>'


def _attention_figures(run: RunReport) -> str:
    attention = run.attention
    rows = [
        [text_cell(opcode), number_cell(count, 0), number_cell(received, 3)]
        for opcode, count, received in attention.opcodes[:_NUM_OPCODES]
    ]
    figure = draw_attention(attention, f"{run.label}: {attention.graph}, {attention.num_nodes:,} nodes")
    return f"<div>{figure}{render_table(['opcode', 'nodes', 'attention'], rows, num_text=1)}</div>"


def _render_data(report: Report) -> str:
    names = [(name, which) for name in ("nodes", "edges", "config_nodes") for which in ("q0.5", "max")]
    rows = []
    for collection, members in report.by_collection:
        for split, entry in members[0].manifest.splits.items():
            counts = [entry.num_graphs, entry.num_candidates, *(entry.sizes[name][which] for name, which in names)]
            rows.append([text_cell(collection), text_cell(split), *(number_cell(count, 0) for count in counts)])
    sizes = [f"{name.replace('_', ' ')}, {which.replace('q0.5', 'median')}" for name, which in names]
    rejected = sum(members[0].manifest.num_rejected for _, members in report.by_collection)
    intro = (
        "<p>A config node is what a candidate decides: the layouts of a node, or a set of tile bounds. Repeated "
        f"candidates count once in train. Archives left out by preprocessing: {rejected:,}.</p>"
    )
    return intro + render_table(["collection", "split", "graphs", "candidates", *sizes], rows, num_text=2)


def _render_recipe(report: Report) -> str:
    seeds = ", ".join(f"{run.label}: {run.run.config.seed}" for run in report.runs)
    parts = [f"<p>Seeds: {escape(seeds)}. Versions are at the foot of the page.</p>"]
    for run in report.runs:
        text = escape(dump_config(run.run.config))
        parts.append(
            f"<details><summary>Config of {escape(run.label)}, {len(run.records)} epochs</summary>"
            f'<pre tabindex="0">{text}</pre></details>'
        )
    return "".join(parts)


SECTIONS: tuple[tuple[str, str, Callable[[Report], str]], ...] = (
    ("short", "In short", _render_headlines),
    ("scores", "Scores", _render_scores),
    ("regret", "Regret", _render_regret),
    ("groups", "By family and size", _render_groups),
    ("worst", "Worst graphs", _render_worst),
    ("predicted", "Predicted against true", _render_orders),
    ("learning", "Learning curves", _render_learning),
    ("attention", "Attention", _render_attention),
    ("graphs", "All graphs", _render_graphs),
    ("data", "Data", _render_data),
    ("recipe", "Configs and seeds", _render_recipe),
)


def _grid(figures: Iterable[str]) -> str:
    return f'<div class="grid">{"".join(figures)}</div>'

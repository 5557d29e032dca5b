"""The sections of the report, each a function from the runs to HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

import numpy as np

from tpugraphs_polynormer.catalog import COLLECTIONS
from tpugraphs_polynormer.config.loader import dump_config
from tpugraphs_polynormer.ranking.metrics import METRICS, summarize
from tpugraphs_polynormer.ranking.report.data import REGRET_KS, GraphReport, RunReport
from tpugraphs_polynormer.ranking.report.figures import Axis, Series, draw_bars, draw_chart, draw_heatmap

_NUM_WORST = 10
_NUM_OPCODES = 8
_CHANCE = "random ranking"


def _render_scores(reports: Sequence[RunReport]) -> str:
    rows, bars = [], []
    for report in reports:
        means = summarize([graph.metrics for graph in report.graphs])["overall"]
        chance = float(np.mean([graph.random_contest_score for graph in report.graphs]))
        name = f"{report.collection} ({report.label})" if _is_compared(report, reports) else report.collection
        bars.append((name, means["contest_score"], chance))
        shown = [_number(means["contest_score"]), _number(chance), *(_number(means[name]) for name in METRICS[:-1])]
        rows.append([_text(report.label), _text(report.collection), _number(means["num_graphs"], 0), *shown])
    header = [
        "run",
        "collection",
        "graphs",
        "score",
        _CHANCE,
        "OPA",
        "tau",
        "tau beyond noise",
        *(f"slowdown {k}" for k in (1, 5, 10, 100)),
    ]
    intro = (
        "<p>The contest's score is 1 at best: for layouts Kendall's tau of the predicted order, for tiles one minus "
        "the slowdown of the best of the first five. What a random ranking gets is computed, not drawn.</p>"
    )
    figure = draw_bars("Score by collection", bars, "score", _CHANCE)
    return f'{intro}<div class="grid pairs">{figure}</div><h3>All metrics</h3>{_table(header, rows, num_text=2)}'


def _render_learning(reports: Sequence[RunReport]) -> str:
    figures = []
    for collection, members in _by_collection(reports):
        for what, label in (("score", "validation score"), ("loss", "training loss")):
            series = [
                Series(report.label, _learning_points(report, what), color) for color, report in enumerate(members)
            ]
            figures.append(draw_chart(f"{collection}: {label}", series, Axis("epoch"), Axis(label)))
    return f'<div class="grid pairs">{"".join(figures)}</div>'


def _learning_points(report: RunReport, what: str) -> list[tuple[float, float]]:
    values = [
        (record["epoch"] + 1, record["loss"] if what == "loss" else record["metrics"]["valid"]["contest_score"])
        for record in report.records
    ]
    return [(epoch, value) for epoch, value in values if value is not None and math.isfinite(value)]


def _render_points(reports: Sequence[RunReport]) -> str:
    figures = []
    for report in reports:
        ordered = sorted(report.graphs, key=lambda graph: -graph.metrics.contest_score)
        picks = {"best": ordered[0], "median": ordered[len(ordered) // 2], "worst": ordered[-1]} if ordered else {}
        for color, (which, graph) in enumerate(picks.items()):
            title = f"{report.label}, {which} graph: {graph.metrics.graph} (score {graph.metrics.contest_score:.3f})"
            series = [Series(graph.metrics.graph, [tuple(point) for point in graph.points], color, "points")]
            rank = Axis("predicted rank, fastest first", percent=True)
            figures.append(draw_chart(title, series, rank, Axis("runtime / best runtime", log=True)))
    intro = "<p>Each dot is a candidate. A perfect ranking rises from left to right without a step back.</p>"
    return f'{intro}<div class="grid">{"".join(figures)}</div>'


def _render_regret(reports: Sequence[RunReport]) -> str:
    figures = []
    for collection, members in _by_collection(reports):
        series = [
            Series(report.label, _mean_regret(graph.regret for graph in report.graphs), color)
            for color, report in enumerate(members)
        ]
        chance = _mean_regret(graph.chance_regret for graph in members[0].graphs)
        series.append(Series(_CHANCE, chance, 5, "dashed"))
        ticks = Axis("k, candidates tried", log=True, ticks=REGRET_KS)
        figures.append(draw_chart(f"{collection}: slowdown", series, ticks, Axis("mean slowdown", percent=True)))
    intro = (
        "<p>How much slower than the best candidate is the best of the first k: what is lost by measuring only k.</p>"
    )
    return f'{intro}<div class="grid">{"".join(figures)}</div>'


def _mean_regret(regrets: Iterable[tuple[float, ...]]) -> list[tuple[float, float]]:
    return list(zip(REGRET_KS, np.mean(list(regrets), 0).tolist(), strict=True))


def _render_worst(reports: Sequence[RunReport]) -> str:
    graphs = [(graph, report) for report in reports for graph in report.graphs]
    graphs.sort(key=lambda pair: pair[0].metrics.contest_score - pair[0].random_contest_score)
    rows = [_graph_row(graph, report) for graph, report in graphs[:_NUM_WORST]]
    return f"<p>Those that gain least over a random ranking.</p>{_table(_GRAPH_HEADER, rows, num_text=3)}"


def _render_graphs(reports: Sequence[RunReport]) -> str:
    rows = [_graph_row(graph, report) for report in reports for graph in report.graphs]
    return f"<p>Press a column's name to sort by it.</p>{_table(_GRAPH_HEADER, rows, num_text=3, sortable=True)}"


_GRAPH_HEADER = [
    "graph",
    "collection",
    "run",
    "nodes",
    "candidates",
    "score",
    "random",
    "tau",
    "OPA",
    "slowdown 1",
    "5",
]


def _graph_row(graph: GraphReport, report: RunReport) -> list[str]:
    metrics = graph.metrics
    tone = "good" if metrics.contest_score > graph.random_contest_score else "bad"
    return [
        _text(metrics.graph, "name"),
        _text(report.collection),
        _text(report.label),
        _number(graph.num_nodes, 0),
        _number(metrics.num_candidates, 0),
        _number(metrics.contest_score, tone=tone),
        *map(_number, (graph.random_contest_score, metrics.tau, metrics.opa, metrics.slowdown_1, metrics.slowdown_5)),
    ]


def _render_attention(reports: Sequence[RunReport]) -> str:
    parts = [_attention_figures(report) for report in reports if report.attention is not None]
    if not parts:
        return "<p>These models have no global attention that all candidates of a graph share.</p>"
    intro = (
        "<p>Whom the nodes of one graph attend to in the first global layer: row i is node i, in topological order, 1 "
        "(the average) if it attends to all nodes alike. Mean over heads. The table gives what a node of each kind "
        "receives.</p>"
    )
    return intro + "".join(parts)


def _attention_figures(report: RunReport) -> str:
    attention = report.attention
    title = f"{report.label}: {attention.graph}, {attention.num_nodes:,} nodes"
    label = f"attention among the nodes of {attention.graph}, rows attend to columns"
    rows = [
        [_text(opcode), _number(count, 0), _number(received, 3)]
        for opcode, count, received in attention.opcodes[:_NUM_OPCODES]
    ]
    heatmap = draw_heatmap(title, attention.weights, label)
    return f'<div class="grid">{heatmap}<div>{_table(["opcode", "nodes", "attention"], rows, num_text=1)}</div></div>'


def _render_data(reports: Sequence[RunReport]) -> str:
    rows = []
    for _, members in _by_collection(reports):
        manifest = members[0].manifest
        for split, entry in manifest.splits.items():
            sizes = [
                entry.sizes[name][which] for name in ("nodes", "edges", "config_nodes") for which in ("q0.5", "max")
            ]
            counts = [entry.num_graphs, entry.num_candidates, *sizes]
            rows.append([_text(manifest.collection), _text(split), *(_number(count, 0) for count in counts)])
    sizes = [f"{name}, {which}" for name in ("nodes", "edges", "config_nodes") for which in ("median", "max")]
    header = ["collection", "split", "graphs", "candidates", *sizes]
    rejected = sum(members[0].manifest.num_rejected for _, members in _by_collection(reports))
    intro = (
        "<p>A config node is what a candidate decides: a config node, or a set of tile bounds. Repeated candidates "
        f"count once in train. Archives left out by preprocessing: {rejected:,}.</p>"
    )
    return intro + _table(header, rows, num_text=2)


def _render_recipe(reports: Sequence[RunReport]) -> str:
    seeds = ", ".join(f"{report.label}: {report.run.config.seed}" for report in reports)
    parts = [f"<p>Seeds: {escape(seeds)}. Versions are at the foot of the page.</p>"]
    for report in reports:
        text = escape(dump_config(report.run.config))
        parts.append(
            f"<details><summary>Config of {escape(report.label)}, {len(report.records)} epochs</summary>"
            f'<pre tabindex="0">{text}</pre></details>'
        )
    return "".join(parts)


SECTIONS: tuple[tuple[str, str, Callable[[Sequence[RunReport]], str]], ...] = (
    ("scores", "Scores", _render_scores),
    ("learning", "Learning curves", _render_learning),
    ("predicted", "Predicted against true", _render_points),
    ("regret", "Regret", _render_regret),
    ("worst", "Worst graphs", _render_worst),
    ("graphs", "All graphs", _render_graphs),
    ("attention", "Attention", _render_attention),
    ("data", "Data", _render_data),
    ("recipe", "Configs and seeds", _render_recipe),
)


def _by_collection(reports: Sequence[RunReport]) -> list[tuple[str, list[RunReport]]]:
    groups = {name: [report for report in reports if report.collection == name] for name in COLLECTIONS}
    return [(name, members) for name, members in groups.items() if members]


def _is_compared(report: RunReport, reports: Sequence[RunReport]) -> bool:
    return sum(other.collection == report.collection for other in reports) > 1


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, num_text: int, sortable: bool = False) -> str:
    """Cells come ready; the first `num_text` columns are text. A sortable one has a button in each heading."""
    heads = []
    for column, name in enumerate(header):
        inside = f'<button type="button">{escape(name)}</button>' if sortable else escape(name)
        heads.append(f'<th scope="col"{" class=t" if column < num_text else ""}>{inside}</th>')
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    kind = ' class="sortable"' if sortable else ""
    size = "wide tall" if sortable else "wide"
    label = "all graphs" if sortable else f"table of {header[0]}"
    head = f"<thead><tr>{''.join(heads)}</tr></thead>"
    region = f'<div class="{size}" tabindex="0" role="region" aria-label="{label}">'
    return f"{region}<table{kind}>{head}<tbody>{body}</tbody></table></div>"


def _text(value: str, kind: str = "") -> str:
    name = " name" if kind else ""
    title = f' title="{escape(value)}"' if kind else ""
    return f'<td class="t{name}"{title}>{escape(value)}</td>'


def _number(value: float | None, digits: int = 4, tone: str = "") -> str:
    if value is None or math.isnan(value):
        return '<td data-value="nan">–</td>'
    kind = f' class="{tone}"' if tone else ""
    return f'<td{kind} data-value="{value!r}">{value:,.{digits}f}</td>'

"""Figures of the report: matplotlib's SVG, inlined, with colours and fonts that come from the page.

Why matplotlib: it is a dependency already; its SVG needs no script, so that the page prints, opens without a network
and keeps its strict Content-Security-Policy; a figure takes 10 to 30 kB. Plotly (4.8 MB of script in its package) and
Vega-Lite (its package for pages without a network has 33 MB) would be new dependencies, and their scripts choose
colours when they draw, not when the reader's colour scheme changes. A figure here is drawn once: its inks are
placeholders, which become the CSS variables of the template.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from tpugraphs_polynormer.ranking.report.data import REGRET_KS, Attention, GraphReport, RunReport, bootstrap_interval
from tpugraphs_polynormer.ranking.report.summary import percent, summarize_graphs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_RUN_INKS = 5
MANY_RUNS = 6  # more are drawn closer together, below the text instead of beside it
_NAMES = ("text", "soft", "edge", "bad", *(f"c{number}" for number in range(NUM_RUN_INKS)))
_INKS = {name: f"#0000{number:02x}" for number, name in enumerate(_NAMES, 1)}
_FLOOR = 1e-4  # of a log axis of slowdowns: what is smaller is drawn there
_ATTENTION_RANGE = 4.0  # colours end at a quarter of and at four times the uniform attention, in every figure
_STYLE = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.titlesize": 10,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _INKS["edge"],
    "axes.edgecolor": _INKS["soft"],
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INKS["text"]),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
}


def draw(caption: str, alt: str, plot: Callable[[Figure], None], *, size: tuple[float, float] = (4.4, 3.0)) -> str:
    """A <figure> with what `plot` draws, a caption, and `alt` for those who do not see it.

    4.4 inches (317 points) fill a phone's width, where 10 points are read without zooming.
    """
    import matplotlib
    from matplotlib.figure import Figure

    stream = io.StringIO()
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": caption + alt}):
        figure = Figure(figsize=size, layout="constrained")
        plot(figure)
        figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = stream.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r' (xmlns(:\w+)?|version|width|height)="[^"]*"', "", svg.partition(">")[0]) + svg[svg.index(">") :]
    svg = re.sub(r'<g id="[\w.]+_\d+"', "<g", svg)  # the same in every figure, where ids have to be unique
    svg = re.sub(r"(\.\d\d)\d+", r"\1", svg)  # a hundredth of a point is not seen
    svg = re.sub(r">\s+<", "><", svg.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1))
    for name, ink in _INKS.items():
        svg = svg.replace(ink, f"var(--{name})")
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def draw_scores(rows: Sequence[tuple[str, RunReport]], split: str) -> str:
    """The score of each run: a dot per graph, the mean with its interval, the means of baselines."""
    scores = [[graph.metrics.contest_score for graph in report.graphs] for _, report in rows]
    found = [summarize_graphs(report.graphs) for _, report in rows]
    chances, costs = ([getattr(each, name) for each in found] for name in ("chance_score", "cost_score"))

    def plot(figure: Figure) -> None:
        axes = figure.subplots()
        for row, ((label, _), values, chance, cost) in enumerate(zip(rows, scores, chances, costs, strict=True)):
            spread = 0.13 * np.sin(2.4 * np.arange(len(values)))  # so that equal scores do not hide each other
            first = {"dot": "a graph", "mean": "mean, 95 % interval", "chance": "random order"} if row == 0 else {}
            first |= {"cost": "cost model"} if row == 0 else {}
            axes.plot(values, row + spread, "o", ms=4, mew=0, alpha=0.55, color=_INKS["c0"], label=first.get("dot"))
            low, high = bootstrap_interval([values])
            mean = float(np.mean(values))
            ink = {"color": _INKS["text"], "capsize": 3, "ms": 5, "label": first.get("mean")}
            axes.errorbar(mean, row, xerr=[[max(0, mean - low)], [max(0, high - mean)]], fmt="D", **ink)
            axes.plot(chance, row, "x", ms=7, mew=2, color=_INKS["c1"], label=first.get("chance"))
            axes.plot(cost, row, "+", ms=9, mew=2, color=_INKS["c2"], label=first.get("cost"))
            axes.text(0, row - 0.24, label, transform=axes.get_yaxis_transform(), va="bottom")
        axes.set(xlabel=f"contest score on {split} (1 is perfect)", yticks=[], ylim=(len(rows) - 0.6, -0.75))
        axes.spines["left"].set_visible(False)
        figure.legend(loc="outside lower center", ncols=2, handletextpad=0.3, columnspacing=1)

    told = "; ".join(
        f"{label}: mean {np.mean(values):.3f}, random order {chance:.3f}, cost model {cost:.3f}"
        for (label, _), values, chance, cost in zip(rows, scores, chances, costs, strict=True)
    )
    height = 0.9 + len(rows) * (0.6 if len(rows) > MANY_RUNS else 1.05)
    return draw("Score of every graph", f"Scores. {told}", plot, size=(4.4, height))


def draw_regret(collection: str, members: Sequence[RunReport], top: float) -> str:
    """The mean slowdown of the best of the first k, on log axes up to `top`, with random order and the default."""
    chance = np.mean([graph.chance_regret for graph in members[0].graphs], 0)
    known = [graph.default_slowdown for graph in members[0].graphs if graph.default_slowdown is not None]
    found = f"{len(known)} of {len(members[0].graphs)} graphs"

    def plot(figure: Figure) -> None:
        axes = figure.subplots()
        for number, report in enumerate(members):
            regrets = np.array([graph.regret for graph in report.graphs])
            ink = _INKS[f"c{number % NUM_RUN_INKS}"]
            low, high = zip(*(bootstrap_interval([column]) for column in regrets.T), strict=True)
            axes.fill_between(REGRET_KS, np.maximum(low, _FLOOR), np.maximum(high, _FLOOR), color=ink, alpha=0.18, lw=0)
            axes.plot(REGRET_KS, np.maximum(regrets.mean(0), _FLOOR), "o-", ms=4, color=ink, label=report.label)
        axes.plot(REGRET_KS, np.maximum(chance, _FLOOR), "--", color=_INKS["soft"], label="random order")
        if known:
            line = {"color": _INKS["bad"], "ls": "-.", "label": f"compiler's default ({found})"}
            axes.axhline(max(float(np.mean(known)), _FLOOR), **line)
        axes.set(xscale="log", yscale="log", ylim=(_FLOOR * 0.8, top), xlabel="k, candidates tried (log scale)")
        axes.set(ylabel="mean slowdown (log scale)")
        axes.set_xticks(REGRET_KS, map(str, REGRET_KS))
        axes.yaxis.set_major_formatter(lambda value, _: "≤ 0.01 %" if value <= _FLOOR else f"{100 * value:g} %")
        axes.minorticks_off()
        columns = 2 if len(members) == 1 else 1  # several runs may have long names
        figure.legend(loc="outside lower center", ncols=columns, handlelength=1.6, columnspacing=1)

    told = ", ".join(f"{percent(value)} for k = {k}" for k, value in zip(REGRET_KS, chance, strict=True))
    means = [(report.label, summarize_graphs(report.graphs).slowdown) for report in members]
    model = "; ".join(f"{label} {percent(mean)} for k = 5" for label, mean in means)
    default = f"the default {percent(float(np.mean(known)))} ({found})" if known else "the default is unknown"
    size = (4.4, 3.0 if len(members) == 1 else 3.0 + 0.18 * len(members))
    caption = collection if known else f"{collection}; which candidate is the compiler's default is unknown"
    return draw(caption, f"Mean slowdown in {collection}: {model}; random order {told}; {default}", plot, size=size)


def draw_sizes(collection: str, members: Sequence[RunReport]) -> str:
    """The score of each graph against its number of nodes."""
    from matplotlib.ticker import LogLocator

    def plot(figure: Figure) -> None:
        axes = figure.subplots()
        for number, report in enumerate(members):
            points = [(graph.num_nodes, graph.metrics.contest_score) for graph in report.graphs]
            axes.plot(*zip(*points, strict=True), "o", ms=5, mew=0, alpha=0.6, color=_INKS[f"c{number % NUM_RUN_INKS}"])
        axes.set(xscale="log", xlabel="nodes of the graph (log scale)", ylabel="contest score")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.minorticks_off()

    return draw(collection, f"Contest score of each graph of {collection} against its number of nodes", plot)


def draw_order(graph: GraphReport, caption: str) -> str:
    """The candidates of one graph in predicted order, the perfect order, and the default."""

    def plot(figure: Figure) -> None:
        axes = figure.subplots()
        ranks, predicted, true = graph.points.T
        axes.plot(ranks, true, color=_INKS["soft"], label="perfect order")
        axes.plot(ranks, predicted, "o", ms=3.5, mew=0, alpha=0.6, color=_INKS["c0"], label="predicted order")
        if graph.default_slowdown is not None:
            axes.axhline(graph.default_slowdown, ls="-.", color=_INKS["bad"], label="default")
        axes.set(xlabel="rank, fastest first", ylabel="slower than the fastest")
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:,.4g} %")
        figure.legend(loc="outside lower center", ncols=3, handlelength=1.6, columnspacing=1)

    return draw(caption, f"Slowdown of the candidates of {graph.metrics.graph} in predicted order", plot)


def draw_learning(collection: str, members: Sequence[RunReport], lowest: float) -> str:
    """Validation score (from `lowest` up) above training loss, epoch by epoch, with the best epoch marked."""

    def plot(figure: Figure) -> None:
        upper, lower = figure.subplots(2, sharex=True)
        for number, report in enumerate(members):
            ink, best = _INKS[f"c{number % NUM_RUN_INKS}"], report.best
            epochs = [record["epoch"] + 1 for record in report.records]
            losses = np.array([record["loss"] for record in report.records], float)
            for axes, values in ((upper, valid_scores(report.records)), (lower, losses)):
                axes.plot(epochs, values, ".-", ms=5, color=ink, label=report.label)
                axes.axvline(best["epoch"] + 1, ls=":", color=ink)
            upper.plot(best["epoch"] + 1, *valid_scores([best]), "*", ms=12, color=ink)
        upper.set(ylabel="valid score", ylim=(lowest, 1.05))
        lower.set(ylabel="train loss", xlabel="epoch")
        lower.xaxis.get_major_locator().set_params(integer=True)
        if len(members) > 1:
            figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center")

    best = [f"{report.best['epoch'] + 1} ({valid_scores([report.best])[0]:.4f})" for report in members]
    if len(members) > 1:
        best = [f"{report.label} {text}" for report, text in zip(members, best, strict=True)]
    caption = f"{collection}, best epoch: {', '.join(best)}"
    size = (4.4, 3.6 + 0.18 * (len(members) - 1))
    return draw(caption, f"Validation score and training loss by epoch. {caption}", plot, size=size)


def valid_scores(records: Sequence[dict[str, Any]]) -> np.ndarray:
    """[r]: the validation scores in a run's records; NaN where one is undefined."""
    return np.array([record["metrics"]["valid"]["contest_score"] for record in records], float)


def draw_attention(attention: Attention, caption: str) -> str:
    """Who attends to whom; uniform attention has the page's own colour, and every figure the same scale."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    # Transparent in the middle, so that neither a light nor a dark page makes "uniform" stand out.
    colours = [(0.05, 0.4, 0.75, 1.0), (0.05, 0.4, 0.75, 0.0), (0.85, 0.35, 0.0, 0.0), (0.85, 0.35, 0.0, 1.0)]
    ramp = LinearSegmentedColormap.from_list("around_1", list(zip((0, 0.5, 0.5, 1), colours, strict=True)), N=257)

    def plot(figure: Figure) -> None:
        axes = figure.subplots()
        norm, end = LogNorm(1 / _ATTENTION_RANGE, _ATTENTION_RANGE, clip=True), attention.num_nodes
        picture = axes.imshow(attention.weights, ramp, norm, extent=(0, end, end, 0), interpolation="none")
        axes.set(xlabel="node attended to", ylabel="attending node")
        axes.grid(False)
        bar = figure.colorbar(picture, ticks=[0.25, 0.5, 1, 2, 4], shrink=0.85, label="times uniform (log scale)")
        bar.ax.set_yticklabels(["≤ ¼", "½", "1", "2", "≥ 4"])
        bar.ax.minorticks_off()
        bar.solids.set_rasterized(True)

    low, high = attention.weights.min(), attention.weights.max()
    alt = f"{caption}: from {low:.2f} to {high:.2f} times uniform attention, rows attend to columns"
    return draw(caption, alt, plot, size=(4.4, 3.7))

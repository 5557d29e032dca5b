"""The page: whole, self-contained, the terminal's numbers; in a real browser it fits, changes colour and sorts."""

import base64
import html
import io
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from matplotlib.figure import Figure
from playwright.sync_api import Browser, Page

from tests.browser import open_page, start_browser
from tests.small_datasets import LAYOUT
from tests.trained import Trained, make_trained
from tpugraphs_polynormer.datasets.input_pipeline import iterate_blocks
from tpugraphs_polynormer.models.ranking.batch import unpack_batch
from tpugraphs_polynormer.ranking.evaluate import RunEvaluation, evaluate_run, format_evaluations
from tpugraphs_polynormer.ranking.predict import plan_predictions, predict
from tpugraphs_polynormer.ranking.report.data import (
    Attention,
    GraphReport,
    Report,
    RunReport,
    _average_down,
    attention_weights,
    find_default_cost,
    gather_run,
)
from tpugraphs_polynormer.ranking.report.figures import draw, draw_attention, draw_regret
from tpugraphs_polynormer.ranking.report.page import render_page, write_report
from tpugraphs_polynormer.ranking.runs import load_ranker
from tpugraphs_polynormer.ranking.submission import expected_rows, read_rankings, score_submission, write_submission
from tpugraphs_polynormer.ranking.task import train_ranking
from tpugraphs_polynormer.training.run_directory import RunDirectory, RunError


@pytest.fixture(scope="module")
def trained() -> Trained:
    """Runs that no test may change."""
    return make_trained()


@pytest.fixture(scope="module")
def page(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two runs of one collection and one of another."""
    runs = [trained.layout, trained.layout_seed_1, trained.tile]
    path = tmp_path_factory.mktemp("report") / "report.html"
    return write_report(runs, trained.data, path, title="Runs <1>", note="simulated & small")


def test_the_page_asks_for_nothing_and_escapes_what_it_is_given(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"(src|href)=[\"'](?!#|data:)", text)
    assert "http://" not in text and "https://" not in text and "@import" not in text
    assert not re.search(r"url\((?!#)", text)  # clip paths of a figure are in the page
    assert len(text.encode()) < 2_000_000
    assert "Runs &lt;1&gt;" in text and "simulated &amp; small" in text
    assert "$" not in re.sub(r"<(script|style).*?</\1>", "", text, flags=re.S)


def test_the_page_shows_the_evaluations_numbers(page: Path, trained: Trained) -> None:
    text = page.read_text().replace("<wbr>", "")
    result = evaluate_run(trained.layout, trained.data, split="valid")
    for graph in result.graphs:
        row = re.search(
            rf"<tr><td[^>]*>{re.escape(html.escape(graph.graph))}</td><td[^>]*>{LAYOUT}</td><td[^>]*>layout</td>.*?</tr>",
            text,
        )
        assert f'data-value="{graph.contest_score!r}"' in row[0]
    overall = result.summarize()["overall"]["contest_score"]
    assert f'data-value="{overall!r}"' in text
    assert "hidden_dim: 8" in text and "layout_1: 1" in text  # config and seed
    assert text.count("<figure") > 10 and "data:image/png;base64" in text


def read_table(text: str, header: str) -> list[list[str]]:
    """The cells of the first table whose heading begins like this."""
    table = re.search(rf"<table[^>]*><thead><tr><th[^>]*>{header}.*?</table>", text.replace("<wbr>", ""), re.S)[0]
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
    return [[html.unescape(cell) for cell in row] for row in rows]


def test_the_page_shows_what_the_terminal_prints(trained: Trained, tmp_path: Path) -> None:
    """The table of `evaluate` with its mean, and the table of `submit --truth`, are on the page cell by cell."""
    runs = [trained.tile, trained.layout]
    predictions, csv, truth = tmp_path / "predictions", tmp_path / "submission.csv", trained.tree / "truth"
    predict(plan_predictions(runs, trained.data, predictions, split="test", average="rank"))
    rows = expected_rows(trained.tree)
    write_submission(csv, read_rankings(predictions), rows)
    page = write_report(runs, trained.data, tmp_path / "report.html", test=(csv, trained.tree, truth))
    text = page.read_text()
    printed = [line.split() for line in format_evaluations(evaluate(trained, *runs)).splitlines()[:4]]
    shown = [dict(zip(read_table(text, "run")[0], row, strict=True)) for row in read_table(text, "run")[1:]]
    assert [line[0] for line in printed[1:]] == [row["run"] for row in shown] == ["tile", "layout", "mean"]
    for line, row in zip(printed[1:], shown, strict=True):
        for name, value in zip(printed[0][::-1], line[::-1], strict=False):  # the mean has no collection
            if name not in ("run", "collection"):
                assert row[name.replace("_", " ")] == value, name
    scores = score_submission(csv, truth, rows)
    assert {row[0]: row[1] for row in read_table(text, "collection")[1:]} == {
        k: f"{v:.4f}" for k, (v, _) in scores.items()
    }
    mean = re.search(
        r"mean contest score on the valid split is (-?[\d.]+) .*?On the test split it is (-?[\d.]+);", text
    )
    assert mean.groups() == (shown[2]["contest score"], f"{scores['mean'][0]:.4f}")


def evaluate(trained: Trained, *runs: Path) -> list[RunEvaluation]:
    """What `tpugraphs evaluate` computes."""
    return [evaluate_run(run, trained.data, split="valid") for run in runs]


def test_a_random_order_of_the_test_split_scores_what_it_should(trained: Trained, tmp_path: Path) -> None:
    """The mean over many random submissions is near the expected score on the page."""
    rows, truth, csv = expected_rows(trained.tree), trained.tree / "truth", tmp_path / "random.csv"
    random, means = np.random.default_rng(0), []
    for _ in range(100):
        write_submission(csv, {row.id: random.permutation(row.num_candidates) for row in rows}, rows)
        mean, expected = score_submission(csv, truth, rows)["mean"]
        means.append(mean)
    assert np.mean(means) == pytest.approx(expected, abs=4 * np.std(means) / 10)


@pytest.fixture(scope="module")
def gathered(trained: Trained) -> list[RunReport]:
    """What the page knows of the tile and the layout run."""
    runs = (trained.tile, trained.layout)
    return [gather_run(run, run.name, trained.data, split="valid", most=0, heatmap_graph=None) for run in runs]


def test_worst_graphs_are_by_regret_and_without_those_where_any_order_is_perfect(gathered: list[RunReport]) -> None:
    layout = gathered[1]
    regrets = {"easy": (0.5, 0.0), "lost": (0.1, 0.2), "most": (0.4, 0.5), "won": (0.0, 0.3)}  # slowdown 5, worst order
    graphs = [replace_graph(layout.graphs[0], name, *values) for name, values in regrets.items()]
    page = render_page(Report([replace(layout, graphs=graphs)], "valid", {}), most=0, title="t", note="")
    section = page[page.index('id="worst"') : page.index('id="predicted"')]
    assert [row[0] for row in read_table(section, "graph")[1:]] == ["most", "lost"]
    assert "not the fastest in 2 of 3 graphs (1 left out)" in section


def replace_graph(graph: GraphReport, name: str, slowdown: float, worst: float) -> GraphReport:
    """The graph with another name, another slowdown of the first five, and of the worst five."""
    return replace(graph, metrics=replace(graph.metrics, graph=name, slowdown_5=slowdown), worst_regret=worst)


def test_gathered_graphs_know_their_worst_order_and_their_default(gathered: list[RunReport], trained: Trained) -> None:
    for report, run in zip(gathered, (trained.tile, trained.layout), strict=True):
        split = load_ranker(run, trained.data).collection.split("valid")
        for number, graph in enumerate(report.graphs):
            costs = split[number].read_costs()
            worst = np.sort(costs)[::-1][:5].min() / costs.min() - 1
            assert graph.worst_regret == pytest.approx(worst)
            assert graph.metrics.slowdown_5 <= worst + 1e-12
            default = find_default_cost(split, number)
            expected = None if default is None else pytest.approx(default / costs.min() - 1)
            assert graph.default_slowdown == expected
            assert graph.points[:, 2].tolist() == sorted(graph.points[:, 1])  # few enough that all are drawn
    assert all(graph.default_slowdown is not None for graph in gathered[0].graphs)


def test_attention_is_what_the_layer_computes(trained: Trained) -> None:
    task = load_ranker(trained.layout, trained.data)
    split = task.collection.split("valid")
    batch = unpack_batch(next(iterate_blocks(task.collection, split, 0, 1, np.zeros(1, np.int64))).graph)
    weights = attention_weights(task, batch)
    assert weights.mean(1) == pytest.approx(1.0, abs=1e-5)
    encoder = task.model.encoder
    states = encoder.norm(task.model.encode(batch, phase="local", training=False).states)
    layer = encoder.global_layers[0]
    # With values that do not depend on the head, the mean over heads of the attended is the mean attention times them.
    values = tf.random.stateless_normal([len(states), 1], [1, 2])
    layer.value = lambda _: tf.tile(values, [1, layer.num_heads * layer.head_dim])
    attended = layer.aggregate(layer.project(states))
    expected = (weights / len(weights)) @ values.numpy()
    assert tf.reduce_mean(attended, 1).numpy() == pytest.approx(expected[:, 0], abs=1e-5)


def test_large_attention_is_averaged_down() -> None:
    weights = np.arange(36.0).reshape(6, 6)
    small = _average_down(weights, 4)
    assert small.shape == (4, 4)
    assert small[0, 0] == weights[0, 0] and small[1, 1] == weights[1:3, 1:3].mean()
    assert _average_down(weights, 6) is weights


def test_the_attention_shown_is_of_the_graph_asked_for(trained: Trained) -> None:
    names = [entry.name for entry in load_ranker(trained.tile, trained.data).collection.split("valid").graphs]
    for name in names:
        report = gather_run(trained.tile, "tile", trained.data, split="valid", most=5, heatmap_graph=name)
        assert report.attention.graph == name
        assert [graph.metrics.num_candidates for graph in report.graphs] == [5] * len(names)


@pytest.mark.parametrize("settings", [{"encoder": "polynormer-local"}, {"fusion": "early"}], ids=["local", "early"])
def test_models_without_shared_attention_say_so(trained: Trained, tmp_path: Path, settings: dict) -> None:
    """The data are those whose attention the test above sees: only the model can be the reason."""
    config = RunDirectory.open(trained.tile).config
    short = replace(config.training, epochs=1, steps_per_epoch=1)
    config = replace(config, model=replace(config.model, **settings), training=short)
    train_ranking(config, trained.data, tmp_path / "run", strategy=tf.distribute.OneDeviceStrategy("CPU:0"))
    text = write_report([tmp_path / "run"], trained.data, tmp_path / "a.html").read_text()
    assert "no global attention that all candidates of a graph share" in text and "rows attend to columns" not in text


def test_unknown_graphs_and_broken_runs_write_no_page(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--heatmap nowhere"):
        write_report([trained.tile], trained.data, tmp_path / "a.html", heatmap_graph="nowhere")
    run = shutil.copytree(trained.tile, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunError, match="no checkpoint"):
        write_report([run], trained.data, tmp_path / "a.html")
    assert not (tmp_path / "a.html").exists()


def test_figures_have_the_pages_colours_and_text_for_those_who_do_not_see_them() -> None:
    def plot(figure: Figure) -> None:
        figure.subplots().plot([1, 2], [3, 4], color="#000005")

    text = draw("<title>", 'a "line"', plot)
    assert "<figcaption>&lt;title&gt;</figcaption>" in text
    assert 'role="img" aria-label="a &quot;line&quot;"' in text
    assert "stroke: var(--c0)" in text and "var(--text)" in text and "var(--edge)" in text
    assert not re.search(r"#(?!000000)[0-9a-f]{6}", text.replace("#000000", ""))
    assert "xmlns" not in text and "<metadata" not in text


def test_no_id_is_twice_on_the_page_and_each_figure_is_told(page: Path) -> None:
    text = page.read_text()
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert text.count("<svg") == text.count('<svg role="img" aria-label="') == text.count("<figcaption>")


def test_regret_is_on_a_log_axis_with_the_default(gathered: list[RunReport]) -> None:
    tile = gathered[0]
    text = draw_regret("tile:xla", [tile], 2.0)
    assert f"compiler's default ({len(tile.graphs)} of {len(tile.graphs)} graphs)" in text
    ticks = re.findall(r">(≤ 0.01 %|[\d.]+ %)</text>", text)
    assert ticks == ["≤ 0.01 %", "0.1 %", "1 %", "10 %", "100 %"]
    hidden = replace(tile, graphs=[replace(graph, default_slowdown=None) for graph in tile.graphs])
    text = draw_regret("tile:xla", [hidden], 2.0)
    assert "default (" not in text and "the compiler's default is unknown" in html.unescape(text)


def test_uniform_attention_draws_nothing_and_colours_mean_the_same_everywhere() -> None:
    def pixels(weights: np.ndarray) -> np.ndarray:
        text = draw_attention(Attention("graph", len(weights), weights, ()), "attention")
        assert "times uniform (log scale)" in text
        pictures = re.findall(r"data:image/png;base64,\s*([^\"]+)", text)
        shown = [imread(io.BytesIO(base64.b64decode(picture)), format="png") for picture in pictures]
        return next(each for each in shown if each.shape[0] == each.shape[1])

    from matplotlib.image import imread

    assert not pixels(np.ones((4, 4)))[..., 3].any()  # fully transparent
    assert pixels(np.linspace(0.99, 1.01, 16).reshape(4, 4))[..., 3].max() < 0.02  # the scale does not follow the data
    faint, lower = (pixels(np.full((4, 4), value))[0, 0] for value in (2.0, 0.5))
    assert faint[3] == pytest.approx(0.5, abs=0.01) == lower[3] and faint[0] > faint[2] and lower[0] < lower[2]
    strong, stronger = (pixels(np.full((4, 4), value))[0, 0] for value in (4.0, 40.0))
    assert strong[3] == stronger[3] == 1 and strong.tolist() == stronger.tolist()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless browser."""
    with start_browser() as started:
        yield started


def read_column(page: Page, column: int) -> list[str]:
    return page.locator(f"table.sortable tbody tr > :nth-child({column + 1})").all_text_contents()


def test_in_a_real_browser_the_table_sorts_by_mouse_and_keyboard(page: Path, browser: Browser) -> None:
    opened, complaints = open_page(browser, page)
    names = opened.locator("table.sortable th").all_text_contents()
    buttons, column = opened.locator("table.sortable th button"), names.index("score")
    before = read_column(opened, column)
    rising, falling = sorted(before, key=float), sorted(before, key=float, reverse=True)
    assert len(set(before)) > 2 and rising != falling
    buttons.nth(column).click()
    assert read_column(opened, column) == falling
    buttons.nth(column).press("Enter")
    assert read_column(opened, column) == rising
    graphs = read_column(opened, 0)
    assert graphs != sorted(graphs)
    buttons.first.press("Space")
    assert read_column(opened, 0) == sorted(graphs)
    assert opened.locator("[aria-sort]").all_text_contents() == ["graph"]
    assert complaints == []


def test_in_a_real_browser_figures_are_drawn(page: Path, browser: Browser) -> None:
    opened, complaints = open_page(browser, page)
    pictures = opened.evaluate("[...document.querySelectorAll('svg image')].map(i => i.getBBox().width)")
    assert pictures and all(pictures)
    assert opened.evaluate("[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().width)")
    assert complaints == []


FIT = "selector => [...document.querySelectorAll(selector)].every(each => each.scrollWidth <= each.clientWidth)"
COLOURS = """() => [
    getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector("svg text")).fill
]"""


@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_overflows_in_light_and_dark(page: Path, browser: Browser, width: int) -> None:
    colours = []
    for scheme in ("light", "dark"):
        size = {"viewport": {"width": width, "height": 800}, "is_mobile": width < 500}
        opened, complaints = open_page(browser, page, color_scheme=scheme, **size)
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        colours.append(opened.evaluate(COLOURS))
        assert opened.evaluate(FIT, "td, th")  # no text is cut off
        assert width < 1400 or opened.evaluate(FIT, ".wide")  # on a phone a table scrolls in its box
        assert complaints == []
    assert colours[0][0] != colours[1][0] and colours[0][1] != colours[1][1]  # the page, and text in figures

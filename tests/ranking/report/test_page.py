"""The page: whole, self-contained, right numbers; and in a real browser it sorts, by mouse and by keyboard."""

import html
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from playwright.sync_api import Browser, Page, sync_playwright

from tests.small_datasets import LAYOUT
from tests.trained import Trained, make_trained
from tpugraphs_polynormer.datasets.input_pipeline import iterate_blocks
from tpugraphs_polynormer.models.ranking.batch import unpack_batch
from tpugraphs_polynormer.ranking.evaluate import evaluate_run
from tpugraphs_polynormer.ranking.report.data import _average_down, attention_weights, gather_run
from tpugraphs_polynormer.ranking.report.figures import Axis, Series, draw_bars, draw_chart
from tpugraphs_polynormer.ranking.report.page import write_report
from tpugraphs_polynormer.ranking.runs import load_ranker
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
    assert "http://" not in text and "https://" not in text and "@import" not in text and "url(" not in text
    assert "Runs &lt;1&gt;" in text and "simulated &amp; small" in text
    assert "$" not in re.sub(r"<(script|style).*?</\1>", "", text, flags=re.S)


def test_the_page_shows_the_evaluations_numbers(page: Path, trained: Trained) -> None:
    text = page.read_text()
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
    assert "rows attend to columns" in text and text.count("<figure") > 10 and "data:image/png;base64" in text


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


def test_charts_place_points_by_their_scales() -> None:
    points = [(1.0, 1.0), (10.0, 2.0), (100.0, 3.0)]
    svg = draw_chart("t", [Series("a", points)], Axis("x", log=True, ticks=(1, 10, 100)), Axis("y"))
    places = re.search(r'class="line c0" d="M([^"]+)"', svg)[1]
    across = [float(place.split()[0]) for place in places.split("L")]
    assert across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.2)
    assert "nothing was recorded" in draw_chart("t", [Series("a", [])], Axis("x"), Axis("y"))
    assert "NaN" not in draw_chart("t", [Series("a", [(1.0, 2.0)])], Axis("x"), Axis("y")).replace("nan", "NaN")


def test_bars_grow_from_zero_to_either_side() -> None:
    svg = draw_bars("t", [("a", 0.5, 0.0), ("b", -0.25, 0.0)], "score", "chance")
    bars = re.findall(r'class="bar" x="([\d.]+)" y="\d+" width="([\d.]+)"', svg)
    (up, up_width), (down, down_width) = [(float(start), float(width)) for start, width in bars]
    assert up_width == pytest.approx(2 * down_width, abs=0.2)
    assert down + down_width == pytest.approx(up, abs=0.2)


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",  # root may start it
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real headless browser with an empty profile; skips where none is installed."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} found: run `make browser`, or install one of them")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


def open_page(browser: Browser, path: Path, **options: Any) -> tuple[Page, list[str]]:
    """The opened file, and a list that receives what it logs of warnings and errors, and what it requests."""
    page, complaints = browser.new_context(**options).new_page(), []
    page.on("console", lambda each: complaints.append(each.text) if each.type in ("warning", "error") else None)
    page.on("pageerror", lambda fault: complaints.append(str(fault)))
    page.on("request", lambda each: None if each.url.startswith(("file:", "data:")) else complaints.append(each.url))
    page.goto(path.resolve().as_uri())
    return page, complaints


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


def test_in_a_real_browser_pictures_are_drawn_and_a_dark_phone_is_served(page: Path, browser: Browser) -> None:
    light, complaints = open_page(browser, page)
    widths = light.evaluate("[...document.images].map(image => image.complete && image.naturalWidth)")
    assert widths and all(widths)
    charts = light.evaluate("[...document.querySelectorAll('svg')].map(svg => svg.getBoundingClientRect().width)")
    assert charts and all(charts)
    phone = {"viewport": {"width": 360, "height": 780}, "device_scale_factor": 2, "is_mobile": True}
    dark, more = open_page(browser, page, color_scheme="dark", **phone)
    colour = "getComputedStyle(document.body).backgroundColor"
    assert dark.evaluate(colour) != light.evaluate(colour)
    assert dark.evaluate("document.documentElement.scrollWidth") <= 360
    assert complaints == more == []

"""The page of a program's ranking: self-contained, escaped, with its facts; in a browser it fits, light and dark."""

import html
import re
from dataclasses import replace

from tests.browser import open_page, start_browser
from tests.ranking.test_calibration import simple
from tests.ranking.test_program_ranking import make_ranking
from tpugraphs_polynormer.ranking.program_files import write_ranking
from tpugraphs_polynormer.ranking.program_ranking import Novelty


def make_page(folder, **settings):
    """The path of a page of a ranking with an odd name and an unknown program."""
    ranking = make_ranking(**settings)
    module = replace(ranking.program.module, name="<five> & $x")
    ranking = replace(ranking, program=replace(ranking.program, module=module), novelty=Novelty(("sort",), 0.1, 0.5))
    path = folder / "ranking.html"
    write_ranking(path, ranking)
    return path


def test_the_page_asks_for_nothing_escapes_names_and_tells_all(tmp_path):
    text = make_page(tmp_path, calibration=simple()).read_text()
    assert not re.search(r"(src|href)=[\"'](?!#|data:)", text)
    assert "http://" not in text and "https://" not in text and "@import" not in text
    assert "&lt;five&gt; &amp; $x" in text and "<five>" not in text
    plain = html.unescape(re.sub(r"<wbr>|</?(?:td|p)[^>]*>", "", text))
    for told in ("do not trust this ranking", "2 x dot", "model.py:12", "simulated, not measured", "presumed"):
        assert told in plain, told
    assert plain.count("equal to the default") == 0
    scores_only = html.unescape(make_page(tmp_path).read_text().replace("<wbr>", ""))
    assert "Unit: scores only" in scores_only and "tpugraphs evaluate" in scores_only


def test_it_fits_a_phone_in_both_colour_schemes(tmp_path):
    path = make_page(tmp_path, calibration=simple())
    inks = set()
    with start_browser() as browser:
        for scheme in ("light", "dark"):
            viewport = {"width": 390, "height": 800}
            page, complaints = open_page(browser, path, color_scheme=scheme, viewport=viewport)
            assert page.locator("table").count() == 6  # the best, four of them with changes, where this comes from
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            inks.add(page.evaluate("getComputedStyle(document.body).color"))
            assert not complaints
    assert len(inks) == 2

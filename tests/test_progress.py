"""A bar on a terminal, lines elsewhere; both tell the time that is left."""

import io
import logging
import re
import time

import pytest

from tpugraphs_polynormer import progress
from tpugraphs_polynormer.progress import Progress, format_seconds, track


class Terminal(io.StringIO):
    """Stands in for a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def often(monkeypatch, caplog):
    """Lines many times a second, kept by caplog."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.05)
    caplog.set_level(logging.INFO, "tpugraphs_polynormer")
    return caplog


def test_lines_come_while_one_step_takes_long(often) -> None:
    with Progress(4, "work", "graph", done=1) as shown:
        time.sleep(0.2)
        first = [record.message for record in often.records]
        assert len(first) >= 2 and first[0].startswith("work: 1 of 4 graphs, 25 %, 0 s passed, time left not known yet")
        shown.update(2)
        time.sleep(0.2)
    assert re.fullmatch(r"work: 3 of 4 graphs, 75 %, \d s passed, about \d s left", often.records[-1].message)
    count = len(often.records)
    time.sleep(0.2)
    assert len(often.records) == count  # no line after the end


def test_the_time_left_is_that_of_the_mean_speed(monkeypatch) -> None:
    clock = iter([0.0, 60.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    shown = Progress(100, "work", "step", done=40, hidden=True)
    with shown:
        shown.advance_to(50, "other work")
        assert shown.describe() == "other work: 50 of 100 steps, 50 %, 60 s passed, about 5 min left"


def test_a_terminal_gets_a_bar(monkeypatch, often) -> None:
    terminal = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    with Progress(2, "work") as shown:
        shown.advance_to(1, "second part")
        time.sleep(0.15)
        shown.update()
    assert (
        "work:   0%|" in terminal.getvalue() and "second part" in terminal.getvalue() and " left" in terminal.getvalue()
    )
    assert often.records == []


def test_hidden_shows_nothing(often, capsys) -> None:
    assert list(track(range(3), 3, "work", "graph", hidden=True)) == [0, 1, 2]
    with Progress(2, "work", hidden=True):
        time.sleep(0.15)
    assert (often.records, capsys.readouterr().err) == ([], "")


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (150, "2 min"), (9000, "2.5 h")])
def test_durations(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text

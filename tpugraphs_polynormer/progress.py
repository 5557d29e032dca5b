"""How far a long job is: a bar on a terminal, elsewhere a line in the log at least every 30 seconds."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
LINE_SECONDS = 30.0  # between two lines where there is no terminal
_logger = logging.getLogger(__name__)


class Progress:
    """Shows what is done of `total`, the time passed, and the time left as far as the past tells.

    Lines come from a thread, so that they also come while one step takes long. `hidden` shows nothing.

    Example:

    >>> with Progress(3, "count", "number") as progress:
    ...     for _ in range(3):
    ...         progress.update()
    >>> progress.done
    3
    """

    def __init__(self, total: float, name: str, unit: str = "", *, done: float = 0, hidden: bool = False) -> None:
        self.total, self.name, self.unit, self.done = total, name, unit, done
        self._first, self._hidden = done, hidden
        self._bar: tqdm | None = None
        self._ended = threading.Event()

    def __enter__(self) -> Progress:
        self._started = time.monotonic()
        if self._hidden:
            return self
        if sys.stderr.isatty():
            form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed} passed, {remaining} left"
            # smoothing 0: the mean speed so far. The last steps' speed alone would jump with each validation.
            self._bar = tqdm(
                total=self.total, initial=self.done, desc=self.name, bar_format=form, smoothing=0, leave=False
            )
        else:
            threading.Thread(target=self._write_lines, daemon=True).start()
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self._ended.set()
        if self._bar is not None:
            self._bar.close()

    def update(self, step: float = 1) -> None:
        """So much more is done."""
        self.advance_to(self.done + step)

    def advance_to(self, done: float, name: str | None = None) -> None:
        """So much is done in all; `name` says what is worked on now."""
        self.done, self.name = done, name or self.name
        if self._bar is not None:
            self._bar.set_description(self.name, refresh=False)
            self._bar.update(done - self._bar.n)

    def describe(self) -> str:
        """The progress as one line of text."""
        passed = time.monotonic() - self._started
        advanced = self.done - self._first
        left = passed * (self.total - self.done) / advanced if advanced > 0 else None
        count = f"{self.done:,} of {self.total:,} {self.unit}s, " if self.unit else ""
        told = "time left not known yet" if left is None else f"about {format_seconds(left)} left"
        share = 100 * self.done / self.total if self.total else 100
        return f"{self.name}: {count}{share:.0f} %, {format_seconds(passed)} passed, {told}"

    def _write_lines(self) -> None:
        while not self._ended.wait(LINE_SECONDS):
            _logger.info("%s", self.describe())


def track(items: Iterable[T], total: int, name: str, unit: str, *, hidden: bool = False) -> Iterator[T]:
    """Yields the items and shows how many are done."""
    with Progress(total, name, unit, hidden=hidden) as progress:
        for item in items:
            yield item
            progress.update()


def format_seconds(seconds: float) -> str:
    """A duration such as 45 s, 12 min or 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"

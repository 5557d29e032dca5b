"""A real browser for tests of HTML pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

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


@contextmanager
def start_browser() -> Iterator[Browser]:
    """A headless browser; skips the test where none is installed."""
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

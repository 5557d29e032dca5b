"""A headless Chromium, controlled through the HTTP protocol of ChromeDriver; installs Debian's packages if missing."""

import base64
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of element ids in the WebDriver standard


def require_chromium() -> None:
    """Installs Debian's packages if they are missing; skips the test if that fails."""
    if shutil.which("chromium") and shutil.which("chromedriver"):
        return
    if os.geteuid() or not shutil.which("apt-get"):
        pytest.skip("no chromium and chromedriver, and no right to install them with apt-get")
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "chromium", "chromium-driver"]):
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            pytest.skip(f"{' '.join(command)} failed: {ended.stderr.strip().splitlines()[-1:]}")


class Browser:
    """One browser window."""

    def __init__(self, port: int, profile: str, width: int, height: int) -> None:
        self._root = f"http://127.0.0.1:{port}"
        options = {"args": [*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._session = ""
        found = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{found['sessionId']}"

    def _call(self, method: str, path: str, body: dict | None = None) -> Any:
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        address = f"{self._root}{self._session}{path}"
        request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as fault:
            raise AssertionError(f"{path}: {json.load(fault)['value']['message']}") from None

    def open(self, page: Path) -> None:
        """Loads a local file."""
        self._call("POST", "/url", {"url": page.resolve().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector: str) -> list[str]:
        """The elements that a CSS selector matches."""
        found = self._call("POST", "/elements", {"using": "css selector", "value": selector})
        return [each[_ELEMENT] for each in found]

    def click(self, element: str) -> None:
        """Scrolls an element to the middle of the window and clicks it."""
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", {_ELEMENT: element})
        self._call("POST", f"/element/{element}/click")

    def press(self, element: str, key: str) -> None:
        """Focuses an element, then presses and releases a key."""
        self.run("arguments[0].focus()", {_ELEMENT: element})
        strokes = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def read_console(self) -> list[str]:
        """The warnings and errors that the page has logged."""
        entries = self._call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def emulate(self, *, dark: bool = False, width: int = 0) -> None:
        """Sets the color scheme and, if `width` is not 0, the screen of a phone with that width."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._send("Emulation.setEmulatedMedia", {"features": features})
        if width:
            size = {"width": width, "height": 780, "deviceScaleFactor": 2, "mobile": True}
            self._send("Emulation.setDeviceMetricsOverride", size)

    def capture(self, path: Path) -> None:
        """Writes a picture of the whole page."""
        shot = self._send("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(shot["data"]))

    def _send(self, command: str, parameters: dict) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def close(self) -> None:
        """Ends the browser."""
        self._call("DELETE", "")


@contextmanager
def open_browser(width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """A browser with an empty profile, which is deleted afterwards."""
    require_chromium()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        try:
            _wait_for(port)
            browser = Browser(port, profile, width, height)
            try:
                yield browser
            finally:
                browser.close()
        finally:
            driver.terminate()
            driver.wait()


def _wait_for(port: int) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise TimeoutError("chromedriver did not start within a minute")

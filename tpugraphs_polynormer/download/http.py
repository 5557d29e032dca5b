"""Fetches one file over HTTP(S): resumes, retries with back-off, and never joins two versions of a file.

The standard library serves: `pooch` does not resume, and `requests` drops what arrived of a block when the connection
breaks in it, up to a megabyte each time.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from tpugraphs_polynormer.download.sources import RemoteFile
from tpugraphs_polynormer.errors import UserError
from tpugraphs_polynormer.files import hash_file, write_text

_BLOCK_BYTES = 1 << 20
_RETRIED_STATUSES = frozenset({408, 416, 425, 429, 500, 502, 503, 504})
_NO_HEAD_STATUSES = frozenset({403, 405, 501})  # some servers answer HEAD so, and GET well
_SCHEMES = ("http://", "https://")
_Result = TypeVar("_Result")
_logger = logging.getLogger(__name__)


class DownloadError(UserError):
    """A download that cannot be finished: names the address, what happened and what to do."""

    def __init__(self, address: str, happened: str, advice: str) -> None:
        super().__init__(f"{address}: {happened}; {advice}")


class _Interrupted(http.client.HTTPException):
    """A failure that another attempt may cure."""


@dataclass(frozen=True)
class DownloadOptions:
    """How hard to try; the pause after failure k is min(first_pause * 2^(k - 1), longest_pause) seconds."""

    attempts: int = 6  # in a row without a new megabyte
    first_pause: float = 1.0
    longest_pause: float = 60.0
    timeout: float = 60.0
    max_bytes: int = 4 << 30  # of a file whose size the server does not tell
    keep_archives: bool = False
    sleep: Callable[[float], None] = time.sleep


def ask_size(file: RemoteFile, options: DownloadOptions) -> int | None:
    """The size that the server announces, or None where it does not say."""

    def ask() -> int | None:
        try:
            with _open(file, options, "HEAD", {}) as response:
                return _content_length(response)
        except urllib.error.HTTPError as error:
            if error.code in _NO_HEAD_STATUSES:
                return None
            raise

    return _retry(file, options, ask, lambda: 0)


def fetch_file(file: RemoteFile, path: Path, options: DownloadOptions) -> tuple[int, str]:
    """The size and sha256 of the file, which is at `path` now; continues what an earlier run left in `path`.part."""
    part = part_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tqdm(desc=path.name, unit="B", unit_scale=True, disable=None) as bar:
        _retry(file, options, lambda: _attempt(file, part, bar, options), lambda: size_of(part))
    size, digest = size_of(part), hash_file(part)
    if file.sha256 not in (None, digest):
        _forget(part)
        happened = f"the file has sha256 {digest}, expected {file.sha256}"
        raise DownloadError(file.address, happened, "it was changed since or damaged; try again, or use a mirror")
    os.replace(part, path)
    _forget(part)
    _logger.info("%s: %d bytes, sha256 %s", path, size, digest)
    return size, digest


def part_path(path: Path) -> Path:
    """Where a file grows until it is whole; beside it, in `.part.json`, what is known of the file."""
    return path.with_name(path.name + ".part")


def size_of(path: Path) -> int:
    """The size of a file, 0 where there is none."""
    return path.stat().st_size if path.is_file() else 0


def _attempt(file: RemoteFile, part: Path, bar: tqdm, options: DownloadOptions) -> None:
    """One GET that appends to the part file, or starts it anew where it cannot be continued."""
    size, validator = _read_state(part, file.address)
    start = size_of(part) if validator else 0
    if validator and start == size:
        return  # all of it had arrived when the earlier run was stopped
    # If-Range: the rest if the file is still the same, else all of it.
    headers = {"Range": f"bytes={start}-", "If-Range": validator} if start else {}
    try:
        response = _open(file, options, "GET", headers)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the server now has a shorter file
            _forget(part)
        raise
    with response:
        if response.status == 206:
            found = response.headers.get("Content-Range"), _validator(response)
            if not start or found != (f"bytes {start}-{size - 1}/{size}", validator):
                _forget(part)
                raise _Interrupted(
                    f"the server sent the part {found[0]!r} of the version {found[1]!r}, not what follows"
                )
        else:
            start, size = 0, _content_length(response)
            _forget(part)  # before anything of the new file is known: they must never be joined
            _write_state(part, file.address, size, _validator(response))
        bar.total, bar.n = size, start
        end = _append(response, part, bar, options.max_bytes if size is None else size)
    if size is None and end > options.max_bytes:
        _forget(part)
        happened = f"the server tells no size, and sent more than {options.max_bytes:,} bytes"
        raise DownloadError(file.address, happened, "check the address, or use a mirror that tells the size")
    # http.client does not tell a connection cut in the middle of a body from the body's end.
    if end == 0 or size not in (None, end):
        raise _Interrupted(f"the connection ended after {end} of {'?' if size is None else size} bytes")


def _append(response: http.client.HTTPResponse, part: Path, bar: tqdm, limit: int) -> int:
    """The size of the part with the body, of which no more is read when `limit` is passed."""
    with part.open("ab") as stream:
        while stream.tell() <= limit and (block := response.read(_BLOCK_BYTES)):
            stream.write(block)
            bar.update(len(block))
        return stream.tell()


class _HttpOnly(urllib.request.HTTPRedirectHandler):
    """Redirects to http:// and https:// alone; the standard library's also follows those to ftp://."""

    def redirect_request(self, request, response, code, message, headers, address):
        if not address.lower().startswith(_SCHEMES):
            raise DownloadError(request.full_url, f"redirects to {address!r:.80}, which is no web address", "mend it")
        return super().redirect_request(request, response, code, message, headers, address)


def _open(file: RemoteFile, options: DownloadOptions, method: str, headers: dict[str, str]) -> http.client.HTTPResponse:
    if not file.address.startswith(_SCHEMES):
        raise DownloadError(file.address, "not an http:// or https:// address", "mend the base address")
    request = urllib.request.Request(file.address, headers=headers, method=method)
    response = urllib.request.build_opener(_HttpOnly).open(request, timeout=options.timeout)
    if method == "GET" and response.headers.get_content_type() == "text/html":
        response.close()
        advice = f"open the address in a browser and save the file as {file.path} in the data folder, or use a mirror"
        raise DownloadError(file.address, "the server sent a web page instead of the file", advice)
    return response


def _retry(
    file: RemoteFile, options: DownloadOptions, act: Callable[[], _Result], progress: Callable[[], int]
) -> _Result:
    """Calls `act` until it succeeds, at most `attempts` times in a row without a new megabyte, pausing in between."""
    failures, best = 0, progress()
    while True:
        try:
            return act()
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code} {error.reason}"
            if error.code not in _RETRIED_STATUSES:
                raise DownloadError(file.address, reason, "check the address and your access to it") from error
        except (http.client.HTTPException, urllib.error.URLError, ssl.SSLError, TimeoutError, ConnectionError) as error:
            reason = str(error)
        except OSError as error:
            raise DownloadError(file.address, f"cannot be written ({error})", "mend that, then run again") from error
        reached = progress()
        failures, best = (1, reached) if reached >= best + _BLOCK_BYTES else (failures + 1, best)
        if failures >= options.attempts:
            advice = "run the same command again: it continues where it stopped"
            raise DownloadError(file.address, f"gave up after {failures} failures, the last: {reason}", advice)
        pause = min(options.first_pause * 2 ** (failures - 1), options.longest_pause)
        _logger.warning("%s: %s; trying again in %g s", file.address, reason, pause)
        options.sleep(pause)


def _content_length(response: http.client.HTTPResponse) -> int | None:
    value = response.headers.get("Content-Length", "")
    return int(value) if value.isdigit() else None


def _validator(response: http.client.HTTPResponse) -> str | None:
    """What tells two versions of a file apart: the ETag, unless it is weak (If-Range takes none), or the date."""
    etag = response.headers.get("ETag", "W/")
    return response.headers.get("Last-Modified") if etag.startswith("W/") else etag


def _write_state(part: Path, address: str, size: int | None, validator: str | None) -> None:
    """Notes which file the part begins; without size and validator it cannot be continued, and nothing is noted."""
    if size and validator:
        write_text(_state_path(part), json.dumps({"address": address, "size": size, "validator": validator}))


def _read_state(part: Path, address: str) -> tuple[int, str] | tuple[None, None]:
    """The size and validator of the file that the part begins; None where it cannot be continued."""
    try:
        state = json.loads(_state_path(part).read_text())
        size, validator = int(state["size"]), str(state["validator"])
        return (size, validator) if state["address"] == address and size_of(part) <= size else (None, None)
    except (OSError, ValueError, LookupError, TypeError):
        return None, None


def _state_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _state_path(part).unlink(missing_ok=True)

"""Downloads one file over HTTP(S): resumes, retries with back-off, and never joins two versions of a file.

It uses the standard library: `pooch` does not resume, and `requests` loses the current block, up to a megabyte, each
time the connection breaks.
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
_NO_HEAD_STATUSES = frozenset({403, 405, 501})  # answers of some servers to HEAD that answer GET
_SCHEMES = ("http://", "https://")
_Result = TypeVar("_Result")
_logger = logging.getLogger(__name__)


class DownloadError(UserError):
    """A download cannot be finished; the message names the address, what happened and what to do."""

    def __init__(self, address: str, happened: str, advice: str) -> None:
        super().__init__(f"{address}: {happened}; {advice}")


class _Interrupted(http.client.HTTPException):
    """A failure after which the download is tried again."""


@dataclass(frozen=True)
class DownloadOptions:
    """Limits of a download; the pause after failure k is min(first_pause * 2^(k - 1), longest_pause) seconds."""

    attempts: int = 6  # consecutive failures without a new megabyte
    first_pause: float = 1.0
    longest_pause: float = 60.0
    timeout: float = 60.0
    max_bytes: int = 4 << 30  # of a file whose size the server does not send
    keep_archives: bool = False
    sleep: Callable[[float], None] = time.sleep


def ask_size(file: RemoteFile, options: DownloadOptions) -> int | None:
    """The size that the server sends, or None."""

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
    """The size and sha256 of the file, after downloading it to `path`; resumes from `<path>.part`."""
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
    """The path of an incomplete download; `<path>.part.json` beside it has address, size and version of the file."""
    return path.with_name(path.name + ".part")


def size_of(path: Path) -> int:
    """The size of a file, 0 if it does not exist."""
    return path.stat().st_size if path.is_file() else 0


def _attempt(file: RemoteFile, part: Path, bar: tqdm, options: DownloadOptions) -> None:
    """One GET request that appends to the part file, or writes it from the start if it cannot be resumed."""
    size, validator = _read_state(part, file.address)
    start = size_of(part) if validator else 0
    if validator and start == size:
        return  # the earlier run stopped after the last byte
    # If-Range: the server sends the rest if the file has not changed, otherwise the whole file.
    headers = {"Range": f"bytes={start}-", "If-Range": validator} if start else {}
    try:
        response = _open(file, options, "GET", headers)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the file on the server is shorter now
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
            _forget(part)  # before the new state is written, so that two versions are never joined
            _write_state(part, file.address, size, _validator(response))
        bar.total, bar.n = size, start
        end = _append(response, part, bar, options.max_bytes if size is None else size)
    if size is None and end > options.max_bytes:
        _forget(part)
        happened = f"the server tells no size, and sent more than {options.max_bytes:,} bytes"
        raise DownloadError(file.address, happened, "check the address, or use a mirror that tells the size")
    # http.client reports a connection that breaks inside the body as the end of the body.
    if end == 0 or size not in (None, end):
        raise _Interrupted(f"the connection ended after {end} of {'?' if size is None else size} bytes")


def _append(response: http.client.HTTPResponse, part: Path, bar: tqdm, limit: int) -> int:
    """The size of the part file after appending the response; reading stops once the size exceeds `limit`."""
    with part.open("ab") as stream:
        while stream.tell() <= limit and (block := response.read(_BLOCK_BYTES)):
            stream.write(block)
            bar.update(len(block))
        return stream.tell()


class _HttpOnly(urllib.request.HTTPRedirectHandler):
    """A redirect handler for http:// and https:// only; that of the standard library also follows ftp://."""

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
    """The result of `act`, called until it succeeds; gives up after `attempts` failures without a new megabyte."""
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
    """The identifier of a file's version for If-Range: a strong ETag, or else the date of the last change."""
    etag = response.headers.get("ETag", "W/")
    return response.headers.get("Last-Modified") if etag.startswith("W/") else etag


def _write_state(part: Path, address: str, size: int | None, validator: str | None) -> None:
    """Writes the state of the part file, or nothing without size and validator: it then cannot be resumed."""
    if size and validator:
        write_text(_state_path(part), json.dumps({"address": address, "size": size, "validator": validator}))


def _read_state(part: Path, address: str) -> tuple[int, str] | tuple[None, None]:
    """The size and validator of the whole file, or None and None if the part file cannot be resumed."""
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

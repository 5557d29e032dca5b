"""Fetches one file over HTTP(S): resumes, retries with back-off, and never mixes two versions of a file."""

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

_CHUNK_BYTES = 1 << 20
_RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_NO_HEAD_STATUSES = frozenset({403, 405, 501})  # some servers answer HEAD so, and GET well
_Result = TypeVar("_Result")
_logger = logging.getLogger(__name__)


class DownloadError(UserError):
    """A download that cannot go on: names the address, what happened and what to do."""

    def __init__(self, address: str, happened: str, advice: str) -> None:
        super().__init__(f"{address}: {happened}; {advice}")


class _Interrupted(Exception):
    """A failure that another attempt may cure."""


@dataclass(frozen=True)
class DownloadOptions:
    """How hard to try; the pause after failure k is min(first_pause * 2^(k - 1), longest_pause) seconds."""

    attempts: int = 6  # in a row without a new megabyte
    first_pause: float = 1.0
    longest_pause: float = 60.0
    timeout: float = 60.0
    keep_archives: bool = False
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class _PartState:
    """Of which file a part file is the beginning; `validator` is its ETag or its date."""

    address: str
    size: int
    validator: str | None


def ask_size(file: RemoteFile, options: DownloadOptions) -> int | None:
    """The size that the server announces, or None where it does not say."""

    def ask() -> int | None:
        try:
            with _open(file, options, method="HEAD") as response:
                return _content_length(response)
        except urllib.error.HTTPError as error:
            if error.code in _NO_HEAD_STATUSES:
                return None
            raise

    return _retry(file, options, ask)


def fetch_file(file: RemoteFile, path: Path, options: DownloadOptions) -> tuple[int, str]:
    """Brings the file to `path` through `path`.part, going on where an earlier run stopped; its size and sha256."""
    part = part_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tqdm(desc=path.name, unit="B", unit_scale=True, disable=None) as bar:
        _retry(file, options, lambda: _attempt(file, part, bar, options), lambda: size_of(part))
    digest = hash_file(part)
    if file.sha256 not in (None, digest):
        _forget_part(part)
        happened = f"the file has sha256 {digest}, expected {file.sha256}"
        raise DownloadError(file.address, happened, "it was changed since or damaged; try again, or use a mirror")
    size = size_of(part)
    os.replace(part, path)
    _forget_part(part)
    _logger.info("%s: %d bytes, sha256 %s", path, size, digest)
    return size, digest


def part_path(path: Path) -> Path:
    """Where a file grows until it is whole."""
    return path.with_name(path.name + ".part")


def size_of(path: Path) -> int:
    """The size of a file, 0 where there is none."""
    return path.stat().st_size if path.is_file() else 0


def _attempt(file: RemoteFile, part: Path, bar: tqdm, options: DownloadOptions) -> None:
    """One GET that appends to the part file, or starts it anew where the server cannot go on from there."""
    state = _read_state(part, file.address)
    start = size_of(part) if state else 0
    if state and start == state.size:
        return  # all of it had arrived when the earlier run was stopped
    try:
        response = _open(file, options, headers=_range_headers(state, start))
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        _forget_part(part)
        raise _Interrupted("the server now has a shorter file") from error
    with response:
        if response.status == 206:
            _check_range(response, part, state, start)
            _copy(response, part, bar, start, state.size)
        else:
            size = _content_length(response)
            _begin_part(part, file.address, size, response)
            _copy(response, part, bar, 0, size)


def _range_headers(state: _PartState | None, start: int) -> dict[str, str]:
    """Asks for the rest, but only if the file is still the same; else the server sends all of it."""
    if not start:
        return {}
    headers = {"Range": f"bytes={start}-"}
    if state.validator:
        headers["If-Range"] = state.validator
    return headers


def _check_range(response: http.client.HTTPResponse, part: Path, state: _PartState | None, start: int) -> None:
    """A partial answer must continue the very file of which the part is the beginning."""
    found = response.headers.get("Content-Range", "")
    expected = f"bytes {start}-{state.size - 1}/{state.size}" if state else "the whole file"
    if found != expected:
        _forget_part(part)
        raise _Interrupted(f"the server sent the range {found!r}, expected {expected!r}")


def _copy(response: http.client.HTTPResponse, part: Path, bar: tqdm, start: int, size: int | None) -> None:
    bar.total, bar.n = size, start
    position = start
    with part.open("ab") as stream:
        while chunk := response.read(_CHUNK_BYTES):
            stream.write(chunk)
            position += len(chunk)
            bar.update(len(chunk))
    # http.client does not tell a connection cut in the middle of a body from the body's end.
    if size is not None and position != size:
        raise _Interrupted(f"the connection ended after {position} of {size} bytes")


def _open(
    file: RemoteFile, options: DownloadOptions, *, method: str = "GET", headers: dict[str, str] | None = None
) -> http.client.HTTPResponse:
    if not file.address.startswith(("http://", "https://")):
        raise DownloadError(file.address, "not an http:// or https:// address", "mend the base address")
    request = urllib.request.Request(file.address, headers=headers or {}, method=method)
    response = urllib.request.urlopen(request, timeout=options.timeout)
    if method == "GET" and response.headers.get_content_type() == "text/html":
        response.close()
        advice = f"open the address in a browser and save the file as {file.path} in the data folder, or use a mirror"
        raise DownloadError(file.address, "the server sent a web page instead of the file", advice)
    return response


def _retry(
    file: RemoteFile, options: DownloadOptions, act: Callable[[], _Result], progress: Callable[[], int] = lambda: 0
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
        except (_Interrupted, http.client.HTTPException, ssl.SSLError, urllib.error.URLError) as error:
            reason = str(error)
        except (TimeoutError, ConnectionError) as error:
            reason = f"the connection broke ({error})"
        except OSError as error:
            raise DownloadError(file.address, f"cannot be written ({error})", "mend that, then run again") from error
        reached = progress()
        failures, best = (1, reached) if reached >= best + _CHUNK_BYTES else (failures + 1, best)
        if failures >= options.attempts:
            advice = "run the same command again: it goes on where it stopped"
            raise DownloadError(file.address, f"gave up after {failures} failures, the last: {reason}", advice)
        pause = min(options.first_pause * 2 ** (failures - 1), options.longest_pause)
        _logger.warning("%s: %s; trying again in %g s", file.address, reason, pause)
        options.sleep(pause)


def _content_length(response: http.client.HTTPResponse) -> int | None:
    value = response.headers.get("Content-Length", "")
    return int(value) if value.isdigit() else None


def _state_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _begin_part(part: Path, address: str, size: int | None, response: http.client.HTTPResponse) -> None:
    """Forgets the old part before anything of the new file is known: they must never be joined."""
    _forget_part(part)
    if size is None:
        return
    etag = response.headers.get("ETag")
    strong = etag and not etag.startswith("W/")  # If-Range takes no weak ETag
    validator = etag if strong else response.headers.get("Last-Modified")
    write_text(_state_path(part), json.dumps({"address": address, "size": size, "validator": validator}))


def _read_state(part: Path, address: str) -> _PartState | None:
    """What is known of the file that the part begins; None where it cannot be gone on with."""
    try:
        state = _PartState(**json.loads(_state_path(part).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return state if state.address == address and size_of(part) <= state.size else None


def _forget_part(part: Path) -> None:
    part.unlink(missing_ok=True)
    _state_path(part).unlink(missing_ok=True)

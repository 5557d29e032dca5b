"""Downloads from a local HTTP server that breaks connections, ignores ranges, fails and sends bad archives."""

import contextlib
import dataclasses
import hashlib
import io
import json
import shutil
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from tpugraphs_polynormer.archives.indices import read_indices
from tpugraphs_polynormer.catalog import BENCHMARKS, COLLECTIONS
from tpugraphs_polynormer.cli.main import main
from tpugraphs_polynormer.download import fetch as download
from tpugraphs_polynormer.download import http as transfer
from tpugraphs_polynormer.download.fetch import (
    DownloadError,
    DownloadOptions,
    download_benchmarks,
    download_collections,
    download_files,
    read_records,
)
from tpugraphs_polynormer.download.sources import BENCHMARK_FILES, RemoteFile, list_collection_files, list_index_files
from tpugraphs_polynormer.download.unpack import UnpackError, unpack_archive

PAYLOAD = np.random.default_rng(0).bytes(3_000_001)
INDICES = b'{"graph_valid": [3, 1, 4, 1], "another": [0]}'


class Site:
    """A server whose files and faults the test sets; `requests` has the (method, path, Range) of each request."""

    def __init__(self):
        self.files = {}
        self.requests = []
        self.statuses = []  # the statuses of the first GETs
        self.cuts = []  # one per GET: the number of bytes of the body after which the connection is closed
        self.ignore_range = False
        self.wrong_range = False  # answers a range with bytes from the start of the file
        self.allow_head = True
        self.etag = True
        self.ignore_if_range = False  # answers a range of the file that it has now
        self.length = True  # False: sends no size; the end of the connection ends the body
        self.redirects = {}  # path -> address
        self.content_type = "application/octet-stream"
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self):
                site.answer(self, send_body=False)

            def do_GET(self):
                site.answer(self, send_body=True)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, handler, send_body):
        wanted_range = handler.headers.get("Range")
        self.requests.append((handler.command, handler.path, wanted_range))
        body = self.files.get(handler.path.lstrip("/"))
        status = self.statuses.pop(0) if send_body and self.statuses else 200
        body = b"" if handler.path in self.redirects else body
        status = 404 if body is None else 405 if not send_body and not self.allow_head else status
        if status != 200:
            return handler.send_error(status)
        if self.redirects.get(handler.path):
            handler.send_response(302)
            handler.send_header("Location", self.redirects[handler.path])
            return handler.end_headers()
        etag = '"' + hashlib.sha256(body).hexdigest()[:16] + '"'
        start = 0
        is_same = self.ignore_if_range or handler.headers.get("If-Range", etag) == etag
        if wanted_range and not self.ignore_range and is_same:
            start = int(wanted_range.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                return handler.send_error(416)
        first = 0 if self.wrong_range else start
        last = first + len(body) - start
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {first}-{last - 1}/{len(body)}")
        handler.send_header("Content-Type", self.content_type)
        if self.length:
            handler.send_header("Content-Length", str(len(body) - start))
        if self.etag:
            handler.send_header("ETag", etag)
        handler.end_headers()
        if send_body:
            cut = self.cuts.pop(0) if self.cuts else len(body)
            with contextlib.suppress(ConnectionError):  # the client may close the connection early
                handler.wfile.write(body[first:last][:cut])

    def gets(self):
        return [wanted for method, _, wanted in self.requests if method == "GET"]


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    site = Site()
    site.files["file.npz"] = PAYLOAD
    yield site
    site.server.shutdown()
    site.server.server_close()
    site.thread.join()


@pytest.fixture
def pauses():
    return []


@pytest.fixture
def settings(pauses):
    return DownloadOptions(attempts=4, first_pause=1.0, longest_pause=3.0, timeout=5.0, sleep=pauses.append)


def fetch(site, out, settings, **fields):
    return download_files([RemoteFile(f"{site.address}/file.npz", "file.npz", **fields)], out, options=settings)


def make_tar(members):
    """A tar of (TarInfo or name, bytes) pairs."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for info, content in members:
            info = tarfile.TarInfo(info) if isinstance(info, str) else info
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def link(name, target, kind):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def serve_collection(site, collection="layout:xla:random"):
    folder = COLLECTIONS[collection].folder
    contents = {}
    for file in list_collection_files(collection, site.address):
        split = file.path.removesuffix(".tar").rpartition("_")[2]
        contents[f"npz/{folder}/{split}/graph_{split}.npz"] = np.random.default_rng(len(contents)).bytes(5_000)
        name = list(contents)[-1]
        site.files[file.path] = make_tar([(name, contents[name])])
    for file in list_index_files(collection, site.address):
        contents[file.path] = site.files[file.path] = INDICES
    return contents


def test_fetches_and_records_size_and_checksum(site, tmp_path, settings):
    records = fetch(site, tmp_path, settings)
    assert (tmp_path / "file.npz").read_bytes() == PAYLOAD
    stored = json.loads((tmp_path / "downloads.json").read_text())["files"]["file.npz"]
    assert stored["size"] == len(PAYLOAD)
    assert stored["sha256"] == hashlib.sha256(PAYLOAD).hexdigest() == records["file.npz"].sha256
    assert sorted(path.name for path in tmp_path.iterdir()) == ["downloads.json", "file.npz"]


def test_resumes_after_each_cut_connection(site, tmp_path, settings, pauses):
    site.cuts = [1_500_000, 700_000]
    fetch(site, tmp_path, settings)
    assert (tmp_path / "file.npz").read_bytes() == PAYLOAD
    assert site.gets() == [None, "bytes=1500000-", "bytes=2200000-"]
    assert pauses == [1.0, 2.0]  # the second failure came before another megabyte


def test_resumes_in_a_later_run(site, tmp_path, settings):
    site.cuts = [1_000, 1_000, 1_000, 1_000]
    with pytest.raises(DownloadError, match=r"gave up after 4 failures.*ended after 4000 of 3000001.*run the same"):
        fetch(site, tmp_path, settings)
    assert not (tmp_path / "file.npz").exists()
    fetch(site, tmp_path, settings)
    assert site.gets()[-1] == "bytes=4000-"
    assert (tmp_path / "file.npz").read_bytes() == PAYLOAD


def test_progress_of_a_megabyte_renews_the_attempts(site, tmp_path, settings, pauses):
    site.files["file.npz"] = PAYLOAD * 3
    site.cuts = [1_200_000] * 6
    fetch(site, tmp_path, settings)
    assert (tmp_path / "file.npz").read_bytes() == PAYLOAD * 3
    assert pauses == [1.0] * 6


def test_server_that_ignores_range_restarts_cleanly(site, tmp_path, settings):
    site.cuts = [1_000_000]
    site.ignore_range = True
    fetch(site, tmp_path, settings)
    assert site.gets() == [None, "bytes=1000000-"]
    assert (tmp_path / "file.npz").read_bytes() == PAYLOAD


def test_wrong_range_is_not_appended(site, tmp_path, settings):
    site.cuts = [1_000_000]
    site.wrong_range = True
    fetch(site, tmp_path, settings)
    assert site.gets() == [None, "bytes=1000000-", None]
    assert (tmp_path / "file.npz").read_bytes() == PAYLOAD


def test_changed_file_is_never_joined_to_the_old_part(site, tmp_path, settings):
    site.cuts = [1_000] * 4
    with pytest.raises(DownloadError):
        fetch(site, tmp_path, settings)
    site.files["file.npz"] = changed = PAYLOAD[::-1]
    fetch(site, tmp_path, settings)
    assert (tmp_path / "file.npz").read_bytes() == changed


def test_changed_size_is_noticed_without_etag(site, tmp_path, settings):
    site.etag = False
    site.cuts = [1_000] * 4
    with pytest.raises(DownloadError):
        fetch(site, tmp_path, settings)
    site.files["file.npz"] = changed = PAYLOAD[::-1] + b"longer"
    fetch(site, tmp_path, settings)
    assert (tmp_path / "file.npz").read_bytes() == changed


@pytest.mark.parametrize("etag", [True, False])
def test_a_part_is_continued_only_by_a_server_that_names_the_same_version(site, tmp_path, settings, etag):
    """Two files of equal size are not joined if a server ignores If-Range, or sends neither ETag nor date."""
    site.etag, site.ignore_if_range = etag, True
    site.cuts = [1_000] * 4
    with pytest.raises(DownloadError):
        fetch(site, tmp_path, settings)
    site.files["file.npz"] = changed = PAYLOAD[::-1]
    site.requests.clear()
    fetch(site, tmp_path, settings)
    assert (tmp_path / "file.npz").read_bytes() == changed
    assert site.gets() == (["bytes=4000-", None] if etag else [None])


def test_a_file_without_etag_and_date_starts_anew_in_the_same_run_too(site, tmp_path, settings):
    site.etag = False
    site.cuts = [1_500_000]
    fetch(site, tmp_path, settings)
    assert site.gets() == [None, None]
    assert (tmp_path / "file.npz").read_bytes() == PAYLOAD


@pytest.mark.parametrize("state", ["{", "[]", '{"address": 1}', '{"size": "x", "validator": "v", "address": ""}'])
def test_a_part_of_unknown_origin_starts_anew(site, tmp_path, settings, state):
    (tmp_path / "file.npz.part").write_bytes(b"of something else")
    (tmp_path / "file.npz.part.json").write_text(state)
    fetch(site, tmp_path, settings)
    assert site.gets() == [None]
    assert (tmp_path / "file.npz").read_bytes() == PAYLOAD


def test_a_shorter_file_at_a_server_that_ignores_if_range_starts_anew(site, tmp_path, settings):
    site.ignore_if_range = True
    site.cuts = [1_000_000, 0, 0, 0, 0]
    with pytest.raises(DownloadError):
        fetch(site, tmp_path, settings)
    site.files["file.npz"] = b"short"
    site.cuts = []
    site.requests.clear()
    fetch(site, tmp_path, settings)
    assert site.gets() == ["bytes=1000000-", None]  # the first is answered by 416
    assert (tmp_path / "file.npz").read_bytes() == b"short"


def test_a_stream_without_a_length_is_taken_up_to_a_limit(site, tmp_path, settings):
    site.length = False
    fetch(site, tmp_path / "whole", dataclasses.replace(settings, max_bytes=len(PAYLOAD)))
    assert (tmp_path / "whole/file.npz").read_bytes() == PAYLOAD
    with pytest.raises(DownloadError, match=r"tells no size, and sent more than 3,000,000 bytes; check"):
        fetch(site, tmp_path / "less", dataclasses.replace(settings, max_bytes=len(PAYLOAD) - 1))
    assert list((tmp_path / "less").iterdir()) == []


@pytest.mark.parametrize("length", [True, False])
def test_nothing_is_no_success(site, tmp_path, settings, length):
    site.length, site.files["file.npz"] = length, b""
    with pytest.raises(DownloadError, match=r"gave up after 4 failures.*ended after 0 of"):
        fetch(site, tmp_path, settings)
    assert not (tmp_path / "file.npz").exists() and read_records(tmp_path) == {}


def test_redirects_are_followed_to_the_web_alone(site, tmp_path, settings, pauses):
    site.redirects["/moved.npz"] = f"{site.address}/file.npz"
    download_files([RemoteFile(f"{site.address}/moved.npz", "a.npz")], tmp_path, options=settings)
    assert (tmp_path / "a.npz").read_bytes() == PAYLOAD
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for address in (f"file://{secret}", "ftp://127.0.0.1/a", "FTP://127.0.0.1/a", "data:text/plain,a"):
        site.redirects["/moved.npz"] = address
        with pytest.raises(DownloadError, match=r"moved\.npz: .*(redirect|Redirect)"):
            download_files([RemoteFile(f"{site.address}/moved.npz", "b.npz")], tmp_path, options=settings)
        assert not (tmp_path / "b.npz").exists()
    assert pauses == []


def test_part_longer_than_the_new_file_starts_over(site, tmp_path, settings):
    site.etag = False
    site.cuts = [1_000_000, 0, 0, 0, 0]
    with pytest.raises(DownloadError):
        fetch(site, tmp_path, settings)
    site.files["file.npz"] = b"short"
    site.cuts = []
    fetch(site, tmp_path, settings)
    assert (tmp_path / "file.npz").read_bytes() == b"short"


def test_part_that_was_whole_needs_no_second_body(site, tmp_path, settings, monkeypatch):
    monkeypatch.setattr(transfer.os, "replace", lambda source, target: _kill(source, target))
    with pytest.raises(KeyboardInterrupt):
        fetch(site, tmp_path, settings)
    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    fetch(site, tmp_path, settings)
    assert site.gets() == [None]
    assert (tmp_path / "file.npz").read_bytes() == PAYLOAD


def _kill(source, target):
    """Simulates a kill during the rename of the finished part file."""
    if str(source).endswith(".part"):
        raise KeyboardInterrupt
    shutil.move(source, target)


def test_server_errors_are_retried_with_growing_pauses(site, tmp_path, settings, pauses):
    site.statuses = [500, 503, 429]
    fetch(site, tmp_path, settings)
    assert pauses == [1.0, 2.0, 3.0]
    assert (tmp_path / "file.npz").read_bytes() == PAYLOAD


def test_retries_are_bounded(site, tmp_path, settings, pauses):
    site.statuses = [500] * 10
    with pytest.raises(DownloadError, match=r"file\.npz: gave up after 4 failures, the last: HTTP 500"):
        fetch(site, tmp_path, settings)
    assert len(site.gets()) == 4
    assert len(pauses) == 3


def test_missing_file_fails_before_anything_is_fetched(site, tmp_path, settings, pauses):
    files = [RemoteFile(f"{site.address}/{name}", name) for name in ("file.npz", "absent.npz")]
    with pytest.raises(DownloadError, match=r"absent\.npz: HTTP 404"):
        download_files(files, tmp_path, options=settings)
    assert site.gets() == [] and pauses == []


def test_unreachable_server_gives_one_error(tmp_path, settings, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(DownloadError, match="gave up after 4 failures"):
        download_files([RemoteFile("http://127.0.0.1:9/file.npz", "file.npz")], tmp_path, options=settings)


def test_refuses_other_schemes(tmp_path, settings):
    with pytest.raises(DownloadError, match="not an http"):
        download_files([RemoteFile("file:///etc/hostname", "hostname")], tmp_path, options=settings)
    assert not (tmp_path / "hostname").exists()


def test_server_without_head_still_serves(site, tmp_path, settings):
    site.allow_head = False
    fetch(site, tmp_path, settings)
    assert (tmp_path / "file.npz").read_bytes() == PAYLOAD


def test_web_page_instead_of_the_file(site, tmp_path, settings):
    site.content_type = "text/html"
    with pytest.raises(DownloadError, match="web page"):
        fetch(site, tmp_path, settings)
    assert not (tmp_path / "file.npz").exists()


def test_published_checksum_is_enforced(site, tmp_path, settings):
    with pytest.raises(DownloadError, match=f"expected {'0' * 64}"):
        fetch(site, tmp_path, settings, sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []
    fetch(site, tmp_path, settings, sha256=hashlib.sha256(PAYLOAD).hexdigest())


def test_complete_files_are_skipped_with_a_log_line(site, tmp_path, settings, caplog):
    fetch(site, tmp_path, settings)
    site.requests.clear()
    with caplog.at_level("INFO"):
        fetch(site, tmp_path, settings)
    assert site.requests == []
    assert "already complete, skipped" in caplog.text
    (tmp_path / "file.npz").write_bytes(PAYLOAD[:-1])
    fetch(site, tmp_path, settings)
    assert (tmp_path / "file.npz").read_bytes() == PAYLOAD


def test_full_disk_is_refused_before_it_starts(site, tmp_path, settings, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=len(PAYLOAD) - 1)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match=r"need 3,000,001 bytes.*3,000,000 bytes free"):
        fetch(site, tmp_path, settings)
    assert site.gets() == []


def test_archives_need_room_to_unpack(site, tmp_path, settings, monkeypatch):
    serve_collection(site)
    sizes = [len(content) for name, content in site.files.items() if name.endswith(".tar")]
    usage = shutil.disk_usage(tmp_path)._replace(free=sum(sizes) + max(sizes) - 1)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match=f"3 files from there need {sum(sizes) + max(sizes):,} bytes"):
        download_collections(
            ["layout:xla:random"], tmp_path, base_address=site.address, with_indices=False, options=settings
        )


def test_bad_records_name_the_file(tmp_path, settings):
    (tmp_path / "downloads.json").write_text("{")
    with pytest.raises(DownloadError, match=r"downloads\.json: not a record.*delete it"):
        read_records(tmp_path)


def test_collection_is_unpacked_into_the_official_tree(site, tmp_path, settings):
    contents = serve_collection(site)
    records = download_collections(["layout:xla:random"], tmp_path, base_address=site.address + "/", options=settings)
    for name, content in contents.items():
        assert (tmp_path / name).read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["downloads.json", "eval_indices", "npz"]
    assert records["npz_layout_xla_random_valid.tar"].members == {
        "npz/layout/xla/random/valid/graph_valid.npz": 5_000,
    }
    site.requests.clear()
    download_collections(["layout:xla:random"], tmp_path, base_address=site.address + "/", options=settings)
    assert site.requests == []


def test_archives_can_be_kept(site, tmp_path, settings):
    serve_collection(site, "tile:xla")
    keep = DownloadOptions(keep_archives=True, sleep=settings.sleep)
    download_collections(["tile:xla"], tmp_path, base_address=site.address, options=keep)
    assert {path.name for path in tmp_path.glob("*.tar")} == {
        f"npz_tile_xla_{s}.tar" for s in ("train", "valid", "test")
    }


def test_lost_member_is_fetched_again(site, tmp_path, settings):
    contents = serve_collection(site)
    download_collections(["layout:xla:random"], tmp_path, base_address=site.address, options=settings)
    lost = next(iter(contents))
    (tmp_path / lost).unlink()
    site.requests.clear()
    download_collections(["layout:xla:random"], tmp_path, base_address=site.address, options=settings)
    assert (tmp_path / lost).read_bytes() == contents[lost]
    assert {path for _, path, _ in site.requests} == {"/npz_layout_xla_random_train.tar"}


def test_killed_extraction_leaves_nothing_and_needs_no_second_fetch(site, tmp_path, settings, monkeypatch):
    contents = serve_collection(site)
    original = tarfile.TarFile.extractall

    def extract_half(tar, path, *args, **kwargs):
        original(tar, path, *args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(tarfile.TarFile, "extractall", extract_half)
    with pytest.raises(KeyboardInterrupt):
        download_collections(["layout:xla:random"], tmp_path, base_address=site.address, options=settings)
    assert not (tmp_path / "npz").exists()
    monkeypatch.setattr(tarfile.TarFile, "extractall", original)
    (tmp_path / ".unpacking-npz_layout_xla_random_train.tar" / "npz").mkdir(parents=True)  # as after kill -9
    download_collections(["layout:xla:random"], tmp_path, base_address=site.address, options=settings)
    assert all((tmp_path / name).read_bytes() == content for name, content in contents.items())
    assert len(site.gets()) == 4  # three archives and the index file
    assert not list(tmp_path.glob(".unpacking*"))


def test_truncated_tar_is_forgotten_and_fetched_anew(site, tmp_path, settings):
    contents = serve_collection(site)
    name = "npz_layout_xla_random_train.tar"
    whole = site.files[name]
    site.files[name] = whole[:3_000]
    with pytest.raises(DownloadError, match=f"{name}: .*damaged archive"):
        download_collections(["layout:xla:random"], tmp_path, base_address=site.address, options=settings)
    assert not (tmp_path / "npz").exists() and not (tmp_path / name).exists()
    site.files[name] = whole
    download_collections(["layout:xla:random"], tmp_path, base_address=site.address, options=settings)
    assert all((tmp_path / name).read_bytes() == content for name, content in contents.items())


def test_malicious_tar_is_refused_whole(site, tmp_path, settings):
    serve_collection(site)
    name = "npz_layout_xla_random_train.tar"
    good = "npz/layout/xla/random/train/good.npz"
    site.files[name] = make_tar([(good, b"good"), ("../evil.npz", b"evil")])
    out = tmp_path / "out"
    with pytest.raises(DownloadError, match=r"evil\.npz' would be written outside"):
        download_collections(
            ["layout:xla:random"], out, base_address=site.address, with_indices=False, options=settings
        )
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["downloads.json"]
    assert read_records(out) == {}


@pytest.mark.parametrize(
    "member",
    [
        "npz/layout/xla/default/train/graph.npz",
        "npz/layout/xla/random/valid/graph.npz",
        "npz/layout/xla/random/train.npz",
        "downloads.json",
        "eval_indices/xla_random.json",
    ],
)
def test_a_tar_brings_files_of_its_own_collection_and_split_alone(site, tmp_path, settings, member):
    serve_collection(site)
    name = "npz_layout_xla_random_train.tar"
    good = "npz/layout/xla/random/train/good.npz"
    site.files[name] = make_tar([(good, b"good"), (member, b"evil")])
    (tmp_path / member).parent.mkdir(parents=True, exist_ok=True)
    before = b'{"files": {}}'
    (tmp_path / member).write_bytes(before)
    with pytest.raises(
        DownloadError, match=f"{member}' would be written outside of the folder npz/layout/xla/random/train"
    ):
        download_collections(
            ["layout:xla:random"], tmp_path, base_address=site.address, with_indices=False, options=settings
        )
    assert not (tmp_path / good).exists()
    assert json.loads((tmp_path / member).read_bytes()) == json.loads(before)


def test_an_archive_without_files_is_refused(tmp_path):
    archive = tmp_path / "empty.tar"
    archive.write_bytes(make_tar([(link("npz/", "", tarfile.DIRTYPE), b"")]))
    with pytest.raises(UnpackError, match="holds no files"):
        unpack_archive(archive, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_python_without_the_data_filter_unpacks_nothing(tmp_path, monkeypatch):
    archive = tmp_path / "a.tar"
    archive.write_bytes(make_tar([("npz/a.npz", b"a")]))
    monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(UnpackError, match=r"use 3\.10\.12, 3\.11\.4, or newer"):
        unpack_archive(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_index_files_come_with_the_layout_collections(site, tmp_path, settings):
    for collection in ("layout:xla:random", "layout:nlp:default", "tile:xla"):
        serve_collection(site, collection)
    names = ["layout:xla:random", "layout:nlp:default", "tile:xla"]
    download_collections(names, tmp_path, base_address=site.address, options=settings)
    assert sorted(path.name for path in (tmp_path / "eval_indices").iterdir()) == [
        "nlp_default.json",
        "xla_random.json",
    ]
    found = read_indices(tmp_path / "eval_indices", "layout:xla:random")
    assert {name: numbers.tolist() for name, numbers in found.items()} == json.loads(INDICES)
    site.requests.clear()
    (tmp_path / "eval_indices/xla_random.json").unlink()
    download_collections(names, tmp_path, base_address=site.address, options=settings)
    assert {path for _, path, _ in site.requests} == {"/eval_indices/xla_random.json"}


@pytest.mark.parametrize("content", [b"404: Not Found", b"[1, 2]", b'{"graph_valid": [1.5]}', b'{"graph_valid": []}'])
def test_what_is_no_index_file_is_refused_and_fetched_anew(site, tmp_path, settings, content):
    contents = serve_collection(site)
    site.files["eval_indices/xla_random.json"] = content
    with pytest.raises(DownloadError, match=r"eval_indices/xla_random\.json: .*--no-indices"):
        download_collections(["layout:xla:random"], tmp_path, base_address=site.address, options=settings)
    assert not (tmp_path / "eval_indices/xla_random.json").exists()
    assert not (tmp_path / "npz").exists()  # index files come first: no large file was downloaded
    site.files["eval_indices/xla_random.json"] = INDICES
    download_collections(["layout:xla:random"], tmp_path, base_address=site.address, options=settings)
    assert all((tmp_path / name).read_bytes() == data for name, data in contents.items())


def test_the_command_can_leave_index_files_out(site, tmp_path):
    serve_collection(site)
    del site.files["eval_indices/xla_random.json"]  # a mirror without index files
    arguments = ["--collections", "layout:xla:random", "--base-address", site.address, "--archives", str(tmp_path)]
    assert main(["download", *arguments]) == 2
    assert main(["download", *arguments, "--no-indices"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["downloads.json", "npz"]


@pytest.mark.parametrize(
    "member",
    [
        "/tmp/tpugraphs_evil.npz",
        "npz/../../evil.npz",
        "npz\\..\\evil.npz",
        link("npz/link", "/etc/passwd", tarfile.SYMTYPE),
        link("npz/inner", "good.npz", tarfile.SYMTYPE),
        link("npz/hard", "npz/good.npz", tarfile.LNKTYPE),
        link("npz/pipe", "", tarfile.FIFOTYPE),
        link("npz/device", "", tarfile.CHRTYPE),
    ],
    ids=["absolute", "parent", "backslash", "symlink", "inner_symlink", "hard_link", "fifo", "device"],
)
def test_unpack_refuses_dangerous_members(tmp_path, member):
    archive = tmp_path / "bad.tar"
    archive.write_bytes(make_tar([("npz/good.npz", b"good"), (member, b"")]))
    out = tmp_path / "out"
    with pytest.raises(UnpackError, match=r"outside of the folder|link or a device"):
        unpack_archive(archive, out)
    assert list(out.iterdir()) == []


def test_unpack_refuses_zip_escapes_links_and_bombs(tmp_path):
    symlink = zipfile.ZipInfo("arxiv/link")
    symlink.external_attr = 0o120777 << 16
    cases = {"../evil": b"x", "/evil": b"x", symlink: b"/etc/passwd", "arxiv/bomb": bytes(1_000_000)}
    for member, content in cases.items():
        archive = tmp_path / "bad.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle:
            bundle.writestr("arxiv/good", b"good")
            bundle.writestr(member, content)
        with pytest.raises(UnpackError, match=r"outside|link or a device|would unpack to 1,000,00"):
            unpack_archive(archive, tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []


def test_unpack_of_a_damaged_zip(tmp_path):
    archive = tmp_path / "bad.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr("arxiv/raw", PAYLOAD[:1000])
    archive.write_bytes(archive.read_bytes().replace(PAYLOAD[500:520], bytes(20)))
    with pytest.raises(UnpackError, match="damaged archive"):
        unpack_archive(archive, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_unpack_merges_into_folders_that_exist(tmp_path):
    out = tmp_path / "out"
    (out / "npz/train").mkdir(parents=True)
    (out / "npz/train/old.npz").write_bytes(b"old")
    archive = tmp_path / "a.tar"
    archive.write_bytes(make_tar([("./npz/train/new.npz", b"new"), ("npz/valid/b.npz", b"b")]))
    assert unpack_archive(archive, out) == {"npz/train/new.npz": 3, "npz/valid/b.npz": 1}
    found = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.npz")}
    assert found == {"npz/train/old.npz": b"old", "npz/train/new.npz": b"new", "npz/valid/b.npz": b"b"}


def test_benchmarks_from_a_mirror(site, tmp_path, settings):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as bundle:
        bundle.writestr("arxiv/raw/edge.csv.gz", PAYLOAD[:100])
    site.files["arxiv.zip"] = stream.getvalue()
    site.files["data.json"] = b"{}"
    download_benchmarks(["wikics", "ogbn-arxiv"], tmp_path, mirror=site.address, options=settings)
    assert (tmp_path / "wikics/data.json").read_bytes() == b"{}"
    assert (tmp_path / "arxiv/raw/edge.csv.gz").read_bytes() == PAYLOAD[:100]
    assert not (tmp_path / "arxiv.zip").exists()


def test_every_benchmark_and_collection_has_addresses():
    assert BENCHMARK_FILES.keys() == BENCHMARKS.keys()
    paths = [file.path for files in BENCHMARK_FILES.values() for file in files]
    assert len(set(paths)) == len(paths)
    assert [file.address for file in list_collection_files("layout:nlp:default")] == [
        f"https://download.tensorflow.org/data/tpu_graphs/v0/npz_layout_nlp_default_{split}.tar"
        for split in ("train", "valid", "test")
    ]
    assert [file.address for file in list_index_files("layout:nlp:default")] == [
        "https://github.com/google-research-datasets/tpu_graphs/raw/main/"
        "tpu_graphs/baselines/layout/eval_indices/nlp_default.json"
    ]
    assert list_index_files("tile:xla") == ()

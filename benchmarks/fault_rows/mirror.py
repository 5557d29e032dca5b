"""A collection as the official download has it, and a server of it in the process that downloads."""

from __future__ import annotations

import functools
import socket
import tarfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tpugraphs_polynormer.catalog import SPLITS


class _Server(ThreadingHTTPServer):
    allow_reuse_port = True  # two processes that download at once serve themselves
    daemon_threads = True


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


class Mirror:
    """The tar files of tile:xla, made of an archive tree, in a folder; they have an address of their own."""

    def __init__(self, folder: Path, archives: Path) -> None:
        self._folder, port = folder, folder / "port.txt"
        if not port.exists():
            folder.mkdir(parents=True, exist_ok=True)
            for split in SPLITS:
                with tarfile.open(folder / f"npz_tile_xla_{split}.tar", "w") as bundle:
                    for path in sorted((archives / "npz" / "tile" / "xla" / split).iterdir()):
                        bundle.add(path, path.relative_to(archives).as_posix())
            with socket.create_server(("127.0.0.1", 0)) as found:
                port.write_text(str(found.getsockname()[1]))
        self._port = int(port.read_text())

    @property
    def address(self) -> str:
        """Where `serve` serves them."""
        return f"http://127.0.0.1:{self._port}"

    def serve(self) -> None:
        """Serves them from a thread of this process, until it ends."""
        handler = functools.partial(_Quiet, directory=str(self._folder))
        server = _Server(("127.0.0.1", self._port), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()

"""A folder over HTTP that counts what it gives and fails as it is told: for readers of origins."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class ServedFolder:
    """The folder ``root`` over HTTP.

    ranges: it knows them. cut: bytes after which the next answers with so many break off, by path. flip: paths of which the
    last bit of an answer is wrong. moved: where a path leads. asked: path and Range of each request. connections: how many
    there were. idle: the ones that are open.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ranges, self.query = True, ""
        self.cut: dict[str, list[int]] = {}
        self.flip: set[str] = set()
        self.moved: dict[str, str] = {}
        self.connections = 0
        self.idle: set[socket.socket] = set()
        self.asked: list[tuple[str, str]] = []
        self.authorization: set[str] = set()
        self.proxied: set[str] = set()  # what was said to it as a proxy
        self.sent = 0
        self.address = ""

    def hang_up(self) -> None:
        """Close every open connection."""
        for one in [*self.idle]:
            with suppress(OSError):  # the reader was quicker
                one.shutdown(socket.SHUT_RDWR)

    @property
    def tensor_bytes(self) -> int:
        """The bytes of all tensors' files."""
        return sum(path.stat().st_size for path in self.root.glob("tensors/*/*"))

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        name, _, query = request.path.lstrip("/").partition("?")
        wanted = request.headers.get("Range", "")
        self.asked.append((name, wanted))
        self.authorization.add(request.headers.get("Authorization", ""))
        self.proxied.add(request.headers.get("Proxy-Authorization", ""))
        if name in self.moved:
            request.send_response(307)
            request.send_header("Location", self.moved[name])
            request.send_header("Content-Length", "0")
            return request.end_headers()
        path = self.root / name
        if not path.is_file() or query != self.query:
            request.send_response(404)
            request.send_header("Content-Length", "0")
            return request.end_headers()
        whole = path.read_bytes()
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        body = bytearray(whole[first:])
        if name in self.flip:
            body[-1] ^= 1
        request.send_response(206 if first else 200)
        if first:
            request.send_header("Content-Range", f"bytes {first}-{len(whole) - 1}/{len(whole)}")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if self.cut.get(name):
            del body[self.cut[name].pop(0) :]
            request.close_connection = True
        request.wfile.write(body)
        self.sent += len(body)
        return None


@contextmanager
def served_folder(root: Path, host: str = "127.0.0.1") -> Iterator[ServedFolder]:
    """Serve a folder while the context lasts."""
    served = ServedFolder(root)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # the head and the beginning of an answer in one packet

        def setup(self) -> None:
            super().setup()
            served.connections += 1
            served.idle.add(self.connection)

        def finish(self) -> None:
            served.idle.discard(self.connection)
            super().finish()

        def do_GET(self) -> None:
            served.answer(self)

        def log_message(self, *what: object) -> None:
            pass

    class Quiet(http.server.ThreadingHTTPServer):
        def handle_error(self, *of: object) -> None:
            """A reader has gone, which tests mean."""

    with Quiet((host, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        served.address = f"http://{host}:{server.server_address[1]}"
        try:
            yield served
        finally:
            server.shutdown()
            served.hang_up()
            thread.join()

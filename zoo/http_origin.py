"""Origin behind an address: the files of a zoo over HTTP(S), whole or from any byte on.

A connection stays open between requests, and there are no more of them than requests at a time. One that the server has
closed meanwhile is replaced. Each tensor of a zoo is a file of its own, so no two share a range. Redirections and proxies
of the environment are followed; a password goes to the server that it was given for, and to no other.
"""

from __future__ import annotations

import base64
import http.client
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..gpu.model.fields import LONGEST
from .errors import OriginError

PATIENCE = 10.0  # seconds without a byte until a server is given up
PIECE = 1 << 20  # bytes read at a time
MOST_REDIRECTIONS = 5
KEPT = 16  # connections that stay open without a request
_SMALL = 1 << 16  # bytes of an error's text that are read to keep its connection
_FOUND, _PART = 200, 206
_MOVED = (301, 302, 303, 307, 308)
T = TypeVar("T")
Count = Callable[[int], None]  # called with the bytes that came
Server = tuple[str, str]  # scheme, and host with port


class HttpOrigin:
    """A zoo behind an address. The query of the address, such as a signature, goes with every request.

    where: the address as messages name it, without secrets.
    """

    def __init__(self, parts: urllib.parse.SplitResult) -> None:
        self._parts = parts
        self._secret = _password("Authorization", parts)
        self._connections = _Connections()
        self.where = without_secrets(parts)

    def read(self, path: Path, count: Count) -> bytes:
        """Return a small file. Raises OriginError."""
        with self._asked(path, 0) as answer:
            raw = self._got(lambda: answer.read(LONGEST + 1))
        count(len(raw))
        if len(raw) > LONGEST:
            raise OriginError(f"{self.where}/{path} has more than {LONGEST} bytes")
        return raw

    def stream(self, path: Path, first: int, count: Count) -> Iterator[memoryview]:
        """Yield the bytes of a file from ``first`` on, each piece valid until the next. Raises OriginError."""
        buffer = memoryview(bytearray(PIECE))
        with self._asked(path, first) as answer:
            skip = self._skip(path, answer, first)
            while got := self._got(lambda: answer.readinto(buffer)):
                count(got)
                rest = buffer[min(skip, got) : got]
                skip -= got - len(rest)
                if rest:
                    yield rest

    def close(self) -> None:
        """Close the connections without a request."""
        self._connections.close()

    @contextmanager
    def _asked(self, path: Path, first: int) -> Iterator[http.client.HTTPResponse]:
        """Yield the answer to a request for a file, from byte ``first`` on if the server knows ranges."""
        ours = self._parts.scheme, self._parts.netloc.rpartition("@")[2]
        quoted = urllib.parse.quote(path.as_posix())
        address = urllib.parse.urlunsplit((*ours, f"{self._parts.path.rstrip('/')}/{quoted}", self._parts.query, ""))
        for _ in range(1 + MOST_REDIRECTIONS):
            parts = urllib.parse.urlsplit(address)
            server = parts.scheme, parts.netloc.rpartition("@")[2]
            headers = {"Accept-Encoding": "identity", "User-Agent": "blockwright"} | (self._secret if server == ours else {})
            headers |= {"Range": f"bytes={first}-"} if first else {}
            target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
            connection, answer = self._got(partial(self._connections.ask, server, target, headers))
            try:
                if answer.status in (_FOUND, _PART):
                    yield answer
                    return
                self._got(partial(answer.read, _SMALL))
            finally:
                self._connections.take_back(server, connection, answer)
            if answer.status not in _MOVED or not (there := answer.headers.get("Location")):
                raise OriginError(f"{self.where}/{path} answers {answer.status} {answer.reason}")
            address = urllib.parse.urljoin(address, there)
            if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
                raise OriginError(f"{self.where}/{path} leads to another place than an address of HTTP(S)")
        raise OriginError(f"{self.where}/{path} leads from one address to the next, more than {MOST_REDIRECTIONS} times")

    def _skip(self, path: Path, answer: http.client.HTTPResponse, first: int) -> int:
        """Return how many bytes of the answer come before the ones that were asked for."""
        if answer.status == _FOUND:
            return first
        begins = (answer.headers.get("Content-Range") or "").removeprefix("bytes ").partition("-")[0]
        if begins != str(first):
            raise OriginError(f"{self.where}/{path} answers {answer.status} with another range than was asked for")
        return 0

    def _got(self, call: Callable[[], T]) -> T:
        """Return what a call returns. Raises OriginError for all that goes wrong between here and there."""
        try:
            return call()
        except _Unanswered as error:
            raise OriginError(f"{self.where} does not answer: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            raise OriginError(f"{self.where} stopped answering: {error or type(error).__name__}") from None


def without_secrets(parts: urllib.parse.SplitResult) -> str:
    """Return an address without what may be secret in it: a password, and a query."""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _password(header: str, parts: urllib.parse.SplitResult) -> dict[str, str]:
    """Return the header with the name and password of an address, if it has them."""
    if parts.username is None:
        return {}
    who = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    return {header: f"Basic {base64.b64encode(who.encode()).decode()}"}


class _Unanswered(Exception):
    """A server that took no connection: the reason."""


class _Connections:
    """The connections of one origin, which many threads use. Owns the ones that wait for a request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Server, http.client.HTTPConnection]] = []

    def ask(
        self, server: Server, target: str, headers: dict[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request, over a connection that waits if there is one. Raises _Unanswered, OSError, HTTPException."""
        proxy = _proxy(server)
        if proxy is not None and server[0] == "http":
            target, headers = f"http://{server[1]}{target}", {**headers, **_password("Proxy-Authorization", proxy)}
        while (connection := self._one_that_waits(server)) is not None:
            try:
                return connection, _exchange(connection, target, headers)
            except (ConnectionError, http.client.BadStatusLine):  # the server has closed it meanwhile
                connection.close()
        connection = _opened(server, proxy)
        try:
            return connection, _exchange(connection, target, headers)
        except BaseException:
            connection.close()
            raise

    def take_back(self, server: Server, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        """Keep a connection for the next request, if its answer was read to the end."""
        whole = answer.isclosed() and answer.length in (0, None) and connection.sock is not None
        with self._lock:
            if whole and len(self._waiting) < KEPT:
                self._waiting.append((server, connection))
                return
        answer.close()
        connection.close()

    def close(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for _, connection in waiting:
            connection.close()

    def _one_that_waits(self, server: Server) -> http.client.HTTPConnection | None:
        """Return the connection that was used last: of all, the server is the least likely to have closed it."""
        with self._lock:
            for at in reversed(range(len(self._waiting))):
                if self._waiting[at][0] == server:
                    return self._waiting.pop(at)[1]
        return None


def _proxy(server: Server) -> urllib.parse.SplitResult | None:
    """Return the proxy that the environment names for a server."""
    address = urllib.request.getproxies().get(server[0])
    if not address or urllib.request.proxy_bypass(server[1]):
        return None
    return urllib.parse.urlsplit(address if "://" in address else f"http://{address}")


def _opened(server: Server, proxy: urllib.parse.SplitResult | None) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if server[0] == "https" else http.client.HTTPConnection
    connection = kind(server[1] if proxy is None else proxy.netloc.rpartition("@")[2], timeout=PATIENCE)
    if proxy is not None and server[0] == "https":
        connection.set_tunnel(server[1], headers=_password("Proxy-Authorization", proxy))
    try:
        connection.connect()
    except OSError as error:
        connection.close()
        raise _Unanswered(error.strerror or str(error)) from None
    return connection


def _exchange(connection: http.client.HTTPConnection, target: str, headers: dict[str, str]) -> http.client.HTTPResponse:
    connection.request("GET", target, headers=headers)
    return connection.getresponse()

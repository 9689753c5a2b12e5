"""Origins: a zoo that is read from elsewhere, in a folder or over HTTP(S), by paths of a zoo's layout.

Knows how bytes are asked for, and nothing of what they mean: who reads compares them with their hash. Over HTTP a part of a
file is asked for with a range; a server that knows none answers with the whole file, and what comes before is skipped.
Object stores and ``blockwright zoo serve`` speak it. Reads block; the event loop calls them on threads.
"""

from __future__ import annotations

import base64
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from ..gpu.errors import CheckpointError
from ..gpu.model.fields import LONGEST
from ..gpu.regular_file import open_regular, read_regular
from .documents import decode
from .errors import OriginError, ZooError
from .layout import Layout

PATIENCE = 10.0  # seconds without a byte until a server is given up
PIECE = 1 << 20  # bytes read at a time
SCHEMES = ("http", "https")
RELATIVE = Layout(Path())  # the paths of a zoo's files, as an origin is asked for them
_FOUND, _PART = 200, 206
_REMEDY = "give the address or the folder of a zoo, as 'blockwright zoo serve' prints it"
T = TypeVar("T")
Count = Callable[[int], None]  # called with the bytes that came


class Origin(Protocol):
    """A zoo elsewhere (see the module). ``where``: as messages name it, without secrets."""

    where: str

    def read(self, path: Path, count: Count) -> bytes:
        """Return a small file. Raises OriginError."""

    def stream(self, path: Path, first: int, count: Count) -> Iterator[memoryview]:
        """Yield the bytes of a file from ``first`` on, each piece valid until the next. Raises OriginError."""


def open_origin(text: str, field: str = "origin") -> Origin:
    """Return the origin with this address or folder, which is not asked yet. Raises OriginError for what can be none."""
    parts = _parts(text)
    if parts is None:
        return _Folder(Path(text).expanduser())
    try:
        known = parts.scheme in SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number
        known = False
    if not known:
        raise OriginError(f"{field} is {shown_address(text)!r}; give http://HOST:PORT or https://HOST, or a zoo's folder")
    return _Http(parts)


def check_origin(text: str, field: str = "origin") -> None:
    """Check that an origin is there and is a zoo that this program reads. Raises OriginError: one sentence."""
    origin = open_origin(text, field)
    try:
        decode(origin.read(RELATIVE.mark, lambda nbytes: None), RELATIVE.mark)
    except OriginError as error:
        raise OriginError(f"{field} is {origin.where!r}, which gives no zoo ({error}); {_REMEDY}") from None
    except ZooError as error:
        raise OriginError(f"{field} is {origin.where!r}, which is no zoo ({error}); {_REMEDY}") from None


def shown_address(text: str) -> str:
    """Return an address without what may be secret in it: a password, and a query."""
    parts = _parts(text)
    return text if parts is None else _shown(parts)


def _parts(text: str) -> urllib.parse.SplitResult | None:
    """Return the parts of an address, or None for a folder."""
    return urllib.parse.urlsplit(text) if "://" in text else None


def _shown(parts: urllib.parse.SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


class _Folder:
    """A zoo in a folder, which may be another machine's."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.where = str(root)

    def read(self, path: Path, count: Count) -> bytes:
        try:
            raw = read_regular(self._root / path, LONGEST)
        except (OSError, CheckpointError) as error:
            raise OriginError(_why(self._root / path, error)) from None
        count(len(raw))
        return raw

    def stream(self, path: Path, first: int, count: Count) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(PIECE))
        try:
            fd = open_regular(self._root / path)
        except (OSError, CheckpointError) as error:
            raise OriginError(_why(self._root / path, error)) from None
        try:
            while got := os.preadv(fd, [buffer], first):
                count(got)
                first += got
                yield buffer[:got]
        except OSError as error:
            raise OriginError(_why(self._root / path, error)) from None
        finally:
            os.close(fd)


def _why(path: Path, error: Exception) -> str:
    return f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)


class _Http:
    """A zoo behind an address. The query of the address, such as a signature, goes with every request."""

    def __init__(self, parts: urllib.parse.SplitResult) -> None:
        self._parts = parts
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "blockwright"}
        if parts.username is not None:
            who = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(who.encode()).decode()}"
        self.where = _shown(parts)

    def read(self, path: Path, count: Count) -> bytes:
        with self._ask(path, 0) as answer:
            raw = self._got(path, lambda: answer.read(LONGEST + 1))
        count(len(raw))
        if len(raw) > LONGEST:
            raise OriginError(f"{self.where}/{path} has more than {LONGEST} bytes")
        return raw

    def stream(self, path: Path, first: int, count: Count) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(PIECE))
        with self._ask(path, first) as answer:
            skip = self._skip(path, answer, first)
            while got := self._got(path, lambda: answer.readinto(buffer)):
                count(got)
                rest = buffer[min(skip, got) : got]
                skip -= got - len(rest)
                if rest:
                    yield rest

    def _ask(self, path: Path, first: int) -> http.client.HTTPResponse:
        """Return the answer to a request for a file, from byte ``first`` on if the server knows ranges."""
        quoted = urllib.parse.quote(path.as_posix())
        address = urllib.parse.urlunsplit(
            (
                self._parts.scheme,
                self._parts.netloc.rpartition("@")[2],
                f"{self._parts.path.rstrip('/')}/{quoted}",
                self._parts.query,
                "",
            )
        )
        headers = {**self._headers, **({"Range": f"bytes={first}-"} if first else {})}
        request = urllib.request.Request(address, headers=headers)
        return self._got(path, lambda: urllib.request.urlopen(request, timeout=PATIENCE))  # type: ignore[no-any-return]

    def _skip(self, path: Path, answer: http.client.HTTPResponse, first: int) -> int:
        """Return how many bytes of the answer come before the ones that were asked for."""
        if answer.status == _FOUND:
            return first
        begins = (answer.headers.get("Content-Range") or "").removeprefix("bytes ").partition("-")[0]
        if answer.status != _PART or begins != str(first):
            raise OriginError(f"{self.where}/{path} answers {answer.status} with another range than was asked for")
        return 0

    def _got(self, path: Path, call: Callable[[], T]) -> T:
        """Return what a call returns. Raises OriginError for all that goes wrong between here and there."""
        try:
            return call()
        except urllib.error.HTTPError as error:
            error.close()
            raise OriginError(f"{self.where}/{path} answers {error.code} {error.reason}") from None
        except urllib.error.URLError as error:
            why = getattr(error.reason, "strerror", None) or error.reason
            raise OriginError(f"{self.where} does not answer: {why}") from None
        except (OSError, http.client.HTTPException) as error:
            raise OriginError(f"{self.where} stopped answering: {error or type(error).__name__}") from None

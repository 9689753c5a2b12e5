"""Origins: a zoo that is read from elsewhere, in a folder or over HTTP(S), by paths of a zoo's layout.

Knows how bytes are asked for, and nothing of what they mean: who reads compares them with their hash. Over HTTP
(``http_origin.py``) a part of a file is asked for with a range; a server that knows none answers with the whole file, and
what comes before is skipped. Object stores and ``blockwright zoo serve`` speak it. Reads block; the event loop calls them on
threads.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

from ..gpu.errors import CheckpointError
from ..gpu.model.fields import LONGEST
from ..gpu.regular_file import open_regular, read_regular
from .documents import decode
from .errors import OriginError, ZooError
from .http_origin import PIECE, Count, HttpOrigin, without_secrets
from .layout import Layout

SCHEMES = ("http", "https")
RELATIVE = Layout(Path())  # the paths of a zoo's files, as an origin is asked for them
_REMEDY = "give the address or the folder of a zoo, as 'blockwright zoo serve' prints it"


class Origin(Protocol):
    """A zoo elsewhere (see the module). ``where``: as messages name it, without secrets."""

    where: str

    def read(self, path: Path, count: Count) -> bytes:
        """Return a small file. Raises OriginError."""

    def stream(self, path: Path, first: int, count: Count) -> Iterator[memoryview]:
        """Yield the bytes of a file from ``first`` on, each piece valid until the next. Raises OriginError."""

    def close(self) -> None:
        """Let go of what is open."""


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
    return HttpOrigin(parts)


def check_origin(text: str, field: str = "origin") -> None:
    """Check that an origin is there and is a zoo that this program reads. Raises OriginError: one sentence."""
    origin = open_origin(text, field)
    try:
        with closing(origin):
            decode(origin.read(RELATIVE.mark, lambda nbytes: None), RELATIVE.mark)
    except OriginError as error:
        raise OriginError(f"{field} is {origin.where!r}, which gives no zoo ({error}); {_REMEDY}") from None
    except ZooError as error:
        raise OriginError(f"{field} is {origin.where!r}, which is no zoo ({error}); {_REMEDY}") from None


def shown_address(text: str) -> str:
    """Return an address without what may be secret in it: a password, and a query."""
    parts = _parts(text)
    return text if parts is None else without_secrets(parts)


def is_address(text: str) -> bool:
    """Return whether an origin is behind an address, and not a folder."""
    return _parts(text) is not None


def _parts(text: str) -> urllib.parse.SplitResult | None:
    """Return the parts of an address, or None for a folder."""
    return urllib.parse.urlsplit(text) if "://" in text else None


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

    def close(self) -> None:
        pass


def _why(path: Path, error: Exception) -> str:
    return f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)

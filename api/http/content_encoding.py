"""Decoding of request bodies that have a ``Content-Encoding``, in small pieces between which the event loop runs.

aiohttp would decode a body as it arrives, even one that no handler reads: a megabyte that unpacks to a gigabyte would hold
the loop for a second. So its own decoding is off (``listening.py``), and a body that no handler reads stays packed.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol

from ..errors import ApiError, bad_request

PIECE = 1 << 16  # most bytes of a decoded piece, which takes less than a millisecond
LINES = 1 << 13  # bytes between two turns of the loop for a form, which aiohttp may read line by line
_GZIP = zlib.MAX_WBITS | 16
_ZLIB = zlib.MAX_WBITS
_BARE = -zlib.MAX_WBITS
_CODINGS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}
_PLAIN = ("", "identity")
_DEFLATE = 8  # method in the first byte of a zlib header, which some clients leave out


def check_encoding(request: web.BaseRequest) -> None:
    """Raise a 415 for a body in an unknown coding, or in several."""
    if request.can_read_body:
        _coding(request)


def _coding(request: web.BaseRequest) -> str:
    """Return the coding of a body, "" for none. Raise a 415."""
    values = request.headers.getall("Content-Encoding", [])
    named = [one.strip().lower() for value in values for one in value.split(",")]
    codings = [one for one in named if one not in _PLAIN]
    if not codings:
        return ""
    if len(codings) > 1 or codings[0] not in _CODINGS:
        why = "names more than one coding" if len(codings) > 1 else "is not known"
        refusal = ApiError(
            415, f"Content-Encoding: {', '.join(values)[:100]!r} {why}; send gzip, deflate, or the body as it is"
        )
        refusal.headers["Accept-Encoding"] = "gzip, deflate"
        raise refusal
    return codings[0]


async def decoded(request: web.BaseRequest) -> AsyncIterator[bytes]:
    """Yield the body of a request in pieces. Raise a 400 for one that is not in its coding."""
    coding = _coding(request)
    decoder = _Decoder(coding) if coding else None
    while chunk := await request.content.readany():
        if decoder is None:
            yield chunk
            continue
        for piece in decoder.pieces(chunk):
            yield piece
            await asyncio.sleep(0)
    if decoder is not None:
        decoder.end()


def decoded_reader(request: web.BaseRequest, limit: int) -> StreamReader:
    """Return a stream of the body, which decodes as it is read and gives the loop a turn after each ``LINES`` bytes.

    Reading more than ``limit`` bytes raises aiohttp's 413.
    """
    return _DecodedReader(request, limit)


class _Decoder:
    """The state of decoding one body. ``coding``: a key of ``_CODINGS``."""

    def __init__(self, coding: str) -> None:
        self._coding, self._form = coding, _CODINGS[coding]
        self._stream: Any = None  # a decompressor of zlib, whose class has no public name

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what further bytes unpack to. A gzip file may follow another."""
        while data:
            if self._stream is None:
                bare = self._form == _ZLIB and data[0] & 15 != _DEFLATE
                self._stream = zlib.decompressobj(_BARE if bare else self._form)
            elif self._stream.eof and self._form != _GZIP:
                raise self._broken("it goes on after its end")
            elif self._stream.eof:
                self._stream = zlib.decompressobj(self._form)
            try:
                piece = self._stream.decompress(data, PIECE)
            except zlib.error:
                raise self._broken("it is broken") from None
            data = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            if piece:
                yield piece
            while len(piece) == PIECE and not self._stream.eof and not data:  # zlib may hold more
                if piece := self._stream.decompress(b"", PIECE):
                    yield piece

    def end(self) -> None:
        """Raise a 400 if the body has ended before its coding has."""
        if self._stream is not None and not self._stream.eof:
            raise self._broken("its end is missing")

    def _broken(self, why: str) -> ApiError:
        refusal = bad_request(
            f"the body cannot be read as {self._coding} ({why}); send it as Content-Encoding says", code="invalid_json"
        )
        refusal.headers["Connection"] = "close"  # the rest is not read
        return refusal


class _DecodedReader(StreamReader):
    """A stream that decodes another one when it is read. ``_wait`` is private in aiohttp, which has no hook for this."""

    def __init__(self, request: web.BaseRequest, limit: int) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(BaseProtocol(loop), PIECE, loop=loop)
        self._decoded = decoded(request)
        self._most = limit
        self._rest = b""

    async def _wait(self, func_name: str) -> None:
        if not self._rest:
            self._rest = await anext(self._decoded, b"")
        else:
            await asyncio.sleep(0)
        piece, self._rest = self._rest[:LINES], self._rest[LINES:]
        if not piece:
            self.feed_eof()
            return
        if self.total_bytes + len(piece) > self._most:
            raise web.HTTPRequestEntityTooLarge(max_size=self._most, actual_size=self.total_bytes + len(piece))
        self.feed_data(piece)

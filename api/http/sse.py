"""A stream of server-sent events on one connection: headers, comments during silence, errors after the 200.

The response starts with the first byte to send, so an earlier error still gets a status of its own. The contents of events
are opaque here. Each delta is one ``write``, or one ``put``, which waits for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from aiohttp import web


class EventStream:
    """A stream of events. Use as ``async with``: leaving it stops the comments in any case.

    After ``keep_alive`` seconds of silence a comment with ``comment()`` is sent: one line of ASCII; "": none.
    ``headers()`` returns further headers when the response starts.
    """

    def __init__(
        self, request: web.Request, keep_alive: float, comment: Callable[[], str], headers: Callable[[], Mapping[str, str]]
    ) -> None:
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
            }
        )
        self.started = False
        self._transport: asyncio.WriteTransport | None = None  # while events were written, and more may follow
        self._chunked = False
        self._request = request
        self._keep_alive = keep_alive
        self._say = comment
        self._headers = headers
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._starting = asyncio.Lock()
        self._comment: asyncio.Task[None] | None = None
        self._timer = self._loop.call_at(self._last + keep_alive, self._beat)

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    async def write(self, events: bytes) -> None:
        """Write events, each ending in a blank line. Waits while the client reads too slowly."""
        if not self.started:
            await self._start()
        self._last = self._loop.time()
        await self.response.write(events)
        self._transport = self._request.transport

    def free(self) -> bool:
        """Return True if ``put`` may be called: the response has begun, and the client has read what was written."""
        transport = self._transport
        return transport is not None and not transport.get_write_buffer_size() and not transport.is_closing()

    def put(self, events: bytes) -> None:
        """Write events at once, if ``free``: the same bytes as ``write``, for a fraction of its time."""
        assert self._transport is not None, "the connection is free"
        self._last = self._loop.time()
        self._transport.write(b"%x\r\n%b\r\n" % (len(events), events) if self._chunked else events)

    async def end(self, events: bytes) -> None:
        """Write the last events, and end the response."""
        await self.write(events)
        self._transport = None
        await self.response.write_eof()

    async def _start(self) -> None:
        async with self._starting:
            if not self.started:
                self.response.headers.update(self._headers())
                await self.response.prepare(self._request)
                self._chunked = self.response.headers.get("Transfer-Encoding") == "chunked"
                self.started = True

    def _beat(self) -> None:
        now = self._loop.time()
        due = self._last + self._keep_alive
        if now >= due:
            transport = self._request.transport
            # a client that does not read needs no comment
            if transport is not None and transport.get_write_buffer_size() == 0:
                self._comment = self._loop.create_task(self._write_comment())
            due = now + self._keep_alive
        self._timer = self._loop.call_at(due, self._beat)

    async def _write_comment(self) -> None:
        if not (chunk := self._say()):
            return
        with contextlib.suppress(ConnectionError):  # the handler is cancelled when the connection is lost
            await self.write(f": {chunk}\n\n".encode("ascii"))

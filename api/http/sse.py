"""A stream of server-sent events on one connection: headers, comments while nothing happens, errors after the 200.

The response starts with the first byte that there is to send, so an error before it still gets a status of its own. Knows
nothing of what the events say. Each delta is one ``write``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from aiohttp import web

_DONE = b"data: [DONE]\n\n"


class EventStream:
    """Use as ``async with``: leaving it ends the comments, whatever happened.

    After ``keep_alive`` seconds of silence a comment says ``comment()``: one line of ASCII.
    """

    def __init__(self, request: web.Request, keep_alive: float, comment: Callable[[], str]) -> None:
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
            }
        )
        self.started = False
        self._request = request
        self._keep_alive, self._say = keep_alive, comment
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
        """Events, each ending in a blank line. Waits while the client reads too slowly."""
        if not self.started:
            await self._start()
        self._last = self._loop.time()
        await self.response.write(events)

    async def done(self, events: bytes = b"") -> None:
        """The last events and the end mark, in one write."""
        await self.write(events + _DONE)
        await self.response.write_eof()

    async def fail(self, body: bytes) -> None:
        """An error object in place of what would have followed; there is no end mark after it."""
        await self.write(b"data: " + body + b"\n\n")
        await self.response.write_eof()

    async def _start(self) -> None:
        async with self._starting:
            if not self.started:
                await self.response.prepare(self._request)
                self.started = True

    def _beat(self) -> None:
        now = self._loop.time()
        due = self._last + self._keep_alive
        if now >= due:
            transport = self._request.transport
            if transport is not None and transport.get_write_buffer_size() == 0:  # a client that does not read needs none
                self._comment = self._loop.create_task(self._write_comment())
            due = now + self._keep_alive
        self._timer = self._loop.call_at(due, self._beat)

    async def _write_comment(self) -> None:
        with contextlib.suppress(ConnectionError):  # the handler is cancelled when the connection goes
            await self.write(f": {self._say()}\n\n".encode("ascii"))

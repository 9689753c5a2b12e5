"""A stream of events: what is put at once and what waits are the same bytes, framed as the client's HTTP version has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from blockwright.api.http.sse import EventStream

EVENTS = [b"data: 1\n\n", b"data: " + b"x" * 300 + b"\n\n", b"data: [DONE]\n\n"]


async def said(write: Callable[[EventStream], object], version: str) -> bytes:
    """All bytes behind the headers that a client of this HTTP version gets."""

    async def handle(request: web.Request) -> web.StreamResponse:
        async with EventStream(request, 60.0, lambda: "", dict) as out:
            assert not out.free(), "the response has not begun"
            await out.write(EVENTS[0])
            write(out)
            await out.end(EVENTS[2])
            assert not out.free(), "the response has ended"
            return out.response

    app = web.Application()
    app.router.add_get("/", handle)
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(f"GET / HTTP/{version}\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        whole = await reader.read()
        writer.close()
        await writer.wait_closed()
    return whole.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_what_is_put_at_once_has_the_bytes_of_what_waits(version: str) -> None:
    def put(out: EventStream) -> None:
        assert out.free()
        out.put(EVENTS[1])

    at_once = await said(put, version)
    pieces = [b"%x\r\n%b\r\n" % (len(one), one) for one in EVENTS] + [b"0\r\n\r\n"]
    assert at_once == (b"".join(pieces) if version == "1.1" else b"".join(EVENTS))

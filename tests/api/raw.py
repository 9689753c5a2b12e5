"""A server on a real socket over a fake gateway port, for clients that say bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from blockwright.actors.settings.settings import Settings
from blockwright.api.app.application import make_app
from blockwright.api.http.listening import make_runner
from blockwright.tests.api.fake_port import FakePort, Script
from blockwright.tests.waiting import PATIENCE

BODY = b'{"prompt":"a"}'
CHUNKED = b"e\r\n" + BODY + b"\r\n0\r\n\r\n"
OTHER = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"  # what a smuggler hides behind a request


def post(*headers: bytes, body: bytes = BODY, line: bytes = b"\r\n", version: bytes = b"1.1") -> bytes:
    head = (b"POST /v1/completions HTTP/" + version, b"Host: localhost", *headers, b"", b"")
    return line.join(head) + body


@dataclass(frozen=True)
class Raw:
    """``address`` of the server; ``port``: what its requests came to."""

    address: tuple[str, int]
    port: FakePort

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            async with asyncio.timeout(PATIENCE):
                yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def whole(self, sent: bytes) -> bytes:
        """All that the server says until it closes the connection."""
        async with self.connect() as (reader, writer):
            writer.write(sent)
            return await reader.read()

    async def answers(self, sent: bytes, count: int) -> list[tuple[int, dict[str, Any]]]:
        """Status and body of so many answers on one connection."""
        async with self.connect() as (reader, writer):
            writer.write(sent)
            return [await answer_of(reader) for _ in range(count)]


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    """The next answer of the connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").lower()
    length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


@asynccontextmanager
async def listening(folder: Path, script: Script, **settings: Any) -> AsyncIterator[Raw]:
    port = FakePort(folder, script)
    runner = make_runner(make_app(port, Settings(applications={"tiny": str(folder)}, **settings)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield Raw(runner.addresses[0][:2], port)
    finally:
        await runner.cleanup()

"""What a connection answers that carries no HTTP: our errors, not aiohttp's text."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from blockwright.actors.config import Settings
from blockwright.api.app.application import make_app
from blockwright.api.http.listening import make_runner
from blockwright.tests.api.fake_port import FakePort
from blockwright.tests.waiting import PATIENCE


@pytest.fixture
async def runner(folder: Path) -> AsyncIterator[web.AppRunner]:
    app = make_app(FakePort(folder, lambda generation: ()), Settings(applications={"tiny": str(folder)}))
    made = make_runner(app)
    await made.setup()
    await web.TCPSite(made, "127.0.0.1", 0).start()
    yield made
    await made.cleanup()


async def exchange(runner: web.AppRunner, sent: bytes) -> tuple[int, bytes, dict[str, str | None]]:
    """Status, headers and the error; the server must close the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", runner.addresses[0][1])
    writer.write(sent)
    async with asyncio.timeout(PATIENCE):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), head, json.loads(body)["error"]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"hello\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_http(runner: web.AppRunner, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    status, head, error = await exchange(runner, sent)
    assert (status, b"application/json" in head) == (400, True)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "invalid_value")
    message = str(error["message"])
    assert message.startswith("this is no HTTP (")
    assert message.endswith("); check the request line and the headers")
    assert not [one for one in caplog.records if one.levelno > logging.DEBUG], "anybody can send such bytes"

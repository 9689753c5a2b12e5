"""What a connection answers that carries no HTTP: our errors, not aiohttp's text."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import resource
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from blockwright.actors.settings.settings import Settings
from blockwright.api.app.application import make_app
from blockwright.api.http.listening import make_runner, most_connections, open_site
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


GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def listening(folder: Path, **settings: int) -> web.AppRunner:
    made = make_runner(make_app(FakePort(folder, lambda g: ()), Settings(applications={"tiny": str(folder)}, **settings)))
    await made.setup()
    await web.TCPSite(made, "127.0.0.1", 0).start()
    return made


async def held(runner: web.AppRunner, count: int) -> list[asyncio.StreamWriter]:
    """That many connections that have been accepted."""
    writers = [(await asyncio.open_connection("127.0.0.1", runner.addresses[0][1]))[1] for _ in range(count)]
    assert runner.server is not None
    async with asyncio.timeout(PATIENCE):
        while len(runner.server.connections) < count:  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0)
    return writers


async def test_connections_too_many_get_a_503_that_says_so_and_probes_are_answered(folder: Path) -> None:
    runner = await listening(folder, max_connections=3)
    writers = await held(runner, 3)
    status, head, error = await exchange(runner, GET)
    assert (status, error["type"]) == (503, "server_error")
    assert (b"Retry-After: 1" in head, b"Connection: close" in head) == (True, True)
    assert "this process has 3 connections, as many as it takes" in str(error["message"])
    assert "max_connections" in str(error["message"])
    reader, writer = await asyncio.open_connection("127.0.0.1", runner.addresses[0][1])
    writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    for one in (*writers, writer):
        one.close()
    assert runner.server is not None
    async with asyncio.timeout(PATIENCE):
        while runner.server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
    reader, writer = await asyncio.open_connection("127.0.0.1", runner.addresses[0][1])
    writer.write(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert (await reader.read()).startswith(b"HTTP/1.1 200"), "room again"
    writer.close()
    await runner.cleanup()


async def test_far_too_many_connections_are_closed_unheard(folder: Path) -> None:
    runner = await listening(folder, max_connections=2)
    writers = await held(runner, 4)
    reader, writer = await asyncio.open_connection("127.0.0.1", runner.addresses[0][1])
    async with asyncio.timeout(PATIENCE):
        assert await reader.read() == b""
    for one in (*writers, writer):
        one.close()
    await runner.cleanup()


def test_connections_leave_files_to_the_rest_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, wanted, connections in (
        (1024, 8192, 768), (1024, 100, 100), (64, 8192, 32), (1 << 20, 8192, 8192), (1024, 0, 768),
        (resource.RLIM_INFINITY, 0, math.inf), (resource.RLIM_INFINITY, 5, 5),
    ):  # fmt: skip
        monkeypatch.setattr(resource, "getrlimit", lambda which, files=files: (files, files))
        assert most_connections(wanted) == connections


@pytest.mark.parametrize("turns", range(8))
async def test_a_site_that_is_cancelled_while_it_opens_is_closed_by_the_cleanup(folder: Path, turns: int) -> None:
    app = make_app(FakePort(folder, lambda generation: ()), Settings(applications={"tiny": str(folder)}))
    made = make_runner(app)
    await made.setup()
    with tempfile.TemporaryDirectory() as directory:
        opening = asyncio.create_task(open_site(web.UnixSite(made, f"{directory}/api.sock")))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        await made.cleanup()
        with pytest.raises(OSError, match=r"No such file|refused"):
            await asyncio.open_unix_connection(f"{directory}/api.sock")

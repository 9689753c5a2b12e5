"""Clients that send slowly, or nothing: within ``read_timeout`` their connection is free again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.api.openai import request_body
from blockwright.tests.api.fake_port import one_by_one
from blockwright.tests.api.raw import OTHER, Raw, answer_of, listening, post
from blockwright.tests.claims import claim

SHORT = 0.3  # seconds; a busy machine must bring what was sent at once in less
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


def tokens(generation: Any) -> Any:
    return one_by_one([70])


async def let_go(server: Raw, begin: bytes, trickle: bytes = b"", answered: int = 0) -> bytes:
    """What is said to a client that sends ``begin``, then again and again a byte of ``trickle``, until the server closes.

    answered: answers to wait for first.
    """
    more = itertools.cycle(trickle[i : i + 1] for i in range(len(trickle)))
    async with server.connect() as (reader, writer):
        writer.write(begin)
        for _ in range(answered):
            assert (await answer_of(reader))[0] == 200
        said = bytearray()
        reading = asyncio.ensure_future(_read(reader, said))
        while not reading.done():
            if trickle and not writer.is_closing():
                writer.write(next(more))
            await asyncio.wait([reading], timeout=SHORT / 10)
        return bytes(said)


async def _read(reader: asyncio.StreamReader, said: bytearray) -> None:
    with contextlib.suppress(ConnectionError):  # bytes that come too late are answered so
        while some := await reader.read(1 << 16):
            said += some


@claim("Slow clients and silent connections are closed in time", of="security")
@pytest.mark.parametrize(
    ("begin", "trickle", "answered"),
    [
        (b"", b"", 0),  # connects and says nothing
        (b"G", b"", 0),
        (HEAD, b"", 0),
        (HEAD, b"X-Slow: a\r\n", 0),
        (OTHER + b"GET /hea", b"", 1),  # a good request, then half of another
        (OTHER + b"GET /", b"a", 1),
        (OTHER, b"", 1),
    ],
)
async def test_slow_heads(folder: Path, begin: bytes, trickle: bytes, answered: int) -> None:
    async with listening(folder, tokens, read_timeout=SHORT) as server:
        assert await let_go(server, begin, trickle, answered) == b""
        assert (await server.answers(OTHER, 1))[0][0] == 200


@claim("Slow clients and silent connections are closed in time", of="security")
@pytest.mark.parametrize(("headers", "start"), [(b"Content-Length: 100", b"{"), (b"Transfer-Encoding: chunked", b"5;")])
@pytest.mark.parametrize("trickle", [b"", b"a"])
async def test_slow_bodies(folder: Path, headers: bytes, start: bytes, trickle: bytes) -> None:
    """Also chunk extensions without end, which are no bytes of the body."""
    async with listening(folder, tokens, read_timeout=SHORT) as server:
        said = await let_go(server, post(headers, body=start), trickle)
        assert said.startswith(b"HTTP/1.1 408 "), said
        assert b'"code": "request_timeout"' in said
        assert f"the body did not arrive within {SHORT:g} s".encode() in said
        assert b"Connection: close" in said
        assert server.port.streams == []


async def test_a_slow_body_that_nobody_asked_for(folder: Path) -> None:
    async with listening(folder, tokens, read_timeout=SHORT, api_keys={"k": "t"}) as server:
        said = await let_go(server, post(b"Content-Length: 100", body=b"{"), b" ")
        assert said.startswith(b"HTTP/1.1 401 ")


async def test_a_long_body_may_take_longer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a byte has earned a thousand seconds."""
    monkeypatch.setattr(request_body, "SLOWEST", 0.001)
    async with listening(folder, tokens, read_timeout=SHORT) as server, server.connect() as (reader, writer):
        writer.write(post(b"Content-Length: 14", body=b'{"prom'))
        assert await let_go(server, HEAD) == b"", "who came later is let go first"
        writer.write(b'pt":"a"}')
        assert (await answer_of(reader))[0] == 200


async def test_an_answer_and_an_idle_connection_may_take_their_time(folder: Path) -> None:
    gate = asyncio.Event()
    script = lambda generation: [gate, *one_by_one([70])]  # noqa: E731
    async with listening(folder, script, read_timeout=SHORT) as server, server.connect() as (reader, writer):
        writer.write(post(b"Content-Length: 14"))
        await server.port.waiting.get()
        assert await let_go(server, HEAD) == b"", "the time is over, for who came later"
        gate.set()
        assert (await answer_of(reader))[0] == 200
        assert await let_go(server, HEAD) == b""
        writer.write(post(b"Content-Length: 14"))
        assert (await answer_of(reader))[0] == 200


async def test_many_are_freed(folder: Path) -> None:
    async with listening(folder, tokens, read_timeout=SHORT) as server:
        all_gone = await asyncio.gather(*(let_go(server, HEAD) for _ in range(200)))
        assert all_gone == [b""] * 200


def test_the_setting_is_checked() -> None:
    with pytest.raises(SettingsError, match="read_timeout is 0; give a positive number"):
        Settings(read_timeout=0)

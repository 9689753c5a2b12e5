"""Bodies that are refused by their headers, and clients that wait for ``100 Continue``."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from blockwright.tests.api.fake_port import one_by_one
from blockwright.tests.api.raw import BODY, answer_of, listening

EXPECT = b"Expect: 100-continue"
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
KEYS = {"api_keys": {"secret": "a"}}
FORM = b"Content-Type: multipart/form-data; boundary=x"


def head(path: bytes, *headers: bytes, length: int, method: bytes = b"POST") -> bytes:
    lines = (method + b" " + path + b" HTTP/1.1", b"Host: localhost", *headers, b"Content-Length: %d" % length, b"", b"")
    return b"\r\n".join(lines)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("path", [b"/v1/completions", b"/v1/chat/completions", b"/tokenize", b"/v1/batches", b"/v1/files"])
async def test_a_body_too_large_is_refused_by_its_declared_length(
    folder: Path, tmp_path: Path, path: bytes, waits: bool
) -> None:
    """Nothing of it is ever sent here: who waited for some of it would not answer."""
    headers = (FORM, EXPECT) if waits else (FORM,)
    async with (
        listening(folder, lambda generation: (), batch_dir=str(tmp_path / "batches")) as server,
        server.connect() as (reader, writer),
    ):
        writer.write(head(path, *headers, length=99_999_999_999))
        said = await reader.readuntil(b"\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 413 "), said
        assert b"\r\nConnection: close\r\n" in said


@pytest.mark.parametrize(
    ("path", "method", "settings", "status"),
    [
        (b"/v1/completions", b"POST", KEYS, 401),
        (b"/nothing", b"POST", {}, 404),
        (b"/nothing", b"POST", KEYS, 401),
        (b"/v1/completions", b"PUT", {}, 405),
        (b"/v1/files", b"POST", {}, 404),  # without batch_dir
        (b"/health/live", b"GET", {}, 200),
    ],
)
async def test_who_waits_is_not_asked_for_a_body_that_nobody_reads(
    folder: Path, path: bytes, method: bytes, settings: dict[str, Any], status: int
) -> None:
    async with listening(folder, lambda generation: (), **settings) as server, server.connect() as (reader, writer):
        writer.write(head(path, EXPECT, length=1000, method=method))
        said = await reader.readuntil(b"\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 %d " % status), said
        assert b"\r\nConnection: close\r\n" in said, "the client may send the body, or another request"


async def test_who_waits_is_asked_once_for_what_is_read_and_the_connection_goes_on(folder: Path) -> None:
    async with (
        listening(folder, lambda generation: one_by_one([70])) as server,
        server.connect() as (reader, writer),
    ):
        for _ in range(2):
            writer.write(head(b"/v1/completions", EXPECT, length=len(BODY)))
            assert await reader.readexactly(len(GO_ON)) == GO_ON
            writer.write(BODY)
            assert (await answer_of(reader))[0] == 200


async def test_an_upload_has_a_limit_of_its_own(folder: Path, tmp_path: Path) -> None:
    limits = {"max_body": 1000, "batch_bytes": 100_000, "batch_dir": str(tmp_path / "batches")}
    async with listening(folder, lambda generation: (), **limits) as server, server.connect() as (reader, writer):
        line = b'{"custom_id": "a"}\n'
        parts = b'--x\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
        form = parts % (b"purpose", b"", b"batch") + parts % (b"file", b'; filename="f"', line * 1000) + b"--x--\r\n"
        writer.write(head(b"/v1/files", FORM, EXPECT, length=len(form)))
        assert await reader.readexactly(len(GO_ON)) == GO_ON
        writer.write(form)
        status, body = await answer_of(reader)
        assert (status, body.get("bytes")) == (200, 19_000), body


async def test_a_client_of_http_1_0_expects_nothing(folder: Path) -> None:
    said = head(b"/v1/completions", EXPECT, length=len(BODY)).replace(b"HTTP/1.1", b"HTTP/1.0")
    async with listening(folder, lambda generation: one_by_one([70])) as server, server.connect() as (reader, writer):
        writer.write(said)
        await asyncio.sleep(0)
        writer.write(BODY)
        assert (await answer_of(reader))[0] == 200


async def test_a_client_that_leaves_before_it_may_go_on_leaves_no_error_in_the_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def gone(request: web.Request, max_size: int) -> None:
        assert request.transport is not None
        request.transport.close()
        raise ConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr("blockwright.api.openai.request_body.begin_body", gone)
    with caplog.at_level(logging.INFO):
        async with listening(folder, lambda generation: ()) as server:
            assert await server.whole(head(b"/v1/completions", EXPECT, length=1000)) == b""
    assert any("POST /v1/completions: the client left" in one.getMessage() for one in caplog.records)
    assert [one for one in caplog.records if one.levelno > logging.INFO] == []

"""Whoever starts a second server on a port is told what the first one serves, if it is one of ours and says so."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from blockwright.actors.settings.settings import Settings
from blockwright.api.serve import port_owner
from blockwright.api.serve.server import Server

OURS = [{"id": name, "object": "model", "owned_by": "blockwright"} for name in ("a", "b", "c", "d")]


def listening(status: int, body: Any) -> TestServer:
    async def models(_: web.Request) -> web.Response:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text, content_type="application/json")

    app = web.Application()
    app.router.add_get("/v1/models", models)
    return TestServer(app)


@pytest.mark.parametrize(
    ("status", "body", "served"),
    [
        (200, {"data": OURS}, ["a", "b", "c", "d"]),
        (200, {"data": [{"id": "x", "owned_by": "vllm"}]}, []),
        (401, {"error": {"message": "a key is needed"}}, []),
        (200, "no JSON", []),
        (200, [1], []),
    ],
)
async def test_who_answers(status: int, body: Any, served: list[str]) -> None:
    async with listening(status, body) as server:
        assert await port_owner.served_there("127.0.0.1", server.port or 0) == served


async def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_owner, "PATIENCE", 0.01)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert await port_owner.served_there("127.0.0.1", silent.getsockname()[1]) == []
    assert await port_owner.served_there("::1", 1) == []


async def test_the_refusal_names_what_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    async def never(*_: object) -> Any:
        raise AssertionError("nothing is started")

    async with listening(200, {"data": OURS}) as server:
        assert await Server(Settings(port=server.port or 0), never, lambda line: None).run() == 2
    assert (
        "(Address already in use: a blockwright serves a, b, c and others there); choose another" in capsys.readouterr().err
    )

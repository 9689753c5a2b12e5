"""The demo's burst against a fake server: changes are reported once each, and a burst without one fails the demo."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from blockwright.api.demo import burst
from blockwright.api.demo.burst import STREAMS, TOKENS, command, show_burst
from blockwright.api.program.client import Client
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.tests.api.demo.fake_http import served
from blockwright.tests.claims import claim

DROP = {"what": "drop", "group": "w0+w1", "seconds": 0.4, "bytes": 3_600_000, "requests": 4, "stall": 2.0, "at": 1.0}
LACKING = {**DROP, "what": "lacking"}
RESTORE = {**DROP, "what": "restore", "seconds": 0.3}


class FakeServer:
    """Answers at once; each look at the cluster shows one change more."""

    def __init__(self, changes: list[dict[str, Any]]) -> None:
        self.changes = changes
        self.looks = 0
        self.asked = 0

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "demo"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        assert (await request.json())["max_tokens"] == TOKENS
        self.asked += 1
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        chunk = {"choices": [{"text": "x", "token_ids": [1]}]}
        await answer.write(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")
        return answer

    async def cluster(self, _: web.Request) -> web.Response:
        self.looks += 1
        return web.json_response({"overload": {"changes": self.changes[: self.looks]}})


def client_of(server: FakeServer) -> AbstractAsyncContextManager[Client]:
    return served(
        [
            web.get("/v1/models", server.models),
            web.post("/v1/completions", server.complete),
            web.get("/admin/cluster", server.cluster),
        ]
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burst, "LOOK", 0.001)


async def test_each_change_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer([{**DROP, "seconds": None}, DROP, LACKING, RESTORE])
    async with client_of(server) as client:
        checks = await show_burst(client, print)
    assert (server.asked, [check.passed for check in checks]) == (STREAMS, [True, True, True])
    shown = capsys.readouterr().out
    assert shown.count("3.4 MiB of parameters became KV memory") == 1
    assert "4 requests paused for 0.50 s on average" in shown
    assert shown.count("the parameters are back after 0.3 s") == 1
    assert max(map(len, shown.splitlines())) <= 80


@claim("The demo ends with a burst in which parameters are dropped and restored", of="installation")
async def test_a_burst_that_changes_nothing_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burst, "BACK_SECONDS", 0.05)
    for changes in ([], [DROP]):
        async with client_of(FakeServer(changes)) as client:
            checks = await show_burst(client, print)
        assert [check.passed for check in checks] == [True, bool(changes), False]


def test_its_server_has_little_memory(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    words = command(tmp_path, 1234, tmp_path / "pace.json")
    assert f"memory={1000 + burst.LEAST}" in words
    (tmp_path / "more.safetensors").write_bytes(bytes(10 * burst.LEAST - 1000))
    assert f"memory={int((10 + 10 * burst.SPARE) * burst.LEAST)}" in command(tmp_path, 1234, tmp_path / "pace.json")
    assert "overload=on" in words
    assert Coefficients.from_table(json.loads((tmp_path / "pace.json").read_text())).base > 0

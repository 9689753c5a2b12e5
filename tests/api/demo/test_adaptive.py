"""The demo's overloaded fine-tune against a fake server: who answered what, and what fails the demo."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from aiohttp import web

from blockwright.api.demo import adaptive
from blockwright.api.demo.adaptive import PER_TASK, SEED, command, prepare, show_adaptive
from blockwright.api.demo.siblings import LEARNED, SALES, SUPPORT, questions
from blockwright.api.program.client import Client
from blockwright.tests.api.demo.fake_http import served
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim

ANSWERS = {one.prompt: one.answer for one in questions(SEED, PER_TASK)}
VARIANT = f"{SUPPORT}~1"


class FakeServer:
    """Answers every second prompt by a variant, if requests allow it; ``wrong``: whether the variant's answers are."""

    def __init__(self, *, wrong: bool = False, routes: tuple[str, ...] = (SUPPORT, SALES, VARIANT)) -> None:
        self.wrong = wrong
        self.routes = routes
        self.asked: list[bool] = []

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body["adaptive"])
        varied = body["adaptive"] and VARIANT in self.routes and len(self.asked) % 2 == 0
        headers = {"Content-Type": "text/event-stream", "x-request-id": "r"}
        answer = web.StreamResponse(headers=headers | ({"x-variant": VARIANT} if varied else {}))
        await answer.prepare(request)
        text = "x" if varied and self.wrong else ANSWERS[body["prompt"]]
        chunk = {"choices": [{"text": text, "finish_reason": "stop"}]}
        await answer.write(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")
        return answer

    async def cluster(self, _: web.Request) -> web.Response:
        homes = {SUPPORT: "w0", SALES: "w1", VARIANT: "w1"}
        return web.json_response({"routes": [{"application": name, "home": homes[name]} for name in self.routes]})

    async def describe(self, _: web.Request) -> web.Response:
        return web.json_response({"route": []})


def client_of(server: FakeServer) -> AbstractAsyncContextManager[Client]:
    return served(
        [
            web.post("/v1/completions", server.complete),
            web.get("/admin/cluster", server.cluster),
            web.get("/v1/requests/{id}", server.describe),
        ]
    )


@claim("The demo shows a fine-tune that is overloaded answering through its sibling's blocks", of="installation")
async def test_the_shares_and_both_accuracies_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer()
    async with client_of(server) as client:
        checks = await show_adaptive(client, print)
    count = PER_TASK * len(LEARNED)
    assert [check.text for check in checks if not check.passed] == []
    assert server.asked == [True] * count + [False] * count, "first while no worker has KV of a prompt"
    shown = capsys.readouterr().out
    assert f"  {count} prompts at once to {SUPPORT}: {SUPPORT} on w0 50%, {VARIANT} on w1 50%\n" in shown
    assert f"right where {SALES}' blocks answered: 100%; the own chain there: 100%" in shown
    assert max(map(len, [*shown.splitlines(), *(f"  ok     {check.text}" for check in checks)])) <= 80


async def test_wrong_answers_fail_the_demo_and_so_does_an_idle_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "ROUTE_SECONDS", 0.0)
    for server, passed in (
        (FakeServer(wrong=True), [True, True, False]),
        (FakeServer(routes=(SUPPORT,)), [True, False, False]),
    ):
        async with client_of(server) as client:
            checks = await show_adaptive(client, lambda _: None)
        assert [check.passed for check in checks] == passed


def test_a_worker_of_its_server_has_memory_for_one_model(tmp_path: Path) -> None:
    """Two models without a common tensor but for the embedding's: a byte less than both."""
    folders = {name: make_checkpoint(tmp_path / name, seed=seed) for seed, name in enumerate((SUPPORT, SALES))}
    root = prepare(tmp_path, folders)
    words = command(root, 1234)
    both = sum(path.stat().st_size for path in (root / "tensors").rglob("*.safetensors"))
    (memory,) = [int(word.partition("=")[2]) for word in words if word.startswith("memory=")]
    assert 0.9 * both < memory < both
    assert f"adaptive.{SUPPORT}=equal" in words
    assert f"{SALES}={root}/chains/{SALES}" in words
    assert json.loads((tmp_path / "pace.json").read_text())["base"] > 0

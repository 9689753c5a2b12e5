"""The demo's tenants against a fake server: who is asked what, what is added when, and the verdict."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from blockwright.api.demo.family import FAMILY, questions
from blockwright.api.demo.tenants import GOOD, HOT, PROMPTS, SEED, AppsSeen, TenantExam, judge, show_tenants, tenant_table
from blockwright.api.program.client import Client
from blockwright.api.program.results import RequestError
from blockwright.tests.api.demo.fake_http import served

BASE = "demo"
ANSWERS = {one.prompt: (name, one.answer) for name in FAMILY for one in questions(name, SEED, PROMPTS)}
MEMBERS = ("dates", "alternate", HOT, "shout")


class FakeServer:
    """Every model knows its own task, the base none; what is not added is not there."""

    def __init__(self) -> None:
        self.served = {BASE, *MEMBERS} - {HOT}
        self.asked: list[tuple[str, str]] = []
        self.added: list[dict[str, Any]] = []
        self.refuse = False

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body["model"] not in self.served:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        self.asked.append((body["model"], body["prompt"]))
        task, answer = ANSWERS[body["prompt"]]
        text = answer if task == body["model"] else "?"
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "x-request-id": "r"})
        await response.prepare(request)
        for chunk in ({"choices": [{"text": text}]}, {"choices": [{"text": "", "finish_reason": "stop"}]}):
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def apps(self, _: web.Request) -> web.Response:
        view = {"base": BASE, "bytes": {"own": 30_000, "shared": 970_000}, "kv": {"bytes": 9, "shared": 4000}}
        return web.json_response({"applications": dict.fromkeys(self.served, view)})

    async def add(self, request: web.Request) -> web.Response:
        self.added.append(await request.json())
        if self.refuse:
            return web.json_response({"error": {"message": "it does not fit"}}, status=400)
        self.served.add(self.added[-1]["name"])
        return web.json_response({"summary": "shares 97% of its blocks, +29.3 KiB"})

    async def describe(self, _: web.Request) -> web.Response:
        return web.json_response({"route": [{"worker": "w0"}]})


def client_of(server: FakeServer) -> AbstractAsyncContextManager[Client]:
    return served(
        [
            web.post("/v1/completions", server.complete),
            web.get("/v1/requests/{id}", server.describe),
            web.get("/admin/apps", server.apps),
            web.post("/admin/apps", server.add),
        ]
    )


FAMILY_THERE = {name: Path("/family") / name for name in MEMBERS}


async def test_every_tenant_and_its_base_get_the_same_prompts_and_one_is_added(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer()
    async with client_of(server) as client:
        checks = await show_tenants(client, BASE, FAMILY_THERE)
    assert [check.text for check in checks if not check.passed] == []
    for name in MEMBERS:
        prompts = {prompt for prompt, (task, _) in ANSWERS.items() if task == name}
        assert {prompt for model, prompt in server.asked if model == name} == prompts
        assert prompts <= {prompt for model, prompt in server.asked if model == BASE}
    assert server.added == [{"name": HOT, "path": f"/family/{HOT}", "base": BASE}]
    shown = capsys.readouterr().out
    assert f"{HOT} shares 97% of its blocks, +29.3 KiB, ready after" in shown
    (row,) = (line.split() for line in shown.splitlines() if line.startswith("alternate "))
    assert row == ["alternate", "LoRA", "29.3", "KiB", "97%", "12/12", "0/12", "3.9", "KiB"]
    assert max(map(len, shown.splitlines())) <= 80


async def test_a_refusal_is_said() -> None:
    server = FakeServer()
    server.refuse = True
    async with client_of(server) as client:
        with pytest.raises(RequestError, match="it does not fit"):
            await show_tenants(client, BASE, FAMILY_THERE)


def exam(right: int, base_right: int) -> TenantExam:
    made = TenantExam.of("dates", BASE)
    for outcomes, count in ((made.tenant, right), (made.foundation, base_right)):
        for place, outcome in enumerate(outcomes):
            outcome.text = outcome.example.answer if place < count else "?"
    return made


def test_the_verdict_needs_tenants_that_are_right_where_the_base_is_not() -> None:
    enough = round(GOOD * PROMPTS + 0.5)

    def verdict(exams: list[TenantExam], streaming: int = 5) -> list[bool]:
        return [check.passed for check in judge(exams, streaming)]

    assert verdict([exam(enough, 0)]) == [True] * 4
    assert verdict([exam(PROMPTS, 0), exam(enough - 2, 0)]) == [True, False, True, True]
    assert verdict([exam(PROMPTS, PROMPTS // 2)]) == [True, True, False, True]
    assert verdict([exam(PROMPTS, 0)], streaming=0) == [True, True, True, False]
    failed = exam(PROMPTS, 0)
    failed.tenant[0].error = "gone"
    assert verdict([failed])[0] is False


def test_a_full_fine_tune_without_a_base_has_a_row() -> None:
    watch = AppsSeen({"shout": {"base": None, "bytes": {"own": 100, "shared": 300}}})
    head, _, row = tenant_table([TenantExam.of("shout", BASE)], watch).splitlines()
    assert row.split() == ["shout", "upper", "layers", "100", "B", "75%", "0/12", "0/12"]
    assert "KV shared" not in head, "a column of zeros tells nobody anything"
    watch.shared_kv["shout"] = 2048
    head, _, row = tenant_table([TenantExam.of("shout", BASE)], watch).splitlines()
    assert "KV shared" in head
    assert row.endswith("2.0 KiB")

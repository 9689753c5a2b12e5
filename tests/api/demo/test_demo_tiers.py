"""The demo's family of tiers against a fake server: what is asked, what is shown, and the verdict."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from blockwright.api.demo.tasks import HELD_OUT, examination
from blockwright.api.demo.tiers import PER_TASK, SEED, STREAM, TOGETHER, TOKENS, show_tiers
from blockwright.api.program.client import Client
from blockwright.policies.model.tiers import layers_of
from blockwright.tests.api.demo.fake_http import served

FOLDER = Path("/examples/fam")
ANSWERS = {one.prompt: one.answer for seed in (SEED, SEED + 1) for one in examination(seed, PER_TASK, (HELD_OUT,))}
KIB = 1024


class FakeServer:
    """A server of a family of 6 layers with tiers of 3 and 4, whose lowest tier answers nothing right.

    ``stays``: the number of requests for ``fam:auto`` after which one stays on a lower tier. ``wrong``: True if drafts or
    the choice of a tier change the answer.
    """

    def __init__(self, stays: int = 6, wrong: bool = False) -> None:
        self.stays, self.wrong = stays, wrong
        self.asked: list[dict[str, Any]] = []
        self.chosen: dict[str, int] = {}  # request -> number of its choice
        self.added: list[dict[str, Any]] = []

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/admin/apps", self.add),
            web.get("/admin/apps", self.cluster),
            web.get("/admin/cluster", self.cluster),
            web.post("/v1/completions", self.complete),
            web.get("/v1/requests/{id}", self.describe),
        ]

    async def add(self, request: web.Request) -> web.Response:
        self.added.append(await request.json())
        return web.json_response({"summary": "tiers: fam:3, fam:4"})

    async def cluster(self, _: web.Request) -> web.Response:
        def one(layers: int, own: int, shared: int, family: str) -> dict[str, Any]:
            return {
                "family": family,
                "bytes": {"own": own * KIB, "shared": shared * KIB},
                "segments": [{"layers": layers - 1}, {"layers": 1}],
            }

        segments = [
            {"family": "fam", "first": 1, "last": 3, "sweeps": 10, "rows": 40},
            {"family": "fam", "first": 4, "last": 4, "sweeps": 8, "rows": 20},
            {"family": "other", "first": 1, "last": 2, "sweeps": 1, "rows": 1},
        ]
        applications = {"fam": one(6, 100, 300, ""), "fam:4": one(4, 10, 300, "fam"), "fam:3": one(3, 10, 200, "fam")}
        return web.json_response({"applications": applications, "workers": [{"segments": segments}] * 2})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        id = f"r{len(self.asked)}"
        model = body["model"]
        prompt = body["prompt"]
        if body.get("stream"):
            drafted = body.get("draft") == "auto"
            tokens = [*range(TOKENS)] if prompt == STREAM else [1]
            tokens = tokens[::-1] if self.wrong and drafted else tokens
            text = "" if model == "fam:3" else ANSWERS.get(prompt, "")
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "x-request-id": f"{id}{drafted}"})
            await response.prepare(request)
            for piece in (tokens[:60], tokens[60:]):
                chunk = {"choices": [{"text": text if piece is not tokens[60:] else "", "token_ids": piece}]}
                await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                text = ""
            await response.write(b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')
            return response
        if model == "fam:auto":
            self.chosen[id] = len(self.chosen)
        text = f"{prompt} {'?' if self.wrong and model == 'fam:auto' else ''}"
        return web.json_response({"id": id, "choices": [{"text": text}]})

    async def describe(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        view: dict[str, Any] = {"route": [{"worker": "w0"}], "prompt_tokens": 14, "entered": {}}
        drafted = id.endswith("True")
        view["drafts"] = {"sources": {"tier": {"accepted": 80}} if drafted else {}}
        view["events"] = [{"at": 0.0, "event": "arrived"}, {"at": 0.125 if drafted else 0.25, "event": "finished"}]
        if (number := self.chosen.get(id)) is not None:
            up = number != self.stays
            tier = {"tier": "fam" if up else "fam:3", "escalated": up, "confidence": 0.4 if up else 0.9, "theta": 0.8}
            view |= {"tier": tier, "entered": {"3": 12} if up else {}}
        return web.json_response(view)


def client_of(server: FakeServer) -> AbstractAsyncContextManager[Client]:
    return served(server.routes())


async def test_tiers_choices_and_drafts_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer()
    async with client_of(server) as client:
        checks = await show_tiers(client, FOLDER)
    assert [check.text for check in checks if not check.passed] == []
    assert server.added == [{"name": "fam", "path": "/examples/fam"}]
    examined = [one for one in server.asked if one.get("stream") and one["prompt"] != STREAM]
    assert sorted({one["model"] for one in examined}, key=layers_of) == ["fam", "fam:3", "fam:4"]
    assert len(examined) == 3 * 12 * PER_TASK
    assert len(server.chosen) == 2 * TOGETHER, "no more prompts are tried than needed"
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("fam")}
    right = 12 * PER_TASK
    assert rows["fam:3"] == ["3", f"0/{right}", "210.0", "KiB", "10.0", "KiB"]
    assert rows["fam"] == ["6", f"{right}/{right}", "400.0", "KiB", "100.0", "KiB"]
    assert "together 420.0 KiB; as 3 separate models 920.0 KiB" in lines
    assert "requests in a mean step: 4.0 in layers 1-3, 2.5 in layer 4" in lines
    assert "    confidence 0.90, 0.80 is enough: stays on fam:3" in lines
    assert "    confidence 0.40, 0.80 is enough: goes up to fam" in lines
    assert "    12 of its 14 prompt tokens begin behind layer 3, computed below before" in lines
    assert [line.split()[2:5] for line in lines if line.startswith("with")] == [
        ["120", "120", "250"], ["120", "40", "125"],
    ]  # fmt: skip
    assert max(map(len, lines)) <= 80


async def test_a_family_whose_requests_all_go_up_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer(stays=10_000)
    async with client_of(server) as client:
        checks = await show_tiers(client, FOLDER)
    assert [check.passed for check in checks] == [True, True, True]
    assert "1 of 1 answers that chose their tier are that tier's" in [check.text for check in checks]
    assert "no prompt of 48 stayed on a lower tier" in capsys.readouterr().out


async def test_other_tokens_fail_the_demo() -> None:
    async with client_of(FakeServer(wrong=True)) as client:
        checks = await show_tiers(client, FOLDER)
    assert [check.passed for check in checks] == [True, False, False]

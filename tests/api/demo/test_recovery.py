"""The demo's kill against a fake server: who is killed, what counts as the same answer, and the verdict."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from contextlib import AbstractAsyncContextManager

import pytest
from aiohttp import web

from blockwright.api.demo.recovery import NAP, STREAMS, KilledStream, StallTimer, judge, pause_table, show_recovery
from blockwright.api.program.client import Client
from blockwright.tests.api.demo.fake_http import served
from blockwright.tests.claims import claim


class FakeServer:
    """Answers with 30 tokens; after the kill the streams of w0 are reported as moved. ``lose``: one token is lost then.
    ``missed``: kills that come when no stream is at the worker any more."""

    def __init__(self, *, lose: bool = False, missed: int = 0) -> None:
        self.killed = asyncio.Event()
        self.lose = lose
        self.asked = 0
        self.missed, self.kills = missed, 0

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert (body["ignore_eos"], body["temperature"]) == (True, 0)
        self.asked += 1
        second = self.asked > STREAMS
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "x-request-id": f"r{self.asked}"})
        await answer.prepare(request)
        for token in range(30):
            if second and token == 25:
                await self.killed.wait()
                if self.lose:
                    continue
            await answer.write(b"data: " + json.dumps({"choices": [{"text": "x", "token_ids": [token]}]}).encode() + b"\n\n")
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async def describe(self, request: web.Request) -> web.Response:
        hit = self.kills > self.missed and int(request.match_info["id"][1:]) % 2
        return web.json_response({"attempt": 2 if hit else 1})

    async def cluster(self, _: web.Request) -> web.Response:
        events = [{"number": 1, "event": "ready", "subject": "w0", "text": "worker w0 serves"}]
        for n in range(2, 2 + 2 * self.kills, 2):
            events.append({"number": n, "event": "down", "subject": "w0", "text": "worker w0 died: exited -9"})
            events.append({"number": n + 1, "event": "ready", "subject": "w0", "text": "worker w0 serves again"})
        workers = [{"id": f"w{n}", "pid": 70 + n, "queue": {"running": 7 - n}} for n in range(2)]
        return web.json_response({"workers": workers, "events": events})

    def kill(self, pid: int, number: int) -> None:
        assert (pid, number) == (70, signal.SIGKILL)
        assert self.kills <= self.missed, "once"
        self.kills += 1
        self.killed.set()


def client_of(server: FakeServer) -> AbstractAsyncContextManager[Client]:
    return served(
        [
            web.post("/v1/completions", server.complete),
            web.get("/v1/requests/{id}", server.describe),
            web.get("/admin/cluster", server.cluster),
        ]
    )


@claim("The demo kills a worker under streams and fails if a token is lost", of="installation")
async def test_a_worker_is_killed_under_streams_and_each_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer()
    async with client_of(server) as client:
        checks = await show_recovery(client, "demo", server.kill)
    assert [check.passed for check in checks] == [True, True, True]
    assert checks[1].text.startswith(f"{STREAMS // 2} streams lost their worker; the longest pause was 0.")
    shown = capsys.readouterr().out
    assert "w0 (pid 70) is killed after " in shown
    assert "worker w0 serves again" in shown
    assert max(map(len, shown.splitlines())) <= 80


async def test_a_kill_that_came_too_late_is_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer(missed=2)
    async with client_of(server) as client:
        checks = await show_recovery(client, "demo", server.kill)
    assert ([check.passed for check in checks], server.kills) == ([True, True, True], 3)
    assert capsys.readouterr().out.count("Again:") == 2


async def test_kills_that_are_all_too_late_fail_the_demo() -> None:
    server = FakeServer(missed=3)
    async with client_of(server) as client:
        checks = await show_recovery(client, "demo", server.kill)
    assert ([check.passed for check in checks], server.kills) == ([True, False, True], 3)


def test_a_machine_that_stands_still_is_measured() -> None:
    asked = threading.Event()
    times = iter([0.0, 0.9, 1.0, 1.005, *[2.0] * 10_000])

    def clock() -> float:
        now = next(times)
        if now >= 2.0:
            asked.set()
        return now

    with StallTimer(clock) as still:
        assert asked.wait(30)
    assert still.seconds == pytest.approx(0.995 - NAP), "from 1.005 to 2.0"


@claim("The demo kills a worker under streams and fails if a token is lost", of="installation")
async def test_a_token_that_is_lost_fails_the_demo() -> None:
    server = FakeServer(lose=True)
    async with client_of(server) as client:
        checks = await show_recovery(client, "demo", server.kill)
    assert [check.passed for check in checks] == [False, True, True]


def test_the_verdict() -> None:
    alone = [KilledStream("a", [1, 2]), KilledStream("b", [3])]
    same = [KilledStream("a", [1, 2], pause=0.2, moved=True), KilledStream("b", [3])]
    assert [check.passed for check in judge(same, alone, True)] == [True, True, True]
    same[1].error = "gone"
    assert [check.passed for check in judge(same, alone, False)] == [False, True, False]
    assert "failed" in pause_table(same, alone)
    assert [check.passed for check in judge(alone, alone, True)] == [True, False, True], "nothing was hit"


def test_a_pause_is_between_two_tokens() -> None:
    stream = KilledStream("a")
    for at, tokens in ((5.0, [1]), (5.5, []), (6.0, [2]), (6.1, [3])):
        stream.take(tokens, at)
    assert (stream.pause, stream.tokens) == (1.0, [1, 2, 3])

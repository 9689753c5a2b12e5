"""Requests that move between workers while they stream: every token comes, once and in order, and pages are not computed
again."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import greedy, prompt_of
from blockwright.tests.parts import some
from blockwright.tests.system.client import Answer, Client, body, check
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
PROMPTS = itertools.count(300)  # seeds of prompts that no cache holds
LONG = 150
NEW = 40
PAGE = 16


def load(count: int) -> list[dict[str, Any]]:
    """Even ones greedy, odd ones sampled."""
    return [body(index, NEW, prompt_of(LONG, seed=next(PROMPTS))) for index in range(count)]


async def home(client: Client, answer: Answer) -> str:
    view = await client.request(answer.name)
    assert view is not None
    return str(view["home"])


async def events(client: Client, answer: Answer, name: str) -> list[dict[str, Any]]:
    view = await client.request(answer.name)
    assert view is not None
    return [event for event in view["events"] if event["event"] == name]


async def undisturbed(client: Client, asked: list[dict[str, Any]]) -> list[list[int]]:
    """Computed anew, whatever the caches hold."""
    answers = [client.begin({**request, "cache_salt": "undisturbed"}) for request in asked]
    await client.finished()
    return [answer.tokens for answer in answers]


@claim("A running request moves to another worker with its KV pages", of="serving")
async def test_requests_move_with_their_pages(replicas: Server) -> None:
    async with Client(replicas) as client:
        before, asked = await client.ready(), load(6)
        with slow(replicas):
            answers = [client.begin(request) for request in asked]
            await until(lambda: all(len(answer.tokens) >= 3 for answer in answers))
            for answer in answers:
                source = await home(client, answer)
                status, response = await client.move(answer.name, worker="w1" if source == "w0" else "w0")
                assert (status, response["id"]) == (202, answer.name)
                (move,) = response["moves"]
                assert move["from"] == source
                assert LONG // PAGE <= move["pages"] <= (LONG + NEW) // PAGE, "those of its prompt, and of what it has made"
        await client.finished()
        check(answers, await undisturbed(client, asked))
        assert answers[0].tokens == list(greedy(replicas.path, tuple(asked[0]["prompt"]), NEW))
        for answer in answers:
            (moved,) = await events(client, answer, "moved")
            assert moved["pages"] >= LONG // PAGE
            assert moved["recomputed"] <= 2 * PAGE
        after = await client.ready()
        gained = {n: sum(w["counters"][n] for w in after.values()) - sum(w["counters"][n] for w in before.values())
                  for n in ("imported_pages", "exported_pages", "exported_bytes", "refused_pages")}  # fmt: skip
        assert gained["imported_pages"] == gained["exported_pages"] >= 6 * (LONG // PAGE)
        assert gained["exported_bytes"] > 0 == gained["refused_pages"]


async def test_a_move_that_cannot_be(replicas: Server) -> None:
    async with Client(replicas) as client:
        status, answer = await client.move("nobody")
        assert (status, answer["error"]["param"]) == (404, "id")
        with slow(replicas):
            answers = [client.begin(request) for request in load(1)]
            await until(lambda: answers[0].tokens)
            source = await home(client, answers[0])
            for to, param in (({"worker": source}, "worker"), ({"worker": "w7"}, "worker"), ({"route": "x"}, "route")):
                status, answer = await client.move(answers[0].name, **to)
                assert (status, answer["error"]["param"]) == (409, param), answer
            status, answer = await client.move(answers[0].name, worker="w1", route="x")
            assert (status, answer["error"]["param"]) == (400, "route")
        await client.finished()


@claim("Requests that move keep their tokens under random faults and kill -9 of source or target", of="faults")
@pytest.mark.parametrize("victim", some(["source", "target"], "source"))
async def test_kill_9_in_the_middle_of_a_move(replicas: Server, victim: str) -> None:
    """The target stands still, so that pages are on their way when one of the two dies."""
    async with Client(replicas) as client:
        await client.ready()
        asked = load(4)
        with slow(replicas):
            answers = [client.begin(request) for request in asked]
            await until(lambda: all(len(answer.tokens) >= 3 for answer in answers))
            source = await home(client, answers[0])
            target = "w1" if source == "w0" else "w0"
            pid = await client.kill(target, signal.SIGSTOP)
            assert (await client.move(answers[0].name))[0] == 202
            await client.kill(target if victim == "target" else source)
            if victim == "source":
                os.kill(pid, signal.SIGCONT)
        await client.finished()
        check(answers, await undisturbed(client, asked))
        await client.ready()


@claim("A drained worker finishes or hands over what runs and gets nothing new", of="serving")
async def test_a_worker_is_drained_under_streams_and_used_again(replicas: Server) -> None:
    async with Client(replicas) as client:
        await client.ready()
        asked = load(16)
        with slow(replicas):
            answers = [client.begin(request) for request in asked]
            await until(lambda: all(len(answer.tokens) >= 3 for answer in answers))
            there = [answer for answer in answers if await home(client, answer) == "w0"]
            status, response = await client.drain("w0")
            assert (status, response["draining"]) == (202, True)
            assert 0 < len(there) < len(answers)
            await until(lambda: client.empty("w0"), what="nothing is on the drained worker")
            assert not any(answer.finish for answer in answers), "nobody had to wait for their end"
            status, refused = await client.drain("w1")
            assert (status, refused["error"]["param"]) == (409, "id")
            late = client.begin(body(0))
            await until(lambda: late.tokens)
            assert await home(client, late) == "w1"
            assert (await client.workers())["w0"]["state"] == "draining"
        await client.finished()
        check(answers, await undisturbed(client, asked))
        for answer in there:
            (moved,) = await events(client, answer, "moved")
            assert (moved["source"], moved["target"]) == ("w0", "w1")
            assert moved["recomputed"] <= 3 * PAGE
        assert (await client.drain("w0", drain=False))[0] == 200
        await until(lambda: serves(client, "w0"), what="it serves again")
        assert (await client.drain("w9"))[0] == 404


@pytest.mark.nightly
async def test_from_one_pipeline_to_another(serve: Callable[..., Server]) -> None:
    """Each half of the layers goes to the worker that has that half."""
    server = serve(workers=4, pipeline=2, chunk_size=16).whole()
    async with Client(server) as client:
        await client.ready()
        asked = load(4)
        with slow(server):
            answers = [client.begin(request) for request in asked]
            await until(lambda: all(len(answer.tokens) >= 3 for answer in answers))
            for answer in answers:
                status, response = await client.move(answer.name)
                assert status == 202, response
        await client.finished()
        check(answers, await undisturbed(client, asked))
        for answer in answers:
            (moved,) = await events(client, answer, "moved")
            assert moved["recomputed"] <= 3 * PAGE
        workers = await client.ready()
        assert all(worker["counters"]["imported_pages"] > 0 for worker in workers.values())
    server.stop()


async def serves(client: Client, worker: str) -> bool:
    """Requests go there."""
    answer = client.begin(body(0, 3))
    await client.finished()
    return (await client.workers())[worker]["state"] == "ready" and await home(client, answer) == worker

"""Sending a load: times, limits, and what is noted of every kind of answer."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from blockwright.api.load.sender import SAFE, RequestTemplate, send, vocabulary
from blockwright.api.load.workload import Request
from blockwright.api.program.client import Client
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.runtime import ManualClock
from blockwright.runtime.base.clock import first_within
from blockwright.tests.api.fake_port import EOS, one_by_one
from blockwright.tests.waiting import PATIENCE

ASKING = RequestTemplate("tiny", False, True, 0.0)


async def test_what_is_sent_and_what_is_noted(serve: Any) -> None:
    http, port = await serve(lambda generation: one_by_one([70, 71, 72]))
    async with Client(str(http.make_url("/"))) as client:
        ticks = itertools.count()
        load = [Request(0.0, [40, 41], 3)]
        (first,) = await send(client, ASKING, load, None, now=lambda: float(next(ticks)))
        assert (first.tokens, first.prompt_tokens, len(first.stamps), first.error) == (3, 2, 3, "")
        assert first.sent < first.stamps[0] < first.stamps[1] < first.stamps[2] < first.ended
        generation = port.streams[0].generation
        assert (generation.prompt, generation.max_tokens, generation.stop_tokens) == ([40, 41], 3, [])
        assert generation.sampling.temperature == 0.0
        asking = RequestTemplate("tiny", True, False, 0.5)
        (chat,) = await send(client, asking, [Request(0.0, "hi", None)], 1)
        assert (chat.tokens, chat.error) == (3, "")
        assert port.streams[1].generation.stop_tokens == [EOS]


async def test_each_request_at_its_time(serve: Any) -> None:
    """Also where a timer fires early, as those of event loops may."""
    http, port = await serve(lambda generation: one_by_one([70]))
    clock = ManualClock(0.0)
    asleep = asyncio.Queue[float]()
    ended = asyncio.Queue[float]()

    async def sleep(seconds: float) -> None:
        asleep.put_nowait(seconds)
        await first_within(clock, seconds - 0.25, ())

    async with Client(str(http.make_url("/"))) as client, asyncio.timeout(PATIENCE):
        load = [Request(at, [40], 1) for at in (0.0, 1.0, 2.5)]
        noted = {"done": lambda outcome: ended.put_nowait(outcome.sent), "now": clock.now, "sleep": sleep}
        sending = asyncio.create_task(send(client, ASKING, load, None, **noted))
        assert sorted([await asleep.get(), await asleep.get()]) == [1.0, 2.5]
        assert await ended.get() == 0.0
        clock.advance(0.75)
        assert await asleep.get() == 0.25  # too early, so it waits again
        assert len(port.streams) == 1
        clock.advance(0.25)
        assert await ended.get() == 1.0
        clock.advance(2.0)
        assert [one.sent for one in await sending] == [0.0, 1.0, 3.0]


async def test_no_more_at_a_time_than_allowed(serve: Any) -> None:
    gate = asyncio.Event()
    http, port = await serve(lambda generation: [gate, *one_by_one([70])])
    done = []
    async with Client(str(http.make_url("/"))) as client:
        load = [Request(0.0, [40], 1) for _ in range(5)]
        sending = asyncio.create_task(send(client, ASKING, load, 2, done.append))
        async with asyncio.timeout(PATIENCE):
            await port.waiting.get()
            await port.waiting.get()
        assert (len(port.streams), len(done)) == (2, 0)
        gate.set()
        assert len(await sending) == len(done) == len(port.streams) == 5


async def test_failures_are_noted_not_raised(serve: Any) -> None:
    answers = iter(
        [
            [*one_by_one([70, 71])[:1], RequestRefused(Refusal.POISON, "it broke")],
            [RequestRefused(Refusal.UNAVAILABLE, "not now")],
            one_by_one([EOS], "stop"),
        ]
    )
    http, _ = await serve(lambda generation: next(answers))
    async with Client(str(http.make_url("/"))) as client:
        load = [Request(0.0, [40], 2) for _ in range(3)]
        broken, refused, empty = await send(client, ASKING, load, 1)
        assert (broken.error, refused.error) == ("it broke", "not now")
        assert (empty.error, empty.tokens, len(empty.stamps)) == ("", 1, 1)
    async with Client("http://127.0.0.1:9") as nobody:
        (outcome,) = await send(nobody, ASKING, load[:1], None)
        assert outcome.error.startswith("nothing answers")


async def test_the_tokens_that_prompts_are_made_of(serve: Any, codec: Any) -> None:
    http, _ = await serve()
    async with Client(str(http.make_url("/"))) as client:
        found = await vocabulary(client, "tiny")
        assert len(found.ids) > 20
        assert 0.5 < found.characters < 3
        assert (await vocabulary(client, "none")).ids == SAFE

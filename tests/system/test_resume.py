"""A gateway is killed under its streams, or the whole server: their clients ask for the rest, of whoever answers then, and
have every byte once.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession

from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.system.client import SAMPLED, body
from blockwright.tests.system.server import Server
from blockwright.tests.system.test_gateways import fresh, gateway_of, pid_of
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
URL = "/v1/completions"
NEW = 60  # tokens of an answer
STREAMS = 32
PAGE = 16  # tokens
OPEN = 3  # tokens that were drawn and not heard of yet, or are drawn again


def asked(index: int) -> dict[str, Any]:
    """Even ones greedy, odd ones sampled without a seed: the seed follows from the request's name.

    Prompts are shorter than a page: so it does not count whether a worker has seen one before.
    """
    sampled, prompt = SAMPLED if index % 2 else {}, prompt_of(PAGE // 2 + index % (PAGE // 2), seed=index)
    named = {name: value for name, value in body(index, NEW, prompt).items() if name not in ("seed", *SAMPLED)}
    return named | {"temperature": 0, **sampled, "stream": True, "stream_options": {"include_usage": True}}


@dataclass
class Resuming:
    """A client of one stream, which sends its request again after its last event whenever the stream breaks."""

    index: int
    name: str
    resumed: int = 0  # times it went on after an event
    events: list[dict[str, Any]] = field(default_factory=list)
    last: str = ""
    done: bool = False

    async def run(self, client: ClientSession) -> None:
        while not self.done:
            try:
                await self._read(client)
            except ClientError:
                await asyncio.sleep(0.02)

    async def _read(self, client: ClientSession) -> None:
        headers = {"x-event-ids": "true", "x-request-id": self.name} | ({"Last-Event-ID": self.last} if self.last else {})
        async with client.post(URL, json=asked(self.index), headers=headers) as answer:
            if answer.status == 503:  # the next gateway learns of workers
                raise ClientError
            assert answer.status == 200, await answer.text()
            self.resumed += bool(self.last)
            lines = dict[str, str]()
            async for raw in answer.content:
                name, _, value = raw.decode().rstrip("\n").partition(": ")
                if name:
                    lines[name] = value
                elif lines:
                    self._take(lines)
                    lines = {}

    def _take(self, event: dict[str, str]) -> None:
        self.last = event.get("id", self.last)
        if event.get("data") == "[DONE]":
            self.done = True
        elif "data" in event:
            self.events.append(json.loads(event["data"]))

    @property
    def said(self) -> list[Any]:
        """The choices of all events, and the usage of the last, less what the prompt found in the cache."""
        usage = self.events[-1]["usage"]
        return [*(event["choices"] for event in self.events), usage["completion_tokens"], usage["prompt_tokens"]]


async def undisturbed(client: ClientSession, index: int, name: str) -> list[Any]:
    one = Resuming(index, name)
    await one.run(client)
    return one.said


async def computed(client: ClientSession) -> int:
    """The tokens that all workers have computed so far."""
    async with client.get("/admin/cluster") as answer:
        view = await answer.json()
    return sum(int(worker["counters"]["sweep_tokens"]) for worker in view["workers"])


@claim(
    "Streams of a killed gateway go on at another, every byte once, and no token is computed twice beyond a page",
    of="faults",
)
@pytest.mark.parametrize("streams", [8, pytest.param(STREAMS, marks=pytest.mark.nightly)])
async def test_streams_of_a_killed_gateway_go_on_at_another(serve: Callable[..., Server], streams: int) -> None:
    server = serve(gateways=2, gateway_in_head="no", workers=2).whole()
    async with fresh(server) as client:
        truth = await asyncio.gather(*(undisturbed(client, index, f"n{index}") for index in range(streams)))
        begun = await computed(client)
        assert await asyncio.gather(*(undisturbed(client, index, f"n{index}") for index in range(streams))) == truth
        plain = await computed(client) - begun
        clients = [Resuming(index, f"n{index}") for index in range(streams)]
        tasks = [asyncio.create_task(one.run(client)) for one in clients]

        await until(lambda: all(len(one.events) > 5 for one in clients), "all streams run")
        homes = [gateway_of(one.events[0]["id"]) for one in clients]
        victim = max("g0", "g1", key=homes.count)
        os.kill(pid_of(server, f"bw-{victim}"), signal.SIGKILL)
        await asyncio.gather(*tasks)
        assert [one.resumed > 0 for one in clients] == [home == victim for home in homes]
        assert [one.said for one in clients] == truth
        twice = await computed(client) - begun - 2 * plain
        resumed = sum(one.resumed > 0 for one in clients)
        assert twice <= (PAGE + OPEN) * resumed, f"{twice} tokens for {resumed} streams that went on"
        assert [one.events[-1]["id"] for one in clients] == [one.events[0]["id"] for one in clients], "one answer, one id"
        assert len({json.dumps(said) for said in truth}) == streams
    server.stop()


@claim("Streams go on after kill -9 of every process of a server and a new start, every byte once", of="faults")
@pytest.mark.nightly
async def test_streams_go_on_after_the_end_of_everything(serve: Callable[..., Server]) -> None:
    """Nothing remembers a token of them: the new server generates each answer again, and leaves out what was said."""
    server = serve(gateways=2, gateway_in_head="no", workers=2).whole()
    clients = [Resuming(index, f"n{index}") for index in range(STREAMS)]
    async with fresh(server) as client:
        truth = await asyncio.gather(*(undisturbed(client, one.index, one.name) for one in clients))
        tasks = [asyncio.create_task(one.run(client)) for one in clients]
        await until(lambda: all(len(one.events) > 5 for one in clients), "all streams run")
        server.destroy()  # kill -9 of the keeper and of every process below it
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    cut = [one for one in clients if not one.done]
    assert len(cut) > STREAMS / 2

    server = serve(gateways=2, gateway_in_head="no", workers=2).whole()
    async with fresh(server) as client:
        await refused_when_changed(client, cut[0])
        await asyncio.gather(*(one.run(client) for one in cut))
        assert [one.said for one in clients] == truth
        assert all(one.resumed for one in cut)
        assert {one.events[-1]["id"] for one in clients} == {one.events[0]["id"] for one in clients}, "one answer, one id"
        assert await computed(client) >= NEW * len(cut), "all was computed anew"
    server.stop()


async def refused_when_changed(client: ClientSession, one: Resuming) -> None:
    """The new server knows by the id alone what was asked for."""
    headers = {"x-event-ids": "true", "x-request-id": one.name, "Last-Event-ID": one.last}
    for more, named in (({"max_tokens": NEW + 1}, "body"), ({"temperature": 0.5}, "sampling")):
        async with client.post(URL, json=asked(one.index) | more, headers=headers) as answer:
            assert (answer.status, f"its {named} changed" in await answer.text()) == (409, True)

"""Real workers drop parameters when KV memory runs out, and load them again: every token comes, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.memory import arena_bytes
from blockwright.tests.parts import parts
from blockwright.tests.system.client import Answer, Client, body, check
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
STREAMS, LONG, NEW = 32, 100, 40
PROMPTS = itertools.count(900)  # seeds of prompts that no cache holds
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "vocab_size": 1000}
PHASES = ("exchanging", "pipeline", "loading")  # what lasts long enough here to be met by a signal


@pytest.fixture
def burst(checkpoint: Callable[..., Path], serve: Callable[..., Server]) -> Server:
    """Parameters take more than half of its workers' memory; each has room for some ten of the requests."""
    return serve(checkpoint("llama", **SIZES), memory="6MiB", overload="on", silence=3).whole()


def load() -> list[dict[str, Any]]:
    """Even ones greedy, odd ones sampled."""
    return [body(index, NEW, prompt_of(LONG, seed=next(PROMPTS))) for index in range(STREAMS)]


async def looked(client: Client) -> dict[str, Any]:
    _, view = await client.get("/admin/cluster")
    overload: dict[str, Any] = view.get("overload") or {"groups": {}, "changes": []}
    return overload


async def changes(client: Client, what: str) -> list[dict[str, Any]]:
    return [one for one in (await looked(client))["changes"] if one["what"] == what and one["seconds"] is not None]


async def restored(client: Client) -> bool:
    """All workers are replicas, and have all parameters again."""
    workers = (await client.workers()).values()
    same = len({worker["memory"]["parameters"] for worker in workers}) == 1
    return same and not (await looked(client))["groups"] and all(worker["state"] == "ready" for worker in workers)


async def right(client: Client, answers: list[Answer], asked: list[dict[str, Any]]) -> None:
    """As computed anew, whatever the caches hold."""
    await client.finished()
    again = [client.begin({**request, "cache_salt": "undisturbed"}) for request in asked]
    await client.finished()
    check(answers, [answer.tokens for answer in again])


@asynccontextmanager
async def weighed(workers: Mapping[str, dict[str, Any]]) -> AsyncIterator[dict[str, list[int]]]:
    """What the pool of each worker has of the machine's memory (smaps), again and again meanwhile. A worker stands still
    while it is looked at: a chunk that goes from parameters to KV would count twice."""
    seen: dict[str, list[int]] = {name: [] for name in workers}

    async def weigh() -> None:
        while True:
            for name, worker in workers.items():
                os.kill(worker["pid"], signal.SIGSTOP)
                seen[name].append(arena_bytes(worker["pid"]))
                os.kill(worker["pid"], signal.SIGCONT)
            await asyncio.sleep(0.1)

    task = asyncio.create_task(weigh())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_burst_drops_parameters_and_they_come_back(burst: Server) -> None:
    async with Client(burst) as client, weighed(before := await client.ready()) as seen:
        asked = load()
        with slow(burst, 5):
            answers = [client.begin(request) for request in asked]
            await until(lambda: changes(client, "drop"))
            dropped = await client.workers()
        await client.finished()
        (drop,) = await changes(client, "drop")
        assert (drop["group"], drop["requests"]) == ("w0+w1", STREAMS)
        assert "pages" in drop["why"]
        whole = before["w0"]["memory"]["parameters"]
        left = [worker["memory"]["parameters"] for worker in dropped.values()]
        assert whole <= sum(left) < 1.2 * whole, "one copy is left"
        assert drop["copied_bytes"] > 0
        await until(lambda: restored(client))
        (restore,) = await changes(client, "restore")
        assert restore["at"] - drop["at"] > 5.0
        after = await client.ready()
        assert {name: worker["memory"]["parameters"] for name, worker in after.items()} == {"w0": whole, "w1": whole}
        assert sum(worker["counters"]["fetched_parameter_bytes"] for worker in after.values()) > 0.8 * whole
        for name, worker in before.items():
            assert whole < max(seen[name]) <= worker["memory"]["budget"], "the pool is what the kernel says, at every moment"
        await right(client, answers, asked)
        readings = (await looked(client))["readings"]["w0"]
        assert {one["parameters"] for one in readings} >= {whole, left[0]}, "parameters turn into KV and back"
    burst.stop()


async def strike(client: Client, phase: str, how: signal.Signals) -> None:
    """A member of the group is hit as soon as the group is in that phase."""
    met: list[str] = []

    async def look() -> bool:
        for group in (await looked(client))["groups"].values():
            if group["step"] == phase:
                met.append(group["stages"][-1]["worker"])
        return bool(met)

    await until(look)
    await client.kill(met[0], how)


@pytest.mark.parametrize("number", parts(20, daily=1))
async def test_a_member_dies_or_stands_still(burst: Server, number: int) -> None:
    """20 schedules: each phase, SIGKILL and SIGSTOP; every other one with further requests in the middle."""
    phase, how = PHASES[number % 3], signal.SIGSTOP if number % 2 else signal.SIGKILL
    async with Client(burst) as client:
        await client.ready()
        asked = load()
        with slow(burst, 5):
            answers = [client.begin(request) for request in asked]
            if phase != "loading":
                await strike(client, phase, how)
            else:
                await until(lambda: changes(client, "drop"))
        if phase == "loading":
            await strike(client, phase, how)
        if number % 4 > 1:
            asked += load()
            answers += [client.begin(request) for request in asked[STREAMS:]]
        await client.finished()
        await until(lambda: restored(client))
        await right(client, answers, asked)
        await until(lambda: restored(client))
    burst.stop()

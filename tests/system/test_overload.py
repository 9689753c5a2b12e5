"""Real workers drop parameters when KV memory runs out, and load them again: every token comes, whoever dies meanwhile, of
one model and of a foundation with its fine-tune."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.equality.test_sharing import altered
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.memory import arena_bytes
from blockwright.tests.parts import parts
from blockwright.tests.system.client import Answer, Client, body, check
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
STREAMS = 32
LONG = 100
NEW = 40
PROMPTS = itertools.count(900)  # seeds of prompts that no cache holds
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "vocab_size": 1000}
PHASES = ("exchanging", "pipeline", "loading")  # what lasts long enough here to be met by a signal


@pytest.fixture
def burst(checkpoint: Callable[..., Path], serve: Callable[..., Server]) -> Server:
    """Parameters take more than half of its workers' memory; each has room for some ten of the requests."""
    return serve(checkpoint("llama", **SIZES), memory="6MiB", overload="on", silence=3).whole()


def load(models: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Even ones greedy, odd ones sampled; of several models each in turn twice."""
    found = [body(index, NEW, prompt_of(LONG, seed=next(PROMPTS))) for index in range(STREAMS)]
    return [{**one, "model": models[n // 2 % len(models)]} for n, one in enumerate(found)] if models else found


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


@claim(
    "In a burst, replicas give up parameters that others hold and serve as one pipeline, until the burst is over",
    of="parameter-dropping",
    headline=True,
)
async def test_a_burst_drops_parameters_and_they_come_back(burst: Server) -> None:
    async with Client(burst) as client, weighed(before := await client.ready()) as seen:
        asked = load()
        with slow(burst, 5):
            answers = [client.begin(request) for request in asked]
            await until(lambda: changes(client, "drop"))
            dropped = await client.workers()
        await client.finished()
        (drop,) = await changes(client, "drop")
        assert drop["group"] in ("w0+w1", "w1+w0")  # whichever came first may be the head of the pipeline
        assert 0 < drop["requests"] <= STREAMS, "those that have KV; the others wait, and have nothing to lose"
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


async def strike(client: Client, phase: str, how: signal.Signals) -> dict[str, Any]:
    """A member of a group is hit as soon as the group, which is returned, is in that phase."""
    met: list[dict[str, Any]] = []

    async def look() -> bool:
        met.extend(group for group in (await looked(client))["groups"].values() if group["step"] == phase)
        return bool(met)

    await until(look)
    await client.kill(met[0]["stages"][-1]["worker"], how)
    return met[0]


async def struck(
    client: Client, phase: str, how: signal.Signals, *, models: Sequence[str] = (), more: bool
) -> dict[str, Any]:
    """The group that was hit in a burst. ``more``: further requests in the middle."""
    await client.ready()
    asked = load(models)
    with slow(client.server, 5):
        answers = [client.begin(request) for request in asked]
        if phase != "loading":
            group = await strike(client, phase, how)
        else:
            await until(lambda: changes(client, "drop"))
    if phase == "loading":
        group = await strike(client, phase, how)
    if more:
        asked += load(models)
        answers += [client.begin(request) for request in asked[STREAMS:]]
    await client.finished()
    await until(lambda: restored(client))
    await right(client, answers, asked)
    await until(lambda: restored(client))
    return group


@claim("Members that die or stand still in any phase of a drop lose no request", of="parameter-dropping")
@pytest.mark.parametrize("number", parts(20, daily=0))
async def test_a_member_dies_or_stands_still(burst: Server, number: int) -> None:
    """20 schedules: each phase, SIGKILL and SIGSTOP; every other one with further requests in the middle."""
    phase, how = PHASES[number % 3], signal.SIGSTOP if number % 2 else signal.SIGKILL
    async with Client(burst) as client:
        await struck(client, phase, how, more=number % 4 > 1)
    burst.stop()


@pytest.fixture
def family(checkpoint: Callable[..., Path], serve: Callable[..., Server], tmp_path: Path) -> dict[str, Path]:
    """A foundation and a fine-tune with a layer of its own in the middle and one at the end, by model id."""
    base = checkpoint("llama", **SIZES)
    return {base.name: base, "tuned": altered(base, tmp_path / "tuned", ("layers.1.mlp", "layers.3."))}


@claim("Fine-tunes of one base drop the same layers together", of="parameter-dropping")
@pytest.mark.parametrize("number", parts(12, daily=0))
async def test_a_member_of_a_family_dies_or_stands_still(
    family: dict[str, Path], serve: Callable[..., Server], number: int
) -> None:
    """A foundation and its fine-tune are dropped together, and come back together. 12 schedules, SIGKILL in the pipeline
    first."""
    phase, how = PHASES[(number + 1) % 3], signal.SIGSTOP if number % 2 else signal.SIGKILL
    base, tuned = family.values()
    server = serve(base, memory="8MiB", overload="on", silence=3, arguments=["--app", f"tuned={tuned}"]).whole()
    async with Client(server) as client:
        whole = {name: worker["memory"]["parameters"] for name, worker in (await client.ready()).items()}
        group = await struck(client, phase, how, models=[*family], more=number % 4 > 1)
        assert group["model"] == ", ".join(family)
        assert {name: worker["memory"]["parameters"] for name, worker in (await client.workers()).items()} == whole
        same = [await client.post({**body(0, NEW, prompt_of(LONG)), "model": name}) for name in family]
        assert len({tuple(answer["choices"][0]["token_ids"]) for _, answer in same}) == 2, "each has its own parameters"
    server.stop()

"""A worker that comes with the load and goes again, over the real runtime in one process: nothing is lost on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.tests.actors import fake_worker
from blockwright.tests.actors.test_topology import cluster, collect
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import generation, reference
from blockwright.tests.waiting import until

SCALED = {
    "workers": 1, "autoscale": "relief", "autoscale_latency": 1000.0, "autoscale_max_workers": 2, "autoscale_cooldown": 0.0,
    "autoscale_window": 0.3,
}  # fmt: skip


@pytest.fixture(autouse=True)
def fate() -> fake_worker.Fate:
    return fake_worker.reset()


@claim("Autoscaling starts a worker with the load and stops one without loss", of="prediction")
@pytest.mark.parametrize("how", ["they move", "they are given back", "it is killed"])
async def test_what_runs_on_a_drained_worker_ends_as_if_nothing_had_been(
    checkpoint: Callable[..., Path], fate: fake_worker.Fate, how: str
) -> None:
    """What does not decode moves at once; copies of the pages of what does never end here, so that it is given back."""
    grace = 0.05 if how == "they are given back" else 60.0
    async with cluster({"m": checkpoint()}, drain_timeout=grace, **SCALED) as running:
        gateway = running.port
        fate.hold = asyncio.Event()
        await running.controller.observed(2000.0, 0.0)
        await gateway.until(lambda: len(gateway.book.parts.table.routes["m"]) == 2)
        asked = [generation(f"r{i}", prompt=20 + i, max_tokens=90) for i in range(6)]
        streams = [asyncio.create_task(collect(gateway.generate(g))) for g in asked]
        await gateway.until(lambda: len(gateway.book.parts.table.on["w1"]) == 3)
        if how == "they are given back":
            fate.hold.set()
            await gateway.until(lambda: all(record.progress.emitted for record in gateway.book.parts.active.values()))
            fate.hold.clear()
        await gateway.until(lambda: len(gateway.book.parts.table.routes["m"]) == 1)  # nobody was late, so one goes
        asked.append(generation("new", prompt=4, max_tokens=9))
        streams.append(asyncio.create_task(collect(gateway.generate(asked[-1]))))
        await gateway.until(lambda: len(gateway.book.parts.active) == 7)
        assert gateway.describe("new").home == "w0"
        if how == "it is killed":
            running.launcher.kill(running.cluster.members()["w1"].id)
        await until(lambda: _gone(running), "the worker was stopped")
        assert not gateway.book.parts.table.on.get("w1")
        fate.hold.set()
        answers = await asyncio.gather(*streams)
        assert answers == [(reference(g), "length") for g in asked]
        events = [event for g in asked for event in gateway.describe(g.id).events]
        back = ["worker w1 is drained"] * 3 if how == "they are given back" else []
        assert [event["reason"] for event in events if event["event"] == "returned"] == back
        assert len([event for event in events if event["event"] == "moved"]) == 3 - len(back)
        view = (await gateway.cluster())["autoscale"]
        assert (view["workers"]["wanted"], view["decisions"], view["last"]["decision"]) == (
            1,
            {"start": 1, "drain": 1},
            "drain w1",
        )
        await running.controller.observed(2000.0, 0.0)
        await gateway.until(lambda: len(gateway.book.parts.table.routes["m"]) == 2)  # it comes again


async def _gone(running: object) -> bool:
    there = (await running.port.cluster())["autoscale"]  # type: ignore[attr-defined]
    return there["workers"]["draining"] == 0 and not any(id.name == "w1" for id in running.launcher.list())  # type: ignore[attr-defined]


async def test_gateways_tell_how_long_requests_take(checkpoint: Callable[..., Path], fate: fake_worker.Fate) -> None:
    async with cluster({"m": checkpoint()}, **{**SCALED, "autoscale_latency": 0.2}) as running:
        fate.hold = asyncio.Event()
        asked = generation("slow", max_tokens=9)
        stream = asyncio.create_task(collect(running.port.generate(asked)))
        await running.port.until(
            lambda: len(running.port.book.parts.table.routes["m"]) == 2
        )  # by the age of what has not ended
        view = (await running.port.cluster())["autoscale"]
        assert view["last"]["decision"] == "start w1"
        assert "measured, the limit is 0.2 s" in view["last"]["why"]
        fate.hold.set()
        assert await stream == (reference(asked), "length")

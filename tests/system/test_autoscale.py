"""With autoscale (docs/autoscaling.md) a second worker comes with the load and is drained after it; no answer shows it."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.system.client import Answer, Client, body, check
from blockwright.tests.system.conftest import PACE, STREAMS, slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
FEW = 6
SHORT = 20
TIMES = 20


@claim("Autoscaling starts a worker with the load and stops one without loss", of="prediction")
async def test_a_worker_comes_with_the_load_and_goes_without_loss(
    serve: Callable[..., Server], expected: list[list[int]]
) -> None:
    """It is killed once while it starts. While it is drained requests go on coming."""
    scaled = {"autoscale": "relief", "autoscale_latency": 5, "autoscale_max_workers": 2, "autoscale_cooldown": 0}
    server = serve(workers=1, autoscale_window=1, drain_timeout=0.3, **scaled).whole()
    async with Client(server) as client:

        async def starting() -> Any:
            return (await client.workers()).get("w1", {}).get("pid")

        async def serving() -> bool:
            routes = (await client.get("/admin/cluster"))[1]["routes"]
            return {hop["worker"] for route in routes for hop in route["hops"]} == {"w0", "w1"}

        with slow(server):
            answers = client.load(STREAMS)
            os.kill(await until(starting, "a second worker is started"), signal.SIGKILL)
            await until(serving, "it serves")
        answers += (more := client.load(STREAMS))
        await client.finished()
        check(answers, expected * 2)
        homes = [story["events"] for answer in more if (story := await client.request(answer.name))]
        assert any(event.get("route", "").endswith("@w1") for events in homes for event in events)
        pids = {name: worker["pid"] for name, worker in (await client.workers()).items()}
        for _ in range(TIMES):  # in the end nobody asks: on a machine so slow that these take too long, too, that is calm
            few = client.load(FEW, SHORT)
            await client.finished()
            check(few, [tokens[:SHORT] for tokens in expected[:FEW]])
            if len(await client.workers()) == 1:
                break
        gone = await until(lambda: _gone(client, pids), "one of the two goes")  # the one that has less to do when it is calm
        await until(lambda: _ended(server, pids[gone]), "its process has ended")
        view = (await client.get("/admin/cluster"))[1]
        assert (view["autoscale"]["workers"]["wanted"], view["autoscale"]["last"]["decision"]) == (1, f"drain {gone}")
    server.stop()


@claim("Autoscaling starts a worker because of forecasts, before requests are late", of="prediction")
@pytest.mark.nightly
async def test_a_worker_is_started_because_of_forecasts(serve: Callable[..., Server], tmp_path: Path) -> None:
    """One sequence at a time, of four seconds: the third would take longer than the limit, and nobody has yet."""
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"coefficients": {"base": PACE}}))
    scaled = {"autoscale": "preemptive", "autoscale_latency": 8, "autoscale_max_workers": 2}
    server = serve(workers=1, dispatch="predicted-latency", profile=profile, dispatch_timeout=60, max_rows=1, **scaled)
    server.whole()
    async with Client(server) as client:

        async def forecast() -> Any:
            await client.post(body(0, 3), name := uuid.uuid4().hex)
            story = await client.request(name)
            return story and story["dispatch"] and any(one["forecast"] for one in story["dispatch"]["candidates"])

        async def last_decision() -> Any:
            return (await client.get("/admin/cluster"))[1]["autoscale"]["last"]

        answers: list[Answer] = []

        async def placed() -> bool:
            story = await client.request(answers[-1].name)
            return story is not None and story["home"] is not None

        await until(forecast, "the predictor follows the only worker")
        for index in range(4):  # one after the other: what is on its way to a worker is known to its predictor
            answers.append(client.begin(body(index, 200)))
            await until(placed)
        last = await until(last_decision, "a decision")
        assert last["decision"] == "start w1"
        assert "s forecast on every active worker" in last["why"]
        for answer in answers:
            await client.leave(answer)
    server.stop()


async def _gone(client: Client, pids: dict[str, int]) -> str:
    return next(iter(pids.keys() - await client.workers()), "")


async def _ended(server: Server, pid: int) -> bool:
    return pid not in server.processes()

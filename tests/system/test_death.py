"""Deaths other than that of a worker at work: while it loads, of a hung one, of all, again and again, of the forkserver."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.system.client import Client, body, check
from blockwright.tests.system.conftest import STREAMS
from blockwright.tests.system.faulty_worker import HANG
from blockwright.tests.system.server import Server, until

pytestmark = pytest.mark.system
Serve = Callable[..., Server]


@pytest.mark.parametrize("state", ["starting", "loading"])
async def test_kill_9_during_loading(serve: Serve, checkpoint: Callable[..., Path], state: str) -> None:
    """Large enough that loading can be seen: 100 MB."""
    large = checkpoint("llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=6)
    server = serve(large, memory="256MiB", pace="")
    server.listening()
    async with Client(server) as client:

        async def victim() -> dict[str, Any] | None:
            status, view = await client.get("/admin/cluster")
            found = [w for w in view["workers"] if w["pid"] and w["state"] == state] if status == 200 else []
            return found[0] if found else None

        worker = await until(victim)
        os.kill(worker["pid"], signal.SIGKILL)
        after = (await client.ready())[worker["id"]]
        assert (after["incarnation"], after["restarts"]) == (2, 1)
        assert after["pid"] != worker["pid"]
        status, answer = await client.post(body(0, 3))
        assert (status, len(answer["choices"][0]["token_ids"])) == (200, 3)
    server.stop()


async def test_a_kernel_that_never_returns(serve: Serve, expected: list[list[int]], tmp_path: Path) -> None:
    marker = tmp_path / "hang"
    server = serve(module="blockwright.tests.system.faulty_worker", env={HANG: str(marker)}, stall_timeout=2).whole()
    async with Client(server) as client:
        before = await client.ready()
        answers = client.load(STREAMS)
        await until(lambda: all(len(answer.tokens) >= 3 for answer in answers))
        marker.touch()
        await client.finished()
        assert not marker.exists()
        check(answers, expected)
        after = await client.ready()
        (hung,) = [name for name in after if after[name]["pid"] != before[name]["pid"]]
        assert after[hung]["cause"] == "stalled"
    server.stop()


async def test_kill_9_of_the_forkserver(serve: Serve, expected: list[list[int]]) -> None:
    """All workers die with it."""
    server = serve().whole()
    async with Client(server) as client:
        before = await client.ready()
        answers = client.load(STREAMS)
        await until(lambda: all(len(answer.tokens) >= 3 for answer in answers))
        os.kill(server.forkserver(), signal.SIGKILL)
        await client.finished()
        check(answers, expected)
        after = await client.ready()
        assert not {worker["pid"] for worker in before.values()} & {worker["pid"] for worker in after.values()}
    server.stop()


async def test_a_request_that_always_kills_its_worker_fails_alone(serve: Serve, expected: list[list[int]]) -> None:
    server = serve().whole()
    async with Client(server) as client:
        await client.ready()
        others = client.load(8)
        poison = asyncio.create_task(client.post(body(0, 400, prompt_of(20, seed=9)), "poison"))
        kills = 0
        while not poison.done():
            view = await client.request("poison")
            if view is None or view["state"] != "running":
                await asyncio.sleep(0.005)
                continue
            with contextlib.suppress(ProcessLookupError):
                await client.kill(view["home"])
                kills += 1
            attempt = view["attempt"]

            async def noticed(attempt: int = attempt) -> bool:
                now = await client.request("poison")
                return now is None or now["attempt"] != attempt or now["state"] != "running"

            await until(noticed)
        assert 3 <= kills <= 10, "a few before it was planned, which are not held against it"
        status, answer = await poison
        assert (status, answer["error"]["code"]) == (500, "request_kills_workers")
        await client.finished()
        check(others, expected[:8])
        status, answer = await client.post(body(0))
        assert (status, answer["choices"][0]["token_ids"]) == (200, expected[0])
    server.stop()


async def test_requests_wait_for_workers_so_long_and_no_longer(serve: Serve, expected: list[list[int]]) -> None:
    server = serve(worker_wait=2).whole()

    def down() -> None:
        """Every worker that there is, and every one that comes."""
        for pid in server.processes():
            if pid not in (server.process.pid, forkserver):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    forkserver = server.forkserver()
    async with Client(server) as client:
        await client.ready()
        began = client.load(2)
        await until(lambda: all(answer.tokens for answer in began))
        loop = asyncio.get_running_loop()
        down()
        gone = loop.time()
        waiting = asyncio.create_task(client.post(body(0)))
        while not waiting.done() or not all(answer.error for answer in began):
            down()
            await asyncio.sleep(0.005)
            assert loop.time() < gone + 10
        status, answer = await waiting
        assert (status, answer["error"]["code"]) == (503, "unavailable")
        assert loop.time() > gone + 2
        for index, stream in enumerate(began):
            assert (stream.status, stream.error["code"], stream.done) == (200, "unavailable", False)
            assert stream.tokens == expected[index][: len(stream.tokens)]
        (status, told), (again, other) = await client.get("/health/ready"), await client.get("/health")
        assert (status, again, told["reason"]) == (503, 503, other["reason"])
        await client.finished()
        await client.ready()
        again = client.load(2)
        await client.finished()
        check(again, expected[:2])
    server.stop()

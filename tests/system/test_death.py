"""Deaths other than that of a worker at work: while it loads, of a hung one, of all, again and again, of the forkserver."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.system.client import NEW, Client, body, check
from blockwright.tests.system.conftest import FAULTY, STREAMS, slow
from blockwright.tests.system.faulty_worker import HANG, HOLD
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
Serve = Callable[..., Server]


@pytest.fixture(scope="module")
def impatient(model: Path, pace: Path) -> Iterator[Server]:
    """Who hangs, and who waits, does so for seconds. Whoever kills a worker leaves when all are back."""
    server = Server(model, module=FAULTY, pace=pace, stall_timeout=4, worker_wait=2)
    yield server.whole()
    server.stop()


@claim("A worker that dies while it loads is replaced", of="faults")
@pytest.mark.nightly
async def test_kill_9_during_loading(serve: Serve, checkpoint: Callable[..., Path]) -> None:
    """Before it begins, too. Large enough that loading can be seen: 100 MB."""
    large = checkpoint("llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=6)
    server = serve(large, memory="256MiB", pace="")
    server.listening()
    killed: list[dict[str, Any]] = []
    async with Client(server) as client:

        async def victim(state: str) -> dict[str, Any] | None:
            status, view = await client.get("/admin/cluster")
            found = [w for w in view["workers"] if w["pid"] and w["state"] == state] if status == 200 else []
            return found[0] if found else None

        for state in ("starting", "loading"):
            killed.append(await until(partial(victim, state), state))
            os.kill(killed[-1]["pid"], signal.SIGKILL)
        after = await client.ready()
        for name, lives in Counter(worker["id"] for worker in killed).items():
            assert (after[name]["incarnation"], after[name]["restarts"]) == (1 + lives, lives)
        assert not {worker["pid"] for worker in killed} & {worker["pid"] for worker in after.values()}
        status, answer = await client.post(body(0, 3))
        assert (status, len(answer["choices"][0]["token_ids"])) == (200, 3)
    server.stop()


@claim("A kernel that never returns is noticed, and its worker is replaced", of="faults")
async def test_a_kernel_that_never_returns(impatient: Server, expected: list[list[int]]) -> None:
    hang = impatient.lever(HANG)
    async with Client(impatient) as client:
        before = await client.ready()
        answers = client.load(STREAMS)
        await until(lambda: all(len(answer.tokens) >= 3 for answer in answers))
        hang.touch()
        await until(lambda: not hang.exists(), "a sweep has begun")
        await client.finished()
        check(answers, expected)
        after = await client.ready()
        replaced = [name for name in after if after[name]["pid"] != before[name]["pid"]]
        assert {after[name]["cause"] for name in replaced} == {"stalled"}


@claim("Workers survive the death of the process that started them", of="faults")
async def test_kill_9_of_the_forkserver(replicas: Server, expected: list[list[int]]) -> None:
    """Workers outlive it, and are replaced from another one when they die later."""
    async with Client(replicas) as client:
        before = await client.ready()
        with slow(replicas, after=3):
            answers = client.load(STREAMS)
            await until(lambda: all(len(answer.tokens) >= 3 for answer in answers))
            os.kill(replicas.forkserver(), signal.SIGKILL)
            await until(lambda: replicas.err.count("the forkserver exited with -9") > 0)
        await client.finished()
        check(answers, expected)
        after = await client.ready()
        pids = {name: worker["pid"] for name, worker in before.items()}
        assert {name: worker["pid"] for name, worker in after.items()} == pids
        answers = client.load(STREAMS)
        await client.kill("w0")
        await client.finished()
        check(answers, expected)
        after = await client.ready()
        assert {name for name, worker in after.items() if worker["pid"] != pids[name]} == {"w0"}


@claim("A request that kills its worker again and again fails, and no other request does", of="faults", headline=True)
async def test_a_request_that_always_kills_its_worker_fails_alone(replicas: Server, expected: list[list[int]]) -> None:
    async with Client(replicas) as client:
        await client.ready()
        attempt = 0

        async def planned() -> str:
            """Where, once a worker of another attempt has it in a plan; before, a death is not held against it."""
            view = await client.request("poison")
            events = view["events"] if view and view["state"] == "running" and view["attempt"] > attempt else ()
            seen = any(e["event"] in ("first_plan", "resumed") and e["attempt"] == view["attempt"] for e in events)
            return view["home"] if seen else ""

        with slow(replicas, after=NEW):
            others = client.load(8)
            poison = asyncio.create_task(client.post(body(0, 400, prompt_of(20, seed=9)), "poison"))
            for _ in range(3):
                home = await until(planned)
                attempt = (await client.request("poison"))["attempt"]
                await client.kill(home)
            status, answer = await poison
        assert (status, answer["error"]["code"]) == (500, "request_kills_workers")
        await client.finished()
        check(others, expected[:8])
        status, answer = await client.post(body(0))
        assert (status, answer["choices"][0]["token_ids"]) == (200, expected[0])
        await client.ready()


@claim("Requests wait for workers up to the limit and then end with a 503", of="faults")
async def test_requests_wait_for_workers_so_long_and_no_longer(impatient: Server, expected: list[list[int]]) -> None:
    server = impatient
    async with Client(server) as client:
        workers = await client.ready()
        with slow(server):
            began = client.load(2)
            await until(lambda: all(answer.tokens for answer in began))
            server.lever(HOLD).touch()  # those that come do not get ready
            for worker in workers.values():
                os.kill(worker["pid"], signal.SIGKILL)
            status, answer = await client.post(body(0))
            assert (status, answer["error"]["code"]) == (503, "unavailable")
            assert "for 2 seconds" in answer["error"]["message"]
            await client.finished()
        for index, stream in enumerate(began):
            assert (stream.status, stream.error["code"], stream.done) == (200, "unavailable", False)
            assert stream.tokens == expected[index][: len(stream.tokens)]
        (status, response), (again, other) = await client.get("/health/ready"), await client.get("/health")
        assert (status, again, response["reason"]) == (503, 503, other["reason"])
        server.lever(HOLD).unlink()
        await client.ready()
        again = client.load(2)
        await client.finished()
        check(again, expected[:2])

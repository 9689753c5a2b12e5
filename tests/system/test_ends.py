"""How a server begins and ends: probes from the first moment, SIGTERM with and without time, kill -9 of the head."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.parts import some
from blockwright.tests.system.client import Client, check
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.faulty_worker import HOLD
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until, until_now

pytestmark = pytest.mark.system
Serve = Callable[..., Server]
STREAMS = 16


STAGES = ("listening", "hashed", "control plane up", "workers up")


@pytest.mark.parametrize("stage", some(STAGES, "workers up"))
def test_sigterm_while_it_starts(serve: Serve, stage: str) -> None:
    """Nobody is waited for in vain, or it would not end (``faulty_worker``)."""
    server = serve()
    until_now(lambda: stage in server.out, stage)
    server.stop()


@claim("SIGTERM finishes what runs within a limit and then closes", of="faults")
async def test_it_is_live_at_once_and_ready_later_and_sigterm_finishes_what_runs(
    serve: Serve, expected: list[list[int]]
) -> None:
    server = serve(levers=[HOLD])
    server.listening()
    assert server.status("/health/live") == 200
    assert server.status("/health/ready") == 503
    server.lever(HOLD).unlink()
    until_now(lambda: server.status("/health/ready") == 200, "readiness")
    server.whole()
    async with Client(server) as client:
        await client.ready()

        async def refused() -> bool:
            return (await client.get("/health/ready"))[0] == 503

        with slow(server):
            answers = client.load(STREAMS)
            await until(lambda: all(len(answer.tokens) >= 3 for answer in answers))
            server.process.send_signal(signal.SIGTERM)
            await until(refused)
            status, answer = await client.post({"prompt": [5], "max_tokens": 1})
            assert (status, answer["error"]["code"]) == (503, "unavailable")
            assert not any(answer.finish for answer in answers)
        await client.finished()
        check(answers, expected[:STREAMS])
    while server.process.poll() is None:  # in whatever state of its end another one finds it
        server.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0)
    await asyncio.to_thread(server.stop)


@claim("SIGTERM finishes what runs within a limit and then closes", of="faults")
@pytest.mark.nightly
async def test_sigterm_ends_what_does_not_end_in_time_with_an_error(serve: Serve, expected: list[list[int]]) -> None:
    server = serve(drain_timeout=0.3).whole()
    async with Client(server) as client:
        await client.ready()
        with slow(server):
            answers = client.load(STREAMS)
            await until(lambda: all(len(answer.tokens) >= 3 for answer in answers))
            server.process.send_signal(signal.SIGTERM)
            await client.finished()
        for answer, tokens in zip(answers, expected, strict=False):
            assert answer.error is not None, answer
            assert (answer.status, answer.error["code"], answer.done) == (200, "unavailable", False)
            assert answer.tokens == tokens[: len(answer.tokens)]
    await asyncio.to_thread(server.stop)


@claim("Kill -9 of the head leaves no process, socket or shared memory behind", of="faults")
async def test_kill_9_of_a_head_leaves_nothing_and_another_server_alone(
    serve: Serve, replicas: Server, expected: list[list[int]]
) -> None:
    """Two servers on one machine at once."""
    server = serve().whole()
    async with Client(replicas) as other, Client(server) as client:
        before = await other.ready()
        await client.ready()
        survivors, lost = other.load(STREAMS), client.load(STREAMS)
        await until(lambda: all(len(answer.tokens) >= 3 for answer in [*survivors, *lost]))
        assert len(server.processes()) == 5  # keeper, forkserver, head, workers
        server.process.kill()
        await asyncio.to_thread(server.gone)
        await other.finished()
        check(survivors, expected[:STREAMS])
        after = await other.ready()
        assert {n: w["pid"] for n, w in after.items()} == {n: w["pid"] for n, w in before.items()}
    server.stop(code=-signal.SIGKILL)

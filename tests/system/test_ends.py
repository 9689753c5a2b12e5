"""How a server begins and ends: probes from the first moment, SIGTERM with and without time, kill -9 of the head."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

import pytest

from blockwright.runtime.cluster import STOP_GRACE
from blockwright.tests.system.client import Client, check
from blockwright.tests.system.server import Server, until, until_now

pytestmark = pytest.mark.system
Serve = Callable[..., Server]
STREAMS = 16


def test_it_is_live_at_once_and_ready_later(serve: Serve) -> None:
    server = serve()
    server.listening()
    assert server.status("/health/live") == 200
    seconds = time.monotonic() - server.began
    assert server.status("/health/ready") == 503
    print(f"start to live: {seconds:.3f} s")
    until_now(lambda: server.status("/health/ready") == 200, 30, "readiness")
    server.stop()


@pytest.mark.parametrize("stage", ["listening", "control plane up", "hashed", "workers up"])
def test_sigterm_while_it_starts(serve: Serve, stage: str) -> None:
    server = serve()
    until_now(lambda: stage in server.out, 30, stage)
    began = time.monotonic()
    server.stop()
    seconds = time.monotonic() - began
    print(f"SIGTERM after {stage!r} to the end: {seconds:.3f} s")
    assert seconds < STOP_GRACE, "nobody is waited for in vain"


async def test_sigterm_finishes_what_runs(serve: Serve, expected: list[list[int]]) -> None:
    server = serve().whole()
    async with Client(server) as client:
        await client.ready()
        answers = client.load(STREAMS)
        await until(lambda: all(len(answer.tokens) >= 3 for answer in answers))
        server.process.send_signal(signal.SIGTERM)

        async def refused() -> bool:
            return (await client.get("/health/ready"))[0] == 503

        await until(refused)
        status, answer = await client.post({"prompt": [5], "max_tokens": 1})
        assert (status, answer["error"]["code"]) == (503, "unavailable")
        assert not any(answer.finish for answer in answers)
        await client.finished()
        check(answers, expected[:STREAMS])
    await asyncio.to_thread(server.stop)


async def test_sigterm_ends_what_does_not_end_in_time_with_an_error(serve: Serve, expected: list[list[int]]) -> None:
    server = serve(drain_timeout=0.3).whole()
    async with Client(server) as client:
        await client.ready()
        answers = client.load(STREAMS)
        await until(lambda: all(len(answer.tokens) >= 3 for answer in answers))
        server.process.send_signal(signal.SIGTERM)
        await client.finished()
        for answer, tokens in zip(answers, expected, strict=False):
            assert answer.error is not None, answer
            assert (answer.status, answer.error["code"], answer.done) == (200, "unavailable", False)
            assert answer.tokens == tokens[: len(answer.tokens)]
    await asyncio.to_thread(server.stop)


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
        assert len(server.processes()) == 4
        server.process.kill()
        began = time.monotonic()
        await asyncio.to_thread(server.gone)
        print(f"kill -9 of the head to the last trace: {time.monotonic() - began:.3f} s")
        await other.finished()
        check(survivors, expected[:STREAMS])
        after = await other.ready()
        assert {n: w["pid"] for n, w in after.items()} == {n: w["pid"] for n, w in before.items()}
    server.stop(code=-signal.SIGKILL)

"""A card that compiles its kernels, and one that fails for good while requests run there, on the mirror of one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.system.client import Client
from blockwright.tests.system.faulty_worker import BREAK, COMPILE
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
STREAMS, NEW = 3, 12


@claim("A CUDA error ends the worker process, and no request fails for it (on the mirror of a card)", of="faults")
async def test_a_card_that_fails_for_good(serve: Callable[..., Server], expected: list[list[int]]) -> None:
    server = serve(device="cuda-mirror", workers=1, stall_timeout=60).whole()
    assert "cuda-mirror is the CUDA back end without a card, very slow and for tests alone" in server.err + server.out
    async with Client(server) as client:
        status, said = await client.get("/version")
        assert (status, said["devices"], said["batch_invariant"]) == (200, ["cuda-mirror"], True)
        for life, where in enumerate(("submit", "wait"), 1):
            answers = client.load(STREAMS, NEW)
            await until(lambda shown=answers: all(len(answer.tokens) >= 3 for answer in shown))
            lever = server.lever(BREAK)
            lever.with_suffix(".new").write_text(where)
            os.replace(lever.with_suffix(".new"), lever)
            await until(lambda gone=lever: not gone.exists(), "a sweep has begun")
            await client.finished()
            assert [answer.tokens for answer in answers] == [tokens[:NEW] for tokens in expected[:STREAMS]]
            (worker,) = (await client.ready()).values()
            assert worker["restarts"] == life
            assert worker["cause"] in (
                "exited 70",
                "disconnected",
            )  # the second if a busy machine is late to say how it exited
    assert server.err.count("illegal memory access was encountered (planted)") >= 2


@claim(
    "The first compilation of the kernels is shown with its progress, and a second start finds them in the cache",
    of="serving",
)
async def test_the_first_compilation_is_shown_and_kept(serve: Callable[..., Server]) -> None:
    server = serve(device="cuda-mirror", workers=1, heartbeat=0.05, levers=(COMPILE,)).whole()
    async with Client(server) as client:
        _, said = await client.get("/health")
        names = [stage["name"] for stage in said["stages"]]
        assert names.index("workers up") < names.index("kernels") < names.index("kernels ready") < names.index("ready")
        lines = [line for line in server.out.splitlines() if "w0 prepares its kernels: " in line]
        assert len(lines) > 1, "it goes on"
        assert all(" steps in " in line for line in lines)
        (worker,) = (await client.workers()).values()
        assert worker["proof"]["seconds"] > 2.0
        compiled = server.lever(COMPILE).read_text()
        assert compiled
        os.kill(worker["pid"], signal.SIGKILL)

        async def risen() -> bool:
            return bool((await client.workers())["w0"]["restarts"])

        await until(risen, "the worker starts again")
        (again,) = (await client.ready()).values()
        assert (again["restarts"], again["proof"]["invariant"]) == (1, True)
        assert server.lever(COMPILE).read_text() == compiled, "all came from the cache"

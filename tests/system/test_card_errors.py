"""A card that fails for good while requests run there, on the mirror of one: errors that stay, as those of CUDA do."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.system.client import Client
from blockwright.tests.system.faulty_worker import BREAK
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
            assert (worker["restarts"], worker["cause"]) == (life, "exited 70")
    assert server.err.count("illegal memory access was encountered (planted)") >= 2

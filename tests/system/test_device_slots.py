"""Two worker processes over the mirror of a card: their tensors cross through slots of a device's memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import confirm
from blockwright.tests.parts import some
from blockwright.tests.system.client import Client, body
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until


@claim("A pipeline of two processes that use one device sends hidden states through its slots, bit for bit", of="numerics")
@claim("Kill -9 of either end of a link of device slots loses no request and changes no token", of="faults")
@pytest.mark.parametrize("dies", some(("w0", "w1"), "w0"))
async def test_a_pipeline_of_two_processes(serve: Callable[..., Server], model: Path, dies: str) -> None:
    server = serve(device="cuda-mirror", pipeline=2).whole()
    asked = [body(index, 24) for index in range(4)]
    async with Client(server) as client:
        await client.ready()
        calm = [client.begin(request) for request in asked]
        await client.finished()
        assert [answer.error for answer in calm] == [None] * 4
        for index in (0, 2):
            assert confirm(model, tuple(asked[index]["prompt"]), tuple(calm[index].tokens))
        workers = await client.workers()
        assert workers["w0"]["links"] == {"w1": "device-slot"}
        with slow(server):
            answers = [client.begin(request) for request in asked]
            await until(lambda: all(len(answer.tokens) >= 2 for answer in answers))
            os.kill(workers[dies]["pid"], signal.SIGKILL)
        await client.finished()
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in calm]
        workers = await client.ready()
        assert workers["w0"]["links"] == {"w1": "device-slot"}
    server.stop()

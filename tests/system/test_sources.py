"""A worker that comes back loads from the other's memory; when that is killed in the middle, it reads what lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.system.client import Client, check
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.faulty_worker import DIE, SOURCE
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
STREAMS, BATCH = 8, (32 << 20) // 64


@claim("Missing parameters come back from another worker that serves meanwhile, or else from disk", of="parameter-dropping")
@pytest.mark.nightly
async def test_parameters_come_from_the_other_worker_until_it_is_killed(
    checkpoint: Callable[..., Path], serve: Callable[..., Server]
) -> None:
    path = checkpoint("llama", hidden_size=256, intermediate_size=512, vocab_size=2000)
    assert (path / "model.safetensors").stat().st_size > 6 * BATCH
    server = serve(path, memory="32MiB").whole()
    server.lever(SOURCE).write_text("w0")
    async with Client(server) as client:
        before = await client.ready()
        undisturbed = client.load(STREAMS)
        await client.finished()
        expected = [answer.tokens for answer in undisturbed]
        with slow(server):
            answers = client.load(STREAMS)
            await until(lambda: all(answer.tokens for answer in answers))
            await client.kill("w1")
            after = await client.ready()
            fetched = after["w1"]["counters"]["fetched_parameter_bytes"]
            assert fetched == after["w0"]["counters"]["sent_parameter_bytes"] > 0.9 * before["w1"]["memory"]["parameters"]
            assert after["w1"]["counters"]["unfetched_loads"] == 0
        await client.finished()
        check(answers, expected)
        server.lever(DIE).touch()
        with slow(server):
            answers = client.load(STREAMS)
            await until(lambda: all(answer.tokens for answer in answers))
            await client.kill("w1")
            await until(lambda: not server.lever(DIE).exists())
        await client.finished()
        check(answers, expected)
        last = await client.ready()
        assert last["w0"]["pid"] != after["w0"]["pid"], "it was killed while it sent"
        assert last["w1"]["counters"]["unfetched_loads"] == 1
        assert 0 < last["w1"]["counters"]["fetched_parameter_bytes"] < fetched
        answers = client.load(STREAMS)
        await client.finished()
        check(answers, expected)
    server.stop()

"""Requests that choose their tier, on real processes: kill -9 before and after the choice, with two gateways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.tests.checkpoints import make_family
from blockwright.tests.claims import claim
from blockwright.tests.system.client import Client, body
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
COUNT, NEW = 8, 40
SOME = 0.12  # between the confidences of a random tier in these prompts


@claim(
    "An answer of NAME:auto survives kill -9 of workers before its tier is chosen and after", of="families", headline=True
)
async def test_kill_9_before_and_after_the_choice(
    serve: Callable[..., Server], checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    family = make_family(checkpoint("llama", num_hidden_layers=4), tmp_path / "m", {1: "low", 3: "shared"})
    server = serve(family, chunk_size=16, gateways=2, **{"theta.m": SOME}).whole()
    requests = [body(index, NEW, model="m:auto") for index in range(COUNT)]
    async with Client(server) as client:
        await client.ready()
        calm = [await client.post(request) for request in requests]
        tiers = [answer["usage"]["tier"] for _, answer in calm]
        assert {*tiers} == {"m", "m:1"}, "both happen"
        with slow(server):
            answers = [client.begin(request) for request in requests]

            async def holding() -> bool:
                views = [view for answer in answers if (view := await client.request(answer.name)) is not None]
                assert not any(answer.tokens for answer in answers), "the first tokens are held back"
                return sum(view["emitted_tokens"] > 1 for view in views) == COUNT

            await until(holding)
            await client.kill("w0")
        await client.ready()
        await until(lambda: any(answer.tokens for answer in answers))
        with slow(server):
            await client.kill("w1")
        await client.finished()
        assert [answer.tokens for answer in answers] == [outcome["choices"][0]["token_ids"] for _, outcome in calm]
        views = [await client.request(answer.name) for answer in answers]
        assert [view and view["tier"]["tier"] for view in views] == tiers, "whichever gateway is asked"
        assert any(event["event"] == "worker_died" for view in views if view for event in view["events"])

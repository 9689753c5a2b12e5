"""Requests that choose their tier, or have drafts by one or by another model, on real processes: kill -9 before the choice,
after it, and amid rounds of drafts, with two gateways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.checkpoints import make_family
from blockwright.tests.claims import claim
from blockwright.tests.system.client import Client, body
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
COUNT, NEW = 8, 40  # requests that choose, as many with drafts by a tier, and as many with drafts by a model
FEW = list(range(20, 24))  # tokens of answers with drafts, so that some stand
SOME = 0.12  # between the confidences of a random tier in these prompts


def choosing(index: int) -> dict[str, Any]:
    """Return a request that chooses its tier; every second one has drafts on whichever it runs."""
    return body(index, NEW, model="m:auto", draft="auto" if index % 4 > 1 else "off", draft_tokens=3)


def drafting(index: int) -> dict[str, Any]:
    """Return a request of a named tier with drafts by a lower one."""
    model, draft = (("m", "tier:3"), ("m", "tier:1"), ("m:3", "tier:1"), ("m", "auto"))[index % 4]
    return body(COUNT + index, NEW, model=model, draft=draft, draft_tokens=1 + index % 5, allowed_token_ids=FEW)


def guided(index: int) -> dict[str, Any]:
    """Return a request with drafts by the model that the setting names for the family."""
    model = "m:3" if index % 4 == 3 else "m"
    return body(2 * COUNT + index, NEW, model=model, draft_tokens=1 + index % 5, allowed_token_ids=FEW)


@claim(
    "An answer of NAME:auto survives kill -9 of workers before its tier is chosen and after", of="families", headline=True
)
@claim("A request with drafts by a tier survives kill -9 of its worker, token for token", of="drafts")
@claim("A request with drafts by another model survives kill -9 of its worker, token for token", of="drafts")
async def test_kill_9_before_and_after_the_choice_and_amid_drafts_by_a_tier_and_a_model(
    serve: Callable[..., Server], checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    family = make_family(checkpoint("llama", num_hidden_layers=4), tmp_path / "m", {1: "low", 3: "shared"})
    small = checkpoint("llama", seed=5, num_hidden_layers=1)
    server = serve(
        family, chunk_size=16, gateways=2, arguments=("--app", f"small={small}"), **{"theta.m": SOME, "drafts.m": "small"}
    ).whole()
    requests = [*map(choosing, range(COUNT)), *map(drafting, range(COUNT)), *map(guided, range(COUNT))]
    async with Client(server) as client:
        before = await client.ready()
        calm = [await client.post({**request, "draft": "off"}) for request in requests]
        tiers = [answer["usage"]["tier"] for _, answer in calm]
        assert {*tiers[:COUNT]} == {"m", "m:1"}, "both happen"
        with slow(server):
            answers = [client.begin(request) for request in requests]

            async def holding() -> bool:
                views = [view for answer in answers if (view := await client.request(answer.name)) is not None]
                assert not any(answer.tokens for answer in answers[:COUNT]), "the first tokens are held back"
                return sum(view["emitted_tokens"] > 1 for view in views) == len(requests)

            await until(holding)
            assert not any(answer.finish for answer in answers)
            await client.kill("w0")
        await client.ready()
        await until(lambda: any(answer.tokens for answer in answers[:COUNT]))
        with slow(server):
            await client.kill("w1")
        await client.finished()
        assert [answer.tokens for answer in answers] == [outcome["choices"][0]["token_ids"] for _, outcome in calm]
        views = [await client.request(answer.name) for answer in answers]
        assert [view and view["tier"]["tier"] for view in views[:COUNT]] == tiers[:COUNT], "whichever gateway is asked"
        groups = [views[first : first + COUNT] for first in (0, COUNT, 2 * COUNT)]
        for some in groups:
            assert any(event["event"] == "worker_died" for view in some if view for event in view["events"])
        after = await client.ready()
        assert all(after[name]["pid"] != before[name]["pid"] for name in before)
        for source, some in (("tier", groups[1]), ("model", groups[2])):
            counts = [view["drafts"]["sources"].get(source, {}) for view in some if view]
            assert 0 < sum(count.get("accepted", 0) for count in counts) < sum(count.get("drafted", 0) for count in counts)

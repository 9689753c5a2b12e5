"""The tier of a request at the HTTP front: what reaches the gateway, and the header and fields that name the tier."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from blockwright.actors.gateway.port import Generation, StreamProgress
from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.model.confidence import Threshold
from blockwright.policies.sweep.events import TokensEmitted
from blockwright.tests.api.fake_port import FakePort

URL = "/v1/completions"
RULE = Threshold(theta=0.7, measure="margin", tokens=8)


def with_family(port: FakePort) -> None:
    """Add a lower tier of the first model, and the id that chooses."""
    top = port.infos[0]
    lower = replace(top, id="tiny:4", family="tiny", threshold=RULE)
    chosen = replace(top, id="tiny:auto", family="tiny", starts="tiny:4", threshold=RULE)
    port.infos[0] = replace(top, tiers=("tiny:4",))
    port.infos[1:1] = [lower, chosen]


async def test_a_choice_reaches_the_gateway_with_its_rule(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"), settings={"drafts": {"tiny": "prompt", "tiny:4": "off"}})
    with_family(port)
    body = {"model": "tiny", "quality": "auto", "prompt": ["a", "b"], "n": 2, "max_tokens": 2}
    await client.post(URL, json=body)
    asked: list[Generation] = [stream.generation for stream in port.streams]
    assert len(asked) == 4
    for one in asked:
        assert one.auto is not None
        assert (one.application, one.auto.top, one.auto.threshold, one.auto.sequences) == ("tiny:4", "tiny", RULE, 4)
        assert (one.drafts, one.auto.drafts) == (None, DraftOptions(prompt=True))
    await client.post(URL, json={"model": "tiny", "quality": "low", "prompt": "a", "max_tokens": 2})
    assert (port.streams[-1].generation.application, port.streams[-1].generation.auto) == ("tiny:4", None)


async def test_a_tier_drafts_for_a_choice_where_it_can(serve: Any, say: Any) -> None:
    """The top tier passes the exit, the lower one does not; the rule of acceptance holds for both."""
    client, port = await serve(say("x"), settings={"draft_rule": "rejection"})
    with_family(port)
    body = {"model": "tiny:auto", "prompt": "a", "max_tokens": 2}
    for draft, top in (("tier:4", DraftOptions(tiers=["tiny:4"])), ("auto", DraftOptions(True, tiers=["tiny:4"]))):
        assert (await client.post(URL, json=body | {"draft": draft})).status == 200
        asked = port.streams[-1].generation
        assert asked.auto is not None
        assert (asked.drafts, asked.auto.drafts) == (DraftOptions(True) if draft == "auto" else None, top)
        assert asked.sampling.rejection
    answer = await client.post(URL, json=body | {"draft": "tier:5"})
    says = "draft is 'tier:5', but tiny passes no exit after 5 layers; give off, prompt or auto, or one of tier:4"
    assert (answer.status, (await answer.json())["error"]["message"]) == (400, says)


async def test_a_stop_string_says_where_an_answer_ends(serve: Any, say: Any, codec: Any) -> None:
    client, port = await serve(say("so it is"))
    with_family(port)
    await client.post(URL, json={"model": "tiny:auto", "prompt": "a", "stop": ["it"], "max_tokens": 8})
    auto = port.streams[-1].generation.auto
    tokens = codec.encode("so it is so", special=False)
    lengths = [auto.length(tokens[:count]) for count in range(1, len(tokens) + 1)]
    ended = next(length for length in lengths if length is not None)
    assert lengths[ended - 1 :] == [ended] * (len(tokens) - ended + 1)
    assert "it" in codec.decode(tokens[:ended])
    assert "it" not in codec.decode(tokens[: ended - 1])


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tier_is_named_once_it_is_chosen(serve: Any, stream: bool) -> None:
    chosen = asyncio.Event()
    client, port = await serve(lambda generation: [chosen, *_answer(generation)], settings={"keep_alive": 0.01})
    with_family(port)
    body = {
        "model": "tiny:auto",
        "prompt": "a",
        "max_tokens": 1,
        "stream": stream,
        "stream_options": {"include_usage": True},
    }
    if not stream:
        del body["stream_options"]
    asking = asyncio.ensure_future(client.post(URL, json=body))
    waiting = await port.waiting.get()
    for _ in range(20):
        await asyncio.sleep(0.005)
    assert not asking.done(), "the headers wait, and no comment goes out before them"
    waiting.now = StreamProgress(prompt=1, tier="tiny:4")
    chosen.set()
    answer = await asking
    assert answer.headers["x-tier"] == "tiny:4"
    text = await answer.text()
    made = (
        [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")] if stream else [json.loads(text)]
    )
    assert {one["model"] for one in made} == {"tiny:4"}
    assert made[-1]["usage"]["tier"] == "tiny:4"


async def test_named_tiers_are_named_and_other_models_have_none(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"))
    with_family(port)
    for model, tier in (("tiny", "tiny"), ("tiny:4", "tiny:4"), ("org/other", None)):
        answer = await client.post(URL, json={"model": model, "prompt": "a", "max_tokens": 1})
        assert answer.headers.get("x-tier") == tier
        assert (await answer.json())["usage"].get("tier") == tier
    listed = await (await client.get("/v1/models")).json()
    assert [one["id"] for one in listed["data"]] == ["tiny", "tiny:4", "tiny:auto", "org/other"]


@pytest.mark.parametrize(
    ("model", "quality", "says"),
    [
        ("tiny:4", "high", "quality is 'high', but the model is the tier tiny:4; name tiny, or leave quality out"),
        ("org/other", "low", "quality is 'low', but org/other has no tiers; leave quality out"),
        ("tiny", "best", "quality is 'best'; give one of low, high, auto"),
        ("tiny", 1, "quality is 1"),
    ],
)
async def test_a_wrong_quality_is_named(serve: Any, say: Any, model: str, quality: Any, says: str) -> None:
    client, port = await serve(say("x"))
    with_family(port)
    answer = await client.post(URL, json={"model": model, "quality": quality, "prompt": "a"})
    error = (await answer.json())["error"]
    assert (answer.status, error["param"]) == (400, "quality")
    assert says in error["message"]
    assert not port.streams


async def test_a_tenant_needs_the_id_that_quality_stands_for(serve: Any, say: Any) -> None:
    keys = {"api_keys": {"key": "t"}, "tenant_models": {"t": "tiny,tiny:auto"}, "applications": {"tiny": "/m"}}
    client, port = await serve(say("x"), settings=keys)
    with_family(port)
    head = {"Authorization": "Bearer key"}
    for quality, status in (("high", 200), ("auto", 200), ("low", 403)):
        answer = await client.post(URL, json={"quality": quality, "model": "tiny", "prompt": "a"}, headers=head)
        assert answer.status == status, await answer.text()
    client, port = await serve(say("x"), settings=keys | {"tenant_models": {"t": "tiny:auto"}})
    with_family(port)
    for quality, status in (("high", 403), ("auto", 200), ("low", 403)):
        answer = await client.post(URL, json={"quality": quality, "model": "tiny", "prompt": "a"}, headers=head)
        assert answer.status == status, "the id that quality stands for is the one that counts"


def _answer(generation: Generation) -> list[Any]:
    return [TokensEmitted("", generation.id, 1, len(generation.prompt), [5], [], "length")]

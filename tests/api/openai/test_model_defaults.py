"""A model's own system prompt and sampling: before the checkpoint's defaults, behind what a request says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.gateway.port import NewApplication
from blockwright.api.openai.model_defaults import checked_defaults
from blockwright.tests.api.fake_port import FakePort
from blockwright.tests.claims import claim

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]
OWN = {"system": "terse", "temperature": 0.25, "top_k": 3, "min_p": 0.1, "seed": 7, "stop": "zz", "max_tokens": 5}


@pytest.fixture
async def served(serve: Any, say: Any) -> tuple[Any, FakePort]:
    client, port = await serve(say("the end"))
    port.infos[0] = replace(port.infos[0], defaults=checked_defaults(OWN, ""))
    return client, port


@claim("Variants may have a system prompt and sampling defaults of their own", of="fine-tunes")
async def test_a_request_that_says_nothing_gets_them(served: Any, codec: Any) -> None:
    client, port = served
    answer = await client.post(CHAT, json={"messages": HELLO})
    assert answer.status == 200, await answer.text()
    generation = port.streams[-1].generation
    sampling = generation.sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p, sampling.seed) == (0.25, 3, 0.1, 7)
    assert (sampling.top_p, sampling.repetition_penalty) == (1.0, 1.0), "what it does not say is the checkpoint's"
    assert (generation.max_tokens, generation.stop_strings) == (5, 1)
    assert generation.prompt == codec.encode("<s><system>terse\n<user>hi\n<assistant>", special=False)
    await client.post(COMPLETIONS, json={"prompt": "a"})
    generation = port.streams[-1].generation
    assert (generation.max_tokens, generation.sampling.temperature) == (5, 0.25)
    await client.post(CHAT, json={"model": "org/other", "messages": HELLO, "max_tokens": 1, "truncate_prompt_tokens": 3})
    assert port.streams[-1].generation.sampling.temperature == 1.0, "no other model does"


async def test_what_a_request_says_comes_first(served: Any, codec: Any) -> None:
    client, port = served
    own = [{"role": "developer", "content": "loud"}, *HELLO]
    body = {"messages": own, "temperature": 0, "min_p": 0, "stop": [], "seed": 1, "max_completion_tokens": 2}
    assert (await client.post(CHAT, json=body)).status == 200
    generation = port.streams[-1].generation
    sampling = generation.sampling
    assert (sampling.temperature, sampling.min_p, sampling.seed, sampling.top_k) == (0.0, 0.0, 1, 3)
    assert (generation.max_tokens, generation.stop_strings) == (2, 0)
    assert generation.prompt == codec.encode("<s><system>loud\n<user>hi\n<assistant>", special=False)
    await client.post(CHAT, json={"messages": HELLO, "temperature": None})
    assert port.streams[-1].generation.sampling.temperature == 0.25, "null says nothing"


async def test_a_limit_that_does_not_fit_is_shortened_and_tokenize_sees_the_system_prompt(served: Any, codec: Any) -> None:
    client, port = served
    port.infos[0] = replace(port.infos[0], defaults=checked_defaults({**OWN, "max_tokens": 9999}, ""))
    assert (await client.post(CHAT, json={"messages": HELLO})).status == 200
    generation = port.streams[-1].generation
    assert generation.max_tokens == 64 - len(generation.prompt)
    found = await (await client.post("/tokenize", json={"messages": HELLO})).json()
    assert found["tokens"] == generation.prompt
    assert (await client.post(CHAT, json={"messages": HELLO, "max_tokens": 9999})).status == 400, (
        "a limit in the request is checked"
    )


async def test_an_addition_takes_them_too(serve: Any, folder: Path) -> None:
    client, port = await serve(settings={"app_roots": str(folder.parent)})
    body = {"name": "v", "path": str(folder), "system": "terse", "stop": ["a"], "temperature": 1}
    assert (await client.post("/admin/apps", json=body)).status == 200
    defaults = '{"stop": ["a"], "system": "terse", "temperature": 1.0}'
    assert port.added == [NewApplication("v", str(folder), defaults=defaults)]
    bad = await client.post("/admin/apps", json={**body, "temperature": 3})
    assert (bad.status, (await bad.json())["error"]["param"]) == (400, "temperature")

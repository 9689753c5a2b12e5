"""The role of KV on a whole server: a conversation returns to its owner, or its KV is copied, and no bit changes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.policies.model.lineage import page_hashes
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.requests.book.messages import RetireAt
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import Served, serve
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.waiting import until

LENGTH, NEW = 160, 24
BUSY = 110  # tokens of the answer that keeps a worker busy
FIRST, OTHER = prompt_of(70, seed=5), prompt_of(20, seed=6)


async def ask(server: Served, prompt: tuple[int, ...], **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first choice, and what the server tells of the request."""
    body = {
        "model": "m", "prompt": list(prompt), "max_tokens": NEW, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, "logprobs": 2, **fields,
    }  # fmt: skip
    async with server.session.post(f"{server.url}/v1/completions", json=body) as answer:
        content = await answer.json()
        assert answer.status == 200, content
    return content["choices"][0], await server.story(content["id"])


@claim("KV that is copied as a request begins changes no bit of its answer", of="adaptive")
@pytest.mark.parametrize("mode", ["owner", "least-busy", "recompute"])
async def test_a_conversation_goes_on_with_the_same_bits(tmp_path: Path, mode: str) -> None:
    folder = make_checkpoint(tmp_path / "m")
    async with serve({"m": folder}, workers=2, kv_dispatch=mode, max_model_len=LENGTH, chunk_size=16) as server:
        first, story = await ask(server, FIRST)
        assert story["home"] == "w0"
        history = (*FIRST, *first["token_ids"])
        alone, _ = await ask(server, history, cache_salt="alone")
        busy = asyncio.create_task(ask(server, OTHER, max_tokens=BUSY, request_id="busy"))

        async def runs() -> bool:
            return (await server.story("busy")).get("home") == "w0"

        await until(runs)
        again, told = await ask(server, history)
        await busy
        view = await server.cluster()
    assert (again["token_ids"], again["logprobs"]) == (alone["token_ids"], alone["logprobs"])
    sent = {worker["id"]: worker["counters"]["exported_pages"] for worker in view["workers"]}
    events = [(event["source"], event["target"], event["pages"]) for event in told["events"] if event["event"] == "copying"]
    assert told["home"] == ("w0" if mode == "owner" else "w1")
    pages = (len(FIRST) + NEW - 1) // 16
    assert events == ([("w0", "w1", pages)] if mode == "least-busy" else [])
    assert sent == {"w0": pages if mode == "least-busy" else 0, "w1": 0}


def test_without_a_prefix_cache_there_is_no_kv_to_go_by() -> None:
    with pytest.raises(SettingsError, match="kv_dispatch is owner, but prefix_cache is off, so no KV is kept; set"):
        Settings(kv_dispatch="owner", prefix_cache=False)
    with pytest.raises(SettingsError, match="kv_dispatch is 'nearest'; choose one of off, owner, recompute, least-busy"):
        Settings(kv_dispatch="nearest")
    for name, value, shown in (("proactive_copies", True, "on"), ("cold_kv", "least-waste", "least-waste")):
        with pytest.raises(SettingsError, match=f"{name} is {shown}, but kv_dispatch is off, so nothing is copied; set"):
            Settings(**{name: value})


@claim("A live server copies the KV of a conversation ahead of its return, and no bit changes", of="adaptive")
async def test_kv_is_copied_ahead_of_a_conversation_that_is_away(tmp_path: Path) -> None:
    folder, profile = make_checkpoint(tmp_path / "m"), tmp_path / "profile.json"
    links = {"shared-memory": {"latency": 1e-4, "bandwidth": 1e9}}
    profile.write_text(json.dumps({"coefficients": asdict(Coefficients(base=1e-3, token=1e-4)), "links": links}))
    options: dict[str, Any] = {"profile": str(profile), "max_model_len": LENGTH, "chunk_size": 16}
    async with serve({"m": folder}, workers=2, kv_dispatch="owner", proactive_copies=True, **options) as server:
        first, story = await ask(server, FIRST)
        assert story["home"] == "w0"
        history = (*FIRST, *first["token_ids"])
        alone, _ = await ask(server, history, cache_salt="alone")
        port: Any = server.running.port

        async def counter(worker: str, name: str) -> int:
            found = [one for one in (await server.cluster())["workers"] if one["id"] == worker]
            return int(found[0]["counters"][name])

        async def copied() -> bool:
            await ask(server, OTHER, max_tokens=BUSY)  # its owner is busy
            return await counter("w1", "imported_pages") > 0

        await until(copied)
        (route,) = [one for one in port.book.parts.table.routes["m"] if one.home == "w0"]
        hashes = tuple(page_hashes(list(history), 16, b""))[: len(history) // 16]

        async def retired() -> bool:
            port._perform([RetireAt("w0", route.id, hashes)])  # pages that are still on their way are left out
            return await counter("w0", "redundant_pages") > 0

        await until(retired)
        again, told = await ask(server, history)
    assert (again["token_ids"], again["logprobs"]) == (alone["token_ids"], alone["logprobs"])
    assert next(event["cached"] for event in told["events"] if event["event"] == "prefill") >= len(FIRST) // 16 * 16

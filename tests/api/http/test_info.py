"""Version, load, and what is not served."""

import asyncio
from typing import Any

import pytest

from blockwright.api.version import VERSION
from blockwright.tests.api.fake_port import tokens_emitted


async def test_version_tells_whether_bits_depend_on_the_batch(serve: Any) -> None:
    client, port = await serve()
    unknown = {"version": VERSION, "devices": [], "numerics": [], "batch_invariant": None, "batch_variant_because": None}
    assert await (await client.get("/version")).json() == unknown
    for numerics in ("native-avx2-float32", "native-avx512_bf16-bfloat16", "torch-avx2-1f3a9c0b-float32"):
        port.body = {"workers": [{"numerics": numerics, "device": "cpu"}, {"numerics": numerics, "device": "cpu"}, {}]}
        body = await (await client.get("/version")).json()
        assert body == unknown | {"devices": ["cpu"], "numerics": [numerics], "batch_invariant": True}
    on_card = {"numerics": "cuda-sm90-triton-3.7.1-0a1b-bfloat16", "device": "cuda:1"}
    port.body = {"workers": [on_card, on_card | {"device": "cuda:0"}]}
    body = await (await client.get("/version")).json()
    assert (body["devices"], body["batch_invariant"]) == (["cuda:0", "cuda:1"], False)
    assert body["batch_variant_because"].endswith("has not proved yet that its bits are free of the batch on this card")


async def test_version_says_what_a_card_has_proved(serve: Any) -> None:
    client, port = await serve()
    numerics = "cuda-sm90-triton-3.7.1-0a1b-bfloat16"

    async def said(*workers: dict[str, Any]) -> tuple[bool, str]:
        port.body = {"workers": [{"device": "cuda:0", "numerics": numerics, **worker} for worker in workers]}
        body = await (await client.get("/version")).json()
        return body["batch_invariant"], body["batch_variant_because"]

    proved = {"proof": {"invariant": True, "why": ""}}
    assert await said(proved, proved) == (True, None)
    assert await said(proved, {"numerics": "native-avx2-float32"}) == (True, None)
    for why in ("bits of mlp of width 64 differ beside other rows", "not all shapes were compared within 60 seconds"):
        free, because = await said(proved, {"proof": {"invariant": False, "why": why}})
        assert (free, because) == (
            False,
            f"a worker computes with {numerics}, and its proof on this card did not hold: {why}",
        )
    free, because = await said(proved, {"proof": {"invariant": None, "why": ""}})
    assert not free
    assert "has not proved yet" in because
    free, because = await said({"numerics": "cuda-sm90-fast-torch-2.11-triton-3.7.1-0a1b-bfloat16"})
    assert not free
    assert because.endswith("depends on the batch, because bits is fast")


async def test_version_without_a_head(serve: Any) -> None:
    client, port = await serve()

    async def fails() -> Any:
        raise RuntimeError("no head")

    port.cluster = fails
    assert (await (await client.get("/version")).json())["version"] == VERSION


async def test_load_counts_what_is_being_answered(serve: Any) -> None:
    gate = asyncio.Event()
    client, port = await serve(lambda g: [gate, tokens_emitted([9], finish="length")])
    assert await (await client.get("/load")).json() == {"server_load": 0}
    asked = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a"}))
    await port.waiting.get()
    assert await (await client.get("/load")).json() == {"server_load": 1}
    gate.set()
    await asked
    assert await (await client.get("/load")).json() == {"server_load": 0}


@pytest.mark.parametrize(
    "path",
    [
        "/sleep", "/wake_up", "/is_sleeping",
        "/pause", "/resume", "/abort_requests", "/collective_rpc", "/reset_prefix_cache", "/pooling",
        "/invocations",
    ],
)  # fmt: skip
async def test_what_is_not_served_answers_404(serve: Any, path: str) -> None:
    client, _ = await serve()
    for method in ("GET", "POST"):
        answer = await client.request(method, path, json={})
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (404, "not_found")
        assert f"{method} {path} is not served" in error["message"]

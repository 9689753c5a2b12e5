"""Fields of requests over a whole server with real tensors, against transformers and against runs without disturbance."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from blockwright.tests.claims import claim
from blockwright.tests.equality.served import Served, serve
from blockwright.tests.gpu.reference import greedy, logits, prompt_of

Checkpoints = Callable[..., Path]
PROMPT = list(prompt_of(45))
TOLERANCE = 1e-4


def scores_of(path: Path, prompt: list[int]) -> torch.Tensor:
    return logits(path, prompt).log_softmax(-1)


@pytest.mark.parametrize(("backend", "pipeline"), [("native", 1), ("torch", 1), ("native", 2)])
async def test_echo_and_prompt_logprobs_equal_transformers(checkpoint: Checkpoints, backend: str, pipeline: int) -> None:
    path = checkpoint("llama")
    async with serve({"m": path}, backend=backend, workers=pipeline, pipeline=pipeline, chunk_size=16) as server:
        await server.complete(PROMPT, 1)  # whatever this leaves in the cache must not be used
        before = await server.counters("cached_tokens")
        choice = await server.complete(PROMPT, 4, echo=True, logprobs=2, prompt_logprobs=1)
        only = await server.complete(PROMPT, 0, echo=True, logprobs=0)
        assert await server.counters("cached_tokens") == before
    tokens = [*PROMPT, *greedy(path, tuple(PROMPT), 4)]
    want = scores_of(path, tokens)
    columns = choice["logprobs"]
    assert columns["token_logprobs"][0] is None
    assert columns["top_logprobs"][0] is None
    for position, token in enumerate(tokens[1:]):
        assert columns["token_logprobs"][position + 1] == pytest.approx(float(want[position, token]), abs=TOLERANCE)
    assert all(1 <= len(top) <= 3 for top in columns["top_logprobs"][1:])  # tokens without text share a key
    assert choice["token_ids"] == tokens[len(PROMPT) :]
    assert only["logprobs"]["token_logprobs"] == columns["token_logprobs"][: len(PROMPT)]
    assert (only["token_ids"], only["finish_reason"]) == ([], "length")
    assert choice["text"].startswith(only["text"])
    assert choice["prompt_logprobs"][0] is None
    for position, entry in enumerate(choice["prompt_logprobs"][1:]):
        token = PROMPT[position + 1]
        own = entry[str(token)]
        assert own["logprob"] == pytest.approx(float(want[position, token]), abs=TOLERANCE)
        assert 1 in {one["rank"] for one in entry.values()}


async def test_a_streamed_echo_joins_to_the_whole(checkpoint: Checkpoints) -> None:
    async with serve({"m": checkpoint("llama")}) as server:
        body = {"prompt": PROMPT, "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 1, "n": 2}
        async with server.session.post(f"{server.url}/v1/completions", json=body) as answer:
            whole = (await answer.json())["choices"]
        async with server.session.post(f"{server.url}/v1/completions", json={**body, "stream": True}) as answer:
            text = await answer.text()
    chunks = [json.loads(line[6:])["choices"][0] for line in text.split("\n\n") if line.startswith("data: {")]
    for choice in whole:
        own = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        assert "".join(chunk["text"] for chunk in own) == choice["text"]
        assert [x for chunk in own for x in chunk["logprobs"]["token_logprobs"]] == choice["logprobs"]["token_logprobs"]
        assert [x for chunk in own for x in chunk["logprobs"]["text_offset"]] == choice["logprobs"]["text_offset"]


async def test_salts_separate_the_prefix_cache(checkpoint: Checkpoints) -> None:
    async with serve({"m": checkpoint("llama")}) as server:

        async def cached(**fields: Any) -> float:
            before = await server.counters("cached_tokens")
            await server.complete(PROMPT, 1, **fields)
            return await server.counters("cached_tokens") - before

        assert [await cached(), await cached()] == [0, 32]
        assert [await cached(cache_salt="a"), await cached(cache_salt="b")] == [0, 0]
        assert [await cached(cache_salt="a"), await cached(cache_salt="b"), await cached()] == [32, 32, 32]
        assert await cached(prompt_logprobs=0) == 0


@claim("Priorities and service tiers order the requests that wait", of="serving")
async def test_priority_and_tier_order_what_waits(checkpoint: Checkpoints) -> None:
    """One row: while the first runs the others queue, whatever order they came in."""
    order: list[str] = []
    async with serve({"m": checkpoint("llama")}, max_rows=1, sweep_tokens=64, tier_preemption=False) as server:

        async def ask(name: str, new: int, **fields: Any) -> None:
            await server.complete(PROMPT, new, request_id=name, **fields)
            order.append(name)

        first = asyncio.create_task(ask("first", 400))
        await server.until_seen("first")
        wishes: dict[str, dict[str, Any]] = {
            "flex": {"service_tier": "flex", "priority": -9}, "late": {"priority": 5}, "plain": {},
            "early": {"priority": -5}, "fast": {"service_tier": "fast", "priority": 9},
        }  # fmt: skip
        others = []
        for name, fields in wishes.items():
            others.append(asyncio.create_task(ask(name, 2, **fields)))
            await server.until_seen(name)
        await asyncio.gather(first, *others)
    assert order == ["first", "fast", "early", "plain", "late", "flex"]


@claim("A waiting stream reports its place in the queue and its prefill progress in comments", of="http-api")
async def test_a_stream_that_waits_tells_its_place(checkpoint: Checkpoints) -> None:
    async with serve({"m": checkpoint("llama")}, max_rows=1, sweep_tokens=64, keep_alive=0.01) as server:
        first = asyncio.create_task(server.complete(PROMPT, 400, request_id="first"))
        await server.until_seen("first")
        body = {"prompt": PROMPT, "max_tokens": 2, "stream": True}
        async with server.session.post(f"{server.url}/v1/completions", json=body) as answer:
            text = await answer.text()
        assert (await first)["finish_reason"] == "length"
    before = text[: text.index("data: ")].split("\n\n")[:-1]
    assert ": queued 1/1" in before
    while before[-1] == ": keep-alive":  # its first token is there, and no text of it yet
        before.pop()
    assert all(re.fullmatch(r": (queued 1/1|prefill \d+%)", comment) for comment in before), before
    assert text.endswith("data: [DONE]\n\n")


SETS: list[dict[str, Any]] = [
    {"logit_bias": {"9": 5, "11": -100}, "min_p": 0.02, "temperature": 0.9, "seed": 3},
    {"allowed_token_ids": list(range(20, 90)), "temperature": 1.2, "seed": 4, "frequency_penalty": 0.5},
    {"min_tokens": 30, "stop_token_ids": list(range(3, 300)), "temperature": 1.0, "seed": 5},
    {"bad_words": ["a", "the"], "presence_penalty": 0.4, "repetition_penalty": 1.2, "temperature": 0.8, "seed": 6},
    {"prompt_logprobs": 2, "logprobs": 1, "temperature": 0.7, "seed": 7, "top_k": 40, "top_p": 0.9},
]


@claim("Seeded sampling, penalties and all other sampling fields survive the death of a worker", of="faults")
@pytest.mark.parametrize(("backend", "workers", "pipeline"), [("native", 1, 1), ("native", 2, 2), ("torch", 1, 1)])
async def test_every_sampling_field_survives_a_kill(
    checkpoint: Checkpoints, backend: str, workers: int, pipeline: int
) -> None:
    """Same seed, same answer, log-probabilities included, when a worker dies in the middle of it."""

    async def answers(server: Served) -> list[dict[str, Any]]:
        return await asyncio.gather(*[server.complete(PROMPT, 60, ignore_eos=True, **fields) for fields in SETS])

    fields: dict[str, Any] = {"backend": backend, "workers": workers, "pipeline": pipeline, "chunk_size": 16}
    async with serve({"m": checkpoint("llama")}, heartbeat=0.02, silence=1.0, **fields) as server:
        calm = await answers(server)
        asked = asyncio.create_task(answers(server))
        await server.running.port.until(
            lambda: any(4 < record.progress.emitted < 40 for record in server.running.port.book.parts.active.values())
        )
        server.running.launcher.kill(server.running.cluster.members()[f"w{workers - 1}"].id)
        disturbed = await asked
        attempts = [view.attempt for view in server.running.port.book.parts.past.values()]
    assert max(attempts) > 1, "nothing was running when the worker died"
    assert (
        disturbed == calm if backend == "native" else [d["token_ids"] for d in disturbed] == [c["token_ids"] for c in calm]
    )
    assert calm[1]["token_ids"]
    assert set(calm[1]["token_ids"]) <= set(range(20, 90))
    assert len(calm[2]["token_ids"]) > 30
    assert isinstance(calm[2]["stop_reason"], int)

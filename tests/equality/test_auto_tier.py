"""Answers of ``NAME:auto``, which are those of the tier that they name: every field of requests, streams, batches, kills."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.settings.settings import Settings
from blockwright.api.app.application import make_app
from blockwright.api.batches.lines import LineAnswer, parse_line
from blockwright.api.batches.local_job import LocalJob
from blockwright.api.http.auth import ApiCaller
from blockwright.api.http.context import FRONT
from blockwright.tests.checkpoints import make_family
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import Served, serve, tight
from blockwright.tests.equality.test_request_fields import SETS
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.waiting import PATIENCE

Checkpoints = Callable[..., Path]
NEW = 36
TOP = "m"
LOW = "m:1"
SOME = 0.13  # between the confidences of random tiers in these prompts
PROMPTS = [list(prompt_of(length, seed=length)) for length in (5, 21, 40)]
FIELDS: list[dict[str, Any]] = [
    {},
    {"logprobs": 5},
    {"temperature": 0.8, "seed": 11, "logprobs": 0},
    {"temperature": 1.3, "seed": 12, "top_p": 0.9, "top_k": 50, "min_p": 0.01},
    {"n": 3, "temperature": 1.0, "seed": 13, "logprobs": 1},
    {"echo": True, "logprobs": 2, "prompt_logprobs": 1},
    {"echo": True, "max_tokens": 0},
    {"max_tokens": 3},
    {"repetition_penalty": 1.3, "presence_penalty": 0.6, "frequency_penalty": 0.7},
    {"ignore_eos": False, "temperature": 1.5, "seed": 15},
    {"min_tokens": 4, "stop_token_ids": list(range(3, 300)), "temperature": 0.9, "seed": 14},
    {"draft": "prompt", "draft_tokens": 4},
    {"prediction": {"type": "content", "content": "so it is"}},
    *SETS,
]


async def post(server: Served, path: str = "/v1/completions", **fields: Any) -> tuple[dict[str, Any], str]:
    """The answer and its header with the tier."""
    body = {"max_tokens": NEW, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **fields}
    async with server.session.post(f"{server.url}{path}", json=body) as answer:
        content = await answer.json()
        assert answer.status == 200, content
        return content, answer.headers.get("x-tier", "")


async def streamed(server: Served, **fields: Any) -> tuple[list[dict[str, Any]], str]:
    """The chunks of a streamed answer, and its header with the tier."""
    body = {"max_tokens": NEW, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "stream": True, **fields}
    async with server.session.post(f"{server.url}/v1/completions", json=body) as answer:
        lines = (await answer.text()).split("\n\n")
        assert answer.status == 200, lines
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]], answer.headers.get("x-tier", "")


def comparable(content: dict[str, Any]) -> Any:
    """Return the parts of an answer that two equal answers share."""
    usage = {name: content["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return content["choices"], usage


async def compared(server: Served, jobs: list[dict[str, Any]]) -> list[str]:
    """The tiers of answers of m:auto that are asked for together, each found equal to its tier's."""
    named = {}
    for model in (TOP, LOW):
        named[model] = await asyncio.gather(*(post(server, **job, model=model) for job in jobs))
    tiers = []
    for i, (content, tier) in enumerate(await asyncio.gather(*(post(server, **job, model="m:auto") for job in jobs))):
        assert content["model"] == content["usage"]["tier"] == tier
        assert comparable(content) == comparable(named[tier][i][0]), jobs[i]
        tiers.append(tier)
    return tiers


@pytest.fixture
def family(checkpoint: Checkpoints, tmp_path: Path) -> Path:
    return make_family(checkpoint("llama", num_hidden_layers=4), tmp_path / "m", {1: "low", 3: "shared"})


@claim("An answer of NAME:auto is, token for token, the one of the tier that it names", of="families", headline=True)
async def test_auto_answers_as_the_tier_that_it_names(family: Path) -> None:
    jobs = [{"prompt": prompt, **fields} for prompt in PROMPTS for fields in FIELDS]
    async with serve({"m": family}, theta={"m": SOME}, memory=48 << 20) as server:
        tiers = await compared(server, jobs)
        assert {*tiers} == {TOP, LOW}, "both happen"
        several = {"prompt": PROMPTS, "n": 2, "temperature": 1.0, "seed": 3}
        await compared(server, [several, several | {"prompt": PROMPTS[:2], "stop": [" "]}])
        for job in jobs[:5]:
            (whole, tier), (chunks, named) = (
                await post(server, **job, model="m:auto"),
                await streamed(server, **job, model="m:auto"),
            )
            assert named == tier
            for index, choice in enumerate(whole["choices"]):
                own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
                assert "".join(one["text"] for one in own) == choice["text"]
                assert [token for one in own for token in one["token_ids"]] == choice["token_ids"]
            assert {chunk["model"] for chunk in chunks} == {tier}


async def test_quality_names_a_tier(family: Path, checkpoint: Checkpoints) -> None:
    async with serve({"m": family, "plain": checkpoint("llama")}, theta={"*": 2.0}) as server:
        for model, quality, tier in (
            ("m", "low", LOW), ("m", "high", TOP), ("m", "auto", TOP), (LOW, "low", LOW), ("m:auto", "low", LOW),
            ("m:auto", "high", TOP), ("m:auto", "auto", TOP),
        ):  # fmt: skip
            content, header = await post(server, model=model, quality=quality, prompt=PROMPTS[0])
            assert (header, content["usage"]["tier"], content["model"]) == (tier, tier, tier)
        for model, quality, says in (
            (LOW, "high", "quality is 'high', but the model is the tier m:1; name m, or leave quality out"),
            ("m:3", "low", "quality is 'low', but the model is the tier m:3"),
            (LOW, "auto", "quality is 'auto', but the model is the tier m:1"),
            ("plain", "low", "quality is 'low', but plain has no tiers; leave quality out"),
            ("m", "best", "quality is 'best'; give one of low, high, auto"),
        ):
            body = {"model": model, "quality": quality, "prompt": "a"}
            async with server.session.post(f"{server.url}/v1/completions", json=body) as answer:
                error = (await answer.json())["error"]
            assert (answer.status, error["param"]) == (400, "quality")
            assert says in error["message"]
        content, header = await post(server, model="plain", prompt=PROMPTS[0])
        assert (header, "tier" in content["usage"]) == ("", False), "only models of families have tiers"
        messages = [{"role": "user", "content": "hello"}]
        content, header = await post(server, "/v1/chat/completions", model="m:auto", messages=messages)
        assert (header, content["usage"]["tier"]) == (TOP, TOP)
        async with server.session.get(f"{server.url}/v1/requests/{content['id']}") as answer:
            view = (await answer.json())["tier"]
        assert (view["tier"], view["start"], view["escalated"], view["theta"]) == (TOP, LOW, True, 2.0)
        async with server.session.get(f"{server.url}/metrics") as answer:
            assert 'blockwright:tier_choices_total{family="m",tier="m"} 3.0' in await answer.text()


@claim("The tier of an answer of NAME:auto survives the deaths of workers, before it is chosen and after", of="families")
@pytest.mark.parametrize(("workers", "pipeline"), [(1, 1), (2, 2)])
async def test_auto_survives_kills(family: Path, workers: int, pipeline: int) -> None:
    jobs = [{"prompt": prompt, "temperature": 0.9, "seed": 5, "logprobs": 2, "max_tokens": 60} for prompt in PROMPTS]
    jobs.append({"prompt": PROMPTS[0], "n": 2, "temperature": 0.8, "seed": 3, "max_tokens": 60})
    settings: dict[str, Any] = {"workers": workers, "pipeline": pipeline, "chunk_size": 16, "memory": 48 << 20}
    async with serve({"m": family}, theta={"m": SOME}, heartbeat=0.02, silence=1.0, **settings) as server:
        active = server.running.port.book.parts.active
        calm = [await post(server, **job, model="m:auto") for job in jobs]
        asked = [asyncio.create_task(post(server, **job, model="m:auto")) for job in jobs]
        for when in (
            lambda r: r.held is not None and r.progress.emitted > 2,
            lambda r: r.held is None and 4 < r.progress.emitted < 50,
        ):
            await server.running.port.until(lambda when=when: any(when(record) for record in active.values()))
            server.running.launcher.kill(server.running.cluster.members()[f"w{workers - 1}"].id)
            await server.running.port.until(
                lambda: all(not record.placement.workers or record.placement.attempt > 1 for record in active.values())
            )
        disturbed = await asyncio.gather(*asked)
        views = [view for view in server.running.port.book.parts.past.values() if view.attempt > 1]
        assert sum(event["event"] == "worker_died" for view in views for event in view.events) > len(jobs)
        assert [(comparable(one), tier) for one, tier in disturbed] == [(comparable(one), tier) for one, tier in calm]
        assert {tier for _, tier in calm} == {TOP, LOW}, "both happen"


async def test_auto_goes_up_although_the_memory_is_full(family: Path) -> None:
    jobs = [{"prompt": prompt_of_job, "temperature": 0.9, "seed": 5, "max_tokens": 60} for prompt_of_job in PROMPTS * 2]
    memory = tight(family, 16, 100)
    async with serve({"m": family}, theta={"m": SOME}, memory=memory) as server:
        assert {*await compared(server, jobs)} == {TOP, LOW}
        assert await server.counters("preemptions") > 0


async def test_lines_of_batches_choose_their_tier(family: Path) -> None:
    bodies = [
        {"prompt": prompt, "max_tokens": NEW, "temperature": 0.9, "seed": 5, "ignore_eos": True, "n": n}
        for prompt in PROMPTS
        for n in (1, 3)
    ]
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": {**body, "model": "m:auto"}}
        for i, body in enumerate(bodies)
    ]
    found: dict[int, LineAnswer] = {}
    async with serve({"m": family}, theta={"m": SOME}, memory=48 << 20) as server:
        app = make_app(server.running.port, Settings(applications={"m": str(family)}, theta={"m": SOME}))
        parsed = [parse_line(json.dumps(line).encode()) for line in lines]
        job = LocalJob(app[FRONT], ApiCaller(), parsed.__getitem__, found.__setitem__)
        await job.check(range(len(lines)), {}, lambda count: None)
        async with asyncio.timeout(PATIENCE):
            await job.run({})
        tiers = set()
        for i, line in found.items():
            content = json.loads(line.body)
            tiers.add(tier := content["usage"]["tier"])
            named, _ = await post(server, **bodies[i], model=tier, return_token_ids=None)
            assert comparable(content) == comparable(named)
        assert len(found) == len(lines)
        assert tiers == {TOP, LOW}, "both happen"

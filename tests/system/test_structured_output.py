"""Structured output on a real server: the same text alone, in a batch and after a death, and always in its language."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from blockwright.tests.claims import claim
from blockwright.tests.system.client import Answer, Client, body
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 20, "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["red", "blue", None]}, "minItems": 2, "maxItems": 6},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
STREAMS = 8
NEW = 200


def constrained(index: int) -> dict[str, Any]:
    """Request ``index``: by turns greedy, sampled, and with drafts; each with a schema of its own."""
    schema = SCHEMA | {"title": "x", "required": [*SCHEMA["required"]]}
    schema["properties"] = {**SCHEMA["properties"], "age": {"type": "integer", "minimum": index, "maximum": 100 + index}}
    return body(index, NEW, structured_outputs={"json": schema}, draft="prompt" if index % 4 == 2 else "off")


def begun(answers: list[Answer]) -> bool:
    return all(len(answer.tokens) >= 5 for answer in answers)


@claim("A constrained request survives kill -9 of its worker, token for token", of="structured-output")
async def test_kill_9_in_the_middle_of_constrained_answers(replicas: Server) -> None:
    async with Client(replicas) as client:
        await client.ready()
        calm: list[dict[str, Any]] = []
        for index in range(STREAMS):
            status, answer = await client.post(constrained(index))
            assert status == 200, answer
            calm.append(answer["choices"][0])
        ended = [choice for choice in calm if choice["finish_reason"] == "stop"]
        assert ended
        for choice in ended:
            jsonschema.validate(json.loads(choice["text"]), SCHEMA | {"properties": {**SCHEMA["properties"], "age": {}}})
        with slow(replicas):
            answers = [client.begin(constrained(index)) for index in range(STREAMS)]
            await until(lambda: begun(answers))
            await client.kill("w0")
        await client.finished()
        assert [answer.error for answer in answers] == [None] * STREAMS
        assert [answer.tokens for answer in answers] == [choice["token_ids"] for choice in calm]
        assert [answer.finish for answer in answers] == [choice["finish_reason"] for choice in calm]
        await client.ready()


@claim("A constrained answer over a pipeline is the one of a single worker", of="structured-output")
async def test_over_a_pipeline(replicas: Server, pipeline: Server) -> None:
    found = []
    for server in (replicas, pipeline):
        async with Client(server) as client:
            await client.ready()
            answers = [client.begin(constrained(index)) for index in range(4)]
            await client.finished()
            assert [answer.error for answer in answers] == [None] * 4
            found.append([answer.tokens for answer in answers])
    assert found[0] == found[1]


FORCED = {
    "type": "object",
    "properties": {
        "temperature_of_the_day": {"enum": ["exceptionally warm", "exceptionally cold", "unknown"]},
        "number_of_the_station": {"type": "integer", "minimum": 0, "maximum": 999},
        "remarks_of_the_observer": {"type": "array", "items": {"enum": ["no remarks today", "see below"]}, "maxItems": 4},
    },
    "required": ["temperature_of_the_day", "number_of_the_station", "remarks_of_the_observer"],
    "additionalProperties": False,
}


def mostly_forced(index: int) -> dict[str, Any]:
    """Request ``index``: by turns greedy, sampled, and with drafts; one in four ends inside a forced run."""
    new = 23 + index if index % 4 == 3 else NEW
    return body(index, new, structured_outputs={"json": FORCED}, draft="prompt" if index % 4 == 2 else "off", logprobs=1)


async def answers_of(server: Server, count: int) -> list[Answer]:
    async with Client(server) as client:
        await client.ready()
        answers = [client.begin(mostly_forced(index)) for index in range(count)]
        await client.finished()
        return answers


async def forced_tokens(client: Client) -> int:
    _, cluster = await client.get("/admin/cluster")
    return sum(int(worker["counters"]["forced_tokens"]) for worker in cluster["workers"])


@claim("With forced=on the same tokens come, also after kill -9 and over a pipeline", of="structured-output")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pipeline": 2},
        pytest.param({"dtype": "bfloat16"}, marks=pytest.mark.nightly),
        pytest.param({"backend": "torch"}, marks=pytest.mark.nightly),
        pytest.param({"device": "cuda-mirror", "workers": 1}, marks=pytest.mark.nightly),
    ],
    ids=["replicas", "pipeline", "bfloat16", "torch", "cuda-mirror"],
)
async def test_forced_tokens_are_the_same(replicas: Server, serve: Callable[..., Server], settings: dict[str, Any]) -> None:
    like = replicas
    if not settings.keys() <= {"pipeline"}:
        like = serve(**settings).whole()
    calm = await answers_of(like, STREAMS)
    server = serve(forced="on", **settings).whole()
    async with Client(server) as client:
        await client.ready()
        with slow(server):
            answers = [client.begin(mostly_forced(index)) for index in range(STREAMS)]
            await until(lambda: begun(answers))
            if settings.get("workers") != 1:
                await client.kill("w0")
        await client.finished()
        assert [answer.error for answer in answers] == [None] * STREAMS
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in calm]
        assert [answer.finish for answer in answers] == [answer.finish for answer in calm]
        if not settings:
            assert [answer.logprobs for answer in answers] == [answer.logprobs for answer in calm]
        assert await forced_tokens(client) > 0
        await client.ready()


async def test_chats_and_hostile_schemas(replicas: Server) -> None:
    """A stream beside them goes on; each is refused with one sentence."""
    hostile: list[tuple[dict[str, Any], str]] = [
        ({"structured_outputs": {"json": {"$ref": "http://127.0.0.1:1/schema"}}}, "nothing is fetched"),
        ({"structured_outputs": {"json": {"$ref": "#"}}}, "no text at all"),
        ({"structured_outputs": {"json": {"description": "x" * 1_000_000}}}, "give at most"),
        ({"structured_outputs": {"regex": "(a+)+(?!b)"}}, "look-ahead"),
        ({"structured_outputs": {"grammar": "start: missing"}}, "missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"oneOf": [{}, {}]}}}}, "oneOf"),
        ({"structured_outputs": {"json": {}}, "guided_regex": "a"}, "both constrain"),
        ({"structured_outputs": {"json": {}}, "allowed_token_ids": [5]}, "may leave no token"),
    ]
    async with Client(replicas) as client:
        await client.ready()
        beside = client.begin(body(3, 60))
        for fields, said in hostile:
            status, answer = await client.post(body(0, 8, **fields))
            assert (status, said in answer["error"]["message"]) == (400, True), answer
        await client.finished()
        assert len(beside.tokens) == 60
        status, answer = await client.post(body(1, 40, structured_outputs={"json": {"type": "string", "maxLength": 10**9}}))
        assert status == 200
        chat = {"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_object"}, "seed": 1}
        status, answer = await client.chat({**chat, "max_tokens": 60})
        assert status == 200
        assert answer["choices"][0]["message"]["content"].startswith("{")

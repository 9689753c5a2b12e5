"""Requests with an Idempotency-Key run once, whatever happens to their clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blockwright.api.http import idempotency
from blockwright.api.http.idempotency import GivenAnswer, RunsOnce
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests.claims import claim
from blockwright.tests.waiting import until

URL = "/v1/completions"
KEY = {"Idempotency-Key": "k1"}
BODY = {"prompt": "say", "max_tokens": 20}


async def post(client: Any, body: dict[str, Any] = BODY, **headers: str) -> tuple[int, Any]:
    async with client.post(URL, json=body, headers={**KEY, **headers}) as answer:
        return answer.status, await answer.json()


@claim("Retries with one Idempotency-Key run once at a gateway", of="http-api")
async def test_a_retry_claims_what_runs_and_what_was_just_answered(serve: Any, say: Any) -> None:
    go_on = asyncio.Event()
    client, port = await serve(lambda generation: [*say("abc")(generation)[:1], go_on, *say("abc")(generation)[1:]])
    first = asyncio.ensure_future(post(client))
    await port.waiting.get()
    second = asyncio.ensure_future(post(client, {**BODY, "user": "me"}))
    await asyncio.sleep(0)
    go_on.set()
    (status, answer), again = await first, await second
    assert (status, answer["choices"][0]["text"]) == (200, "abc")
    assert again == await post(client) == (200, answer)
    assert len(port.streams) == 1


async def test_a_run_outlives_its_client_and_is_given_up_if_none_comes(serve: Any, say: Any) -> None:
    go_on = asyncio.Event()
    script = lambda generation: [*say("abc")(generation)[:1], go_on, *say("abc")(generation)[1:]]  # noqa: E731
    client, port = await serve(script)
    gone = asyncio.ensure_future(post(client))
    stream = await port.waiting.get()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    again = asyncio.ensure_future(post(client))
    await asyncio.sleep(0.05)
    assert not stream.cancelled.is_set()
    go_on.set()
    assert (await again)[1]["choices"][0]["text"] == "abc"
    assert len(port.streams) == 1
    go_on.clear()
    client, port = await serve(script, settings={"resume_window": 0})
    gone = asyncio.ensure_future(post(client))
    stream = await port.waiting.get()
    gone.cancel()
    await until(stream.cancelled.is_set, "it is given up")


async def test_another_body_another_client_and_a_stream(serve: Any, say: Any) -> None:
    client, port = await serve(say("abc"), settings={"api_keys": {"of-ann": "a", "of-bob": "b"}})
    ann, bob = ({"Authorization": f"Bearer of-{name}"} for name in ("ann", "bob"))
    assert (await post(client, **ann))[0] == 200
    for more in ({"prompt": "other"}, {"temperature": 0.5}, {"model": "org/other", "max_tokens": 5}):
        status, answer = await post(client, {**BODY, **more}, **ann)
        assert (status, answer["error"]["code"]) == (409, "changed"), more
    assert len(port.streams) == 1
    assert (await post(client, **bob))[0] == 200
    assert len(port.streams) == 2, "the key of another client is another key"
    async with client.post(URL, json={**BODY, "stream": True}, headers={**KEY, **ann}) as answer:
        assert "[DONE]" in await answer.text()
    assert len(port.streams) == 3, "streams go on by their ids"
    for key in ("a b", ""):
        status, answer = await post(client, **{**ann, "Idempotency-Key": key})
        assert (status, "printable characters without spaces" in answer["error"]["message"]) == (400, True)


async def test_a_failure_is_not_kept_and_the_seed_follows_from_the_key(serve: Any, say: Any) -> None:
    client, port = await serve(lambda generation: [RequestRefused(Refusal.POISON, "it broke")])
    assert (await post(client))[0] == 500
    port._script = say("abc")
    assert (await post(client))[0] == 200
    assert port.streams[0].generation.sampling.seed == port.streams[1].generation.sampling.seed


async def test_only_so_many_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MOST", 2)
    monkeypatch.setattr(idempotency, "MOST_BYTES", 10)
    runs, made = RunsOnce(60.0), list[str]()

    async def ask(key: str, size: int) -> GivenAnswer:
        async def make() -> GivenAnswer:
            made.append(key)
            return GivenAnswer(b"x" * size)

        return await runs.answer(("", key), b"", make)

    for key, size in (("a", 3), ("b", 3), ("c", 3), ("c", 3), ("a", 3), ("d", 9), ("a", 3)):
        assert len((await ask(key, size)).body) == size
        await asyncio.sleep(0)
    assert made == ["a", "b", "c", "a", "d", "a"]

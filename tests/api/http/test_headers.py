"""Headers of answers: times, traces, and whether to try again."""

import asyncio
import re
from typing import Any

import pytest

from blockwright.actors.gateway.port import StreamProgress
from blockwright.api.errors import ApiError
from blockwright.tests.api.fake_port import tokens_emitted
from blockwright.tests.claims import claim

URL = "/v1/completions"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@claim("Headers report rate limits, times and retry advice", of="http-api")
@pytest.mark.parametrize("stream", [True, False])
async def test_times_of_an_answer(serve: Any, stream: bool) -> None:
    gate = asyncio.Event()
    client, port = await serve(lambda g: [gate, tokens_emitted([9], finish="length")])
    asked = asyncio.create_task(client.post(URL, json={"prompt": "a", "stream": stream}))
    waiting = await port.waiting.get()
    waiting.now = StreamProgress(prompt=40, cached=32, queue_seconds=1.25)
    gate.set()
    answer = await asked
    headers = answer.headers
    assert (headers["x-queue-ms"], headers["x-cached-tokens"]) == ("1250", "32")
    assert int(headers["openai-processing-ms"]) >= 0
    if not stream:
        assert (await answer.json())["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}


async def test_unknown_values_have_no_header(serve: Any, say: Any) -> None:
    client, _ = await serve(say("x"))
    for answer in (await client.post(URL, json={"prompt": "a"}), await client.get("/v1/models")):
        assert "x-queue-ms" not in answer.headers
        assert "traceparent" not in answer.headers
        assert "openai-processing-ms" in answer.headers


@claim("A W3C trace context goes from the client to the workers", of="observability")
async def test_a_trace_is_handed_on(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"))
    answer = await client.post(URL, json={"prompt": "a"}, headers={"traceparent": PARENT})
    ours = port.streams[0].generation.trace
    assert answer.headers["traceparent"] == ours
    assert re.fullmatch(r"00-0af7651916cd43dd8448eb211c80319c-[0-9a-f]{16}-01", ours)
    assert ours != PARENT, "what is done for it is a span of its own"
    for wrong in ("", "00-0-0-0", PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32)):
        answer = await client.post(URL, json={"prompt": "a"}, headers={"traceparent": wrong})
        assert answer.status == 200
        assert "traceparent" not in answer.headers
        assert port.streams[-1].generation.trace == ""


@claim("Headers report rate limits, times and retry advice", of="http-api")
@pytest.mark.parametrize(
    ("error", "again", "seconds", "millis"),
    [
        (ApiError(503, "full", retry_after=1.2), "true", "2", "1200"),
        (ApiError(503, "full"), "true", "1", "1000"),
        (ApiError(429, "spent", retry_after=0.25), "true", "1", "250"),
        (ApiError(429, "never"), "false", None, None),
        (ApiError(500, "fails again"), "false", None, None),
        (ApiError(409, "cancelled"), "false", None, None),
        (ApiError(400, "wrong"), "false", None, None),
    ],
)
async def test_whether_to_try_again(serve: Any, error: ApiError, again: str, seconds: Any, millis: Any) -> None:
    client, port = await serve()
    port.refuse = error
    answer = await client.post(URL, json={"prompt": "a"})
    assert answer.status == error.status
    assert answer.headers["x-should-retry"] == again
    assert (answer.headers.get("Retry-After"), answer.headers.get("retry-after-ms")) == (seconds, millis)


CORRELATED = {"x-correlation-id": "c-1", "x-session-affinity": "s-1"}


async def test_correlation_ids_are_echoed_and_logged(serve: Any, say: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="blockwright.api.http.request_log")
    client, port = await serve(say("x"), settings={"cors_origins": "*"})
    sent = {**CORRELATED, "x-request-id": "mine", "traceparent": PARENT, "Origin": "https://a.example"}
    for stream in (False, True):
        answer = await client.post(URL, json={"prompt": "a", "stream": stream}, headers=sent)
        await answer.read()
        assert {name: answer.headers[name] for name in CORRELATED} == CORRELATED
        assert {*CORRELATED, "traceparent"} < set(answer.headers["Access-Control-Expose-Headers"].split(", "))
        logged = vars(caplog.records[-1])
        assert {name: logged[name] for name in CORRELATED} == CORRELATED
        assert (logged["request"], logged["x-request-id"]) == (port.streams[-1].generation.id, "mine")
        assert logged["traceparent"] == answer.headers["traceparent"]
        assert "x-correlation-id 'c-1'" in caplog.text
    answer = await client.post(URL, data=b"[", headers=CORRELATED)
    assert (answer.status, answer.headers["x-correlation-id"]) == (400, "c-1")


async def test_correlation_ids_that_are_long_or_odd_are_neither_echoed_nor_logged(
    serve: Any, say: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="blockwright.api.http.request_log")
    client, _ = await serve(say("x"))
    for odd in ("a b", "x" * 129, "\u00e9"):
        answer = await client.post(URL, json={"prompt": "a"}, headers={"x-correlation-id": odd})
        assert (answer.status, "x-correlation-id" in answer.headers) == (200, False)
        assert "correlation" not in caplog.text
    assert "x-correlation-id" not in (await client.get("/v1/models")).headers


async def test_a_failure_is_logged_with_the_ids(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    client, _ = await serve(lambda generation: [tokens_emitted([9]), ValueError("why")])
    for stream in (False, True):
        answer = await client.post(URL, json={"prompt": "a", "stream": stream}, headers=CORRELATED)
        await answer.read()
        logged = vars(caplog.records[-1])
        assert (logged["levelname"], logged["x-correlation-id"]) == ("ERROR", "c-1")

"""Server-sent events, byte by byte, and what happens when a client goes."""

import asyncio
import json
from typing import Any

import pytest

from blockwright.actors.gateway.port import StreamProgress
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests.api.fake_port import events, one_by_one, tokens_emitted
from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE

URL = "/v1/completions"
FRESH = {  # nothing of the prompt was cached, nothing of the answer predicted
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
}
CHAT = "/v1/chat/completions"
BEATS = {"keep_alive": 0.005}
HELLO = [{"role": "user", "content": "hi"}]


async def test_headers_and_bytes(serve: Any, say: Any) -> None:
    client, _ = await serve(say("a\u2028é"))
    answer = await client.post(URL, json={"prompt": "a", "stream": True})
    body = await answer.read()
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert body.isascii()
    assert body.endswith(b"\n\ndata: [DONE]\n\n")
    assert "".join(event["choices"][0]["text"] for event in events(body)) == "a\u2028é"


async def test_a_delta_of_several_tokens_is_one_event(serve: Any, codec: Any) -> None:
    first, second = codec.encode("abc", special=False), codec.encode("de", special=False)
    client, _ = await serve(lambda g: [tokens_emitted(first), tokens_emitted(second, finish="length")])
    answer = await client.post(URL, json={"prompt": "a", "stream": True})
    assert [event["choices"][0]["text"] for event in events(await answer.read())] == ["abc", "de"]


@claim("`/v1/completions` and `/v1/chat/completions` answer whole and streamed with usage", of="http-api")
async def test_usage_comes_only_when_asked(serve: Any, say: Any) -> None:
    client, _ = await serve(say("ab"))
    plain = events(await (await client.post(URL, json={"prompt": "a", "stream": True})).read())
    assert all("usage" not in event and event["choices"] for event in plain)
    fields = {"prompt": "a", "stream": True, "stream_options": {"include_usage": True}}
    asked = events(await (await client.post(URL, json=fields)).read())
    assert [event["usage"] for event in asked[:-1]] == [None, None]
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, **FRESH}


@claim("A waiting stream reports its place in the queue and its prefill progress in comments", of="http-api")
async def test_comments_tell_the_place_and_the_prefill(serve: Any, say: Any) -> None:
    """Until the first token; then they only keep the connection alive."""
    first, second = asyncio.Event(), asyncio.Event()
    client, port = await serve(lambda g: [first, tokens_emitted([40]), second, *say("x")(g)], settings=BEATS)
    answer = await client.post(CHAT, json={"messages": HELLO, "stream": True})

    async def comment(wanted: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            while await answer.content.readline() != wanted:
                pass

    port.streams[0].now = StreamProgress(place=3, queued=12, prompt=200)
    await comment(b": queued 3/12\n")
    port.streams[0].now = StreamProgress(prompt=200, computed=82)
    await comment(b": prefill 41%\n")
    first.set()
    await comment(b": keep-alive\n")
    second.set()
    assert b"data: [DONE]" in await answer.read()


@claim("Errors before the answer have a status, and errors within a stream are events", of="http-api")
async def test_an_error_before_anything_has_a_status(serve: Any) -> None:
    client, _ = await serve(lambda g: [RequestRefused(Refusal.UNAVAILABLE, "no worker for 30 s", 1.0)])
    answer = await client.post(URL, json={"prompt": "a", "stream": True})
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


@claim("Errors before the answer have a status, and errors within a stream are events", of="http-api")
@pytest.mark.parametrize("error", [RequestRefused(Refusal.UNAVAILABLE, "no worker for 30 s"), RuntimeError("a bug")])
async def test_an_error_after_the_200_is_an_event(serve: Any, codec: Any, error: Exception) -> None:
    token = codec.encode("x", special=False)
    client, port = await serve(lambda g: [tokens_emitted(token), error])
    answer = await client.post(URL, json={"prompt": "a", "stream": True})
    lines = (await answer.read()).decode().split("\n\n")
    assert answer.status == 200
    last = json.loads(lines[-2].removeprefix("data: "))["error"]
    assert last["message"] == (
        "no worker for 30 s" if isinstance(error, RequestRefused) else "internal error; the server's log has the details"
    )
    assert last["type"] == "server_error"
    assert not any("[DONE]" in line for line in lines)
    assert port.streams[0].cancelled.is_set()


async def gone(client: Any, port: Any, url: str, body: dict[str, Any], count: int) -> None:
    """Connect, wait until all sequences wait, leave, and see them cancelled."""
    raw = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(client.server.host, client.server.port)
    writer.write(f"POST {url} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
    async with asyncio.timeout(PATIENCE):
        for _ in range(count):
            await port.waiting.get()
        if port.streams[0].generation.sampling.seed == 1:  # a stream that has begun
            assert b"200 OK" in await reader.readline()
        writer.close()
        await asyncio.gather(*(stream.cancelled.wait() for stream in port.streams))


@claim("A client that leaves cancels its request", of="http-api")
@pytest.mark.parametrize("url", [URL, CHAT])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_client_that_goes_before_the_first_token(serve: Any, url: str, stream: bool, n: int) -> None:
    client, port = await serve(lambda g: [asyncio.Event()])
    asked: dict[str, Any] = {"prompt": "a"} if url == URL else {"messages": HELLO}
    await gone(client, port, url, {**asked, "stream": stream, "n": n, "seed": 0}, n)


@claim("A client that leaves cancels its request", of="http-api")
async def test_a_client_that_goes_in_the_middle(serve: Any, codec: Any) -> None:
    client, port = await serve(lambda g: [*one_by_one(codec.encode("abc", special=False), ""), asyncio.Event()])
    await gone(client, port, URL, {"prompt": "a", "stream": True, "seed": 1}, 1)


async def test_a_client_that_does_not_read_gets_no_comments(serve: Any, codec: Any) -> None:
    text = codec.encode("x" * 20000, special=False)
    client, port = await serve(lambda g: [tokens_emitted(text)] * 400 + [asyncio.Event()], settings={"keep_alive": 0.001})
    raw = json.dumps({"prompt": "a", "stream": True}).encode()
    reader, writer = await asyncio.open_connection(client.server.host, client.server.port, limit=1 << 10)
    writer.write(f"POST {URL} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
    assert b"200 OK" in await reader.readline()
    for _ in range(20):  # others are served meanwhile
        assert (await client.get("/health/live")).status == 200
    assert port.waiting.empty()  # the script was held back
    writer.transport.abort()
    async with asyncio.timeout(PATIENCE):
        await port.streams[0].cancelled.wait()

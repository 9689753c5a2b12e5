"""The client: answers whole and streamed, and every way in which a server can fail it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

import blockwright
from blockwright.api.program.blocking import BlockingSession
from blockwright.api.program.client import Client, events
from blockwright.api.program.exchange_errors import system_reason
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests.api.fake_port import EOS, one_by_one
from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE

TLS = Path(__file__).parents[1] / "tls"
Serving = Callable[..., Awaitable[Client]]


@pytest.fixture
async def raw() -> AsyncIterator[Serving]:
    """``client = await raw(handler)``: a server that answers every POST with ``handler``."""
    opened: list[Any] = []

    async def make(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Client:
        app = web.Application()
        app.router.add_post("/{path:.*}", handler)
        server = TestServer(app)
        await server.start_server()
        client = await Client(str(server.make_url("/"))).__aenter__()
        opened.extend([client.close, server.close])
        return client

    yield make
    for close in opened:
        await close()


async def test_addresses_as_people_write_them(serve: Any) -> None:
    http, _ = await serve()
    base = str(http.make_url("")).rstrip("/")
    for url in (base, f"{base}/", f"{base}/v1", f"{base}/v1/"):
        async with Client(url) as client:
            assert (await client.models(), client.url) == (["tiny", "org/other"], base)
    async with Client(f"{base}/other") as client:  # as behind a proxy; here nothing is
        with pytest.raises(blockwright.RequestError, match="GET /other/v1/models is not served here"):
            await client.models()


def test_a_name_that_is_not_found() -> None:
    """Its number is none of the system's."""
    assert system_reason(-2, "Name or service not known") == "Name or service not known"
    assert system_reason(111, "[Errno 111] Connect call failed") == "Connection refused"


async def test_an_answer_is_the_same_whole_and_streamed(serve: Any, say: Any, codec: Any) -> None:
    http, port = await serve(say("hello there"))
    async with Client(str(http.make_url("/"))) as client:
        assert await client.models() == ["tiny", "org/other"]
        answer = await client.generate("a", max_tokens=9, seed=1)
        call = client.generate([5, 6], max_tokens=9, temperature=None)
        assert "".join([piece.text async for piece in call]) == answer.text == "hello there"
        assert call.answer is not None
        assert call.answer.choices == answer.choices
        assert list(answer.token_ids) == codec.encode("hello there", special=False)
        assert (answer.finish_reason, answer.model, answer.prompt_tokens) == ("length", "tiny", 1)
        assert answer.completion_tokens == len(answer.token_ids)
        assert port.streams[1].generation.prompt == [5, 6]
        assert (await client.generate("hi", model="org/other")).model == "org/other"
        assert (await client.chat("hi")).text == "hello there"


@claim("A list of prompts gives a list of answers in its order", of="embedding")
async def test_a_list_of_prompts_gives_a_list_of_answers_in_its_order(serve: Any, codec: Any) -> None:
    """The same with and without await. One that fails ends the others."""

    def repeat(generation: Any) -> Any:
        return one_by_one([*generation.prompt[-2:], EOS], "stop")

    http, _ = await serve(repeat)
    url = str(http.make_url("/"))
    async with Client(url) as client:
        answers = await client.generate(["ab", "cd", "ef"], max_tokens=3)
        assert [answer.text for answer in answers] == ["ab", "cd", "ef"]
        (one,) = await client.generate([[70, 71]], max_tokens=3)
        assert one.token_ids[:2] == (70, 71)
        (two,) = await client.generate(np.array([[70, 71]]), max_tokens=3)  # type: ignore[call-overload]
        assert two.token_ids == one.token_ids
        assert [answer.text for answer in await client.generate(iter(["ab", "cd"]))] == ["ab", "cd"]  # type: ignore[call-overload]
        assert await client.generate([]) == []
        with pytest.raises(blockwright.RequestError, match="empty"):
            await client.generate([[]])
        with pytest.raises(TypeError, match=r"prompts is 3; give a text, a list of token ids, or a list of such prompts"):
            client.generate(3)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"\[1, 'a'\] is no prompt; give a text, or a list of token ids"):
            client.generate([1, "a"])  # type: ignore[list-item]
        with pytest.raises(blockwright.RequestError, match="holds 64 tokens"):
            await client.generate(["ab", "x" * 500])

    def blocking() -> tuple[list[str], str]:
        with BlockingSession(Client(url)) as session:
            with pytest.raises(TypeError, match="stream takes one prompt"):
                session.stream(["ab", "cd"])  # type: ignore[arg-type]
            return [answer.text for answer in session.generate(["ab", "cd"], max_tokens=3)], session.generate("ef").text

    assert await asyncio.to_thread(blocking) == (["ab", "cd"], "ef")


async def test_choices_are_distinguished(serve: Any) -> None:
    http, _ = await serve(lambda generation: one_by_one([70 + generation.sampling.choice, EOS], "stop"))
    async with Client(str(http.make_url("/"))) as client:
        call = client.chat([{"role": "user", "content": "x"}], n=2)
        seen = [(piece.index, piece.token_ids) async for piece in call if piece.token_ids]
        assert sorted(seen) == sorted([(0, (70,)), (0, (EOS,)), (1, (71,)), (1, (EOS,))])
        assert call.answer is not None
        assert [choice.finish_reason for choice in call.answer.choices] == ["stop", "stop"]


async def test_refusals_and_failures(serve: Any) -> None:
    http, port = await serve(lambda generation: [*one_by_one([70])[:0], RequestRefused(Refusal.UNAVAILABLE, "no worker")])
    async with Client(str(http.make_url("/"))) as client:
        with pytest.raises(blockwright.RequestError, match="did you mean 'tiny'") as wrong:
            await client.generate("a", model="tinny")
        assert (wrong.value.status, wrong.value.code, wrong.value.param) == (404, "model_not_found", "model")
        with pytest.raises(blockwright.RequestError, match="no worker"):
            async for _ in client.generate("a"):
                pass
        port.refuse = RequestRefused(Refusal.UNAVAILABLE, "later")
        with pytest.raises(blockwright.RequestError, match="later"):
            await client.generate("a")


async def test_an_error_after_the_beginning_of_a_stream(serve: Any) -> None:
    http, _ = await serve(lambda generation: [*one_by_one([70, 71, 72])[:2], RequestRefused(Refusal.POISON, "it broke")])
    async with Client(str(http.make_url("/"))) as client:
        pieces = client.generate("a").__aiter__()
        assert [(await anext(pieces)).token_ids for _ in range(2)] == [(70,), (71,)]
        with pytest.raises(blockwright.RequestError, match="it broke"):
            await anext(pieces)


async def test_leaving_a_stream_cancels_it(serve: Any) -> None:
    http, port = await serve(lambda generation: [*one_by_one([70, 71])[:1], asyncio.Event()])
    async with Client(str(http.make_url("/"))) as client:
        async for _ in client.generate("a"):
            break
        async with asyncio.timeout(PATIENCE):
            await port.streams[0].cancelled.wait()


async def test_nobody_there() -> None:
    async with Client("http://127.0.0.1:9") as client:
        with pytest.raises(blockwright.RequestError, match=r"nothing answers at 127\.0\.0\.1:9 .*blockwright serve"):
            await client.models()


async def test_a_certificate_that_nobody_trusts() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    server = TestServer(web.Application(), scheme="https")
    await server.start_server(ssl=context)
    try:
        async with Client(f"https://127.0.0.1:{server.port}") as client:
            with pytest.raises(blockwright.RequestError, match=r"no secure connection .*self.signed.*SSL_CERT_FILE"):
                await client.models()
    finally:
        await server.close()


async def test_a_misspelt_option_is_reported(serve: Any, say: Any) -> None:
    http, _ = await serve(say("hello"))
    async with Client(str(http.make_url("/"))) as client:
        with pytest.raises(TypeError, match="there is no option 'max_token'; did you mean max_tokens"):
            await client.generate("a", max_token=9)  # type: ignore[call-arg]


async def test_a_stream_that_ends_early_and_an_answer_that_is_no_json(raw: Serving) -> None:
    async def early(request: web.Request) -> web.StreamResponse:
        one = b'data: {"id":"c","model":"m","choices":[{"index":0,"text":"a","finish_reason":null}]}\r\n\r\n'
        return web.Response(body=b": comment\n\n" + one, content_type="text/event-stream")

    client = await raw(early)
    pieces = client.generate("a").__aiter__()
    assert (await anext(pieces)).text == "a"
    with pytest.raises(blockwright.RequestError, match="ended before the answer was complete"):
        await anext(pieces)

    async def wrong(request: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text="<html>bad gateway")

    client = await raw(wrong)
    with pytest.raises(blockwright.RequestError, match=r"with 502 \(<html>bad gateway\), like a proxy"):
        await client.generate("a")

    async def broken(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'data: {"choices"')
        assert request.transport is not None
        request.transport.abort()
        return response

    client = await raw(broken)
    with pytest.raises(blockwright.RequestError, match="the connection"):
        async for _ in client.generate("a"):
            pass


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_events_are_the_same_however_the_bytes_are_cut(size: int) -> None:
    first, second = ': keep-alive\r\n\r\ndata: {"x": "é"}\n\n', 'event: news\ndata: {"y":\ndata: 1}\n\n'
    stream = f'{first}{second}data:[DONE]\n\ndata: {{"z": 2}}'.encode()

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(stream), size):
            yield stream[at : at + size]

    answer: Any = SimpleNamespace(
        content=SimpleNamespace(iter_any=pieces), url=URL("http://a:1/"), status=200, content_type=""
    )
    assert [event async for event in events(answer)] == [{"x": "é"}, {"y": 1}]


class Breaking:
    """A server whose streams break after two events, and go on when they are asked to; ``status`` refuses that."""

    def __init__(self, ids: bool = True, status: int = 200, goes_on: int = 99) -> None:
        self.ids = ids
        self.status = status
        self.goes_on = goes_on  # requests with the last id that are answered at all
        self.asked: list[tuple[str, Any]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["x-event-ids"] == "auto"
        last = request.headers.get("Last-Event-ID", "")
        self.asked.append((last, await request.json()))
        if last and len(self.asked) - 1 > self.goes_on:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if last and self.status != 200:
            error = {"message": "it changed", "type": "invalid_request_error", "param": None, "code": "changed"}
            return web.json_response({"error": error}, status=self.status)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        begin = int(last.removeprefix("r.d.") or 0)
        for number in range(begin + 1, min(begin + 2, 5) + 1):
            choice = {"index": 0, "text": str(number), "finish_reason": "length" if number == 5 else None}
            event = json.dumps({"id": "r", "model": "m", "choices": [choice]})
            id = f"id: r.d.{number}\n" if self.ids else ""
            await answer.write(f"{id}data: {event}\n\n".encode())
        if begin + 2 >= 5:
            await answer.write(b"data: [DONE]\n\n")
        elif len(self.asked) % 2:
            assert request.transport is not None
            request.transport.abort()
        return answer


@claim("The client goes on with a stream that breaks, after its last event", of="command-line")
async def test_a_stream_that_breaks_goes_on_after_its_last_event(raw: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it ends: in the middle, or as if it were whole."""
    monkeypatch.setattr("blockwright.api.program.client.PAUSES", (0.0, 0.0))
    server = Breaking()
    client = await raw(server.answer)
    call = client.generate("a", max_tokens=5)
    assert [piece.text async for piece in call] == ["1", "2", "3", "4", "5"]
    assert call.answer is not None
    assert (call.answer.text, call.answer.id) == ("12345", "r")
    assert [last for last, _ in server.asked] == ["", "r.d.2", "r.d.4"]
    assert server.asked[0][1] == server.asked[1][1] == server.asked[2][1]


async def test_it_gives_up_where_nothing_comes_or_it_is_refused(raw: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockwright.api.program.client.PAUSES", (0.0, 0.0))
    for server, why, times in (
        (Breaking(ids=False), "within an answer", 1),
        (Breaking(status=409), "it changed", 2),
        (Breaking(status=503), "it changed", 3),
        (Breaking(goes_on=0), "ended before an answer", 3),
    ):
        client = await raw(server.answer)
        with pytest.raises(blockwright.RequestError, match=why):
            async for _ in client.generate("a", max_tokens=5):
                pass
        assert len(server.asked) == times, why

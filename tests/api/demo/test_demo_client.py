"""The demo's client: chunks of both APIs, numbers that are not guessed."""

from __future__ import annotations

import pytest
from aiohttp import web

from blockwright.api.demo import client as demo_client
from blockwright.api.demo.client import ExampleOutcome, absorb, body_of, view_of, workers_of
from blockwright.api.demo.tasks import HELD_OUT, Example
from blockwright.api.program.results import RequestError
from blockwright.tests.api.demo.fake_http import served

EXAMPLE = Example("copy", "copy: ab =", "ab", HELD_OUT)


def test_completion_chunks_add_up() -> None:
    outcome = ExampleOutcome(EXAMPLE, "demo", started=10.0)
    absorb(outcome, {"choices": [{"text": "a", "finish_reason": None}]}, 10.5)
    absorb(outcome, {"choices": [{"text": "b", "finish_reason": None}]}, 10.6)
    absorb(outcome, {"choices": [{"text": "", "finish_reason": "stop"}], "usage": None}, 10.7)
    absorb(outcome, {"choices": [], "usage": {"completion_tokens": 3}}, 10.7)
    outcome.ended = 11.0
    assert (outcome.text, outcome.finish, outcome.tokens) == ("ab", "stop", 3)
    assert outcome.first_ms == pytest.approx(500)
    assert outcome.rate == pytest.approx(3.0)
    assert outcome.right


def test_the_role_chunk_of_a_chat_is_not_the_first_token() -> None:
    outcome = ExampleOutcome(EXAMPLE, "demo", started=1.0)
    absorb(outcome, {"choices": [{"delta": {"role": "assistant", "content": ""}}]}, 2.0)
    assert outcome.first == 0.0
    assert outcome.first_ms == 0.0
    absorb(outcome, {"choices": [{"delta": {"content": "ab"}}]}, 3.0)
    absorb(outcome, {"choices": [{"delta": {}, "finish_reason": "stop"}]}, 4.0)
    assert (outcome.text, outcome.first, outcome.finish) == ("ab", 3.0, "stop")


def test_an_error_event_makes_the_answer_wrong() -> None:
    outcome = ExampleOutcome(EXAMPLE, "demo", text="ab")
    assert outcome.right
    absorb(outcome, {"error": {"message": "no workers", "type": "server_error"}}, 1.0)
    assert outcome.error == "no workers"
    assert not outcome.right


def test_the_request_asks_for_greedy_tokens_and_their_count() -> None:
    body = body_of(ExampleOutcome(EXAMPLE, "demo"), chat=False)
    assert body["prompt"] == "copy: ab ="
    assert "messages" not in body
    assert (body["temperature"], body["stream"], body["stream_options"]) == (0, True, {"include_usage": True})
    chat = body_of(ExampleOutcome(EXAMPLE, "demo"), chat=True)
    assert chat["messages"] == [{"role": "user", "content": "copy: ab ="}]
    assert "prompt" not in chat


def test_the_route_names_the_workers_of_the_hops() -> None:
    hops = [{"worker": "w0", "first": 0, "last": 7}, {"worker": "w1", "first": 7, "last": 14}]
    assert workers_of({"route": hops}) == ["w0", "w1"]
    assert workers_of({}) == []


@pytest.mark.parametrize(("refusals", "status"), [(2, 503), (100, 503), (1, 404)])
async def test_a_view_waits_for_a_head_that_does_not_answer(
    refusals: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_client, "AGAIN", 0.0001)
    monkeypatch.setattr(demo_client, "AWAY_SECONDS", 0.001)
    asked = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        body = {"error": {"message": "the head is away"}} if asked <= refusals else {"workers": []}
        return web.json_response(body, status=status if asked <= refusals else 200)

    async with served([web.get("/admin/cluster", answer)]) as client:
        if refusals == 2:
            assert await view_of(client, "/admin/cluster") == {"workers": []}
        else:
            with pytest.raises(RequestError, match="the head is away"):
                await view_of(client, "/admin/cluster")
    assert asked == {2: 3, 100: 11, 1: 1}[refusals]

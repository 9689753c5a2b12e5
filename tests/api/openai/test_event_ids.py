"""Streams with ids: who sends the last one again gets, byte by byte, what an undisturbed stream has after it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from blockwright.actors.gateway.port import AnswerBasis, StreamProgress
from blockwright.policies.requests.event_id import parse_event_id
from blockwright.policies.sweep.events import TokensEmitted
from blockwright.tests.api.app.test_application import VIEW
from blockwright.tests.api.conftest import Qwen
from blockwright.tests.api.fake_port import one_by_one, prompt_scored, tokens_emitted, with_logprobs
from blockwright.tests.api.openai.test_tools import ASK, WEATHER
from blockwright.tests.claims import claim

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXT = "some wörds, and ☃ some more"
ANSWER = '<think>hm\u00e9</think>so <tool_call>\n{"name": "weather", "arguments": {"place": "Basel"}}\n</tool_call>'
PLAIN = {"prompt": "say", "stream": True, "max_tokens": 60, "stream_options": {"include_usage": True}}
MESSAGES = [{"role": "user", "content": "hi"}]


async def post(client: Any, path: str, body: Mapping[str, Any], last: str = "", **headers: str) -> tuple[int, str]:
    """The status and the text of a stream with ids, or of one that goes on after the event ``last``."""
    sent = {"x-event-ids": "true"} if not last else {"Last-Event-ID": last}
    async with client.post(path, json=dict(body), headers={**sent, **headers}) as answer:
        return answer.status, re.sub(r'"completed_at":\d+', '"completed_at":0', await answer.text())


def cuts(text: str) -> list[tuple[str, str]]:
    """The id of each event that has one, and all that follows the event."""
    return [(found[1], text[text.index("\n\n", found.end()) + 2 :]) for found in re.finditer(r"^id: (.+)$", text, re.M)]


def together(steps: Sequence[Any], sizes: Sequence[int]) -> list[TokensEmitted]:
    """The same tokens in other pieces, as a slow reader gets them."""
    made: list[TokensEmitted] = []
    rest = list(steps)
    for size in [*sizes, len(rest)]:
        some, rest = rest[:size], rest[size:]
        if some:
            tokens = [token for one in some for token in one.tokens]
            scores = [score for one in some for score in one.logprobs]
            made.append(replace(some[-1], tokens=tokens, logprobs=scores))
    return made


async def all_cuts(client: Any, port: Any, path: str, body: Mapping[str, Any], at_least: int) -> str:
    """Ask for a stream, and for the rest of it after each of its events, in other pieces; return it whole."""
    script = port._script
    status, whole = await post(client, path, body)
    assert status == 200, whole
    seed = port.streams[-1].generation.sampling.seed
    port._script = lambda generation: [
        *(one for one in script(generation) if not isinstance(one, TokensEmitted)),
        *together([one for one in script(generation) if isinstance(one, TokensEmitted)], [3, 1, 7]),
    ]
    found = cuts(whole)
    assert len({last for last, _ in found}) == len(found) >= at_least
    for last, rest in found:
        assert await post(client, path, body, last) == (200, rest)
        assert port.streams[-1].generation.sampling.seed == seed
    port._script = script
    return whole


@claim("A stream goes on after the event whose id its client sends, byte by byte", of="http-api")
async def test_a_completion_goes_on_after_each_of_its_events(serve: Any, say: Any) -> None:
    client, port = await serve(say(TEXT))
    whole = await all_cuts(client, port, COMPLETIONS, PLAIN, 20)
    ids = [parse_event_id(last) for last, _ in cuts(whole)]
    assert len({one.digest.core() for one in ids if one is not None}) == 1
    assert len(whole.split("id: ")[0]) == 0, "the first event has one"
    async with client.post(COMPLETIONS, json=PLAIN) as answer:
        assert "id: " not in await answer.text(), "only who asks gets ids"


@pytest.mark.parametrize(
    "more",
    [
        {"n": 3, "stream_options": {}},
        {"prompt": ["a", "b c"], "echo": True, "stream_options": {}},
        {"stop": ["some m"]},
        {"stop": ["me wö", "xyz"], "include_stop_str_in_output": True},
        {"return_token_ids": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ],
)
async def test_so_does_one_with_choices_echo_or_stops(serve: Any, say: Any, more: dict[str, Any]) -> None:
    client, port = await serve(say(TEXT))
    await all_cuts(client, port, COMPLETIONS, PLAIN | more, 2)


async def test_log_probabilities_go_on_too(serve: Any, codec: Any) -> None:
    tokens = codec.encode(TEXT, special=False)
    scores = with_logprobs([1, 2], 2)
    entries = [score for one in scores for score in one.logprobs]
    client, port = await serve(lambda generation: [prompt_scored(entries), *with_logprobs(tokens, 2)])
    await all_cuts(client, port, COMPLETIONS, PLAIN | {"logprobs": 2, "echo": True, "prompt": "abc"}, 20)
    client, port = await serve(lambda generation: with_logprobs(tokens, 2))
    chat = {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    await all_cuts(client, port, CHAT, {**chat, "logprobs": True, "top_logprobs": 2}, 20)


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages"])
async def test_thinking_and_calls_go_on_in_every_form(qwen: Qwen, path: str) -> None:
    client, port = await qwen(ANSWER)
    tools: Any = [WEATHER]
    body: dict[str, Any] = {"messages": ASK, "max_tokens": 300, "stream": True, "tools": tools}
    function = WEATHER["function"]
    assert isinstance(function, dict)
    if path == "/v1/responses":
        tools = [{"type": "function", "strict": False, **function}]
        body = {"input": ASK, "stream": True, "tools": tools, "max_output_tokens": 300}
    elif path == "/v1/messages":
        body["tools"] = [{"name": "weather", "input_schema": function["parameters"]}]
    assert "weather" in await all_cuts(client, port, path, body, 8)


async def test_the_usage_is_that_of_the_first_run(serve: Any, say: Any) -> None:
    client, port = await serve(say("abc"))
    _, whole = await post(client, COMPLETIONS, PLAIN)
    (last, rest), *_ = cuts(whole)
    assert '"cached_tokens": 0' in rest
    generate = port.generate

    def warm(generation: Any) -> Any:
        stream = generate(generation)
        stream.now = StreamProgress(prompt=3, cached=3)
        return stream

    port.generate = warm
    assert await post(client, COMPLETIONS, PLAIN, last) == (200, rest)


async def test_what_changed_is_named_in_a_409(serve: Any, say: Any) -> None:
    client, port = await serve(say("abc"))
    _, whole = await post(client, COMPLETIONS, PLAIN | {"temperature": 0.5, "user": "me"})
    last = cuts(whole)[0][0]
    for more, named in (
        ({"temperature": 0.6}, "its sampling changed"),
        ({"seed": 5}, "its sampling changed"),
        ({"prompt": "other"}, "its body changed"),
        ({"max_tokens": 61}, "its body changed"),
        ({"logprobs": 1, "top_p": 0.5}, "its body and sampling changed"),
        ({"model": "org/other", "max_tokens": 60}, "its model changed"),
    ):
        status, text = await post(client, COMPLETIONS, PLAIN | {"temperature": 0.5} | more, last)
        assert status in (409, 400) if "model" in more else status == 409, text
        assert named in text or "model" in more, text
        assert '"code": "changed"' in text or "model" in more, text
    for basis, named in (
        (AnswerBasis(b"others", port.basis.numerics), "its model changed"),
        (AnswerBasis(port.basis.chains, ("torch-f32",)), "its numerics changed"),
    ):
        port.basis = basis
        status, text = await post(client, COMPLETIONS, PLAIN | {"temperature": 0.5}, last)
        assert (status, named in text) == (409, True), text
        port.basis = AnswerBasis(b"chains", ("native-f32",))
    assert (await post(client, COMPLETIONS, PLAIN | {"temperature": 0.5}, last))[0] == 200, "who sent it changes nothing"


async def test_another_clients_stream_is_not_found(serve: Any, say: Any) -> None:
    client, _ = await serve(say("abc"), settings={"api_keys": {"of-ann": "a", "of-amy": "a", "of-bob": "b"}})
    ann, amy, bob = ({"Authorization": f"Bearer of-{name}"} for name in ("ann", "amy", "bob"))
    _, whole = await post(client, COMPLETIONS, PLAIN, **ann)
    last, rest = cuts(whole)[0]
    for other in (amy, bob):
        status, text = await post(client, COMPLETIONS, PLAIN, last, **other)
        assert (status, '"code": "not_found"' in text) == (404, True), text
    assert await post(client, COMPLETIONS, PLAIN, last, **ann) == (200, rest)


async def test_what_is_no_id_and_what_cannot_have_ids_is_refused(serve: Any, say: Any) -> None:
    client, port = await serve(say("abc"))
    _, whole = await post(client, COMPLETIONS, PLAIN)
    last = cuts(whole)[0][0]
    digest = last.split(".")[1]
    for wrong in ("7", last + "-1", last.replace(f"{digest}.1", f"{digest}.999"), "x" * 4000):
        status, text = await post(client, COMPLETIONS, PLAIN, wrong)
        assert (status, "is no id of an event" in text) == (400, True), text
    status, text = await post(client, COMPLETIONS, PLAIN | {"stream": False, "stream_options": None}, last)
    assert (status, "is for streams" in text) == (400, True)
    status, text = await post(client, COMPLETIONS, PLAIN | {"n": 65})
    assert (status, "65 sequences" in text) == (400, True), text
    async with client.post(COMPLETIONS, json=PLAIN, headers={"x-event-ids": "please"}) as answer:
        assert (answer.status, "please" in await answer.text()) == (400, True)
    port.basis = AnswerBasis(b"chains", ("a", "b"))
    status, text = await post(client, COMPLETIONS, PLAIN)
    assert (status, "different numerics (a, b)" in text) == (400, True), text


async def test_the_model_itself_answers_and_drafts_change_nothing(serve: Any, say: Any) -> None:
    client, port = await serve(say("abc"), settings={"drafts": {"tiny": "prompt"}, "draft_rule": "rejection"})
    await post(client, COMPLETIONS, PLAIN)
    generation = port.streams[-1].generation
    assert (generation.adaptive, generation.sampling.rejection, generation.drafts is None) == (False, False, False)
    async with client.post(COMPLETIONS, json=PLAIN) as answer:
        await answer.read()
    generation = port.streams[-1].generation
    assert (generation.adaptive, generation.sampling.rejection) == (True, True)


async def test_a_name_has_one_seed_and_other_requests_have_others(serve: Any, say: Any) -> None:
    client, port = await serve(say("abc"), settings={"api_keys": {"of-ann": "a", "of-bob": "b"}})

    async def seed(key: str = "of-ann", name: str = "", **more: Any) -> int:
        headers = {"Authorization": f"Bearer {key}"} | ({"x-request-id": name} if name else {})
        async with client.post(COMPLETIONS, json={"prompt": "a", **more}, headers=headers) as answer:
            assert answer.status == 200
        found: int = port.streams[-1].generation.sampling.seed
        return found

    assert len({await seed() for _ in range(4)}) == 4
    assert await seed(name="n1") == await seed(name="n1") == await seed(request_id="n1")
    assert len({await seed(name="n1"), await seed(name="n2"), await seed(key="of-bob", name="n1")}) == 3
    assert await seed(name="n1", seed=7) == 7


async def test_a_stream_that_goes_on_is_found_by_its_first_id(serve: Any, say: Any) -> None:
    client, port = await serve(say("abc"))
    _, whole = await post(client, COMPLETIONS, PLAIN)
    first = port.streams[-1].generation.id
    _, rest = await post(client, COMPLETIONS, PLAIN, cuts(whole)[0][0])
    second = port.streams[-1].generation.id
    assert first != second
    assert f'"id":"{first}"' in rest
    assert second not in rest
    port.views[second] = replace(VIEW, id=second, key="")
    async with client.get(f"/v1/requests/{first}") as answer:
        assert (answer.status, (await answer.json())["id"]) == (200, second)


@pytest.mark.parametrize("known", [1, 3, 5])
async def test_remembered_tokens_are_not_asked_for_again(serve: Any, codec: Any, known: int) -> None:
    """They may be fewer than were said, or more."""
    tokens = codec.encode("abcdefg", special=False)
    client, port = await serve(lambda generation: [*one_by_one(tokens)])
    _, whole = await post(client, COMPLETIONS, PLAIN)
    last, rest = cuts(whole)[2]
    first = port.streams[-1].generation.id
    port.known = {first: tokens[:known]}
    port._script = lambda generation: [tokens_emitted(generation.known), *one_by_one(tokens[known:])]
    assert await post(client, COMPLETIONS, PLAIN, last) == (200, rest)
    assert port.streams[-1].generation.known == tokens[:known]
    await post(client, COMPLETIONS, PLAIN | {"logprobs": 1})
    assert port.streams[-1].generation.known == []


async def test_whoever_else_gets_the_answer_gets_no_more_of_it(serve: Any, say: Any) -> None:
    begun = asyncio.Event()
    client, port = await serve(lambda generation: [*say("abc")(generation)[:2], begun, *say("abc")(generation)[2:]])
    async with client.post(COMPLETIONS, json=PLAIN, headers={"x-event-ids": "true"}) as answer:
        last = (await answer.content.readline()).decode().strip().removeprefix("id: ")
        stream = port.streams[-1]
        port.views[stream.generation.id] = replace(VIEW, id=stream.generation.id, key="")
        begun.set()
        assert (await post(client, COMPLETIONS, PLAIN, last))[0] == 200
        assert stream.cancelled.is_set()
        assert stream.generation.id.partition(".")[0] == port.streams[-1].generation.id.partition(".")[0]


async def test_ids_can_be_left_to_where_nothing_else_depends_on_them(serve: Any, say: Any) -> None:
    async def numbered(client: Any, **more: Any) -> bool:
        async with client.post(COMPLETIONS, json=PLAIN | more, headers={"x-event-ids": "auto"}) as answer:
            assert answer.status == 200
            return "id: " in await answer.text()

    client, port = await serve(say("abc"))
    assert await numbered(client)
    assert not await numbered(client, n=65)
    port.basis = AnswerBasis(b"chains", ("a", "b"))
    assert not await numbered(client)
    port.basis = AnswerBasis(b"chains", ("a",))
    port.infos = [replace(info, varies=True) for info in port.infos]
    assert not await numbered(client)
    assert port.streams[-1].generation.adaptive
    assert await numbered(client, adaptive=False)
    client, port = await serve(say("abc"), settings={"drafts": {"tiny": "prompt"}, "draft_rule": "rejection"})
    assert not await numbered(client)
    assert port.streams[-1].generation.sampling.rejection

"""``/v1/messages`` and ``count_tokens``: answers, events, prompts and refusals, by models in the manner of Qwen 3."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.gateway.port import StreamProgress
from blockwright.policies.plan.grammar import JSON, LARK
from blockwright.tests.api.anthropic.events import blocks, events
from blockwright.tests.api.conftest import Qwen
from blockwright.tests.api.fake_port import one_by_one, tokens_emitted, with_template
from blockwright.tests.api.text.turn.chat_templates import MISTRAL
from blockwright.tests.claims import claim

URL, CHAT = "/v1/messages", "/v1/chat/completions"
ASK = [{"role": "user", "content": "weather in Bern?"}]
PLACE = {
    "type": "object",
    "properties": {"place": {"type": "string"}},
    "required": ["place"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "of a place", "input_schema": PLACE}
TIME = {"name": "time", "input_schema": {"type": "object"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Bern"}}\n</tool_call>'
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
ANSWER = f"<think>\nhm, two\n</think>\n\nI ask. {CALL}\n{CALL.replace('Bern', 'Rome')}"


def function(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    names = {"name": "name", "description": "description", "input_schema": "parameters", "strict": "strict"}
    return {"type": "function", "function": {there: tool[here] for here, there in names.items() if here in tool}}


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


async def ask(client: Any, **fields: Any) -> dict[str, Any]:
    answer = await client.post(URL, json={"max_tokens": 500, "messages": ASK, **fields})
    assert answer.status == 200, await answer.text()
    body: dict[str, Any] = await answer.json()
    return body


async def streamed(client: Any, **fields: Any) -> list[dict[str, Any]]:
    answer = await client.post(URL, json={"max_tokens": 500, "messages": ASK, "stream": True, **fields})
    assert answer.status == 200, await answer.text()
    return events(await answer.read())


@claim("Anthropic's Messages API answers whole and streamed: thinking, text and tool use", of="http-api")
async def test_thinking_text_and_two_calls(qwen: Qwen, codec: Any) -> None:
    client, port = await qwen(ANSWER)
    answer = await client.post(URL, json={"max_tokens": 500, "messages": ASK, "tools": [WEATHER, TIME]})
    body = await answer.json()
    thinking, text, *calls = body.pop("content")
    assert thinking == {"type": "thinking", "thinking": "hm, two", "signature": ""}
    assert text == {"type": "text", "text": "I ask."}
    ids = [call.pop("id") for call in calls]
    assert calls == [{"type": "tool_use", "name": "weather", "input": {"place": place}} for place in ("Bern", "Rome")]
    assert len({*ids}) == 2
    assert all(id.startswith("toolu_") for id in ids)
    assert body.pop("id").startswith("msg-")
    tokens = len(port.streams[-1].generation.prompt)
    spent = len(codec.encode(ANSWER, special=False)) + 1
    thought = len(codec.encode("<think>\nhm, two\n</think>", special=False))
    usage = body.pop("usage")
    assert usage.pop("output_tokens_details") == {"thinking_tokens": thought}
    assert usage == {
        "input_tokens": tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": spent,
        "service_tier": "standard",
    }
    expected = {"type": "message", "role": "assistant", "model": "tiny", "stop_reason": "tool_use", "stop_sequence": None}
    assert body == expected
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


async def test_a_call_that_is_not_complete_is_none_to_make(qwen: Qwen) -> None:
    client, _ = await qwen('hi <tool_call>\n{"name": "weather", "arguments": {')
    body = await ask(client, tools=[WEATHER])
    assert (body["content"][-1]["type"], body["stop_reason"]) == ("tool_use", "end_turn")


async def test_the_events_of_a_stream(qwen: Qwen) -> None:
    client, _ = await qwen(ANSWER)
    whole = await ask(client, tools=[WEATHER])
    found = await streamed(client, tools=[WEATHER])
    start, ping, *rest, delta, stop = found
    assert (start["type"], ping) == ("message_start", {"type": "ping"})
    assert start["message"] | {"id": "", "usage": {}} == whole | {
        "id": "",
        "usage": {},
        "content": [],
        "stop_reason": None,
    }
    assert (start["message"]["usage"]["input_tokens"], start["message"]["usage"]["output_tokens"]) == (
        whole["usage"]["input_tokens"],
        1,
    )
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert delta["usage"] | {"service_tier": "standard"} == whole["usage"]
    assert stop == {"type": "message_stop"}
    kinds = [(event["index"], event["type"]) for event in rest if event["type"] != "content_block_delta"]
    assert kinds == [(i, f"content_block_{what}") for i in range(4) for what in ("start", "stop")]
    made = blocks(rest)
    for block, other in zip(made, whole["content"], strict=True):
        assert {**block, "id": ""} == {**other, "id": ""}
    signed = [event for event in rest if event.get("delta", {}).get("type") == "signature_delta"]
    assert [event["delta"]["signature"] for event in signed] == [""]


async def test_an_answer_without_a_turn_template_is_one_text(serve: Any, say: Any) -> None:
    client, _ = await serve(say("so\u2028é"))
    body = await ask(client, max_tokens=20)
    assert (body["content"], body["stop_reason"]) == ([{"type": "text", "text": "so\u2028é"}], "max_tokens")
    assert blocks((await streamed(client, max_tokens=20))[2:-2]) == body["content"]


async def test_an_answer_may_be_empty(qwen: Qwen) -> None:
    client, _ = await qwen("")
    body = await ask(client)
    assert (body["content"], body["stop_reason"]) == ([], "end_turn")
    assert [event["type"] for event in await streamed(client)] == ["message_start", "ping", "message_delta", "message_stop"]


async def test_cached_tokens_are_no_input_tokens(serve: Any) -> None:
    held = asyncio.Event()
    client, port = await serve(lambda generation: [held, tokens_emitted([9], finish="length")])
    asked = asyncio.create_task(ask(client, max_tokens=1))
    stream = await port.waiting.get()
    stream.now = StreamProgress(prompt=40, cached=16)
    held.set()
    usage = (await asked)["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (len(stream.generation.prompt) - 16, 16)


@claim("A message is one chat: the same tokens, whatever the form of its body", of="http-api")
@pytest.mark.parametrize(
    ("message", "chat"),
    [
        ({}, {}),
        ({"system": "be brief"}, {"messages": [{"role": "system", "content": "be brief"}, *ASK]}),
        (
            {"system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1; v=2"}, {"type": "text", "text": "a"}]},
            {"messages": [{"role": "system", "content": "a"}, *ASK]},
        ),
        ({"system": "x-anthropic-billing-header: cch=1\n", "tools": []}, {}),
        (
            {"system": [*parts("a"), {**parts("b")[0], "cache_control": {"type": "ephemeral"}}]},
            {"messages": [{"role": "system", "content": parts("a", "b")}, *ASK]},
        ),
        (
            {"messages": [*ASK, {"role": "user", "content": "soon"}]},
            {"messages": [{"role": "user", "content": parts("weather in Bern?", "soon")}]},
        ),
        (
            {"tools": [WEATHER, TIME, SEARCH], "tool_choice": {"type": "none"}},
            {"tools": [function(WEATHER), function(TIME)], "tool_choice": "none"},
        ),
        (
            {"messages": [*ASK, {"role": "assistant", "content": "It"}]},
            {
                "messages": [*ASK, {"role": "assistant", "content": "It"}],
                "add_generation_prompt": False,
                "continue_final_message": True,
            },
        ),
        ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, {"reasoning_effort": "high"}),
    ],
)
async def test_the_prompt_is_the_one_of_the_chat(qwen: Qwen, message: dict[str, Any], chat: dict[str, Any]) -> None:
    client, port = await qwen("a")
    await ask(client, **message)
    answer = await client.post(CHAT, json={"messages": ASK, "max_tokens": 500, **chat})
    assert answer.status == 200, await answer.text()
    one, other = (stream.generation for stream in port.streams[-2:])
    assert one.prompt == other.prompt
    assert replace(one.sampling, seed=0) == replace(other.sampling, seed=0)
    counted = await client.post(f"{URL}/count_tokens", json={"messages": ASK, **message})
    assert await counted.json() == {"input_tokens": len(one.prompt)}


async def test_a_history_of_calls_is_the_one_of_a_chat(qwen: Qwen, codec: Any) -> None:
    """Answers are sent back as they came; results stand in the order of their calls."""
    client, port = await qwen(ANSWER)
    content = (await ask(client, tools=[WEATHER]))["content"]
    first, second = (block["id"] for block in content if block["type"] == "tool_use")
    results = [
        {"type": "tool_result", "tool_use_id": second, "content": [{"type": "text", "text": "sun"}]},
        {"type": "tool_result", "tool_use_id": first, "content": "no such place", "is_error": True},
        {"type": "text", "text": "go on"},
    ]
    history = [*ASK, {"role": "assistant", "content": content}, {"role": "user", "content": results}]
    await ask(client, messages=history, tools=[WEATHER])
    found = port.streams[-1].generation.prompt
    chat = await client.post(CHAT, json={"messages": ASK, "tools": [function(WEATHER)]})
    message = (await chat.json())["choices"][0]["message"]
    ids = [call["id"] for call in message["tool_calls"]]
    messages = [
        *ASK,
        message,
        {"role": "tool", "tool_call_id": ids[0], "content": "Error: no such place"},
        {"role": "tool", "tool_call_id": ids[1], "content": "sun"},
        {"role": "user", "content": "go on"},
    ]
    await client.post(CHAT, json={"messages": messages, "tools": [function(WEATHER)]})
    assert codec.decode(port.streams[-1].generation.prompt, special=True) == codec.decode(found, special=True)


async def test_ids_fit_a_template_that_is_strict_about_them(serve: Any, codec: Any, folder: Path, tmp_path: Path) -> None:
    made = with_template(folder, tmp_path / "mistral", MISTRAL)
    client, port = await serve(lambda g: one_by_one(codec.encode("a", special=False), "stop"), folder=made)
    port.infos = [replace(info, max_length=4096, rooms=(8192,)) for info in port.infos]
    for id, shown in (("toolu_abcDEF123", "abcDEF123"), ("toolu_01A09q90qw90lq917835lq9", None), ("call:1", None)):
        use = {"type": "tool_use", "id": id, "name": "time", "input": {}}
        result = {"type": "tool_result", "tool_use_id": id, "content": "noon"}
        messages = [*ASK, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        await ask(client, messages=messages)
        prompt = codec.decode(port.streams[-1].generation.prompt, special=True)
        assert shown is None or prompt.count(f'"{shown}"') == 2


@pytest.mark.parametrize(
    ("fields", "has", "lacks"),
    [
        ({"tool_choice": {"type": "any"}}, ["weather", "time", '"place"', ")*"], ["FREE"]),
        ({"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, ["weather", "time"], ["FREE", ")*"]),
        ({"tool_choice": {"type": "tool", "name": "time"}}, ["time"], ["weather", "FREE"]),
        ({"tool_choice": {"type": "none"}}, ["FREE"], ["weather"]),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, ["FREE", "weather", '"place"'], [")*"]),
        ({"tools": [{**WEATHER, "strict": True}, TIME]}, ["FREE", '"place"', "time"], []),
        ({"output_config": {"format": {"type": "json_schema", "schema": PLACE}}}, ["text: %json", "weather"], ["FREE"]),
    ],
)
async def test_the_grammar_of_a_turn(qwen: Qwen, fields: dict[str, Any], has: list[str], lacks: list[str]) -> None:
    client, port = await qwen(CALL)
    await ask(client, **{"tools": [WEATHER, TIME], **fields})
    grammar = port.streams[-1].generation.sampling.grammar
    assert grammar.form == LARK
    text = grammar.text.replace("\\x{5F}", "_")
    assert [part for part in has if part not in text] == []
    assert [part for part in lacks if part in text] == []


async def test_a_schema_holds_without_a_turn_template_too(serve: Any, say: Any) -> None:
    client, port = await serve(say("{}"))
    await ask(client, max_tokens=20, output_format={"type": "json_schema", "schema": PLACE})
    assert port.streams[-1].generation.sampling.grammar.form == JSON


async def test_fields_of_sampling_and_limits(qwen: Qwen) -> None:
    client, port = await qwen("abcdef")
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "service_tier": "standard_only", "stop_sequences": ["x", "cd"]}
    body = await ask(client, max_tokens=9, metadata={"user_id": "u"}, **fields)
    generation = port.streams[-1].generation
    sampling = generation.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, generation.max_tokens) == (0.5, 0.9, 7, 9)
    assert (body["content"][0]["text"], body["stop_reason"], body["stop_sequence"]) == ("ab", "stop_sequence", "cd")
    assert generation.adaptive
    await ask(client, adaptive=False)
    assert not port.streams[-1].generation.adaptive
    found = await streamed(client, stop_sequences=["cd"])
    assert found[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "cd"}
    assert (await ask(client, service_tier="priority"))["usage"]["service_tier"] == "priority"


async def test_a_limit_of_zero_computes_the_prompt_alone(qwen: Qwen) -> None:
    client, port = await qwen("abc")
    body = await ask(client, max_tokens=0)
    assert (body["content"], body["stop_reason"], body["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    assert port.streams[-1].generation.max_tokens == 1


async def test_thinking_may_be_left_out_of_the_answer(qwen: Qwen) -> None:
    client, _ = await qwen("<think>hm</think>so")
    fields = {"thinking": {"type": "adaptive", "display": "omitted"}}
    hidden = [{"type": "thinking", "thinking": "", "signature": ""}, {"type": "text", "text": "so"}]
    assert (await ask(client, **fields))["content"] == hidden
    assert blocks((await streamed(client, **fields))[2:-2]) == hidden


@claim("Tool input that an answer's end cuts has its complete members, streamed and whole", of="http-api")
@pytest.mark.parametrize(
    ("end", "made"),
    [
        ('"arguments": {', {}),
        ('"days": [1, 2', {"days": [1]}),
        ('"place": "Be', {"days": [1, 2]}),
        ('"place": "Bern"', {"days": [1, 2], "place": "Bern"}),
    ],
)
async def test_an_answer_that_ends_inside_a_call(qwen: Qwen, end: str, made: dict[str, Any]) -> None:
    text = '<tool_call>\n{"name": "weather", "arguments": {"days": [1, 2], "place": "Bern"}}'
    client, _ = await qwen(text[: text.index(end) + len(end)], finish="length")
    body = await ask(client, tools=[WEATHER])
    (block,) = body["content"]
    assert (block["input"], body["stop_reason"]) == (made, "max_tokens")
    found = await streamed(client, tools=[WEATHER])
    (streamed_block,) = blocks(found[2:-2])
    assert {**streamed_block, "id": ""} == {**block, "id": ""}
    assert found[-2]["delta"]["stop_reason"] == "max_tokens"


async def test_arguments_that_are_no_json_end_where_they_break(qwen: Qwen) -> None:
    client, _ = await qwen(CALL.replace('{"place": "Bern"}', '{"place": "Bern", "day": tomorrow}'))
    (block,) = (await ask(client, tools=[WEATHER]))["content"]
    assert block["input"] == {"place": "Bern"}
    assert blocks((await streamed(client, tools=[WEATHER]))[2:-2])[0]["input"] == {"place": "Bern"}


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"tools": [SEARCH, TIME]}, "tools[0].web_search_20250305"),
        ({"context_management": {"edits": []}, "speed": "fast"}, "context_management, speed"),
        ({"cache_control": {"type": "ephemeral"}, "betas": []}, "betas"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": "low", "task_budget": {}}}, "output_config.task_budget"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "output_config.effort"),
        ({"tools": [{**TIME, "defer_loading": True, "type": "custom", "cache_control": {}}]}, "tools[0].defer_loading"),
        ({"tools": [TIME], "tool_choice": {"type": "auto", "name": "a"}}, "tool_choice.name"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}, "x": 1}]}]},
         "messages[0].content[0].x"),
        ({"messages": [*ASK, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, *ASK]},
         "messages[1].content[0]"),
    ],
)  # fmt: skip
async def test_what_has_no_effect_is_named(qwen: Qwen, fields: dict[str, Any], ignored: str) -> None:
    client, _ = await qwen("a")
    for path in (URL, f"{URL}/count_tokens"):
        answer = await client.post(path, json={"max_tokens": 9, "messages": ASK, **fields})
        assert (answer.status, answer.headers.get("x-ignored-fields")) == (200, ignored)


async def test_a_model_that_does_not_think_names_thinking(serve: Any, say: Any) -> None:
    client, _ = await serve(say("a"))
    for thinking, effort, ignored in (
        ({"type": "enabled", "budget_tokens": 9}, None, "thinking, thinking.budget_tokens"),
        ({"type": "adaptive"}, None, "thinking"),
        ({"type": "disabled"}, None, None),
        (None, "max", "output_config.effort"),
    ):
        fields = {"max_tokens": 9, "messages": ASK, "thinking": thinking, "output_config": {"effort": effort}}
        answer = await client.post(URL, json=fields)
        assert (answer.status, answer.headers.get("x-ignored-fields")) == (200, ignored)


async def test_what_clients_send_by_themselves_is_taken_in_silence(qwen: Qwen) -> None:
    """Answers that are sent back have fields of their own, and marks of Anthropic's cache stand everywhere."""
    client, _ = await qwen(ANSWER, settings={"unknown_fields": "reject"})
    mark = {"type": "ephemeral", "ttl": "1h"}
    use = {"type": "tool_use", "id": "a", "name": "time", "input": {}, "caller": {"type": "direct"}, "cache_control": mark}
    history = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": mark}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "b", "signature": "c"},
            {"type": "text", "text": "d", "citations": None}, use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "cache_control": mark,
                                      "content": [{"type": "text", "text": "e", "cache_control": mark}]}]},
    ]  # fmt: skip
    system = [{"type": "text", "text": "a", "cache_control": mark}]
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "x"}
    body = {"max_tokens": 9, "messages": history, "system": system, "tools": [{**WEATHER, "cache_control": mark}, TIME]}
    answer = await client.post(f"{URL}?beta=true", json=body, headers=headers)
    assert (answer.status, answer.headers.get("x-ignored-fields")) == (200, None), await answer.text()

"""Bodies of responses: what they become of an inner chat, and refusals by name."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from blockwright.policies.plan.grammar import LARK
from blockwright.tests.api.openai.responses.conftest import CALL, PATCH, PLACE, WEATHER
from blockwright.tests.claims import claim

URL = "/v1/responses"
JSON = {"Content-Type": "application/json"}
CHAT = "/v1/chat/completions"
IN_CHAT = {"type": "function", "function": {key: value for key, value in WEATHER.items() if key != "type"}}
ASK = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "weather?"}]}
CALLED = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"place": "Bern"}'}
RESULT = {"type": "function_call_output", "call_id": "a", "output": "rain"}


async def respond(client: Any, **fields: Any) -> dict[str, Any]:
    answer = await client.post(URL, json={"input": "weather?", **fields})
    assert answer.status == 200, await answer.text()
    body: dict[str, Any] = await answer.json()
    return body


@claim("A response gets the tokens and the sampling of the chat with the same messages", of="http-api")
@pytest.mark.parametrize(
    ("fields", "chat"),
    [
        ({"input": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}),
        (
            {"input": "hi", "instructions": "be kind", "max_output_tokens": 7, "temperature": 0.5, "top_p": 0.5},
            {
                "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}],
                "max_completion_tokens": 7,
                "temperature": 0.5,
                "top_p": 0.5,
            },
        ),
        (
            {"input": [{"role": "developer", "content": "be kind"}, ASK], "tools": [WEATHER], "tool_choice": "required"},
            {
                "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "weather?"}],
                "tools": [IN_CHAT],
                "tool_choice": "required",
            },
        ),
        (
            {
                "input": [
                    ASK,
                    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
                    {"role": "assistant", "content": [{"type": "output_text", "text": "I ask.", "annotations": []}]},
                    CALLED,
                    {**CALLED, "call_id": "b", "arguments": "{}"},
                    {**RESULT, "call_id": "b", "output": [{"type": "input_text", "text": "sun"}]},
                    RESULT,
                ],
                "tools": [WEATHER],
                "tool_choice": {"type": "function", "name": "weather"},
                "reasoning": {"effort": "none"},
            },
            {
                "messages": [
                    {"role": "user", "content": "weather?"},
                    {
                        "role": "assistant",
                        "reasoning": "hm",
                        "content": "I ask.",
                        "tool_calls": [
                            {"id": id, "type": "function", "function": {"name": "weather", "arguments": arguments}}
                            for id, arguments in (("a", CALLED["arguments"]), ("b", "{}"))
                        ],
                    },
                    {"role": "tool", "tool_call_id": "b", "content": "sun"},
                    {"role": "tool", "tool_call_id": "a", "content": "rain"},
                ],
                "tools": [IN_CHAT],
                "tool_choice": {"type": "function", "function": {"name": "weather"}},
                "reasoning_effort": "none",
            },
        ),
        (
            {"input": "hi", "text": {"format": {"type": "json_schema", "name": "p", "schema": PLACE, "strict": True}}},
            {
                "messages": [{"role": "user", "content": "hi"}],
                "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PLACE}},
            },
        ),
        (
            {"input": "hi", "tools": [WEATHER], "parallel_tool_calls": False, "stop": ["x"], "min_p": 0.1},
            {
                "messages": [{"role": "user", "content": "hi"}],
                "tools": [IN_CHAT],
                "parallel_tool_calls": False,
                "stop": ["x"],
                "min_p": 0.1,
            },
        ),
    ],
)
async def test_it_is_one_inner_chat(responses: Any, fields: dict[str, Any], chat: dict[str, Any]) -> None:
    client, port = await responses(CALL)
    await respond(client, **fields, seed=3)
    answer = await client.post(CHAT, json={**chat, "seed": 3})
    assert answer.status == 200, await answer.text()
    ours, theirs = (stream.generation for stream in port.streams[-2:])
    assert ours.prompt == theirs.prompt
    assert ours.sampling == theirs.sampling
    assert (ours.max_tokens, ours.stop_tokens) == (theirs.max_tokens, theirs.stop_tokens)
    assert ours.stop_strings == len(fields.get("stop", ()))


async def test_the_answer_repeats_what_holds(responses: Any) -> None:
    client, _ = await responses("hi")
    asked = {"metadata": {"a": "b"}, "instructions": "be kind", "top_p": 0.5, "user": "u", "max_output_tokens": 9}
    tools = [WEATHER, {"type": "web_search"}, PATCH]
    body = await respond(client, **asked, tools=tools, store=True, service_tier="flex", truncation="auto")
    assert {key: body[key] for key in asked} == asked
    assert (body["store"], body["background"], body["service_tier"], body["truncation"]) == (False, False, "flex", "auto")
    assert body["tools"] == [{**WEATHER, "strict": False}, {**PATCH, "format": {"type": "text"}}]
    assert body["text"] == {"format": {"type": "text"}}
    assert body["tool_choice"] == "auto"


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"tools": [{"type": "web_search"}, WEATHER, {"type": "mcp", "server_label": "x"}]},
         "tools[0].web_search, tools[2].mcp"),
        ({"tools": [{"type": kind} for kind in ("file_search", "code_interpreter", "computer_use_preview", "local_shell")]},
         "tools[0].file_search, tools[1].code_interpreter, tools[2].computer_use_preview, tools[3].local_shell"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"effort": "high", "summary": "concise"}}, "reasoning.summary, reasoning.effort"),
        ({"include": ["file_search_call.results"], "max_tool_calls": 3}, "max_tool_calls, include.file_search_call.results"),
        ({"prompt_cache_options": {}, "text": {"other": 1}}, "prompt_cache_options, text.other"),
        ({"input": [{**ASK, "other": 1}], "tools": [{**WEATHER, "defer_loading": True}]},
         "input[0].other, tools[0].defer_loading"),
        ({"tools": [{**PATCH, "format": {"type": "text", "x": 1}}]}, "tools[0].format.x"),
        ({"input": [ASK, {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}]}, "input[1].encrypted_content"),
        ({"reasoning": {"summary": "auto"}, "background": False, "store": False}, None),
    ],
)  # fmt: skip
async def test_what_has_no_effect_is_named(responses: Any, fields: dict[str, Any], ignored: str | None) -> None:
    client, _ = await responses(
        "a", template="{% for m in messages %}{{ m.content }}{% endfor %}<|im_start|></think>{{ tools }}<tool_call>"
    )
    answer = await client.post(URL, json={"input": "a", **fields})
    assert answer.status == 200, await answer.text()
    assert answer.headers.get("x-ignored-fields") == ignored


async def test_unknown_fields_follow_the_setting(responses: Any) -> None:
    client, _ = await responses("a", settings={"unknown_fields": "reject"})
    for fields in ({"other": 1}, {"input": [{**ASK, "other": 1}]}, {"text": {"other": 1}}, {"tools": [{**WEATHER, "x": 1}]}):
        answer = await client.post(URL, json={"input": "a", **fields})
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, "unknown_parameter")
    hosted = await client.post(URL, json={"input": "a", "tools": [{"type": "web_search"}], "text": {"verbosity": "low"}})
    assert hosted.status == 200


@claim("Fields and items that a response cannot have are refused by name, with the remedy", of="http-api")
@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation as input"),
        ({"conversation": "conv_1"}, "conversation", "send the whole conversation as input"),
        ({"background": True}, "background", "/v1/batches"),
        ({"prompt": {"id": "p"}}, "prompt", "send its text"),
        ({"input": []}, "input", "at least one item"),
        ({"input": 7}, "input", "at least one item"),
        ({"input": None}, "input", "missing"),
        ({"input": [7]}, "input[0]", "an object"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "send the item itself"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type", "leave it out"),
        ({"input": [{"type": ["x"]}]}, "input[0].type", "leave it out"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role", "give one of user"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input[0].content[0]", "'input_image'; only text is read"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
         "input[0].content[0]", "'input_file'; only text is read"),
        ({"input": [{"role": "user", "content": None}]}, "input[0].content", "null or missing"),
        ({"input": [{"role": "user", "content": "\ud800"}]}, "input[0].content", "surrogate"),
        ({"input": [ASK, RESULT]}, "input[1].call_id", "is no call before it"),
        ({"input": [ASK, RESULT, CALLED]}, "input[1].call_id", "is no call before it"),
        ({"input": [ASK, CALLED, RESULT, RESULT]}, "input[3].call_id", "has its result already"),
        ({"input": [ASK, CALLED, CALLED]}, "input[2].call_id", "as of an earlier call"),
        ({"input": [ASK, {**CALLED, "arguments": '{"a":'}]}, "input[1].arguments", "give a JSON object"),
        ({"input": [ASK, {**CALLED, "arguments": "[1]"}]}, "input[1].arguments", "give a JSON object"),
        ({"input": [ASK, {**CALLED, "name": ""}]}, "input[1].name", "1 to 256 characters"),
        ({"input": [ASK, {**CALLED, "call_id": None}]}, "input[1].call_id", "null"),
        ({"input": [ASK, CALLED, {**RESULT, "output": [{"type": "input_image"}]}]}, "input[2].output[0]", "only text"),
        ({"input": [{"type": "custom_tool_call", "call_id": "a", "name": "p"}]}, "input[0].input", "give a string"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary", "list of texts"),
        ({"messages": [ASK]}, "messages", "it is called input here"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "max_output_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format", "text.format"),
        ({"reasoning_effort": "low"}, "reasoning_effort", 'send reasoning = {"effort": \'low\'}'),
        ({"n": 2}, "n", "one answer"),
        ({"logprobs": True}, "logprobs", "send include"),
        ({"history": []}, None, ""),
        ({"history": [1]}, "history", "as input"),
        ({"max_output_tokens": 0}, "max_output_tokens", "from 1"),
        ({"max_output_tokens": 9000}, "max_output_tokens", "lower max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format", "text.format.schema is missing"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}},
         "text.format.schema", "the keyword not"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format", "text, json_object or json_schema"),
        ({"text": "a"}, "text", "give an object"),
        ({"reasoning": {"effort": "big"}}, "reasoning.effort", "give one of none"),
        ({"include": ["x"]}, "include[0]", "give one of"),
        ({"truncation": "middle"}, "truncation", "auto, disabled"),
        ({"metadata": {"a": 1}}, "metadata.a", "give a string"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options", "stream is not true"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0]", "function or custom"),
        ({"tools": [{**WEATHER, "name": 'a"}'}]}, "tools[0].name", "letters"),
        ({"tools": [{**PATCH, "name": "a b"}]}, "tools[0].name", "letters"),
        ({"tools": [WEATHER, {**PATCH, "name": "weather"}]}, "tools", "two tools of the name weather"),
        ({"tools": [{"type": "function", "function": {"name": "weather"}}]}, "tools[0].name", "letters"),
        ({"tools": [{**WEATHER, "strict": True, "parameters": {"not": {}}}]}, "tools[0].parameters", "the keyword not"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice", "no tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice", "not run here"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "is no tool"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "none, auto"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
         "tool_choice.tools", "at least one"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
         "tool_choice.tools[0]", "NAME"),
    ],
)  # fmt: skip
async def test_a_refusal_names_the_field(responses: Any, fields: dict[str, Any], param: str | None, said: str) -> None:
    client, _ = await responses("a")
    body = {"input": "a", **fields}
    for stream in (False, True):
        answer = await client.post(URL, data=json.dumps({**body, "stream": stream}), headers=JSON)
        if param is None:
            assert answer.status == 200
            continue
        if stream and "stream_options" in fields:
            continue
        error = (await answer.json())["error"]
        assert (answer.status, error["param"], said in error["message"]) == (400, param, True), error


async def test_some_tools_may_be_allowed(responses: Any) -> None:
    client, port = await responses("a")
    other = {"type": "function", "name": "time"}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "time"}]}
    body = await respond(client, tools=[WEATHER, other], tool_choice=allowed)
    grammar = port.streams[-1].generation.sampling.grammar
    assert grammar.form == LARK
    assert "time" in grammar.text
    assert "weather" not in grammar.text
    assert body["tool_choice"] == allowed


def _calls(count: int) -> list[dict[str, Any]]:
    ids = [f"d{100 - count + i}" for i in range(count)]
    return [
        item
        for id in ids
        for item in ({**CALLED, "call_id": id}, {**RESULT, "call_id": id, "output": f"rain {id.removeprefix('d')}"})
    ]


async def test_the_oldest_items_are_left_out_if_asked(responses: Any, codec: Any) -> None:
    client, port = await responses("a", length=1024)
    first = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "first"}]
    turns = [
        item
        for i in range(40)
        for item in (
            {**CALLED, "call_id": f"c{i}"},
            {**RESULT, "call_id": f"c{i}", "output": f"rain {i}"},
            {"role": "user", "content": f"again {i}"},
        )
    ]
    answer = await client.post(URL, json={"input": [*first, *turns], "max_output_tokens": 100})
    assert (await answer.json())["error"]["code"] == "context_length_exceeded"
    await respond(client, input=[*first, *turns], truncation="auto", max_output_tokens=100)
    prompt = port.streams[-1].generation.prompt
    text = codec.decode(prompt, special=True)
    assert 1024 - 100 - 150 < len(prompt) <= 1024 - 100
    assert "be kind" in text
    assert "first" not in text
    assert "again 39" in text
    for i in range(40):
        assert f"rain {i}\n" not in text or text.count("<tool_call>") >= text.count("<tool_response>")
    assert text.partition("be kind")[2].partition("<|im_start|>")[2].startswith("user\nagain")  # whole turns
    last = {"role": "user", "content": "long " * 120}
    await respond(client, input=[*first, last, *_calls(12)], truncation="auto")
    text = codec.decode(port.streams[-1].generation.prompt, special=True)
    assert "long" not in text  # the last turn alone is too long
    assert "rain 99" in text
    answer = await client.post(URL, json={"input": "a" * 2000, "truncation": "auto"})
    assert (await answer.json())["error"]["code"] == "context_length_exceeded"  # nothing is left to leave out
    await respond(client, input=first, truncation="auto")
    assert "first" in codec.decode(port.streams[-1].generation.prompt, special=True)


@pytest.mark.parametrize(
    "made",
    [
        lambda: {"input": [ASK, *([CALLED | {"call_id": f"c{i}"} for i in range(9_999)])]},
        lambda: {"input": [{"role": "user", "content": "x"}] * 10_000},
        lambda: {"input": "a", "instructions": "long " * 400_000},
        lambda: {"input": [ASK, {**CALLED, "arguments": "[" * 100_000}]},
    ],
)
async def test_a_large_body_is_answered(responses: Any, made: Any) -> None:
    client, _ = await responses("a")
    answer = await client.post(URL, data=io.BytesIO(json.dumps(made()).encode()), headers=JSON)
    error = (await answer.json())["error"]
    assert answer.status in (400, 413)
    assert error["message"]

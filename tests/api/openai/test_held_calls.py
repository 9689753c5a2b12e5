"""Calls of turns that are free otherwise: what is held of tools that are not strict, and how the rest is said."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest

from blockwright.api.constraints.checker import GrammarChecker, TableFacts
from blockwright.gpu.sampling.free_turn import FreeTurn
from blockwright.policies.plan.grammar import LARK
from blockwright.tests.api.conftest import Qwen
from blockwright.tests.api.openai.test_tools import ASK, CALL, FAULTS, PLACE, STRICT, TIME, URL, WEATHER, chat
from blockwright.tests.api.text.turn.turns import SOURCES
from blockwright.tests.claims import claim
from blockwright.tests.parts import some


def tool_of(name: str, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


@claim("A schema of a tool that is not strict and cannot be held is loosened to any object, and named", of="tools")
@pytest.mark.parametrize("kind", some(sorted(SOURCES), "coder", "llama4"))
async def test_what_cannot_be_held_is_named_where_no_tool_is_strict(qwen: Qwen, kind: str) -> None:
    client, port = await qwen("hi", SOURCES[kind][0])
    for properties, kinds in FAULTS.values():
        tools = [WEATHER, tool_of("f", {"type": "object", "properties": properties})]
        answer = await client.post(URL, json={"messages": ASK, "tools": tools})
        assert answer.status == 200, await answer.text()
        named = answer.headers.get("x-ignored-fields")
        assert named == ("tools[1].function.parameters" if kind in kinds else None), properties
        turn = FreeTurn.of(port.streams[-1].generation.sampling.grammar.text)
        assert "place" in turn.call
        for more in ({"tools": tools, "parallel_tool_calls": False}, {"tools": [STRICT, tools[1]]}):
            answer = await client.post(URL, json={"messages": ASK, **more})
            assert answer.status == 200, await answer.text()
            assert answer.headers.get("x-ignored-fields") == named, properties
            whole = port.streams[-1].generation.sampling.grammar
            assert (whole.form, "place" in whole.text) == (LARK, True)
        strict = [WEATHER, tool_of("f", {"type": "object", "properties": properties}, strict=True)]
        answer = await client.post(URL, json={"messages": ASK, "tools": strict})
        assert answer.status == (400 if kind in kinds else 200)


async def test_a_name_that_no_call_can_have_is_named(qwen: Qwen) -> None:
    client, port = await qwen("hi", SOURCES["olmo"][0])
    answer = await client.post(URL, json={"messages": ASK, "tools": [WEATHER, tool_of("a/b", {})]})
    assert answer.headers["x-ignored-fields"] == "tools[1].function.parameters"
    assert "a/b" not in FreeTurn.of(port.streams[-1].generation.sampling.grammar.text).call
    answer = await client.post(URL, json={"messages": ASK, "tools": [tool_of("a/b", {})]})
    assert answer.headers["x-ignored-fields"] == "tools[0].function.parameters"
    assert port.streams[-1].generation.sampling.grammar is None


async def test_as_much_is_held_as_there_is_room_for(qwen: Qwen) -> None:
    """100 tools of 10 kB each, as of an MCP server: the first ones are held, the others are any object."""
    names = "{% for tool in tools %}{{ tool.function.name }} {% endfor %}<|im_start|>assistant\n{# <tool_call> #}"
    client, port = await qwen("hi", names)
    fields = {f"field_{i}": {"type": "string", "description": "x" * 200, "maxLength": 9} for i in range(40)}
    tools = [tool_of(f"tool{i}", {"type": "object", "properties": fields}) for i in range(100)]
    body = json.dumps({"messages": ASK, "tools": tools}).encode()
    for _ in range(2):
        answer = await client.post(URL, data=BytesIO(body), headers={"Content-Type": "application/json"})
        assert answer.status == 200, await answer.text()
        named = answer.headers["x-ignored-fields"].split(", ")
        assert named[0] == "tools[18].function.parameters", named
        turn = FreeTurn.of(port.streams[-1].generation.sampling.grammar.text)
        assert turn.call.count("field_39") == 18
        assert all(tool["function"]["name"] in turn.call for tool in tools)


async def test_a_tokenizer_that_cannot_be_constrained_leaves_calls_free(qwen: Qwen, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(self: GrammarChecker, *parts: Any) -> TableFacts:
        return TableFacts("it has no table")

    monkeypatch.setattr(GrammarChecker, "table", unknown)
    client, port = await qwen(CALL)
    answer = await client.post(URL, json={"messages": ASK, "tools": [WEATHER, TIME]})
    assert answer.headers["x-ignored-fields"] == "tools[0].function.parameters, tools[1].function.parameters"
    assert (await answer.json())["choices"][0]["finish_reason"] == "tool_calls"
    assert port.streams[-1].generation.sampling.grammar is None
    answer = await client.post(URL, json={"messages": ASK, "tools": [STRICT, TIME]})
    assert answer.status == 400


async def test_a_call_that_the_prompt_has_begun_is_not_held_and_said_so(qwen: Qwen) -> None:
    client, port = await qwen('me": "weather", "arguments": {}}\n</tool_call>')
    begun = [*ASK, {"role": "assistant", "content": '<tool_call>\n{"na'}]
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    answer = await client.post(URL, json={"messages": begun, "tools": [WEATHER], **goes_on})
    assert answer.headers["x-ignored-fields"] == "tools[0].function.parameters"
    assert port.streams[-1].generation.sampling.grammar is None
    begun[-1]["content"] = "so: <tool"
    await chat(client, messages=begun, tools=[WEATHER], **goes_on)
    turn = FreeTurn.of(port.streams[-1].generation.sampling.grammar.text)
    assert (turn.region, turn.fresh, turn.held) == ("", False, "<tool")


async def test_allowed_tokens_leave_calls_free_and_are_refused_where_a_turn_is_shaped(qwen: Qwen) -> None:
    client, port = await qwen(CALL)
    asked = {"messages": ASK, "tools": [WEATHER], "allowed_token_ids": [*range(3, 60)]}
    answer = await client.post(URL, json=asked)
    assert answer.headers["x-ignored-fields"] == "tools[0].function.parameters"
    assert port.streams[-1].generation.sampling.grammar is None
    for fields in ({"tool_choice": "required"}, {"tools": [STRICT]}, {"response_format": {"type": "json_object"}}):
        answer = await client.post(URL, json=asked | fields)
        error = (await answer.json())["error"]
        assert (answer.status, error["param"]) == (400, "allowed_token_ids")
        assert "may leave no token; leave one of them out" in error["message"]


async def test_no_turn_is_shaped_where_the_prompt_has_begun_a_call(qwen: Qwen) -> None:
    client, _ = await qwen(CALL)
    begun = [*ASK, {"role": "assistant", "content": '<tool_call>\n{"na'}]
    asked = {"messages": begun, "tools": [WEATHER], "continue_final_message": True, "add_generation_prompt": False}
    answer = await client.post(URL, json={**asked, "tool_choice": "required"})
    error = (await answer.json())["error"]
    assert (answer.status, error["param"], "has begun a call" in error["message"]) == (400, "messages", True), error


async def test_ends_that_are_ignored_end_a_turn_that_a_grammar_has_and_no_free_one(qwen: Qwen) -> None:
    client, port = await qwen(CALL)
    for choice, ends in (("auto", False), ("required", True)):
        await chat(client, tools=[WEATHER], tool_choice=choice, ignore_eos=True)
        generation = port.streams[-1].generation
        assert generation.sampling.grammar.to_the_end
        assert bool(generation.stop_tokens) is ends


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_calls_are_held_by_the_other_chats_too(qwen: Qwen, path: str) -> None:
    client, port = await qwen("hi")
    ours = path == "/v1/responses"
    key = "parameters" if ours else "input_schema"
    kind = {"type": "function", "strict": False} if ours else {}
    tools = [
        {"name": "weather", key: PLACE, **kind},
        {"name": "f", key: {"type": "object", "properties": {"a": {"not": {}}}}, **kind},
    ]
    body = {"input": "hi"} if ours else {"messages": ASK, "max_tokens": 9}
    answer = await client.post(path, json={"model": "tiny", "tools": tools, **body})
    assert answer.status == 200, await answer.text()
    assert answer.headers["x-ignored-fields"] == f"tools[1].{key}"
    assert "place" in FreeTurn.of(port.streams[-1].generation.sampling.grammar.text).call

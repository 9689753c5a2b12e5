"""Chats with tools: prompts, deltas, grammars and refusals, by models in the manner of Qwen 3 and of Mistral."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.program.client import Client
from blockwright.api.text.turn.reader import TurnReader
from blockwright.api.text.turn.template import read_template
from blockwright.gpu.sampling.free_turn import FreeTurn
from blockwright.policies.plan.grammar import LARK
from blockwright.tests.api.conftest import Qwen
from blockwright.tests.api.fake_port import EOS, events, one_by_one, with_template
from blockwright.tests.api.text.turn.chat_templates import MISTRAL, QWEN3
from blockwright.tests.api.text.turn.turns import LITERALS, PYTHON, SOURCES, TURNS, written
from blockwright.tests.claims import claim
from blockwright.tests.parts import some

URL = "/v1/chat/completions"
ASK = [{"role": "user", "content": "weather in Bern?"}]
PLACE = {
    "type": "object",
    "properties": {"place": {"type": "string"}},
    "required": ["place"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "of a place", "parameters": PLACE}}
TIME = {"type": "function", "function": {"name": "time"}}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Bern"}}\n</tool_call>'


async def chat(client: Any, **fields: Any) -> dict[str, Any]:
    answer = await client.post(URL, json={"messages": ASK, **fields})
    assert answer.status == 200, await answer.text()
    body: dict[str, Any] = await answer.json()
    return body


@claim("A chat with tools answers with tool calls, reasoning apart, whole and streamed", of="tools")
async def test_thinking_text_and_two_calls(qwen: Qwen, codec: Any) -> None:
    text = f"<think>\nhm, two\n</think>\n\nI ask. {CALL}\n{CALL.replace('Bern', 'Rome')}"
    client, port = await qwen(text)
    body = await chat(client, tools=[WEATHER, TIME])
    (choice,) = body["choices"]
    message = choice["message"]
    assert (message["reasoning"], message["content"], choice["finish_reason"]) == ("hm, two", "I ask.", "tool_calls")
    calls = [(call["type"], call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    assert calls == [("function", "weather", '{"place": "Bern"}'), ("function", "weather", '{"place": "Rome"}')]
    ids = {call["id"] for call in message["tool_calls"]}
    assert {len(id) for id in ids} == {9}
    assert len(ids) == 2
    generation = port.streams[-1].generation
    turn = FreeTurn.of(generation.sampling.grammar.text)  # auto constrains nothing but calls
    assert (turn.calls, turn.region, turn.fresh) == (["<tool_call>"], "", True)
    assert '\\"place\\"' in json.dumps(turn.call)
    thought = len(codec.encode("<think>\nhm, two\n</think>", special=False))
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == thought

    answer = await client.post(URL, json={"messages": ASK, "tools": [WEATHER], "stream": True, "return_token_ids": True})
    chunks = [chunk["choices"][0] for chunk in events(await answer.read())]
    assert chunks[-1]["finish_reason"] == "tool_calls"
    deltas = [chunk["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "hm, two"
    assert "".join(delta.get("content", "") for delta in deltas) == "I ask."
    streamed: list[list[str]] = []
    for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
        if "id" in call:
            streamed.append([call["function"]["name"], ""])
        streamed[call["index"]][1] += call["function"]["arguments"]
    assert streamed == [["weather", '{"place": "Bern"}'], ["weather", '{"place": "Rome"}']]
    assert sum(len(chunk.get("token_ids") or []) for chunk in chunks) == body["usage"]["completion_tokens"]


async def test_a_program_gets_them_whole_and_streamed(qwen: Qwen) -> None:
    http, _ = await qwen(f"<think>hm</think>I ask. {CALL}\n{CALL.replace('Bern', 'Rome')}")
    async with Client(str(http.make_url("/"))) as client:
        whole = await client.chat(ASK, tools=[WEATHER])
        call = client.chat(ASK, tools=[WEATHER])
        pieces = [piece async for piece in call]
    assert call.answer is not None
    for choice in (whole.choices[0], call.answer.choices[0]):
        places = [json.loads(one["function"]["arguments"])["place"] for one in choice.tool_calls]
        assert (choice.reasoning, choice.text, places) == ("hm", "I ask.", ["Bern", "Rome"])
        assert choice.finish_reason == "tool_calls"
    assert "".join(piece.reasoning for piece in pieces) == "hm"


async def test_without_tools_calls_are_text(qwen: Qwen) -> None:
    client, _ = await qwen(f"<think>a</think>{CALL}")
    (choice,) = (await chat(client))["choices"]
    assert choice["message"] == {"role": "assistant", "content": CALL, "refusal": None, "reasoning": "a"}
    assert choice["finish_reason"] == "stop"


async def test_what_is_no_call_stays_in_the_text(qwen: Qwen) -> None:
    broken = 'so: <tool_call>\n{"name": 7}\n</tool_call> there'
    client, _ = await qwen(broken)
    (choice,) = (await chat(client, tools=[WEATHER]))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (broken, "stop")


@pytest.mark.parametrize(
    ("stop", "finish", "arguments"),
    [
        ("Bern", "stop", '{"place": "'),
        ("</tool_call>", "tool_calls", '{"place": "Bern"}'),
        ("}}", "stop", '{"place": "Bern"'),
    ],
)
async def test_a_stop_string_inside_of_a_call(qwen: Qwen, stop: str, finish: str, arguments: str) -> None:
    """A call that a stop string cuts is none to make; one that is complete is."""
    client, _ = await qwen(f"I ask. {CALL}")
    (choice,) = (await chat(client, tools=[WEATHER], stop=[stop]))["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["stop_reason"], call["function"]["arguments"]) == (finish, stop, arguments)


@pytest.mark.parametrize("kind", sorted(SOURCES))
async def test_a_turn_that_ends_inside_of_a_call(kind: str) -> None:
    """In each form the reader knows at each place whether the last call is complete."""
    turn = written(kind, "", "", [("weather", {"place": "Bern"})])
    cut = []
    for end in range(len(turn) + 1):
        reader = TurnReader(read_template(TURNS[kind]), schemas={"weather": PLACE})
        deltas = reader.feed(turn[:end]) + reader.finish()
        assert not reader.cut_call or reader.called
        if reader.called:
            cut.append(reader.cut_call)
            arguments = "".join(delta.call.arguments for delta in deltas if delta.call is not None)
            assert reader.cut_call or arguments == '{"place": "Bern"}', (turn[:end], arguments)
    assert (cut[0], cut[-1]) == (True, False)
    assert cut == sorted(cut, reverse=True)  # once it is complete, it stays so


async def test_a_history_of_calls_reaches_the_template(qwen: Qwen, codec: Any) -> None:
    client, port = await qwen("x")
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Bern"}'}}
    history = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
    ]
    await chat(client, messages=history, tools=[WEATHER], reasoning_effort="none")
    prompt = codec.decode(port.streams[-1].generation.prompt, special=True)
    assert json.dumps(WEATHER) in prompt
    assert CALL + "<|im_end|>" in prompt
    assert "<tool_response>\nrain\n</tool_response>" in prompt
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")  # the effort


async def test_an_effort_without_a_variable_is_named(serve: Any, say: Any) -> None:
    client, _ = await serve(say("a"))
    answer = await client.post(URL, json={"messages": ASK, "max_tokens": 4, "reasoning_effort": "low"})
    assert answer.headers["x-ignored-fields"] == "reasoning_effort"
    answer = await client.post(URL, json={"messages": ASK, "max_tokens": 4, "reasoning_effort": "none"})
    assert "x-ignored-fields" not in answer.headers


@pytest.mark.parametrize(
    ("fields", "has", "lacks"),
    [
        ({"tool_choice": "required"}, ["weather", "time", "arguments1", '"place"', ")*"], ["FREE"]),
        ({"tool_choice": "required", "parallel_tool_calls": False}, ["weather", "time"], ["FREE", ")*"]),
        ({"tool_choice": {"type": "function", "function": {"name": "time"}}}, ["time"], ["weather", "FREE"]),
        ({"tool_choice": "none"}, ["FREE"], ["weather"]),
        ({"tools": [STRICT, TIME]}, ["FREE", '"place"', "time"], []),
        ({"parallel_tool_calls": False}, ["FREE", "weather", '"place"'], [")*"]),
        ({"response_format": {"type": "json_object"}}, ["text: %json", "weather", '"place"'], ["FREE"]),
    ],
)
async def test_the_grammar_of_a_turn(qwen: Qwen, fields: dict[str, Any], has: list[str], lacks: list[str]) -> None:
    client, port = await qwen(CALL)
    await chat(client, **{"tools": [WEATHER, TIME], **fields})
    grammar = port.streams[-1].generation.sampling.grammar
    assert grammar.form == LARK
    text = grammar.text.replace("\\x{5F}", "_")
    for part in has:
        assert part in text, text
    for part in lacks:
        assert part not in text, text
    assert "thought" in text


async def test_a_schema_constrains_what_follows_the_thinking(qwen: Qwen) -> None:
    client, port = await qwen('<think>so</think>\n{"place": "<think>"}')
    asked = {"response_format": {"type": "json_schema", "json_schema": {"schema": PLACE}}}
    (choice,) = (await chat(client, **asked))["choices"]
    assert choice["message"]["content"] == '{"place": "<think>"}'
    assert choice["message"]["reasoning"] == "so"
    assert "thought" in port.streams[-1].generation.sampling.grammar.text
    await chat(client, **asked, chat_template_kwargs={"enable_thinking": False})
    assert "thought" not in port.streams[-1].generation.sampling.grammar.text


async def test_a_constrained_text_keeps_its_blanks_and_begins_with_none_behind_thinking(qwen: Qwen) -> None:
    client, _ = await qwen(" a ")
    choices: dict[str, Any] = {"guided_choice": [" a ", " b"]}
    off = {"enable_thinking": False}
    (choice,) = (await chat(client, **choices, chat_template_kwargs=off))["choices"]
    assert choice["message"]["content"] == " a "
    answer = await client.post(URL, json={"messages": ASK, **choices})
    assert answer.status == 400
    assert "behind thinking, where a text begins with no blank" in (await answer.json())["error"]["message"]


async def test_no_call_is_forced_inside_of_a_text(qwen: Qwen) -> None:
    """Calls of gpt-oss stand apart from its texts, so that one behind a text that the prompt has begun would not be read."""
    client, _ = await qwen("", SOURCES["harmony"][0])
    begun = [*ASK, {"role": "assistant", "content": "b"}]
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    asked = {"messages": begun, "tools": [TIME], "tool_choice": "required", **goes_on}
    answer = await client.post(URL, json=asked)
    assert answer.status == 400
    assert "the prompt has begun a text" in (await answer.json())["error"]["message"]
    assert (await client.post(URL, json=asked | {"tool_choice": "auto"})).status == 200


async def test_special_tokens_are_delimiters(serve: Any, codec: Any, folder: Path, tmp_path: Path) -> None:
    """They are read, although the answer's text does not have them, and the grammar has their ids."""
    made = with_template(folder, tmp_path / "mistral", MISTRAL)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (made / name).write_text((made / name).read_text().replace("<unk>", "[TOOL_CALLS]"))
    id = 0
    listed = '[{"name": "time", "arguments": {}}, {"name": "time", "arguments": {"a": [1, "]"]}}]'
    tokens = [id, *codec.encode(listed, special=False), EOS]
    client, port = await serve(lambda generation: one_by_one(tokens, "stop"), folder=made)
    port.infos = [replace(info, max_length=4096, rooms=(8192,)) for info in port.infos]
    (choice,) = (await chat(client, tools=[TIME], tool_choice="required"))["choices"]
    calls = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
    assert (calls, choice["message"]["content"]) == (["{}", '{"a": [1, "]"]}'], None)
    grammar = port.streams[-1].generation.sampling.grammar
    assert f"<[{id}]>" in grammar.text
    assert id in grammar.vocabulary.hidden
    answer = {"role": "assistant", **choice["message"]}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "1"} for call in answer["tool_calls"]]
    await chat(client, messages=[*ASK, answer, *results], tools=[TIME], tool_choice="none")  # nine characters of an id


@claim("A setting gives the thinking a second name, reasoning_content, in messages and deltas", of="tools")
async def test_thinking_has_a_second_name_by_a_setting(qwen: Qwen) -> None:
    client, _ = await qwen("<think>hm</think>yes", settings={"reasoning_content": True})
    message = (await chat(client))["choices"][0]["message"]
    assert (message["reasoning"], message["reasoning_content"], message["content"]) == ("hm", "hm", "yes")
    answer = await client.post(URL, json={"messages": ASK, "stream": True})
    deltas = [chunk["choices"][0]["delta"] for chunk in events(await answer.read())]
    for name in ("reasoning", "reasoning_content"):
        assert "".join(delta.get(name, "") for delta in deltas) == "hm"


@claim("The chat template named tool_use is the one of requests with tools", of="tools")
async def test_a_chat_template_for_tools(qwen: Qwen, codec: Any) -> None:
    listed = [{"name": "default", "template": "{{ messages[0].content }}"}, {"name": "tool_use", "template": QWEN3}]
    client, port = await qwen(CALL, listed)
    (choice,) = (await chat(client, tools=[TIME]))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert '"name": "time"' in codec.decode(port.streams[-1].generation.prompt, special=True)
    await chat(client)
    assert codec.decode(port.streams[-1].generation.prompt, special=True).endswith(ASK[0]["content"])
    counted = await client.post("/tokenize", json={"messages": ASK, "tools": [TIME]})
    assert (await counted.json())["count"] > 20


@pytest.mark.parametrize("kind", some(sorted(SOURCES), "coder", "harmony", "llama4"))
async def test_each_form_over_http(qwen: Qwen, kind: str) -> None:
    """A written call is read; required, named, strict and none have grammars; a history is printed."""
    calls = [("weather", {"place": 'Bern </x> "a"'})]
    client, port = await qwen(written(kind, "", "", [*calls]), SOURCES[kind][0])
    (choice,) = (await chat(client, tools=[WEATHER, TIME]))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == calls[0]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "1"}
    history = [*ASK, {"role": "assistant", **choice["message"]}, result, *ASK]
    named = {"type": "function", "function": {"name": "time"}}
    for fields in ({"tool_choice": "required"}, {"tool_choice": named}, {"tool_choice": "none"}, {"tools": [STRICT]}):
        await chat(client, **{"messages": history, "tools": [WEATHER, TIME], **fields})
        assert port.streams[-1].generation.sampling.grammar.form == LARK


FAULTS = {  # what a tool has, and the forms that cannot write it
    "pattern": ({"a": {"type": "string", "pattern": "^x"}}, {"coder", "glm", *LITERALS}),
    "keyword prefixItems": ({"a": {"type": "array", "prefixItems": [{}]}}, LITERALS),
    "name 'a>b'": ({"a>b": {"type": "string"}}, {"coder", *PYTHON}),
    "name 'a<b'": ({"a<b": {"type": "string"}}, {"glm", *PYTHON}),
    "name 'a b'": ({"a b": {"type": "string"}}, PYTHON),
    "name 'a\\n'": ({"a\n": {"type": "string"}}, {"coder", "glm", *PYTHON}),
    "value '</parameter>": ({"a": {"enum": ["</parameter>"]}}, {"coder"}),
    "value 'null'": ({"a": {"enum": ["null", None]}}, {"coder", "glm"}),
    "keyword not": ({"a": {"not": {}}}, {*SOURCES}),
}


@claim("A schema that a form of calls cannot write exactly is refused by name", of="tools")
@pytest.mark.parametrize("kind", some(sorted(SOURCES), "coder", "llama4"))
async def test_what_a_form_cannot_hold_is_refused(qwen: Qwen, kind: str) -> None:
    client, _ = await qwen("", SOURCES[kind][0])
    for said, (properties, kinds) in FAULTS.items():
        function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
        body = {"messages": ASK, "tools": [{"type": "function", "function": function}], "tool_choice": "required"}
        answer = await client.post(URL, json=body)
        if kind in kinds:
            error = (await answer.json())["error"]
            assert (answer.status, said in error["message"]) == (400, True), (said, error)
        else:
            assert answer.status == 200, (said, await answer.text())
        body = {**body, "tool_choice": "auto"}
        assert (await client.post(URL, json=body)).status == 200  # nothing is held, nothing is refused


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"tools": [{"type": "custom"}]}, "tools[0]", "type function"),
        ({"tools": [{"type": "function", "function": {"name": 'a"}'}}]}, "tools[0].function.name", "letters"),
        ({"tools": [TIME] * 2}, "tools", "two tools of the name time"),
        ({"tools": [TIME] * 129}, "tools", "at most 128"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": [TIME], "tool_choice": "any"}, "tool_choice", "none, auto, required"),
        ({"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "is no tool"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]},
         "tools[0].function.parameters", "schema of an object"),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": True, "parameters": {"not": {}}}}]},
         "tools[0].function.parameters", "the keyword not"),
        ({"tools": [TIME], "structured_outputs": {"grammar": 'start: "a"'}}, "structured_outputs.grammar", "beside tools"),
    ],
)  # fmt: skip
async def test_a_refusal_names_the_field(qwen: Qwen, fields: dict[str, Any], param: str, said: str) -> None:
    client, _ = await qwen()
    answer = await client.post(URL, json={"messages": ASK, **fields})
    error = (await answer.json())["error"]
    assert (answer.status, error["param"], said in error["message"]) == (400, param, True), error


@pytest.mark.parametrize(
    ("template", "more", "said"),
    [
        ("{{ messages[0].content }}", {}, "tiny has no turn template"),
        ("{# <|im_start|> <tool_call> #}{{ messages[0].content }}", {}, "does not print the tools"),
        (QWEN3, {"response_template": {"fields": {"thinking": {"open_pattern": "(a+)+"}}}}, "open_pattern"),
        (
            QWEN3,
            {"response_template": {"start_anchor": "<|im_start|>assistant\n", "fields": {"content": {}}}},
            "has no tool_calls",
        ),
    ],
)
async def test_tools_need_a_turn_template(qwen: Qwen, template: str, more: dict[str, Any], said: str) -> None:
    client, _ = await qwen("a", template, **more)
    answer = await client.post(URL, json={"messages": ASK, "tools": [TIME]})
    error = (await answer.json())["error"]
    assert (answer.status, error["param"], said in error["message"]) == (400, "tools", True), error
    assert (await chat(client))["choices"][0]["message"]["content"] == "a"  # chats go on


TEXTS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
OFFERED = "{% if tools %}{{ tools | tojson }}{% for m in messages %}{{ m.tool_calls }}{% endfor %}{% endif %}" + TEXTS


USERS = "{% for m in messages if m.role != 'tool' %}{{ m.content }}{{ m.tool_calls }}{% endfor %}"
ASKED = [
    *ASK,
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Bern"}'}}
    ]},
]  # fmt: skip
RESULT = {"role": "tool", "tool_call_id": "a", "content": "rain"}


@claim("Calls and results of a history that the chat template would leave out are refused by name", of="tools")
@pytest.mark.parametrize(
    ("template", "messages", "said"),
    [
        (TEXTS, ASKED, "messages have tool_calls, which the chat template of tiny does not print; give tiny another"),
        (OFFERED, ASKED, "does not print without tools; send tools, too"),
        (USERS, [*ASKED, RESULT], "messages have the role tool"),
        (USERS, ASKED, ""),
        (TEXTS, [*ASK, RESULT], ""),
        (QWEN3, [*ASKED, RESULT], ""),
    ],
)
async def test_a_history_that_is_not_printed_is_refused(qwen: Qwen, template: str, messages: Any, said: str) -> None:
    client, _ = await qwen("x", template)
    for path in (URL, "/tokenize"):
        answer = await client.post(path, json={"model": "tiny", "messages": messages})
        found = await answer.json()
        assert answer.status == (400 if said else 200), found
        assert not said or (said in found["error"]["message"], found["error"]["code"]) == (True, "unprinted_history")

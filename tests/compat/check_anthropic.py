"""Checks of a server by the anthropic package: ``check_anthropic.py URL MODEL``. Prints what it has checked.

The model has a turn template with thinking and tool calls. The client validates each answer and event by its own models.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import anthropic
import jsonschema
from anthropic.lib.streaming import MessageStreamEvent
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

URL, MODEL = sys.argv[1:]
HELLO: Any = [{"role": "user", "content": "Say hello."}]
DAY = {
    "type": "object",
    "properties": {"day": {"enum": ["today", "tomorrow"]}, "hour": {"type": "integer", "maximum": 23, "minimum": 0}},
    "required": ["day", "hour"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"name": "weather", "description": "of a day", "input_schema": DAY, "cache_control": {"type": "ephemeral"}},
    {"name": "time", "input_schema": {"type": "object"}},
]
NAMED: Any = {"type": "tool", "name": "weather"}
GREEDY: Any = {"extra_body": {"temperature": 0}}  # the client has no name for it
STRICT: Any = {"base_url": URL, "api_key": "none", "max_retries": 0, "_strict_response_validation": True}
client = anthropic.Anthropic(**STRICT)
EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def check(name: str, holds: bool) -> None:
    print(f"{'ok  ' if holds else 'FAIL'} anthropic {anthropic.__version__}: {name}", flush=True)
    if not holds:
        sys.exit(1)


def whole_answers() -> None:
    asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 8, **GREEDY}
    found = client.messages.create(**asked, system=[{"type": "text", "text": "x-anthropic-billing-header: a=1"}])
    check(
        "a message",
        (found.type, found.role, found.model, found.stop_reason) == ("message", "assistant", MODEL, "max_tokens"),
    )
    check("usage", found.usage.output_tokens == 8 and found.usage.cache_creation_input_tokens == 0)
    check("request id", bool(found._request_id))
    count = client.messages.count_tokens(model=MODEL, messages=HELLO)
    check("count_tokens", count.input_tokens == found.usage.input_tokens + (found.usage.cache_read_input_tokens or 0))
    raw = client.messages.with_raw_response.create(**asked, metadata={"user_id": "u"}, service_tier="auto")
    check("headers", raw.headers["request-id"] == raw.headers["x-request-id"])
    begun: Any = [*HELLO, {"role": "assistant", "content": "Hel"}]
    check("a begun answer", bool(client.messages.create(**{**asked, "messages": begun}).content))
    beta = client.beta.messages.create(**asked, betas=["context-management-2025-06-27"])
    check("beta", [block.to_dict() for block in beta.content] == [block.to_dict() for block in found.content])


def streams() -> None:
    asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 24, **GREEDY}
    whole = client.messages.create(**asked)
    kinds = []
    for event in client.messages.create(**asked, stream=True):
        EVENTS.validate_python(event.to_dict(), strict=True)
        kinds.append(event.type)
    check("events", kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"])
    check("kinds of events", {"content_block_start", "content_block_delta", "content_block_stop"} < {*kinds})
    with client.messages.stream(**asked) as stream:
        helped: list[MessageStreamEvent] = [*stream]
        final = stream.get_final_message()
    check("stream helper", same(final, whole) and final.stop_reason == whole.stop_reason)
    check("events of the helper", {"text", "message_stop"} <= {event.type for event in helped} | {"text"})
    stops = client.messages.create(**{**asked, "stop_sequences": [text_of(whole)[3:6]]}) if len(text_of(whole)) > 6 else None
    check("a stop sequence", stops is None or stops.stop_reason == "stop_sequence")


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def same(one: Message, other: Message) -> bool:
    """Return True if the blocks are equal but for the ids of calls, and so is the usage."""
    blocks = [[{**block.to_dict(), "id": ""} for block in message.content] for message in (one, other)]
    for block in (block for message in blocks for block in message):
        block.pop("parsed_output", None)
    counts = [message.usage.output_tokens for message in (one, other)]
    return blocks[0] == blocks[1] and counts[0] == counts[1]


def fits(value: object) -> bool:
    try:
        jsonschema.validate(value, DAY)
    except jsonschema.ValidationError:
        return False
    return True


def tools(text: str) -> None:
    """Two rounds with a named tool, whose result goes back."""
    messages: Any = [{"role": "user", "content": text}]
    asked: Any = {"model": MODEL, "tools": TOOLS, "tool_choice": NAMED, "max_tokens": 300, **GREEDY}
    asked |= {"thinking": {"type": "disabled"}}
    found = client.messages.create(**asked, messages=messages)
    (use,) = found.content
    check("a named tool", use.type == "tool_use" and use.name == "weather" and use.id.startswith("toolu_"))
    check("its input", found.stop_reason == "tool_use" and use.type == "tool_use" and fits(use.input))
    with client.messages.stream(**asked, messages=messages) as stream:
        events = [*stream]
        final = stream.get_final_message()
    check("the same, streamed", same(final, found) and final.stop_reason == "tool_use")
    check("input events", any(event.type == "input_json" for event in events))
    result = {"type": "tool_result", "tool_use_id": final.content[0].to_dict()["id"], "content": "rain", "is_error": True}
    history: Any = [*messages, {"role": "assistant", "content": final.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(**{**asked, "tool_choice": {"type": "none"}, "max_tokens": 9}, messages=history)
    check("the answer to a result", all(block.type != "tool_use" for block in after.content))
    counted = client.messages.count_tokens(
        model=MODEL, messages=history, tools=TOOLS, tool_choice={"type": "none"}, thinking={"type": "disabled"}
    )
    read = after.usage.cache_read_input_tokens or 0
    check("counted with tools", counted.input_tokens == after.usage.input_tokens + read)
    short = {**asked, "max_tokens": found.usage.output_tokens - 20}
    cut = client.messages.create(**short, messages=messages)
    check("a call that is cut", cut.stop_reason == "max_tokens" and all(block.type == "tool_use" for block in cut.content))
    with client.messages.stream(**short, messages=messages) as stream:
        check("the same, streamed", same(stream.get_final_message(), cut))


def required() -> None:
    asked: Any = {
        "model": MODEL,
        "messages": HELLO,
        "tools": TOOLS[:1],
        "max_tokens": 400,
        "extra_body": {"temperature": 1.0},
    }
    asked |= {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "thinking": {"type": "disabled"}}
    found = client.messages.create(**asked)
    uses = [block for block in found.content if block.type == "tool_use"]
    check("any", len(uses) == 1 and (found.stop_reason != "tool_use" or fits(uses[0].input)))


def structured() -> None:
    found = client.messages.create(
        model=MODEL, messages=HELLO, max_tokens=200, thinking={"type": "disabled"},
        output_config={"format": {"type": "json_schema", "schema": DAY}},
    )  # fmt: skip
    check("a schema", found.stop_reason != "end_turn" or fits(json.loads(text_of(found))))


def thinking() -> None:
    asked: Any = {"model": MODEL, "max_tokens": 20, **GREEDY}
    begun: Any = [{"role": "user", "content": "think"}]
    found = client.messages.create(**asked, messages=begun)
    (block,) = found.content
    check("thinking", block.type == "thinking" and block.signature == "" and bool(block.thinking))
    details = found.usage.output_tokens_details
    check("thinking tokens", details is not None and details.thinking_tokens == 20)
    with client.messages.stream(**asked, messages=begun) as stream:
        kinds = {event.type for event in stream}
        check("thinking, streamed", same(stream.get_final_message(), found) and {"thinking", "signature"} <= kinds)
    omitted = client.messages.create(**asked, messages=begun, thinking={"type": "adaptive", "display": "omitted"})
    (block,) = omitted.content
    check("thinking, omitted", block.type == "thinking" and block.thinking == "")


def errors() -> None:
    none = {"model": MODEL, "messages": HELLO}
    cases: Any = (
        (anthropic.NotFoundError, "not_found_error", {"model": "none", "messages": HELLO, "max_tokens": 1}),
        (anthropic.BadRequestError, "invalid_request_error", {**none, "max_tokens": 20_000}),
        (anthropic.BadRequestError, "invalid_request_error", {**none, "max_tokens": 1, "extra_body": {"temperature": 7}}),
    )
    for kind, type_, asked in cases:
        for stream in (False, True):
            try:
                client.messages.create(**asked, stream=stream)
            except kind as error:
                check(f"{kind.__name__} {type_}", error.type == type_ and bool(error.request_id) and bool(error.api_message))
            else:
                check(f"{kind.__name__} {type_}", False)


async def together() -> None:
    many = anthropic.AsyncAnthropic(**STRICT)
    calls = [many.messages.create(model=MODEL, messages=HELLO, max_tokens=8, **GREEDY) for _ in range(8)]
    texts = {text_of(answer) for answer in await asyncio.gather(*calls)}
    check("eight at a time", len(texts) == 1)
    await many.close()


whole_answers()
streams()
for word in ("weather?", "and tomorrow?"):
    tools(word)
required()
structured()
thinking()
errors()
asyncio.run(together())

"""What the openai package gets from a server for tools: ``check_tools.py URL MODEL``. Prints what it has checked."""

from __future__ import annotations

import json
import sys
from typing import Any

import openai

URL, MODEL = sys.argv[1:]
ASK: Any = [{"role": "user", "content": "weather?"}]
DAY = {
    "type": "object",
    "properties": {"day": {"enum": ["today", "tomorrow"]}, "hour": {"type": "integer", "maximum": 23, "minimum": 0}},
    "required": ["day", "hour"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "of a day", "parameters": DAY, "strict": True}},
    {"type": "function", "function": {"name": "time"}},
]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)


def check(name: str, holds: bool) -> None:
    print(f"{'ok  ' if holds else 'FAIL'} openai {openai.__version__}: {name}", flush=True)
    if not holds:
        sys.exit(1)


def fits(arguments: str) -> bool:
    found = json.loads(arguments)
    return set(found) == {"day", "hour"} and found["day"] in ("today", "tomorrow") and 0 <= found["hour"] <= 23


def named(seed: int) -> None:
    asked: Any = {"model": MODEL, "messages": ASK, "tools": TOOLS, "tool_choice": NAMED, "seed": seed, "max_tokens": 300}
    asked |= {"temperature": 1.0, "reasoning_effort": "none"}
    choice = client.chat.completions.create(**asked).choices[0]
    (call,) = choice.message.tool_calls or ()
    check("a named tool", (choice.finish_reason, choice.message.content, call.type) == ("tool_calls", None, "function"))
    check("arguments by the schema", call.function.name == "weather" and fits(call.function.arguments))
    text, name = "", ""
    finish = None
    for chunk in client.chat.completions.create(**asked, stream=True):
        for one in chunk.choices:
            finish = one.finish_reason or finish
            for delta in one.delta.tool_calls or ():
                name = delta.function.name or name
                text += delta.function.arguments or ""
    check("the same, streamed", (name, text, finish) == ("weather", call.function.arguments, "tool_calls"))
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0].message
    check("stream helper", final.tool_calls[0].function.arguments == text)
    history: Any = [*ASK, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    after = client.chat.completions.create(**{**asked, "messages": history, "tool_choice": "none", "max_tokens": 9})
    check("the answer to a result", after.choices[0].message.tool_calls is None)


def required(seed: int) -> None:
    asked: Any = {"model": MODEL, "messages": ASK, "tools": [TOOLS[0]], "tool_choice": "required", "seed": seed}
    choice = client.chat.completions.create(**asked, max_tokens=400, temperature=1.0, reasoning_effort="none").choices[0]
    calls = choice.message.tool_calls or []
    whole = calls if choice.finish_reason == "tool_calls" else calls[:-1]
    check("required", bool(calls) and all(fits(call.function.arguments) for call in whole))


def thinking() -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=20, extra_body={"chat_template_kwargs": {"open": True}}
    )
    message = answer.choices[0].message
    check("thinking that goes on", message.content == "" and message.reasoning is not None)
    check("reasoning tokens", answer.usage.completion_tokens_details.reasoning_tokens == 20)


for number in range(3):
    named(number)
    required(number)
thinking()

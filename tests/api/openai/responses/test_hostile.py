"""Bodies of responses with anything anywhere: each is a chat, or refused with a field's name."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from blockwright.api.errors import ApiError
from blockwright.api.openai.responses.request import ResponseOptions, parse_response
from blockwright.tests.api.openai.responses.conftest import PLACE, WEATHER
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts

OTHERS: list[Any] = [None, 0, -1, 1.5, True, "", "a", "\u2028", "\ud800", [], {}, [None], [[]], "x" * 3000, 2**70, ["a"]]
OTHERS += [{"a": "b"}, *({"type": kind} for kind in ("x", None, [], {}, "function", "custom", "message", "text"))]
PATCH = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'}}
SOUND: dict[str, Any] = {
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "t"}],
            "encrypted_content": "x",
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "+"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "a"}]},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "ok"},
    ],
    "instructions": "i",
    "tools": [WEATHER, PATCH, {"type": "web_search"}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": PLACE, "strict": True}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "max_output_tokens": 50,
    "truncation": "auto",
    "metadata": {"a": "b"},
    "service_tier": "auto",
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


PLACES = list(places(SOUND))


def changed(draw: random.Random) -> dict[str, Any]:
    """A sound body with one to three parts of it put elsewhere, left out or made something else."""
    body = copy.deepcopy(SOUND)
    for _ in range(draw.choice((1, 1, 2, 3))):
        *path, last = draw.choice(PLACES)
        holder: Any = body
        for key in path:
            holder = holder[key] if isinstance(holder, dict | list) and key in places_of(holder) else None
        if not isinstance(holder, dict | list) or last not in places_of(holder):
            continue
        other = copy.deepcopy(draw.choice(OTHERS))
        if draw.random() < 0.2:
            del holder[last]
        elif isinstance(holder, list) and draw.random() < 0.3:
            holder.insert(draw.randrange(len(holder) + 1), copy.deepcopy(draw.choice([other, *holder])))
        else:
            holder[last if isinstance(holder, list) or draw.random() < 0.8 else draw.choice(("zz", "type", "id"))] = other
    return body


def places_of(holder: Any) -> Any:
    return holder.keys() if isinstance(holder, dict) else range(len(holder))


@claim("A hostile body of a response is refused with the name of a field, or is a sound chat", of="http-api")
@pytest.mark.parametrize("part", parts(20, 1))
def test_anything_is_a_chat_or_a_refusal(part: int) -> None:
    refused, chats = [], []
    for seed in range(part * 400, part * 400 + 400):
        try:
            chats.append(parse_response(changed(random.Random(seed)), ("warn", "reject")[seed % 2]))
        except ApiError as error:
            refused.append(error)
    for refusal in refused:
        assert refusal.status == 400
        assert refusal.param, refusal.message
        assert len(refusal.message) < 1000
    for chat in chats:
        assert isinstance(chat.options, ResponseOptions)
        assert all(message["role"] for message in chat.messages)
        assert isinstance(json.loads(f"{{{chat.options.repeated}}}"), dict)
    assert min(len(refused), len(chats)) > 50

"""The input of a response: a text, or items, translated onto the messages of one chat.

An assistant's items that follow each other, its reasoning, its text and its calls, are one message, as in the turn that
they come from. Nothing is stored, so an item by reference is refused, and so is a result without its call.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any

from ...checks import shown, unicode_text
from ...errors import ApiError, bad_request
from ..bodies import call_arguments, history_call
from ..field_types import Schema, Text
from .custom_tools import input_arguments

ROLES = ("user", "assistant", "system", "developer")
MESSAGE, REASONING = "message", "reasoning"
CALL, OUTPUT = "function_call", "function_call_output"
CUSTOM_CALL, CUSTOM_OUTPUT = "custom_tool_call", "custom_tool_call_output"
_OF_ALL = {"type", "id", "status"}
_OF_ITEM = {
    MESSAGE: {"role", "content", "phase"},
    REASONING: {"summary", "content", "encrypted_content"},
    CALL: {"call_id", "name", "arguments"},
    OUTPUT: {"call_id", "output"},
    CUSTOM_CALL: {"call_id", "name", "input"},
    CUSTOM_OUTPUT: {"call_id", "output"},
}
_OF_PART = {"type", "text", "refusal", "annotations", "logprobs"}
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
LONGEST_ID = 256  # characters of a name or an id
_SEALED = "blockwright-1."  # of the reasoning that a client gives back unread


@dataclass(frozen=True, slots=True)
class GivenItems:
    """The messages of an input. ``ignored``: parts of it without effect."""

    messages: list[dict[str, Any]]
    ignored: tuple[str, ...] = ()


class InputItems:
    """The field type of an input: a text, or a list of items."""

    def read(self, value: Any, name: str) -> GivenItems:
        if isinstance(value, str):
            return GivenItems([{"role": "user", "content": unicode_text(value, name)}])
        if not isinstance(value, list) or not value:
            raise bad_request(f"{name} is {shown(value)}; give a text or a list of at least one item", name, "invalid_type")
        reading = _Reading()
        for i, item in enumerate(value):
            reading.take(item, f"{name}[{i}]")
        return GivenItems(reading.messages, tuple(reading.ignored))

    def unknown(self, value: Any, name: str) -> list[str]:
        """Return unknown fields of items. ``null`` does not count: SDKs keep it from answers without that field."""
        found = []
        for i, item in enumerate(value if isinstance(value, list) else ()):
            at = f"{name}[{i}]"
            known = _OF_ALL | _OF_ITEM[item.get("type") or MESSAGE]
            found += [f"{at}.{key}" for key, inner in item.items() if inner is not None and key not in known]
            for part in ("content", "output"):
                parts = inner if isinstance(inner := item.get(part), list) else []
                found += [f"{at}.{part}[{j}].{key}" for j, one in enumerate(parts) for key in one if key not in _OF_PART]
        return found

    def schema(self) -> Schema:
        texts = {"type": "object", "properties": {"type": {"enum": [*_TEXTS]}, "text": {"type": "string"}}}
        content = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": texts}]}
        call_id = {"type": "string", "minLength": 1}
        of_type: dict[str, Schema] = {
            MESSAGE: {"role": {"enum": [*ROLES]}, "content": content},
            REASONING: {"summary": {"type": "array"}},
            CALL: {"call_id": call_id, "name": {"type": "string"}, "arguments": {"type": "string"}},
            OUTPUT: {"call_id": call_id, "output": content},
            CUSTOM_CALL: {"call_id": call_id, "name": {"type": "string"}, "input": {"type": "string"}},
            CUSTOM_OUTPUT: {"call_id": call_id, "output": content},
        }
        items = []
        for kind, properties in of_type.items():
            required = [*properties] if kind == MESSAGE else ["type", *properties]
            made = {"type": {"const": kind}, **properties}
            items.append({"type": "object", "properties": made, "required": required})
        return {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"anyOf": items}}]}


@dataclass(slots=True)
class _Reading:
    """The messages so far. ``turn``: the assistant's message that the next item may belong to."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    turn: dict[str, Any] | None = None
    called: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)

    def take(self, item: Any, at: str) -> None:
        """Add an item. Raise a 400."""
        if not isinstance(item, dict):
            raise bad_request(f"{at} is {shown(item)}; give an item, which is an object", at, "invalid_type")
        kind = item.get("type") or MESSAGE
        if kind == MESSAGE:
            self._message(item, at)
        elif kind == REASONING:
            self._reasoning(item, at)
        elif kind in (CALL, CUSTOM_CALL):
            self._call(item, at, custom=kind == CUSTOM_CALL)
        elif kind in (OUTPUT, CUSTOM_OUTPUT):
            self._output(item, at)
        else:
            raise _no_item(kind, at)

    def _add(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.turn = message if message["role"] == "assistant" else None

    @staticmethod
    def _thinks(turn: dict[str, Any]) -> bool:
        """Return True for a turn that has only reasoning so far."""
        return "reasoning_content" in turn and not turn["content"] and "tool_calls" not in turn

    def _message(self, item: dict[str, Any], at: str) -> None:
        role = item.get("role")
        if role not in ROLES or not isinstance(role, str):
            known = ", ".join(ROLES)
            raise bad_request(f"{at}.role is {shown(role)}; give one of {known}", f"{at}.role")
        content = _content(item.get("content"), f"{at}.content")
        if role == "assistant" and self.turn is not None and self._thinks(self.turn):
            self.turn["content"] = content
        else:
            self._add({"role": role, "content": content})

    def _reasoning(self, item: dict[str, Any], at: str) -> None:
        text = self._thought(item, at)
        if not text:
            return
        if self.turn is not None and self._thinks(self.turn):
            self.turn["reasoning_content"] += f"\n{text}"
        else:
            self._add({"role": "assistant", "reasoning_content": text, "content": ""})

    def _thought(self, item: dict[str, Any], at: str) -> str:
        """Return the text of a reasoning item: its content, else what it has sealed, else its summary."""
        texts = []
        for part in ("content", "summary"):
            given = item.get(part)
            parts = [] if given is None else given
            if not isinstance(parts, list) or not all(isinstance(one, dict) for one in parts):
                raise bad_request(f"{at}.{part} is {shown(given)}; give a list of texts", f"{at}.{part}", "invalid_type")
            found = [Text().read(one.get("text"), f"{at}.{part}[{i}].text") for i, one in enumerate(parts)]
            texts.append("\n".join(found))
        sealed = item.get("encrypted_content")
        if sealed is None:
            return texts[0] or texts[1]
        opened = unsealed(Text().read(sealed, f"{at}.encrypted_content"))
        if opened is None and not any(texts):
            self.ignored.append(f"{at}.encrypted_content")
        return texts[0] or opened or texts[1]

    def _call(self, item: dict[str, Any], at: str, *, custom: bool) -> None:
        id, name = (_word(item.get(key), f"{at}.{key}") for key in ("call_id", "name"))
        if id in self.called:
            raise bad_request(f"{at}.call_id is {shown(id)}, as of an earlier call; give each its own", f"{at}.call_id")
        self.called.add(id)
        if custom:
            arguments: dict[str, Any] = input_arguments(Text().read(item.get("input"), f"{at}.input"))
        else:
            arguments = call_arguments(item.get("arguments"), f"{at}.arguments")
        if self.turn is None:
            self._add({"role": "assistant", "content": ""})
        assert self.turn is not None
        self.turn.setdefault("tool_calls", []).append(history_call(id, name, arguments))

    def _output(self, item: dict[str, Any], at: str) -> None:
        id = _word(item.get("call_id"), f"{at}.call_id")
        if id not in self.called or id in self.answered:
            why = "has its result already" if id in self.answered else "is no call before it"
            message = f"{at}.call_id is {shown(id)}, which {why}; send each call, and behind it its result"
            raise bad_request(message, f"{at}.call_id")
        self.answered.add(id)
        self._add({"role": "tool", "tool_call_id": id, "content": _content(item.get("output"), f"{at}.output")})


def _no_item(kind: Any, at: str) -> ApiError:
    if kind == "item_reference":
        why = "nothing is stored here; send the item itself"
    else:
        why = f"items are {', '.join(_OF_ITEM)}; leave it out"
    return bad_request(f"{at} is {shown(kind)}, and {why}", f"{at}.type", "unsupported_parameter")


def _word(value: Any, at: str) -> str:
    if not isinstance(value, str) or not value or len(value) > LONGEST_ID:
        raise bad_request(f"{at} is {shown(value)}; give a string of 1 to {LONGEST_ID} characters", at)
    return unicode_text(value, at)


def _content(value: Any, at: str) -> str | list[dict[str, str]]:
    """Return a content: one text, or text parts if there are several."""
    if isinstance(value, str):
        return unicode_text(value, at)
    if not isinstance(value, list):
        found = "null or missing" if value is None else shown(value)
        raise bad_request(f"{at} is {found}; give a string or a list of text parts", at, "invalid_type")
    parts = []
    for i, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in _TEXTS:
            found = shown(part if kind is None else kind)
            why = f"{at}[{i}] is {found}; only text is read here, as input_text or output_text: leave it out"
            raise bad_request(why, f"{at}[{i}]", "unsupported_parameter")
        key = _TEXTS[kind]
        parts.append({"type": "text", "text": Text().read(part.get(key), f"{at}[{i}].{key}")})
    return parts if len(parts) > 1 else "".join(part["text"] for part in parts)


def sealed(reasoning: str) -> str:
    """Return reasoning in the form that clients give back unread. It is no secret, as it is in the answer beside it."""
    return _SEALED + base64.urlsafe_b64encode(reasoning.encode()).decode()


def unsealed(text: str) -> str | None:
    """Return sealed reasoning, or None for a seal of another server."""
    if not text.startswith(_SEALED):
        return None
    try:
        return base64.b64decode(text.removeprefix(_SEALED), b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None

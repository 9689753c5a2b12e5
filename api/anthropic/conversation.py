"""The conversation of a message's body, read into the messages of a chat.

Consecutive messages of one role are one turn, as in Anthropic's API. A turn of the user is split into the results of tools,
which are messages of role tool in a chat, and the text behind them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..checks import Body, shown, unicode_text
from ..errors import ApiError, bad_request
from ..openai.field_types import Schema

BILLING = "x-anthropic-billing-header:"  # begins a system block that changes with each request
TEXT, THINKING = "text", "thinking"
HIDDEN = "redacted_thinking"
USE, RESULT = "tool_use", "tool_result"
OF_ROLE = {"user": (TEXT, RESULT), "assistant": (TEXT, THINKING, HIDDEN, USE), "system": (TEXT,)}
_ROLES = ", ".join(OF_ROLE)
_FIELDS = {  # type of a block -> its fields
    TEXT: {"text", "citations"},
    THINKING: {"thinking", "signature"},
    HIDDEN: {"data"},
    USE: {"id", "name", "input", "caller", "toolset_name"},
    RESULT: {"tool_use_id", "content", "is_error", "toolset_name"},
}
_ALWAYS = {"type", "cache_control"}
_OF_MESSAGE = {"role", "content"}
_NEUTRAL: dict[str, tuple[Any, ...]] = {"citations": ([],), "caller": ({"type": "direct"},), "toolset_name": ()}
_SHORT = re.compile(r"(?:toolu_)?([A-Za-z0-9]{9})")
_ID = 9  # characters of an id in a prompt: as many as the templates of Mistral demand


@dataclass(frozen=True, slots=True)
class MessageHistory:
    """The messages of a chat. ``begun``: the last one is the beginning of the answer.

    ``ignored``: names of blocks without an effect.
    """

    messages: list[dict[str, Any]]
    begun: bool
    ignored: tuple[str, ...]


@dataclass(slots=True)
class _Turn:
    """Consecutive messages of one role. ``asked``: the calls of the turn before, by id, with the place of each."""

    role: str
    asked: dict[str, str]
    texts: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    calls: dict[str, tuple[str, Body]] = field(default_factory=dict)  # by id: the place, and the call as a chat has it
    results: dict[str, str | list[Body]] = field(default_factory=dict)  # by id of the call
    last: tuple[str, str] = ("", "")  # place and type of the last block
    ignored: list[str] = field(default_factory=list)

    def take(self, block: Body, at: str) -> None:
        """Add a block; raise a 400."""
        kind = block.get("type")
        if kind == TEXT:
            self.texts.append(_text(block, TEXT, at))
        elif kind == THINKING:
            self.thinking.append(_text(block, THINKING, at))
        elif kind == USE:
            self._take_call(block, at)
        elif kind == RESULT:
            self._take_result(block, at)
        elif kind == HIDDEN:
            self.ignored.append(at)  # encrypted, and not by this server
        self.last = at, str(kind)

    def _take_call(self, block: Body, at: str) -> None:
        id, name = _name(block, "id", at), _name(block, "name", at)
        if not isinstance(block.get("input"), dict):
            raise bad_request(f"{at}.input is {shown(block.get('input'))}; give an object", f"{at}.input", "invalid_type")
        if id in self.calls:
            raise bad_request(
                f"{at}.id is {shown(id)} like another block's; give each tool_use an id of its own", f"{at}.id"
            )
        function = {"name": name, "arguments": block["input"]}
        self.calls[id] = at, {"id": short_id(id), "type": "function", "function": function}

    def _take_result(self, block: Body, at: str) -> None:
        id = _name(block, "tool_use_id", at)
        where = f"{at}.tool_use_id"
        if id not in self.asked:
            raise bad_request(
                f"{where} is {shown(id)}, but the assistant's message before it has no tool_use of this id; leave the "
                "tool_result out, or send the tool_use too",
                where,
            )
        if id in self.results:
            raise bad_request(f"{where} is {shown(id)} a second time; send one tool_result for each tool_use", where)
        if self.texts:
            raise bad_request(f"{at} is a tool_result behind a text; put all tool_result blocks first", at)
        failed = block.get("is_error")
        if not isinstance(failed, bool | None):
            raise bad_request(f"{at}.is_error is {shown(failed)}; give true or false", f"{at}.is_error", "invalid_type")
        given = block.get("content")
        blocks = [] if given is None else _blocks(given, f"{at}.content", (TEXT,), may_lack=True)
        texts = [_text(one, TEXT, place) for one, place in blocks]
        if failed and not "".join(texts[:1]).lstrip().casefold().startswith("error"):
            texts[:1] = ["Error: " + "".join(texts[:1])]  # chats have no other way to say so
        self.results[id] = content_of(texts)

    def messages(self, *, last: bool) -> Iterator[dict[str, Any]]:
        """Return the turn as a chat has it; raise a 400 for calls that it leaves open. ``last``: no turn follows."""
        for id, at in self.asked.items():
            if id not in self.results:
                raise _open_call(id, at)
            yield {"role": "tool", "tool_call_id": short_id(id), "content": self.results[id]}
        if self.role != "assistant":
            if self.texts or not self.results:
                yield {"role": self.role, "content": content_of(self.texts)}
            return
        text = "".join(self.texts)
        if last and self.calls:
            raise _open_call(*next((id, at) for id, (at, _) in self.calls.items()))
        if last and self.last[1] in (THINKING, HIDDEN):
            at, kind = self.last
            raise bad_request(f"{at} is {kind}, which an answer cannot continue; end with a text, or leave it out", at)
        if last and not text:
            return  # nothing to continue
        made: dict[str, Any] = {"role": "assistant", "content": text}
        if self.calls:
            made["tool_calls"] = [call for _, call in self.calls.values()]
        if reasoning := "".join(self.thinking):
            made |= {"reasoning_content": reasoning, "reasoning": reasoning}  # both names, as a chat gets them
        yield made


@dataclass(frozen=True, slots=True)
class ConversationField:
    """The field type of ``messages``."""

    def read(self, value: Any, name: str) -> MessageHistory:
        if not isinstance(value, list) or not value:
            raise bad_request(f"{name} is {shown(value)}; give a list of at least one message", name, "invalid_type")
        turns: list[_Turn] = []
        for i, message in enumerate(value):
            role, blocks = _message(message, f"{name}[{i}]")
            if not turns or turns[-1].role != role:
                asked = {id: at for id, (at, _) in turns[-1].calls.items()} if turns else {}
                turns.append(_Turn(role, asked))
            for block, at in blocks:
                turns[-1].take(block, at)
        made = [one for turn in turns for one in turn.messages(last=turn is turns[-1])]
        if not made:
            raise bad_request(f"{name} has no text; give a message of role user", name)
        begun = turns[-1].role == "assistant" and made[-1]["role"] == "assistant"
        return MessageHistory(made, begun, tuple(name for turn in turns for name in turn.ignored))

    def unknown(self, value: Any, name: str) -> list[str]:
        """Return unknown fields of messages and blocks. ``null`` is none: clients send answers back with it."""
        found = []
        for i, message in enumerate(value):
            at = f"{name}[{i}]"
            found += [f"{at}.{key}" for key in message if key not in _OF_MESSAGE and message[key] is not None]
            for block, where in _blocks(message.get("content"), f"{at}.content", OF_ROLE[message["role"]], may_lack=True):
                found += unknown_of(block, where)
                if isinstance(inner := block.get("content"), list) and block["type"] == RESULT:
                    inside = _blocks(inner, f"{where}.content", (TEXT,), may_lack=True)
                    found += [name for one, place in inside for name in unknown_of(one, place)]
        return found

    def schema(self) -> Schema:
        properties = {"role": {"enum": [*OF_ROLE]}, "content": {"anyOf": [{"type": "string"}, _block_list()]}}
        message = {"type": "object", "properties": properties, "required": ["role", "content"]}
        return {"type": "array", "minItems": 1, "items": message}


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """The field type of ``system``, read as its texts. The block that changes with each request is left out."""

    def read(self, value: Any, name: str) -> list[str]:
        if isinstance(value, str):
            text = unicode_text(value, name)
            text = text.partition("\n")[2] if text.startswith(BILLING) else text  # a client has joined its blocks
            return [text] if text else []
        texts = [_text(block, TEXT, at) for block, at in _blocks(value, name, (TEXT,), may_lack=True)]
        return [text for text in texts if text and not text.startswith(BILLING)]

    def unknown(self, value: Any, name: str) -> list[str]:
        """Return unknown fields of blocks."""
        return [one for block, at in _blocks(value, name, (TEXT,), may_lack=True) for one in unknown_of(block, at)]

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "string"}, _block_list()]}


def content_of(texts: Sequence[str]) -> str | list[Body]:
    """Return texts as the content of a chat's message."""
    return "".join(texts) if len(texts) < 2 else [{"type": "text", "text": text} for text in texts]


def short_id(id: str) -> str:
    """Return the id of a call in a prompt: nine letters and digits, the same for the same id."""
    found = _SHORT.fullmatch(id)
    return found[1] if found else hashlib.blake2b(id.encode(), digest_size=8).hexdigest()[:_ID]


def unknown_of(block: Body, at: str) -> list[str]:
    """Return unknown fields of a block."""
    known = _FIELDS[block["type"]] | _ALWAYS
    return [
        f"{at}.{name}"
        for name, value in block.items()
        if value is not None and (name not in known or value not in _NEUTRAL.get(name, (value,)))
    ]


def _message(message: Any, at: str) -> tuple[str, list[tuple[Body, str]]]:
    """Return a message's role, and its blocks with the place of each; raise a 400."""
    if not isinstance(message, dict):
        raise bad_request(f"{at} is {shown(message)}; give an object with role and content", at, "invalid_type")
    role = message.get("role")
    if not isinstance(role, str) or role not in OF_ROLE:
        raise bad_request(f"{at}.role is {shown(role)}; give one of {_ROLES}", f"{at}.role")
    # answers may be empty
    return role, _blocks(message.get("content"), f"{at}.content", OF_ROLE[role], may_lack=role == "assistant")


def _blocks(content: Any, at: str, kinds: Sequence[str], *, may_lack: bool = False) -> list[tuple[Body, str]]:
    """Return the blocks of a content with the place of each. Raise a 400 for blocks that are not of these types."""
    if isinstance(content, str):
        return [({"type": TEXT, "text": unicode_text(content, at)}, at)]
    if not isinstance(content, list) or not (content or may_lack):
        found = "null or missing" if content is None else shown(content)
        raise bad_request(f"{at} is {found}; give a string or a list of at least one block", at, "invalid_type")
    made = []
    for i, block in enumerate(content):
        where = f"{at}[{i}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind is None:
            raise bad_request(f"{where} is {shown(block)}; give an object with a type", where, "invalid_type")
        if kind not in kinds:
            message = (
                f"{where} is a block of type {shown(kind)}, which this server does not read here; give {' or '.join(kinds)}"
            )
            raise bad_request(message, where, "unsupported_parameter")
        made.append((block, where))
    return made


def _text(block: Body, key: str, at: str) -> str:
    """Return the text of a block; raise a 400. ``at``: the place of the block, or of a string that stands for it."""
    text = block.get(key)
    if not isinstance(text, str):
        raise bad_request(f"{at}.{key} is {shown(text)}; give a string", f"{at}.{key}", "invalid_type")
    return unicode_text(text, f"{at}.{key}")


def _name(block: Body, key: str, at: str) -> str:
    text = _text(block, key, at)
    if not text:
        raise bad_request(f"{at}.{key} is empty; give the one of the call", f"{at}.{key}")
    return text


def _open_call(id: str, at: str) -> ApiError:
    return bad_request(
        f"{at} is a tool_use without a tool_result; begin the next message, of role user, with the one of {shown(id)}", at
    )


def _block_list() -> Schema:
    block = {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]}
    return {"type": "array", "items": block}

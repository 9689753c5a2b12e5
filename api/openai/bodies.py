"""Request bodies of completions and chat completions, parsed and checked into plain records.

Every refusal is a 400 that names the field, the value and the remedy. ``fields.py`` declares the fields. This module has the
checks that concern several fields, prompts and messages. It is independent of models: ``generate.py`` applies lengths,
vocabularies and defaults of checkpoints later.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from ...policies.plan.grammar import CLIENTS_LARK
from ..checks import Body, shown, unicode_text
from ..errors import bad_request
from .content import CONTENT, read_content
from .field_types import Field, Ignored, NestedFields, Schema, Text, is_token
from .fields import (
    CHAT_OPTIONS,
    COMPLETION_OPTIONS,
    HARMLESS,
    ChatOptions,
    CompletionOptions,
    Options,
    TemplateOptions,
)
from .foreign_fields import GENERATING, NOTHING, ForeignField
from .json_size import MOST, check_size
from .refused_fields import ForeignFields

MAX_SEQUENCES = 1024  # most choices of one request
LONGEST_ROLE = 64  # characters
Values = dict[str, Any]  # given fields, after the checks
Made = TypeVar("Made", bound=Options)
Chat = TypeVar("Chat", bound=ChatOptions)


@dataclass(frozen=True, slots=True)
class CompletionBody:
    prompts: list[str | list[int]]
    options: CompletionOptions


@dataclass(frozen=True, slots=True)
class ChatBody:
    messages: list[dict[str, Any]]
    template: TemplateOptions
    options: ChatOptions


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def parse_json(raw: bytes, limit: int = MOST) -> Body:
    """Return the body as an object; raise a 400 for anything else, including NaN, infinities and too many values."""
    check_size(raw, limit)
    try:
        text = raw.decode("utf-8-sig")  # not as Python guesses: in UTF-16 the count of values would miss most
        body = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise bad_request("the body is nested too deeply; send a flatter object", code="invalid_json") from None
    except ValueError as error:
        raise bad_request(f"the body is not valid JSON ({error}); send one JSON object", code="invalid_json") from None
    if not isinstance(body, dict):
        raise bad_request(f"the body is {shown(body)}; send one JSON object", code="invalid_json")
    return body


def read_fields(
    body: Body, fields: Sequence[Field], unknown: str, foreign: ForeignFields | None = None
) -> tuple[Values, tuple[str, ...]]:
    """Return the given fields, checked, and the names of ignored fields.

    ``unknown``: the setting ``unknown_fields``. ``foreign``: fields that are refused instead of ignored, if the endpoint has
    any.
    """
    if foreign is not None:
        foreign.check(body)
    values = {}
    for field in fields:
        value = body.get(field.name)
        if value is not None:
            values[field.name] = field.kind.read(value, field.name)
        elif field.required:
            raise bad_request(f"{field.name} is missing; give it", field.name, "missing_required_parameter")
    known = {field.name for field in fields}
    ignored = [name for name in body if name not in known]
    for field in fields:
        if field.name in values and isinstance(field.kind, NestedFields):
            ignored += field.kind.unknown(body[field.name], field.name)
    if ignored and unknown == "reject":
        names = ", ".join(shown(name) for name in ignored[:10])
        raise bad_request(f"unknown fields: {names}; leave them out", ignored[0], "unknown_parameter")
    return values, (*ignored, *without_effect(fields, values))


def without_effect(fields: Sequence[Field], values: Values, prefix: str = "") -> list[str]:
    """Return the names of known fields without effect, which are reported as ignored, never refused."""
    return [
        f"{prefix}{field.name}"
        for field in fields
        if isinstance(field.kind, Ignored) and values.get(field.name) not in (None, *field.kind.neutral)
    ]


def parse_completion(body: Body, unknown: str) -> CompletionBody:
    """Parse and check the body of a completion. ``unknown``: the setting ``unknown_fields``."""
    values, ignored = read_fields(body, COMPLETION_FIELDS, unknown, FOREIGN_TO_COMPLETIONS)
    options = _made(CompletionOptions, values, ignored)
    n, best_of = options.n, options.best_of
    if best_of is not None and best_of != n:
        raise bad_request(f"best_of is {best_of} and n {n}, but every choice is returned; leave best_of out", "best_of")
    prompts: list[str | list[int]] = values["prompt"]
    if len(prompts) * n > MAX_SEQUENCES:
        message = f"{len(prompts)} prompts with n {n} are over the limit of {MAX_SEQUENCES} choices; send fewer"
        raise bad_request(message, "prompt")
    return CompletionBody(prompts, options)


def parse_chat(body: Body, unknown: str) -> ChatBody:
    """Parse and check the body of a chat. ``unknown``: the setting ``unknown_fields``."""
    values, ignored = read_fields(body, CHAT_FIELDS, unknown, FOREIGN_TO_CHAT)
    return ChatBody(values["messages"], template_options(values), chat_options(ChatOptions, values, ignored))


def chat_options(record: type[Chat], values: Values, ignored: tuple[str, ...]) -> Chat:
    """Return the options of a chat from its checked fields. Raise a 400 for contradictory ones."""
    options = _made(record, values, ignored)
    top = options.top_logprobs
    if top is not None and not options.logprobs:
        raise bad_request(f"top_logprobs is {top} without logprobs; set logprobs to true", "top_logprobs")
    use = options.tool_use
    options = dataclasses.replace(options, ignored=(*options.ignored, *use.ignored))
    for constraint in options.constraints:
        if options.tools and constraint.form == CLIENTS_LARK:
            message = f"{constraint.field} is a grammar of the whole answer, beside tools; leave one of them out"
            raise bad_request(message, constraint.field)
    return options


def template_options(values: Values) -> TemplateOptions:
    """Return the options of the chat template; raise a 400 for contradictory ones."""
    made = TemplateOptions(**_of(TemplateOptions, values))
    if made.add_generation_prompt and made.continue_final_message:
        raise bad_request(
            "continue_final_message and add_generation_prompt are both true; set add_generation_prompt to false",
            "continue_final_message",
        )
    for name in ("messages", "chat_template", "add_generation_prompt", "continue_final_message", "tools", "documents"):
        if name in made.chat_template_kwargs:
            message = f"chat_template_kwargs.{name} is not a variable of the template; use the field of the request"
            raise bad_request(message, "chat_template_kwargs")
    return made


def _of(record: type, values: Values) -> Values:
    """Return the values that are fields of the record."""
    return {field.name: values[field.name] for field in dataclasses.fields(record) if field.name in values}


def _made(record: type[Made], values: Values, ignored: tuple[str, ...]) -> Made:
    """Return the options, after the checks that concern several of them."""
    options = record(**_of(record, values), ignored=ignored, named=frozenset(values))
    if len(options.constraints) > 1:
        one, other = (constraint.field for constraint in options.constraints[:2])
        raise bad_request(f"{one} and {other} both constrain the answer; leave one of them out", other)
    for constraint in options.constraints:
        options = dataclasses.replace(options, ignored=(*ignored, *constraint.ignored))
    if "stream_options" in values and not options.stream:
        raise bad_request("stream_options is set but stream is not true; set stream or leave it out", "stream_options")
    if options.prompt_logprobs is not None and options.stream:
        raise bad_request("prompt_logprobs cannot be streamed; leave stream out", "prompt_logprobs")
    if options.max_tokens == 0 and not options.echoed:
        raise bad_request("max_tokens is 0 without echo; give at least 1", "max_tokens")
    if options.limit is not None and options.min_tokens is not None and options.min_tokens > options.limit:
        message = f"min_tokens is {options.min_tokens}, more than {options.limit_name} ({options.limit}); lower it"
        raise bad_request(message, "min_tokens")
    return options


class Prompts:
    """The field type of a prompt in any of its four forms, read as a list of prompts."""

    def read(self, value: Any, name: str) -> list[str | list[int]]:
        if isinstance(value, str):
            return [unicode_text(value, name)]
        if isinstance(value, list) and value:
            if all(is_token(token) for token in value):
                return [value]
            if all(isinstance(text, str) for text in value):
                return [unicode_text(text, name) for text in value]
            if all(isinstance(one, list) and one and all(is_token(t) for t in one) for one in value):
                return list(value)
        forms = "give a string, a list of strings, a list of token ids or a list of such lists, none of them empty"
        raise bad_request(f"{name} is {shown(value)}; {forms}", name, "invalid_type")

    def schema(self) -> Schema:
        text: Schema = {"type": "string"}
        ids: Schema = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
        return {
            "anyOf": [
                text,
                {"type": "array", "minItems": 1, "items": text},
                ids,
                {"type": "array", "minItems": 1, "items": ids},
            ]
        }


NOT_IN_MESSAGES = {  # refused in messages, unless empty, with the remedy
    **dict.fromkeys(("function_call", "audio"), "leave it out"),
    **dict.fromkeys(("image", "images", "video", "videos", "audios", "files"), "only text is read: leave it out"),
    **dict.fromkeys(("partial", "prefix"), "send continue_final_message in the body"),
    "thinking": "it is called reasoning_content here: send reasoning_content",
    "tools": "tools stand in the body: send tools there",
}
OF_MESSAGE = {"role", "content", "name", "tool_calls", "tool_call_id", *NOT_IN_MESSAGES}
REASONING = ("reasoning_content", "reasoning")  # two names of an assistant's reasoning
OF_PART = {"type", "text"}


class Messages:
    """The field type of a conversation: roles and texts."""

    def read(self, value: Any, name: str) -> list[dict[str, Any]]:
        if not isinstance(value, list) or not value:
            raise bad_request(f"{name} is {shown(value)}; give a list of at least one message", name, "invalid_type")
        return [_message(message, f"{name}[{i}]") for i, message in enumerate(value)]

    def unknown(self, value: Any, name: str) -> list[str]:
        found = []
        for i, message in enumerate(value):
            at = f"{name}[{i}]"
            parts = content if isinstance(content := message.get("content"), list) else []
            known = {*OF_MESSAGE, *REASONING} if message.get("role") == "assistant" else OF_MESSAGE
            found += [f"{at}.{key}" for key, inner in message.items() if inner is not None and key not in known]
            found += [f"{at}.content[{j}].{key}" for j, part in enumerate(parts) for key in part.keys() - OF_PART]
        return found

    def schema(self) -> Schema:
        message = {
            "type": "object",
            "properties": {
                "role": {"type": "string", "minLength": 1, "maxLength": LONGEST_ROLE},
                "content": {"anyOf": [{"type": ["string", "null"]}, *CONTENT[1:]]},
                "name": {"type": ["string", "null"]},
                "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
                "tool_call_id": {"type": ["string", "null"]},
                **{name: {"type": ["string", "null"]} for name in REASONING},
            },
            "required": ["role"],
        }
        return {"type": "array", "minItems": 1, "items": message}


COMPLETION_FIELDS = (Field("prompt", Prompts(), "What the answer continues.", required=True), *COMPLETION_OPTIONS)
CHAT_FIELDS = (Field("messages", Messages(), "The conversation so far.", required=True), *CHAT_OPTIONS)
FOREIGN_TO_COMPLETIONS = ForeignFields(
    GENERATING
    | {
        "messages": ForeignField("/v1/chat/completions takes messages: send them there"),
        "top_logprobs": ForeignField("it is called logprobs here: send logprobs", NOTHING, "logprobs"),
    },
    COMPLETION_FIELDS,
    HARMLESS,
)
FOREIGN_TO_CHAT = ForeignFields(
    GENERATING
    | {
        "prompt": ForeignField("/v1/completions takes a prompt: send it there, or messages here"),
        "best_of": ForeignField("every choice is returned: send n", (*NOTHING, 1), "n"),
    },
    CHAT_FIELDS,
    HARMLESS,
)


def _message(message: Any, at: str) -> dict[str, Any]:
    """Return a message's role and content (a text or a list of text parts). The chat template judges the roles."""
    if not isinstance(message, dict):
        raise bad_request(f"{at} is {shown(message)}; give an object with role and content", at, "invalid_type")
    role = message.get("role")
    if not isinstance(role, str) or not 1 <= len(role) <= LONGEST_ROLE:
        form = f"a string of 1 to {LONGEST_ROLE} characters, such as system, user, assistant or tool"
        raise bad_request(f"{at}.role is {shown(role)}; give {form}", f"{at}.role")
    unicode_text(role, f"{at}.role")
    for name, remedy in NOT_IN_MESSAGES.items():
        if message.get(name):
            raise bad_request(
                f"{at}.{name} is not supported by this server; {remedy}", f"{at}.{name}", "unsupported_parameter"
            )
    made = {"role": role, **_of_tools(message, role, at), **(_reasoning(message, at) if role == "assistant" else {})}
    content = message.get("content")
    # an assistant's message may lack content then
    silent = content is None and ("tool_calls" in made or "reasoning_content" in made)
    made["content"] = "" if silent else read_content(content, f"{at}.content")
    author = message.get("name")
    return made if author is None else made | {"name": Text().read(author, f"{at}.name")}


def _reasoning(message: dict[str, Any], at: str) -> Values:
    """Return an assistant's reasoning. If the client uses the newer name, the name that templates know is added."""
    found = {name: Text().read(message[name], f"{at}.{name}") for name in REASONING if message.get(name) is not None}
    return {"reasoning_content": found["reasoning"], **found} if "reasoning" in found else found


def _of_tools(message: dict[str, Any], role: str, at: str) -> Values:
    """Return a message's tool calls and the call that it answers, from a history made elsewhere; templates print them."""
    found: Values = {}
    for name, of in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
        if not message.get(name):
            continue
        if role != of:
            raise bad_request(f"{at}.{name} is in a message of role {role}; it belongs to {of}", f"{at}.{name}")
        found[name] = message[name]
    if "tool_call_id" in found:
        found["tool_call_id"] = Text().read(found["tool_call_id"], f"{at}.tool_call_id")
    if "tool_calls" in found:
        if not isinstance(found["tool_calls"], list):
            raise bad_request(
                f"{at}.tool_calls is {shown(found['tool_calls'])}; give a list", f"{at}.tool_calls", "invalid_type"
            )
        found["tool_calls"] = [_call(call, f"{at}.tool_calls[{i}]") for i, call in enumerate(found["tool_calls"])]
    return found


def _call(call: Any, at: str) -> Values:
    """Return a tool call with its arguments as an object, as templates expect; on the wire they are JSON in a string."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request(f"{at} is {shown(call)}; give an object with a function that has a name", at, "invalid_type")
    arguments = call_arguments(function.get("arguments"), f"{at}.function.arguments")
    return history_call(str(call.get("id") or ""), function["name"], arguments)


def call_arguments(given: Any, where: str) -> Values:
    """Return the arguments of a call in a history as an object; raise a 400."""
    given = given or {}
    try:
        if isinstance(given, str):
            check_size(unicode_text(given, where).encode())  # the body counted it as one value
        arguments = json.loads(given, parse_constant=_refuse_constant) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise bad_request(f"{where} is {shown(given)}; give a JSON object, as a string", where)
    return arguments


def history_call(id: str, name: str, arguments: Values) -> Values:
    """Return a call of a history in the form that chat templates expect."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}

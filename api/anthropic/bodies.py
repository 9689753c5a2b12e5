"""Request bodies of Anthropic's API, parsed and checked, and translated onto the body of one chat.

Every refusal is a 400 that names the field, the value and the remedy in Anthropic's words. What the chat template has to
say about the body is decided later, in ``endpoints.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...policies.requests.urgency import TIERS
from ..checks import Body, shown
from ..constraints.constraint import Constraint
from ..constraints.fields import schema_constraint
from ..errors import bad_request
from ..openai.bodies import ChatBody, Values, chat_options, read_fields
from ..openai.field_types import Anything, Field, Flag, Integer, Mapping, Number, OneOf, Record, Schema, Text, Texts
from ..openai.fields import CHAT_OPTIONS, HARMLESS, LARGEST, MAX_STOP_LENGTH, ChatOptions, TemplateOptions
from ..openai.foreign_fields import GENERATING, NOTHING, ForeignField
from ..openai.refused_fields import ForeignFields
from .conversation import ConversationField, MessageHistory, SystemPrompt, content_of
from .tools import ClientTools, OfferedTools, ToolSelection, ToolSelectionField

MAX_STOP_SEQUENCES = 64
EFFORTS = ("low", "medium", "high", "xhigh", "max")
STANDARD = "standard_only"
_KINDS = ("enabled", "disabled", "adaptive")


_THINKING = Record(
    (
        Field("type", OneOf(_KINDS), "Thinking on, off, or as the model likes.", required=True),
        Field("budget_tokens", Integer(1, LARGEST), "Most tokens of the thinking; only with enabled."),
        Field("display", OneOf(("summarized", "omitted")), "omitted: the answer has no text of the thinking."),
    )
)


@dataclass(frozen=True, slots=True)
class Thinking:
    """The thinking that a request asks for. ``budget``: most tokens of it; None: no limit. ``shown``: in the answer."""

    on: bool
    budget: int | None
    shown: bool


@dataclass(frozen=True, slots=True)
class ThinkingField:
    """The field type of ``thinking``."""

    def read(self, value: Any, name: str) -> Thinking:
        given = _THINKING.read(value, name)
        if "type" not in given:
            raise bad_request(f"{name}.type is missing; give one of {', '.join(_KINDS)}", f"{name}.type")
        if "budget_tokens" in given and given["type"] != "enabled":
            where = f"{name}.budget_tokens"
            raise bad_request(f"{where} is {given['budget_tokens']} beside type {given['type']}; leave it out", where)
        return Thinking(given["type"] != "disabled", given.get("budget_tokens"), given.get("display") != "omitted")

    def unknown(self, value: Any, name: str) -> list[str]:
        """Return unknown fields of the object."""
        return _THINKING.unknown(value, name)

    def schema(self) -> Schema:
        return _THINKING.schema()


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The field type of a form of the answer: JSON by a schema."""

    def read(self, value: Any, name: str) -> tuple[Constraint, ...]:
        given = Mapping().read(value, name)
        if given.get("type") != "json_schema":
            raise bad_request(f"{name}.type is {shown(given.get('type'))}; give json_schema", f"{name}.type")
        if unknown := sorted(given.keys() - {"type", "schema"}):
            where = f"{name}.{unknown[0][:64]}"
            raise bad_request(f"{where} is not supported by this server; its fields are type and schema", where)
        if given.get("schema") is None:
            raise bad_request(f"{name}.schema is missing; give a JSON schema", f"{name}.schema")
        return (schema_constraint(given["schema"], f"{name}.schema"),)

    def schema(self) -> Schema:
        properties = {"type": {"const": "json_schema"}, "schema": {"type": "object"}}
        return {"type": "object", "properties": properties, "required": ["type", "schema"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions(ChatOptions):
    """The options of the chat that a message is. ``thinking_shown``: the answer has the text of the thinking."""

    thinking_shown: bool = True


@dataclass(frozen=True, slots=True)
class MessageBody:
    """A chat, and what the chat template has to decide: ``thinking`` and ``effort``."""

    chat: ChatBody
    thinking: Thinking | None
    effort: str | None

    @property
    def options(self) -> ChatOptions:
        return self.chat.options


_OUTPUT = Record(
    (
        Field("effort", OneOf(EFFORTS), "Sets the chat template's enable_thinking and reasoning_effort."),
        Field("format", OutputFormat(), "JSON by a schema, which holds exactly."),
    )
)
_SHARED = (
    Field("model", Text(), "A model id from /v1/models; default: the one that is marked there."),
    Field("messages", ConversationField(), "The conversation so far; one of role assistant at its end is continued.", True),
    Field("system", SystemPrompt(), "The system prompt."),
    Field("tools", ClientTools(), "Functions that the model may call; tools that the server runs are ignored."),
    Field("tool_choice", ToolSelectionField(), "The tools that may be called; default: auto."),
    Field("thinking", ThinkingField(), "Sets the chat template's enable_thinking and thinking_budget."),
    Field("output_config", _OUTPUT, "Effort and form of the answer."),
    Field("output_format", OutputFormat(), "Older name of output_config.format."),
    Field("stop_sequences", Texts("stop sequence", MAX_STOP_SEQUENCES, MAX_STOP_LENGTH), "Strings that end the answer."),
    Field("temperature", Number(0, 2), "0 always takes the most probable token; default: the checkpoint's, or 1."),
    Field("top_p", Number(0, 1), "Sample from the most probable tokens that together have this probability."),
    Field("top_k", Integer(-1, LARGEST, minimum=0), "Sample from the k most probable tokens; 0 or -1: all."),
    Field("stream", Flag(), "Send the answer as server-sent events.", default=False),
    Field("metadata", Record((Field("user_id", Text(), "Accepted."),)), "Accepted."),
    Field("service_tier", OneOf((STANDARD, *TIERS)), "Anthropic's auto or standard_only, or one of OpenAI's tiers."),
    Field("cache_control", Anything(), "Accepted: prefixes are cached without it."),
    Field("adaptive", Flag(), "Allow a variant, a chain with equivalent blocks, to answer; default: true."),
)
_LIMIT = "Most tokens of the answer; 0: only compute the prompt, for the prefix cache."
MESSAGE_FIELDS = (*_SHARED, Field("max_tokens", Integer(0, LARGEST), _LIMIT, required=True))
COUNT_FIELDS = (
    *_SHARED,
    Field("max_tokens", Integer(0, LARGEST), "Accepted, so that the body of a message can be counted."),
)

_HERE = {  # fields of chats and of other servers -> their names here
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    **dict.fromkeys(("system_prompt", "system_instruction", "preamble", "instructions"), "system"),
}
_ELSEWHERE = "this endpoint takes Anthropic's fields: leave it out, or use /v1/chat/completions"


def _foreign() -> dict[str, ForeignField]:
    """Return the fields of other endpoints and servers with the remedies of this endpoint."""
    own = {field.name for field in MESSAGE_FIELDS}
    made = {field.name: ForeignField(_ELSEWHERE, _nothing(field)) for field in CHAT_OPTIONS if field.name not in HARMLESS}
    for name, one in GENERATING.items():
        here = _HERE.get(one.named, "")
        made[name] = one if one.named in own else replace(one, remedy=_named(here) if here else _ELSEWHERE, named="")
    made |= {name: ForeignField(_named(here), NOTHING) for name, here in _HERE.items()}
    made.pop("format")  # with it the words of unknown names would be looked at, and Anthropic may have new fields with them
    return made


def _nothing(field: Field) -> tuple[Any, ...]:
    """Return the values of a field that ask for nothing: false asks for something where the default is true."""
    return (*(one for one in NOTHING if one is not False), True) if field.default is True else (*NOTHING, field.default)


def _named(here: str) -> str:
    return f"it is called {here} here: send {here}"


FOREIGN_TO_MESSAGES = ForeignFields(_foreign(), MESSAGE_FIELDS, ("metadata", "cache_control"))


def parse_message(body: Body, unknown: str) -> MessageBody:
    """Parse and check the body of a message. ``unknown``: the setting ``unknown_fields``."""
    return _made(*read_fields(body, MESSAGE_FIELDS, unknown, FOREIGN_TO_MESSAGES))


def parse_count(body: Body, unknown: str) -> MessageBody:
    """Parse and check a body whose tokens are counted."""
    return _made(*read_fields(body, COUNT_FIELDS, unknown, FOREIGN_TO_MESSAGES))


def _made(values: Values, ignored: tuple[str, ...]) -> MessageBody:
    """Return the chat that a body stands for."""
    conversation: MessageHistory = values["messages"]
    offered: OfferedTools = values.get("tools", OfferedTools((), ()))
    thinking: Thinking | None = values.get("thinking")
    ignored = (*ignored, *conversation.ignored, *offered.ignored)
    options = chat_options(MessageOptions, _of_chat(values, offered), ignored)
    shown_thinking = thinking is None or thinking.shown
    # a chat has no limit of 0, by which a prompt alone is computed
    options = replace(options, thinking_shown=shown_thinking, max_tokens=values.get("max_tokens"))
    template = TemplateOptions(add_generation_prompt=not conversation.begun, continue_final_message=conversation.begun)
    chat = ChatBody(_with_system(conversation, values.get("system", [])), template, options)
    return MessageBody(chat, thinking, values.get("output_config", {}).get("effort"))


def _of_chat(values: Values, offered: OfferedTools) -> Values:
    """Return the values of a body under the names of a chat."""
    names = ("model", "temperature", "top_p", "top_k", "stream", "service_tier", "adaptive")
    made: Values = {name: values[name] for name in names if name in values}
    if made.get("service_tier") == STANDARD:
        made["service_tier"] = "default"
    if "stop_sequences" in values:
        made["stop"] = values["stop_sequences"]
    if values.get("max_tokens"):
        made["max_tokens"] = values["max_tokens"]
    formats: list[Constraint] = [*values.get("output_config", {}).get("format", ()), *values.get("output_format", ())]
    if len(formats) > 1:
        raise bad_request("output_format and output_config.format both constrain the answer; leave one out", "output_format")
    if formats and values["messages"].begun:
        where = formats[0].field
        raise bad_request(f"{where} constrains an answer from its beginning; end with a message of role user", where)
    selection: ToolSelection | None = values.get("tool_choice")
    if selection is not None:
        made |= {"tool_choice": selection.choice, "parallel_tool_calls": selection.parallel}
    return made | {"tools": offered.tools, "response_format": tuple(formats)}


def _with_system(conversation: MessageHistory, system: list[str]) -> list[dict[str, Any]]:
    """Return the messages with the system prompt in front, which is one turn with a system message that begins them."""
    messages = conversation.messages
    if not system:
        return messages
    if messages[0]["role"] == "system":
        first = messages[0]["content"]
        system = [*system, *([first] if isinstance(first, str) else [part["text"] for part in first])]
        messages = messages[1:]
    return [{"role": "system", "content": content_of(system)}, *messages]

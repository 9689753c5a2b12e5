"""The body of ``POST /v1/responses``, translated onto the body of a chat.

Its fields are a chat's, except where the API has its own. What needs stored answers is refused with a remedy. What has no
effect here is named in ``x-ignored-fields``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...checks import Body, shown, unicode_text
from ...constraints.fields import ResponseFormat
from ...errors import bad_request
from ..bodies import ChatBody, Values, chat_options, read_fields, template_options, without_effect
from ..field_types import Field, Flag, Ignored, Integer, Metadata, OneOf, Only, Record, Schema, Text
from ..fields import CHAT_OPTIONS, EFFORTS, HARMLESS, LARGEST, MAX_LOGPROBS, ChatOptions
from ..foreign_fields import GENERATING, HISTORY, NOTHING, SYSTEM, ForeignField
from ..json_pieces import written
from ..refused_fields import ForeignFields
from .items import GivenItems, InputItems
from .tools import GivenChoice, GivenTools, ResponseChoices, ResponseTools

LOGPROBS, SEALED = "message.output_text.logprobs", "reasoning.encrypted_content"
_INCLUDED = (
    *(LOGPROBS, SEALED, "message.input_image.image_url", "file_search_call.results", "web_search_call.results"),
    *("web_search_call.action.sources", "computer_call_output.output.image_url", "code_interpreter_call.outputs"),
)
_SUMMARIES = OneOf(("auto", "concise", "detailed"))
REASONING = Record(
    (
        Field("effort", OneOf(EFFORTS), "Sets the chat template's variables, as reasoning_effort of a chat does."),
        Field("summary", _SUMMARIES, "auto and detailed: the thinking is given as its summary; concise has no effect."),
        Field("generate_summary", _SUMMARIES, "Older name of summary."),
        Field("context", Ignored(("auto", "current_turn", "all_turns"), ("auto",)), "No effect: the chat template decides."),
        Field("mode", Ignored(("standard", "pro"), ("standard",)), "No effect."),
    )
)
TEXT = Record(
    (
        Field(
            "format",
            ResponseFormat(flat=True),
            "Form of the answer: an object of type text, json_object, or json_schema with schema.",
        ),
        Field("verbosity", Ignored(("low", "medium", "high"), ("medium",)), "No effect."),
    )
)


@dataclass(frozen=True, slots=True)
class Includes:
    """The field type of a list of further parts of the answer."""

    def read(self, value: Any, name: str) -> frozenset[str]:
        if not isinstance(value, list):
            raise bad_request(f"{name} is {shown(value)}; give a list of {', '.join(_INCLUDED)}", name, "invalid_type")
        return frozenset(OneOf(_INCLUDED).read(one, f"{name}[{i}]") for i, one in enumerate(value))

    def schema(self) -> Schema:
        return {"type": "array", "items": OneOf(_INCLUDED).schema()}


_OWN = (
    Field("input", InputItems(), "A text, or the items of the conversation so far.", required=True),
    Field("instructions", Text(), "A system message before the input."),
    Field("max_output_tokens", Integer(1, LARGEST), "Most tokens of the answer, with its reasoning; default: all that fit."),
    Field("text", TEXT, "The form of the answer's text."),
    Field("reasoning", REASONING, "The model's thinking."),
    Field("tools", ResponseTools(), "Functions and custom tools; tools that OpenAI runs are named in x-ignored-fields."),
    Field("tool_choice", ResponseChoices(), "none, auto (the default), required, or an object that names tools."),
    Field("top_logprobs", Integer(0, MAX_LOGPROBS), "Log-probabilities of the text's tokens, and of this many of the best."),
    Field("include", Includes(), f"Further parts of the answer: {LOGPROBS}, {SEALED}; others have no effect."),
    Field("truncation", OneOf(("auto", "disabled")), "auto: leave out the oldest items if all do not fit."),
    Field("metadata", Metadata(), "Pairs of texts, repeated in the answer."),
    Field("max_tool_calls", Integer(1, LARGEST), "No effect, as it concerns tools that OpenAI runs."),
    Field("stream_options", Record((Field("include_obfuscation", Flag(), "Accepted; nothing is padded."),)), "With stream."),
    Field(
        "background", Only((False,), "answers that are fetched later are batches: send the request to /v1/batches"), "No."
    ),
    *(
        Field(name, Only((), f"nothing is stored here: {remedy}"), "Not supported.")
        for name, remedy in {
            "previous_response_id": "send the whole conversation as input",
            "conversation": "send the whole conversation as input",
            "prompt": "send its text as instructions or input",
        }.items()
    ),
)
_NOT_OF_CHATS = {
    *("n", "max_tokens", "max_completion_tokens", "prompt_logprobs", "return_token_ids", "logprobs", "reasoning_effort"),
    *("response_format", "verbosity", "truncate_prompt_tokens", "add_generation_prompt", "continue_final_message"),
    *(field.name for field in _OWN),
}
RESPONSE_FIELDS = (*_OWN, *(one for one in CHAT_OPTIONS if one.name not in _NOT_OF_CHATS))
_OTHERWISE = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "truncate_prompt_tokens": "truncation",
}
_INSTEAD = ForeignField("/v1/chat/completions has it: send the request there", NOTHING)


def _called(name: str, *neutral: Any) -> ForeignField:
    return ForeignField(f"it is called {name} here: send {name}", (*NOTHING, *neutral), name)


def _reworded(one: ForeignField) -> ForeignField:
    """Return a field of another API with its name here."""
    if one is HISTORY:
        return replace(one, remedy="nothing is remembered between requests: send the whole conversation as input")
    if one is SYSTEM:
        return _called("instructions")
    return _called(_OTHERWISE[one.named], *one.neutral) if one.named in _OTHERWISE else one


FOREIGN_TO_RESPONSES = ForeignFields(
    GENERATING
    | {
        "messages": _called("input"),
        "max_tokens": _called("max_output_tokens"),
        "max_completion_tokens": _called("max_output_tokens"),
        "response_format": ForeignField("it is called text.format here: send text", (*NOTHING, {"type": "text"})),
        "reasoning_effort": ForeignField('send reasoning = {{"effort": {value}}}'),
        "verbosity": ForeignField("it is called text.verbosity here: send text", (*NOTHING, "medium")),
        "logprobs": ForeignField(f"send include = ['{LOGPROBS}'], and top_logprobs"),
        "truncate_prompt_tokens": _called("truncation"),
        "n": ForeignField("there is one answer: leave it out", (*NOTHING, 1)),
        "add_generation_prompt": replace(_INSTEAD, neutral=(True,)),
        **dict.fromkeys(("prompt_logprobs", "return_token_ids", "continue_final_message"), _INSTEAD),
    },
    RESPONSE_FIELDS,
    HARMLESS,
    _reworded,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseOptions(ChatOptions):
    """The options of the inner chat, with what its answer needs besides.

    ``repeated``: JSON members that the answer repeats. ``custom``: names of custom tools. ``summarised``: the thinking is
    given as its summary. ``seals``: with its text sealed. ``truncates``: the oldest items may be left out.
    """

    repeated: str = ""
    custom: frozenset[str] = frozenset()
    summarised: bool = False
    seals: bool = False
    truncates: bool = False

    @property
    def limit_name(self) -> str:
        return "max_output_tokens"


def parse_response(body: Body, unknown: str) -> ChatBody:
    """Parse and check the body of a response; return it as a chat's. ``unknown``: the setting ``unknown_fields``."""
    values, ignored = read_fields(body, RESPONSE_FIELDS, unknown, FOREIGN_TO_RESPONSES)
    conversation: GivenItems = values["input"]
    tools: GivenTools = values.get("tools", GivenTools())
    text, reasoning = values.get("text", {}), values.get("reasoning", {})
    include, top = values.get("include", frozenset()), values.get("top_logprobs", 0)
    summary = reasoning.get("summary", reasoning.get("generate_summary"))
    instructions = values.get("instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    made = {name: value for name, value in values.items() if name not in _OWN_NAMES}
    made |= {
        "tools": tools.tools,
        "custom": tools.custom,
        "summarised": summary in ("auto", "detailed"),
        "seals": SEALED in include,
        "truncates": values.get("truncation") == "auto",
        "repeated": _repeated(values, body, tools),
    }
    if "tool_choice" in values:
        made["tool_choice"] = values["tool_choice"].choice
    if "max_output_tokens" in values:
        made["max_completion_tokens"] = values["max_output_tokens"]
    if "effort" in reasoning:
        made["reasoning_effort"] = reasoning["effort"]
    if "stream_options" in values:
        made["stream_options"] = values["stream_options"]
    if "format" in text:
        made["response_format"] = text["format"]
    if top or LOGPROBS in include:
        made |= {"logprobs": True, "top_logprobs": top}
    without = (*conversation.ignored, *tools.ignored, *_without_effect(values, summary))
    options = chat_options(ResponseOptions, made, (*ignored, *without))
    return ChatBody([*system, *conversation.messages], template_options(made), options)


_OWN_NAMES = {field.name for field in _OWN}


def _without_effect(values: Values, summary: str | None) -> list[str]:
    """Return the names of fields that are accepted and change nothing."""
    return [
        *without_effect(TEXT.fields, values.get("text", {}), "text."),
        *without_effect(REASONING.fields, values.get("reasoning", {}), "reasoning."),
        *(["reasoning.summary"] if summary == "concise" else []),
        *(["max_tool_calls"] if "max_tool_calls" in values else []),
        *(f"include.{name}" for name in sorted(values.get("include", frozenset()) - {LOGPROBS, SEALED})),
    ]


def _repeated(values: Values, body: Mapping[str, Any], tools: GivenTools) -> str:
    """Return the members of an answer that repeat the request, as JSON without its braces."""
    choice: GivenChoice | None = values.get("tool_choice")
    reasoning, text = body.get("reasoning") or {}, body.get("text") or {}
    form = text.get("format") or {"type": "text"}
    unicode_text(json.dumps(form, ensure_ascii=False), "text.format")
    made = {
        "background": False,
        "instructions": values.get("instructions"),
        "max_output_tokens": values.get("max_output_tokens"),
        "max_tool_calls": None,
        "metadata": values.get("metadata", {}),
        "parallel_tool_calls": values.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "prompt_cache_key": values.get("prompt_cache_key"),
        "reasoning": {name: reasoning.get(name) for name in ("effort", "summary")},
        "safety_identifier": values.get("safety_identifier"),
        "store": False,
        "text": {"format": form},
        "tool_choice": choice.shown if choice is not None else "auto",
        "tools": tools.shown,
        "top_logprobs": values.get("top_logprobs", 0),
        "truncation": values.get("truncation", "disabled"),
        "user": values.get("user"),
    }
    return written(made)[1:-1]

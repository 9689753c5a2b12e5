"""The fields of the generating endpoints: type, bounds and meaning of each.

One declaration, an attribute of ``Options`` or ``TemplateOptions``, serves the parser, the reference (``/openapi.json``),
the tests and the handlers. A field that would change the answer and is not served is refused, unless its value changes
nothing (``Only``). A field without a declaration is unknown; the setting ``unknown_fields`` decides about it.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from ...policies.drafts.choice import MODES, TIER, mode_fault
from ...policies.drafts.draft_model import FORM
from ...policies.drafts.options import LARGEST as MOST_DRAFTS
from ...policies.model.tier_choice import QUALITIES
from ...policies.requests.urgency import TIERS, urgency
from ..checks import shown
from ..constraints.constraint import Constraint
from ..constraints.fields import Guided, ResponseFormat, StructuredOutputs
from ..errors import bad_request
from .content import CONTENT, read_content
from .field_types import (
    Anything,
    Biases,
    Field,
    FieldType,
    Flag,
    Ignored,
    Integer,
    Mapping,
    Number,
    OneOf,
    Only,
    Record,
    Schema,
    Text,
    Texts,
    Tokens,
)
from .tools import Tool, ToolChoice, ToolChoices, Tools, ToolUse, tool_use

MAX_N = 128  # most choices of one prompt
MAX_STOPS, MAX_STOP_LENGTH = 4, 1024  # strings, characters
MAX_BAD_WORDS, MAX_BIASES = 256, 1024
MAX_LOGPROBS = 20
LARGEST = (1 << 31) - 1
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

CONSTRAINING = (
    *("response_format", "structured_outputs"),
    *(f"guided_{kind}" for kind in ("json", "regex", "choice", "grammar")),
)
STREAM_OPTIONS = (
    Field("include_usage", Flag(), "Send one more chunk with the usage before [DONE].", default=False),
    Field("continuous_usage_stats", Flag(), "Send the usage so far in every chunk.", default=False),
    Field("include_obfuscation", Flag(), "Accepted; nothing is padded."),
)


@dataclass(frozen=True, slots=True)
class DraftMode:
    """The source of a request's drafts: guesses of the next tokens, which the model verifies; they change no token."""

    def read(self, value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise bad_request(f"{name} is {shown(value)}; {FORM}", name, "invalid_type")
        if fault := mode_fault(value):
            raise bad_request(f"{name} is {shown(value)}, {fault}", name)
        return value

    def schema(self) -> Schema:
        return {"anyOf": [OneOf(MODES).schema(), {"type": "string", "pattern": f"^{TIER}$"}, {"type": "string"}]}


@dataclass(frozen=True, slots=True)
class Prediction:
    """OpenAI's predicted output, read as its text."""

    def read(self, value: Any, name: str) -> str:
        given = Mapping().read(value, name)
        if (kind := given.get("type")) != "content":
            raise bad_request(f"{name}.type is {shown(kind)}; give content", f"{name}.type")
        if unknown := sorted(given.keys() - {"type", "content"}):
            raise bad_request(
                f"{name} has no field {shown(unknown[0])}; its fields are type and content", f"{name}.{unknown[0]}"
            )
        content = read_content(given.get("content"), f"{name}.content")
        return content if isinstance(content, str) else "".join(part["text"] for part in content)

    def schema(self) -> Schema:
        properties = {"type": {"const": "content"}, "content": {"anyOf": list(CONTENT)}}
        return {"type": "object", "properties": properties, "required": ["type", "content"]}


def given(kind: FieldType, text: str, default: Any = None, *, sampling: bool = False) -> Any:
    """Declare an attribute that is a field of the body.

    default: a value, or a function that makes one. sampling: the value is passed unchanged to the field of the same name in
    ``SamplingParams``.
    """
    how: Any = {"default_factory": default} if callable(default) else {"default": default}
    return field(metadata={"kind": kind, "text": text, "sampling": sampling}, **how)


sampled = partial(given, sampling=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The fields that both endpoints have, by their names on the wire.

    None stands for the default of the checkpoint or the endpoint.
    """

    model: str | None = given(Text(), "A model id from /v1/models; default: the one that is marked there.")
    temperature: float | None = sampled(
        Number(0, 2), "0 always takes the most probable token; default: the checkpoint's, or 1."
    )
    top_p: float | None = sampled(
        Number(0, 1), "Sample from the most probable tokens that together have this probability; 0: the best one."
    )
    top_k: int | None = sampled(Integer(-1, LARGEST, minimum=0), "Sample from the k most probable tokens; 0 or -1: all.")
    min_p: float | None = sampled(Number(0, 1), "Sample from tokens with at least this share of the highest probability.")
    repetition_penalty: float | None = sampled(
        Number(0, 100, above=True), "Above 1: makes tokens of the prompt and the answer less likely."
    )
    presence_penalty: float = sampled(Number(-2, 2), "Subtracted from the logit of each token in the answer.", 0)
    frequency_penalty: float = sampled(Number(-2, 2), "The same, times the number of occurrences.", 0)
    logit_bias: tuple[tuple[int, float], ...] = given(Biases(100, MAX_BIASES), "Added to the logits of these token ids.", ())
    allowed_token_ids: tuple[int, ...] = given(Tokens(1), "Only these tokens.", ())
    bad_words: tuple[str, ...] = given(
        Texts("bad word", MAX_BAD_WORDS, MAX_STOP_LENGTH),
        "Texts that never appear: their last token never follows the others.",
        (),
    )
    seed: int | None = sampled(
        Integer(-(1 << 63), (1 << 64) - 1, wrap=1 << 64),
        "The same seed and parameters give the same answer; default: from the request's name, else random.",
    )
    stop: tuple[str, ...] = given(
        Texts("stop string", MAX_STOPS, MAX_STOP_LENGTH, single=True),
        "Strings that end the answer; they are not part of it.",
        (),
    )
    stop_token_ids: tuple[int, ...] = given(Tokens(0, 1024), "Tokens that end the answer; they are not part of it.", ())
    include_stop_str_in_output: bool = given(Flag(), "Include the stop string or stop token in the answer.", False)
    ignore_eos: bool = given(Flag(), "Continue after the checkpoint's end tokens.", False)
    min_tokens: int | None = given(
        Integer(0, LARGEST), "The answer does not end before it has this many tokens; default: the checkpoint's, or 0."
    )
    max_completion_tokens: int | None = given(Integer(1, LARGEST), "Newer name of max_tokens; takes precedence.")
    max_tokens: int | None = given(
        Integer(0, LARGEST),
        "Most tokens of the answer; 0 only with echo. Default: 16, a chat's all that fit; fewer if the checkpoint says so.",
    )
    n: int = given(Integer(1, MAX_N), "Number of answers to each prompt.", 1)
    stream: bool = given(Flag(), "Send the answer as server-sent events.", False)
    stream_options: abc.Mapping[str, Any] = given(Record(STREAM_OPTIONS), "Only with stream.", dict)
    prompt_logprobs: int | None = given(
        Integer(0, MAX_LOGPROBS), "Log-probabilities of the prompt's tokens, and of this many of the best; not with stream."
    )
    return_token_ids: bool = given(Flag(), "Return the token ids of prompt and answer.", False)
    skip_special_tokens: bool = given(Flag(), "Leave special tokens out of the text.", True)
    truncate_prompt_tokens: int | None = given(
        Integer(-1, LARGEST), "Use only this many tokens from the end of the prompt; -1: as many as fit."
    )
    cache_salt: str = given(Text(1024), "Share cached prefixes only with requests that have the same salt.", "")
    priority: int = given(Integer(-(1 << 31), LARGEST), "Lower values run earlier, within the service tier.", 0)
    service_tier: str | None = given(
        OneOf(tuple(TIERS)),
        "priority and fast (urgent) go before your other requests, flex after all others; the answer has the tier used.",
    )
    quality: str | None = given(
        OneOf(QUALITIES),
        "Tier of a family: low (the lowest), high (the top) or auto (the lowest unless it is unsure); default: the model's.",
    )
    adaptive: bool = given(
        Flag(),
        "Allow a variant, a chain with equivalent blocks, to answer in the model's place; see the setting adaptive.",
        True,
    )
    draft: str | None = given(
        DraftMode(),
        "Source of drafts, which change no token: prompt, tier:LAYERS, the id of another model, auto (the best source but "
        "models) or off; default: the setting.",
    )
    draft_tokens: int | None = given(
        Integer(0, MOST_DRAFTS), "Tokens drafted in a step; 0: as many as pay; default: the setting draft_tokens."
    )
    prediction: str = given(
        Prediction(),
        'A text like the answer, {"type": "content", "content": TEXT}; its tokens are drafts, unless draft is off.',
        "",
    )
    response_format: tuple[Constraint, ...] = given(
        ResponseFormat(),
        "Form of the answer: an object of type text, json_object, or json_schema with json_schema.schema.",
        (),
    )
    structured_outputs: tuple[Constraint, ...] = given(
        StructuredOutputs(), "Language of the answer: one of json (a schema), regex, choice (texts), grammar (Lark).", ()
    )
    guided_json: tuple[Constraint, ...] = given(Guided("json"), "The same as structured_outputs.json.", ())
    guided_regex: tuple[Constraint, ...] = given(Guided("regex"), "The same as structured_outputs.regex.", ())
    guided_choice: tuple[Constraint, ...] = given(Guided("choice"), "The same as structured_outputs.choice.", ())
    guided_grammar: tuple[Constraint, ...] = given(Guided("grammar"), "The same as structured_outputs.grammar.", ())
    request_id: str | None = given(Text(128), "A name for /v1/requests, like the header x-request-id.")
    ignored: tuple[str, ...] = ()  # unknown fields
    named: frozenset[str] = frozenset()  # fields that the request sets

    @property
    def sampling(self) -> dict[str, Any]:
        """The request's values for ``SamplingParams``."""
        named = [one.name for one in fields(self) if one.metadata.get("sampling")]
        return {name: value for name in named if (value := getattr(self, name)) is not None}

    @property
    def constraints(self) -> list[Constraint]:
        """The constraints that the request sets; more than one is refused."""
        return [one for name in CONSTRAINING for one in getattr(self, name)]

    @property
    def limit(self) -> int | None:
        """Most new tokens. 0: only the echo."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def limit_name(self) -> str:
        """The client's field of most new tokens, for messages."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def scored(self) -> int:
        """Number of top tokens whose log-probabilities come with each token of the answer; -1: no log-probabilities."""
        raise NotImplementedError

    @property
    def prompt_scored(self) -> int:
        """The same for the prompt's tokens."""
        return -1 if self.prompt_logprobs is None else self.prompt_logprobs

    @property
    def echoed(self) -> bool:
        return False

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options.get("include_usage"))

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options.get("continuous_usage_stats"))

    @property
    def tier(self) -> str | None:
        """The service tier that the request gets, if it names one."""
        return None if self.service_tier is None else TIERS[self.service_tier][0]

    @property
    def urgency(self) -> int:
        return urgency(self.service_tier or "default", self.priority)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOptions(Options):
    logprobs: int | None = given(
        Integer(0, MAX_LOGPROBS), "Log-probabilities of the answer's tokens, and of this many of the best."
    )
    echo: bool = given(Flag(), "Put the prompt before the answer; with logprobs, also its log-probabilities.", False)
    best_of: int | None = given(Integer(1, MAX_N), "Must equal n: every choice is returned.")
    add_special_tokens: bool = given(Flag(), "Let the tokenizer add special tokens (BOS) to a text prompt.", True)

    @property
    def scored(self) -> int:
        return -1 if self.logprobs is None else self.logprobs

    @property
    def echoed(self) -> bool:
        return self.echo


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions(Options):
    logprobs: bool = given(Flag(), "Log-probabilities of the answer's tokens.", False)
    top_logprobs: int | None = given(Integer(0, MAX_LOGPROBS), "With logprobs: also those of this many of the best tokens.")
    add_special_tokens: bool = given(Flag(), "Let the tokenizer add special tokens; templates usually have done so.", False)
    tools: tuple[Tool, ...] = given(Tools(), "Functions that the model may call; the answer then has tool_calls.", ())
    tool_choice: ToolChoice | None = given(  # noqa: RUF009, it is frozen
        ToolChoices(), "none, auto (the default), required, or an object that names the function to call."
    )
    parallel_tool_calls: bool = given(Flag(), "Allow several calls in one answer.", True)
    reasoning_effort: str | None = given(
        OneOf(EFFORTS),
        "Sets the chat template's enable_thinking (none: false) and reasoning_effort; without either, it is ignored.",
    )

    @property
    def scored(self) -> int:
        return (self.top_logprobs or 0) if self.logprobs else -1

    @property
    def tool_use(self) -> ToolUse:
        """The use of the tools. Raises a 400 the first time, when the body is parsed."""
        return tool_use(self.tools, self.tool_choice, parallel=self.parallel_tool_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOptions:
    """The options for turning messages into a prompt."""

    add_generation_prompt: bool = given(Flag(), "End the prompt with the beginning of the assistant's message.", True)
    continue_final_message: bool = given(Flag(), "Continue the last message; not with add_generation_prompt.", False)
    chat_template_kwargs: abc.Mapping[str, Any] = given(Mapping(), "More variables for the chat template.", dict)


def fields_of(record: type) -> tuple[Field, ...]:
    """Return the body fields that the record declares."""
    declared = [(one, one.metadata) for one in fields(record) if one.metadata]
    return tuple(Field(one.name, how["kind"], how["text"], default=_shown(one.default)) for one, how in declared)


def _shown(default: Any) -> Any:
    """Return a default for the API reference: None if it is made per request or is empty."""
    return default if isinstance(default, int) else None


_ACCEPTED = tuple(
    Field(name, kind, "Accepted; nothing is stored." if name == "store" else "Accepted.")
    for name, kind in (
        ("session_id", Text(1024)),
        ("user", Text(1024)),
        ("safety_identifier", Text(1024)),
        ("prompt_cache_key", Text(1024)),
        ("prompt_cache_retention", Anything()),
        ("metadata", Mapping()),
        ("store", Flag()),
    )
)
HARMLESS = frozenset(field.name for field in _ACCEPTED)  # these do not change an answer, nor do misspellings of them

_NOT_SERVED = {
    "documents": ([],),
    "function_call": ("none",),
    "functions": ([],),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    **{f"guided_{form}": () for form in ("decoding_backend", "whitespace_pattern")},
}


def _not_served(**fields: tuple[object, ...]) -> tuple[Field, ...]:
    return tuple(Field(name, Only(values), "Not supported.") for name, values in fields.items())


NOT_SERVED = _not_served(**_NOT_SERVED)
TEMPLATE = (*fields_of(TemplateOptions), *_not_served(chat_template=()))
CHAT_OPTIONS = (
    *fields_of(ChatOptions),
    *TEMPLATE,
    *_ACCEPTED,
    Field("verbosity", Ignored(("low", "medium", "high"), ("medium",)), "No effect; named in x-ignored-fields."),
    *NOT_SERVED,
    *_not_served(
        audio=(),
        echo=(False,),
        modalities=(["text"],),
        web_search_options=(),
    ),
)
COMPLETION_OPTIONS = (
    *fields_of(CompletionOptions),
    *_ACCEPTED,
    *NOT_SERVED,
    *_not_served(suffix=("",), tool_choice=("none",), tools=([],)),
)

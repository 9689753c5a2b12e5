"""Request bodies of embeddings, reranking and scoring, parsed and checked into plain records.

Every refusal is a 400 that names the field, the value and the remedy. This module is independent of models.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import fields as attributes
from typing import Any, TypeVar

from ...policies.requests.urgency import TIERS, urgency
from ..checks import Body, shown, unicode_text
from ..errors import bad_request
from ..openai.bodies import Prompts, read_fields
from ..openai.field_types import Field, Flag, Integer, OneOf, Schema, Text
from ..openai.fields import HARMLESS, LARGEST, fields_of, given
from ..openai.foreign_fields import CHOOSING, NOTHING, ForeignField
from ..openai.refused_fields import ForeignFields

MOST_INPUTS = 2048  # texts of one request, as at OpenAI
FLOAT, BASE64 = "float", "base64"


class Documents:
    """The field type of a list of texts, each a string or an object with ``text``, read as a list of texts."""

    def read(self, value: Any, name: str) -> list[str]:
        if not isinstance(value, list) or not value:
            raise bad_request(f"{name} is {shown(value)}; give a list of at least one text", name, "invalid_type")
        return [_document(one, f"{name}[{i}]") for i, one in enumerate(value)]

    def schema(self) -> Schema:
        text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, text]}}


def _document(value: Any, at: str) -> str:
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise bad_request(f"{at} is {shown(value)}; give a string, or an object with text", at, "invalid_type")
    if isinstance(value, dict) and (more := sorted(value.keys() - {"text"})):
        raise bad_request(f"{at} has {shown(more[0])}, which would be ignored; send its text alone", f"{at}.{more[0]}")
    return unicode_text(text, at)


class OneOrMore:
    """The field type of a text or a list of texts, read as a list."""

    def read(self, value: Any, name: str) -> list[str]:
        return Documents().read([value] if isinstance(value, str | dict) else value, name)

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "string"}, Documents().schema()]}


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOptions:
    """The fields that all endpoints of this package have, by their names on the wire."""

    model: str | None = given(Text(), "A model id from /v1/models; default: the one that is marked there.")
    truncate_prompt_tokens: int | None = given(
        Integer(-1, LARGEST), "Use only this many tokens from the end of each text; -1: as many as fit."
    )
    cache_salt: str = given(Text(1024), "Share cached prefixes only with requests that have the same salt.", "")
    priority: int = given(Integer(-(1 << 31), LARGEST), "Lower values run earlier, within the service tier.", 0)
    service_tier: str | None = given(
        OneOf(tuple(TIERS)), "priority and fast (urgent) go before your other requests, flex after all others."
    )
    request_id: str | None = given(Text(128), "A name for /v1/requests, like the header x-request-id.")
    ignored: tuple[str, ...] = ()  # unknown fields

    @property
    def urgency(self) -> int:
        return urgency(self.service_tier or "default", self.priority)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOptions(VectorOptions):
    encoding_format: str = given(OneOf((FLOAT, BASE64)), "Numbers, or float32 values in little-endian order.", FLOAT)
    dimensions: int | None = given(Integer(1, LARGEST), "Only the first numbers of each vector; default: all.")
    add_special_tokens: bool = given(Flag(), "Let the tokenizer add special tokens to texts.", True)
    prompt_name: str | None = given(
        Text(256), "A prompt of the checkpoint that is put before each text; default: the checkpoint's; empty: none."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions(VectorOptions):
    instruction: str | None = given(Text(1 << 16), "What a reranker judges; default: the checkpoint's.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankOptions(PairOptions):
    top_n: int | None = given(Integer(1, LARGEST), "Only this many documents, the best ones; default: all.")
    return_documents: bool = given(Flag(), "Return the documents with their scores.", True)


@dataclass(frozen=True, slots=True)
class EmbeddingBody:
    inputs: list[str | list[int]]
    options: EmbeddingOptions


@dataclass(frozen=True, slots=True)
class RerankBody:
    query: str
    documents: list[str]
    options: RerankOptions


@dataclass(frozen=True, slots=True)
class ScoreBody:
    """Pairs of the texts at equal places."""

    first: list[str]
    second: list[str]
    options: PairOptions


_ACCEPTED = tuple(
    Field(name, Text(1024), "Accepted.") for name in ("user", "session_id", "safety_identifier", "prompt_cache_key")
)
EMBEDDING_FIELDS = (
    Field("input", Prompts(), "A text, a list of texts, token ids or a list of such lists.", required=True),
    *fields_of(EmbeddingOptions),
    *_ACCEPTED,
)
RERANK_FIELDS = (
    Field("query", Text(), "What the documents are compared with.", required=True),
    Field("documents", Documents(), "The texts to rank, each a string or an object with text.", required=True),
    *fields_of(RerankOptions),
    *_ACCEPTED,
)
SCORE_FIELDS = (
    Field("text_1", OneOrMore(), "A text, or one for each of text_2.", required=True),
    Field("text_2", OneOrMore(), "The texts that it is compared with.", required=True),
    *fields_of(PairOptions),
    *_ACCEPTED,
)
_DRAWN = ForeignField("no token is drawn for a vector; leave it out", (*NOTHING, 0, 1, "none", "off"))
_OF_TOKENS = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("logit_bias", "allowed_token_ids", "bad_words", "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens"),
    *("max_tokens", "max_completion_tokens", "n", "best_of", "stream", "stream_options", "logprobs", "top_logprobs"),
    *("prompt_logprobs", "echo", "suffix", "tools", "tool_choice", "response_format", "structured_outputs", "quality"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "draft", "draft_tokens", "prediction", "adaptive"),
    *("reasoning_effort", "return_token_ids"),
)
_TEXTS = ForeignField("the chat template is applied to no text here: send {value} as texts")
_SAID = ForeignField("vectors are normalized and pooled as the checkpoint says; leave it out")
_FORM = ForeignField("vectors are float32 in little-endian order; leave it out", (*NOTHING, "float32", "little", "native"))
_SIDE = ForeignField("texts are truncated by truncate_prompt_tokens, at their beginning; leave it out", (*NOTHING, "left"))
_PROMPT = ForeignField("it is called prompt_name here, and names a prompt of the checkpoint: send prompt_name")
_POOLING = {
    **CHOOSING,
    **dict.fromkeys(_OF_TOKENS, _DRAWN),
    **dict.fromkeys(("messages", "chat_template", "chat_template_kwargs"), _TEXTS),
    **dict.fromkeys(("normalize", "normalized", "pooling", "pooling_type", "activation", "use_activation"), _SAID),
    **dict.fromkeys(("softmax", "embedding_types", "task"), _SAID),
    **dict.fromkeys(("embed_dtype", "endianness", "output_dtype"), _FORM),
    **dict.fromkeys(("truncation_side", "truncate", "truncation", "max_tokens_per_doc"), _SIDE),
    **dict.fromkeys(("input_type", "prompt", "prompt_type"), _PROMPT),
}


def _foreign(fields: tuple[Field, ...], **named: str) -> ForeignFields:
    more = {name: ForeignField(f"it is called {own} here: send {own}", NOTHING, own) for name, own in named.items()}
    return ForeignFields(_POOLING | more, fields, HARMLESS)


FOREIGN_TO_EMBEDDINGS = _foreign(EMBEDDING_FIELDS, inputs="input", texts="input", text="input", content="input")
FOREIGN_TO_RERANK = _foreign(RERANK_FIELDS, texts="documents", passages="documents", top_k="top_n", instruct="instruction")
FOREIGN_TO_SCORE = _foreign(
    SCORE_FIELDS,
    **dict.fromkeys(("queries", "query", "data_1"), "text_1"),
    **dict.fromkeys(("documents", "data_2", "items"), "text_2"),
)
Made = TypeVar("Made", bound=VectorOptions)


def parse_embeddings(body: Body, unknown: str) -> EmbeddingBody:
    """Parse and check the body of a request for vectors. ``unknown``: the setting ``unknown_fields``."""
    values, ignored = read_fields(body, EMBEDDING_FIELDS, unknown, FOREIGN_TO_EMBEDDINGS)
    inputs: list[str | list[int]] = values["input"]
    _check_count(len(inputs), "input", "texts")
    options = _made(EmbeddingOptions, values, ignored)
    return EmbeddingBody(inputs, options)


def parse_rerank(body: Body, unknown: str) -> RerankBody:
    """Parse and check the body of a request to rank documents."""
    values, ignored = read_fields(body, RERANK_FIELDS, unknown, FOREIGN_TO_RERANK)
    _check_count(len(values["documents"]), "documents", "documents")
    return RerankBody(values["query"], values["documents"], _made(RerankOptions, values, ignored))


def parse_score(body: Body, unknown: str) -> ScoreBody:
    """Parse and check the body of a request to score pairs."""
    values, ignored = read_fields(body, SCORE_FIELDS, unknown, FOREIGN_TO_SCORE)
    first, second = values["text_1"], values["text_2"]
    if len(first) not in (1, len(second)):
        message = f"text_1 has {len(first)} texts and text_2 {len(second)}; give one, or as many as in text_2"
        raise bad_request(message, "text_1")
    _check_count(len(second), "text_2", "texts")
    return ScoreBody(first, second, _made(PairOptions, values, ignored))


def _check_count(count: int, name: str, what: str) -> None:
    if count > MOST_INPUTS:
        message = f"{name} has {count:,} {what}; a request takes {MOST_INPUTS:,} at most: send several, or a batch"
        raise bad_request(message, name)


def _made(record: type[Made], values: dict[str, Any], ignored: tuple[str, ...]) -> Made:
    known = {one.name: values[one.name] for one in attributes(record) if one.name in values}
    return record(**known, ignored=ignored)

"""Bodies of the OpenAI endpoints, parsed and checked into plain records.

Every refusal is a 400 that names the field, the value and the remedy. Knows no model: lengths, vocabularies and defaults of
checkpoints are applied afterwards (``generate.py``).
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any, NoReturn

from blockwright.api.checks import Body, boolean, integer, number, shown, string, unicode_text
from blockwright.api.errors import bad_request
from blockwright.api.fields import CHAT, COMPLETION, unknown_fields

MAX_N = 128  # choices of one prompt
MAX_SEQUENCES = 1024  # choices of one request
MAX_STOPS = 4
MAX_STOP_LENGTH = 1024  # characters
MAX_LOGPROBS = 20
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What both endpoints share. None: the checkpoint's default, or (max_tokens) the endpoint's."""

    model: str | None
    stream: bool
    n: int
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    repetition_penalty: float | None
    presence_penalty: float
    frequency_penalty: float
    seed: int  # drawn here when missing; 64 bits, unsigned
    stops: tuple[str, ...]
    logprobs: int  # -1: none
    ignore_eos: bool
    return_token_ids: bool
    include_usage: bool
    continuous_usage: bool
    salt: bytes
    ignored: tuple[str, ...]  # unknown fields


@dataclass(frozen=True, slots=True)
class CompletionBody:
    prompts: list[str | list[int]]
    options: Options


@dataclass(frozen=True, slots=True)
class ChatBody:
    messages: list[dict[str, Any]]
    options: Options


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def parse_json(raw: bytes) -> Body:
    """The body as an object; a 400 for anything else, NaN and infinities included."""
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError:
        raise bad_request("the body is nested too deeply; send a flatter object", code="invalid_json") from None
    except ValueError as error:
        raise bad_request(f"the body is not valid JSON ({error}); send one JSON object", code="invalid_json") from None
    if not isinstance(body, dict):
        raise bad_request(f"the body is {shown(body)}; send one JSON object", code="invalid_json")
    return body


def parse_completion(body: Body, unknown: str) -> CompletionBody:
    """``unknown``: the setting ``unknown_fields``."""
    ignored = unknown_fields(body, COMPLETION, unknown)
    logprobs = integer(body, "logprobs", 0, MAX_LOGPROBS)
    prompts = _prompts(body)
    options = _options(body, -1 if logprobs is None else logprobs, ignored)
    if len(prompts) * options.n > MAX_SEQUENCES:
        raise bad_request(
            f"{len(prompts)} prompts with n {options.n} are over the limit of {MAX_SEQUENCES} choices; send fewer", "prompt"
        )
    return CompletionBody(prompts, options)


def parse_chat(body: Body, unknown: str) -> ChatBody:
    """``unknown``: the setting ``unknown_fields``."""
    ignored = unknown_fields(body, CHAT, unknown)
    wanted = boolean(body, "logprobs")
    top = integer(body, "top_logprobs", 0, MAX_LOGPROBS)
    if top is not None and not wanted:
        raise bad_request(f"top_logprobs is {top} without logprobs; set logprobs to true", "top_logprobs")
    return ChatBody(_messages(body), _options(body, (top or 0) if wanted else -1, ignored))


def _options(body: Body, logprobs: int, ignored: tuple[str, ...]) -> Options:
    stream = boolean(body, "stream")
    usage, continuous = _stream_options(body, stream)
    limits = [integer(body, name, 1, 1 << 31) for name in ("max_completion_tokens", "max_tokens")]
    seed = integer(body, "seed", -(1 << 63), (1 << 64) - 1)
    top_k = integer(body, "top_k", -1, 1 << 31)
    return Options(
        model=string(body, "model"),
        stream=stream,
        n=integer(body, "n", 1, MAX_N) or 1,
        max_tokens=limits[0] if limits[0] is not None else limits[1],
        temperature=number(body, "temperature", 0, 2),
        top_p=number(body, "top_p", 0, 1, above=True),
        top_k=None if top_k is None else max(0, top_k),
        repetition_penalty=number(body, "repetition_penalty", 0, 100, above=True),
        presence_penalty=number(body, "presence_penalty", -2, 2) or 0.0,
        frequency_penalty=number(body, "frequency_penalty", -2, 2) or 0.0,
        seed=secrets.randbits(63) if seed is None else seed % (1 << 64),
        stops=_stops(body),
        logprobs=logprobs,
        ignore_eos=boolean(body, "ignore_eos"),
        return_token_ids=boolean(body, "return_token_ids"),
        include_usage=usage,
        continuous_usage=continuous,
        salt=(string(body, "cache_salt") or "").encode(),
        ignored=ignored,
    )


def _stream_options(body: Body, stream: bool) -> tuple[bool, bool]:
    options = body.get("stream_options")
    if options is None:
        return False, False
    if not isinstance(options, dict):
        raise bad_request(f"stream_options is {shown(options)}; give an object", "stream_options", "invalid_type")
    if not stream:
        raise bad_request("stream_options is set but stream is not true; set stream or leave it out", "stream_options")
    return boolean(options, "include_usage"), boolean(options, "continuous_usage_stats")


def _stops(body: Body) -> tuple[str, ...]:
    value = body.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(s, str) for s in stops):
        raise bad_request(f"stop is {shown(value)}; give a string or a list of strings", "stop", "invalid_type")
    if len(stops) > MAX_STOPS:
        raise bad_request(f"stop has {len(stops)} strings; give at most {MAX_STOPS}", "stop")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_LENGTH:
            raise bad_request(f"a stop string has {len(stop)} characters; give 1 to {MAX_STOP_LENGTH}", "stop")
    return tuple(unicode_text(stop, "stop") for stop in stops)


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _prompts(body: Body) -> list[str | list[int]]:
    value = body.get("prompt")
    if isinstance(value, str):
        return [unicode_text(value, "prompt")]
    if isinstance(value, list) and value:
        if all(_is_token(token) for token in value):
            return [value]
        if all(isinstance(text, str) for text in value):
            return [unicode_text(text, "prompt") for text in value]
        if all(isinstance(one, list) and one and all(_is_token(t) for t in one) for one in value):
            return list(value)
    forms = "give a string, a list of strings, a list of token ids or a list of such lists, none of them empty"
    if "prompt" not in body:
        raise bad_request(f"prompt is missing; {forms}", "prompt", "missing_required_parameter")
    raise bad_request(f"prompt is {shown(value)}; {forms}", "prompt", "invalid_type")


def _messages(body: Body) -> list[dict[str, Any]]:
    value = body.get("messages")
    if not isinstance(value, list) or not value:
        found = "missing" if "messages" not in body else shown(value)
        raise bad_request(f"messages is {found}; give a list of at least one message", "messages", "invalid_type")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(value)]


def _message(message: Any, at: str) -> dict[str, Any]:
    """Role and text; a list of text parts becomes one text, since most templates print a list as it stands."""
    if not isinstance(message, dict):
        raise bad_request(f"{at} is {shown(message)}; give an object with role and content", at, "invalid_type")
    role = message.get("role")
    role = "system" if role == "developer" else role  # newer name of the same thing; templates know the older
    if role not in ROLES:
        raise bad_request(f"{at}.role is {shown(role)}; give one of {', '.join(ROLES)}", f"{at}.role")
    for name in ("tool_calls", "function_call", "tool_call_id", "audio"):
        if message.get(name):
            raise bad_request(
                f"{at}.{name} is not supported by this server; leave it out", f"{at}.{name}", "unsupported_parameter"
            )
    made = {"role": role, "content": _content(message.get("content"), f"{at}.content")}
    author = string(message, "name")
    return made if author is None else made | {"name": author}


def _content(content: Any, at: str) -> str:
    if isinstance(content, str):
        return unicode_text(content, at)
    if not isinstance(content, list) or not content:
        raise bad_request(f"{at} is {shown(content)}; give a string or a list of text parts", at, "invalid_type")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            found = shown(part if kind is None else kind)
            raise bad_request(
                f"{at}[{i}] is {found}; this server takes text parts only", f"{at}[{i}]", "unsupported_parameter"
            )
        text = part.get("text")
        if not isinstance(text, str):
            raise bad_request(f"{at}[{i}].text is {shown(text)}; give a string", f"{at}[{i}].text", "invalid_type")
        texts.append(unicode_text(text, f"{at}[{i}].text"))
    return "\n".join(texts)

"""One line of a batch: parsed, checked, and answered through exactly the code of the HTTP endpoint that it names.

``parse_line`` needs the line alone. ``prepare`` needs the model, too (prompts, lengths, all refusals of the endpoint).
``answer`` generates. Nothing is stored here, and nothing waits for capacity: the caller of ``answer`` has reserved it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from aiohttp import web

from ...actors.batches.port import RetryLater
from ...gpu.errors import CheckpointError
from ...policies.offline.load_tries import LoadTries
from ...policies.requests.refusal import Refusal, RequestRefused
from ..checks import Body, shown
from ..embeddings.call import VectorCall
from ..embeddings.endpoints import EMBEDDINGS, VectorEndpoint
from ..embeddings.fields import EMBEDDING_FIELDS
from ..errors import ApiError, bad_request, error_body, in_words
from ..http.auth import ApiCaller
from ..http.context import CALLER, IGNORED, OFFLINE, Front, OfflinePlace
from ..openai.bodies import CHAT_FIELDS, COMPLETION_FIELDS, FOREIGN_TO_CHAT, parse_json
from ..openai.chat import CHAT
from ..openai.completions import COMPLETIONS
from ..openai.fields import HARMLESS
from ..openai.generate import GenerateHandler, GeneratingEndpoint
from ..openai.responses.endpoint import RESPONSES
from ..openai.responses.request import RESPONSE_FIELDS

log = logging.getLogger(__name__)
AnyEndpoint = GeneratingEndpoint[Any] | VectorEndpoint[Any]
ENDPOINTS: dict[str, AnyEndpoint] = {one.path: one for one in (CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS)}
LONGEST_ID = 512  # most characters of a custom_id
LONG = 1 << 18  # bytes; parsing a line of this length takes some milliseconds
_OF_LINE = frozenset(("custom_id", "method", "url", "body"))
_FIELDS = (*CHAT_FIELDS, *COMPLETION_FIELDS, *RESPONSE_FIELDS, *EMBEDDING_FIELDS)
_OF_BODIES = {one.name for one in _FIELDS} - HARMLESS - {"request_id"}
_LATER = (Refusal.OVERLOADED, Refusal.UNAVAILABLE)


class LineRefused(Exception):
    """A line that is not a request: a sentence for people and a code for programs, as in ``errors.data`` of a batch.

    ``custom_id``: the line's, if it has one. ``param``: the field at fault.
    """

    def __init__(self, code: str, message: str, param: str | None = None, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.custom_id = custom_id


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A parsed line. ``endpoint`` answers ``body``."""

    custom_id: str
    endpoint: AnyEndpoint
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLine:
    """A checked line: the data that an order may use, and the call that answers it.

    prompt: token ids of all its prompts, concatenated. limit: most new tokens of all choices together. choices: number of
    sequences that answer it.
    """

    application: str
    prompt: list[int]
    limit: int
    choices: int
    call: GenerateHandler | VectorCall


@dataclass(frozen=True, slots=True, kw_only=True)
class LineAnswer:
    """The answer that HTTP would have given. ``body``: JSON. Token counts are 0 if it failed."""

    status: int
    request_id: str
    body: bytes
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached: int = 0  # prompt tokens found in the prefix cache
    ignored: tuple[str, ...] = ()  # unknown fields, which HTTP reports in a header


class LineContext:
    """An ``CallContext`` for a line: the caller is the owner of the batch."""

    def __init__(self, caller: ApiCaller) -> None:
        self.headers: Mapping[str, str] = {}
        self._known: dict[Any, Any] = {CALLER: caller, OFFLINE: OfflinePlace()}

    def __getitem__(self, key: web.RequestKey[Any], /) -> Any:
        return self._known[key]

    def __setitem__(self, key: web.RequestKey[Any], value: Any, /) -> None:
        self._known[key] = value

    def get(self, key: web.RequestKey[Any], /) -> Any:
        return self._known.get(key)


def parse_line(raw: bytes, url: str = "") -> BatchLine:
    """Return a parsed line of a file; raise LineRefused. ``url``: the endpoint of its batch; empty: any."""
    try:
        line = parse_json(raw)
    except ApiError as error:
        message = error.message.replace("the body", "the line", 1)
        raise LineRefused("invalid_json_line", message) from None
    custom_id = line.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= LONGEST_ID:
        found = "missing" if custom_id is None else shown(custom_id)
        message = f"custom_id is {found}; give a string of 1 to {LONGEST_ID} characters"
        raise LineRefused("invalid_custom_id", message, "custom_id")
    try:
        custom_id.encode()
    except UnicodeEncodeError:
        message = "custom_id has a lone surrogate; send valid Unicode"
        raise LineRefused("invalid_custom_id", message, "custom_id") from None
    if line.get("method") != "POST":
        message = f"method is {shown(line.get('method'))}; give POST"
        raise LineRefused("invalid_method", message, "method", custom_id)
    named = line.get("url")
    if named not in ENDPOINTS or not isinstance(named, str):
        message = f"url is {shown(named)}; give one of {', '.join(ENDPOINTS)}"
        raise LineRefused("invalid_url", message, "url", custom_id)
    if url and named != url:
        message = f"url is {named}, but the batch's endpoint is {url}; put lines of another endpoint into another batch"
        raise LineRefused("mismatched_url", message, "url", custom_id)
    body = line.get("body")
    if not isinstance(body, dict):
        message = f"body is {shown(body)}; give the object that {named} takes"
        raise LineRefused("invalid_body", message, "body", custom_id)
    _check_beside({name: value for name, value in line.items() if name not in _OF_LINE}, custom_id)
    return BatchLine(custom_id, ENDPOINTS[named], body)


def _check_beside(others: Body, custom_id: str) -> None:
    """Raise LineRefused for a field beside the body that would choose or shape the answer within it."""
    for name, value in others.items():
        if name in _OF_BODIES and value is not None:
            message = f"{name} stands beside body, where it would be ignored; put it into body"
            raise LineRefused("misplaced_field", message, name, custom_id)
    try:
        FOREIGN_TO_CHAT.check(others)
    except ApiError as error:
        raise LineRefused("misplaced_field", error.message, error.param, custom_id) from None


async def parse_here(raw: bytes, url: str = "") -> BatchLine:
    """Return a parsed line, without blocking the event loop for a long one."""
    return parse_line(raw, url) if len(raw) < LONG else await asyncio.to_thread(parse_line, raw, url)


async def prepare(front: Front, caller: ApiCaller, line: BatchLine) -> PreparedLine:
    """Check a line with all checks of its endpoint, and with the same refusals.

    Raise ApiError, and RetryLater if no model is loaded yet that could be asked.
    """
    if line.body.get("stream"):
        raise bad_request("stream is set, but a line of a batch is answered whole; leave stream out", "stream")
    try:
        call = await line.endpoint.prepare(front, LineContext(caller), line.body)
    except (ApiError, RequestRefused, CheckpointError) as raised:
        raise _refusal(raised) from None
    return PreparedLine(
        application=call.info.id,
        prompt=call.prompts[0] if len(call.prompts) == 1 else [token for one in call.prompts for token in one],
        limit=call.limit,
        choices=call.sequences,
        call=call,
    )


async def answer(prepared: PreparedLine, place: OfflinePlace, tries: LoadTries) -> LineAnswer:
    """Generate the answer of a line, once. A failure is an answer, too, as for a client.

    Raise RetryLater without side effects. Cancelling the task ends its sequences at the next sweep. ``tries``: its job's
    attempts to have the model loaded.
    """
    call = prepared.call
    call.request[OFFLINE] = place
    try:
        body = await call.whole()
    except (ApiError, RequestRefused) as raised:
        return refused(_refusal(raised, tries), call.id)
    except Exception:
        log.exception("line %s of a batch failed", call.id)
        return refused(ApiError(500, "internal error; the server's log has the details"), call.id)
    tries.loaded()
    usage = call.usage()
    return LineAnswer(
        status=200,
        request_id=call.id,
        body=body,
        prompt_tokens=usage["prompt_tokens"],
        output_tokens=usage["total_tokens"] - usage["prompt_tokens"],
        cached=usage["prompt_tokens_details"]["cached_tokens"],
        ignored=call.request.get(IGNORED) or (),
    )


def refused(error: ApiError, request_id: str = "") -> LineAnswer:
    """Return the answer that HTTP would have given for an error."""
    return LineAnswer(status=error.status, request_id=request_id or f"req-{secrets.token_hex(12)}", body=error_body(error))


def _refusal(raised: ApiError | RequestRefused | CheckpointError, tries: LoadTries | None = None) -> ApiError:
    """Return the error to answer with; raise RetryLater if a later attempt would not, or might not, be refused.

    A later attempt might succeed for a model that could not be loaded.
    """
    if isinstance(raised, RequestRefused):
        if raised.why in _LATER and not raised.in_vain:
            wait = raised.retry_after or 1.0
            again = tries.failed(raised.failure, wait) if raised.failure and tries is not None else wait
            if again is not None:
                raise RetryLater(raised.message, again)
        return in_words(raised)
    if isinstance(raised, CheckpointError):
        return ApiError(500, str(raised))
    if raised.status == 503:
        raise RetryLater(raised.message, raised.retry_after or 1.0)
    return raised


def line_hash(line: BatchLine) -> str:
    """Return 32 hexadecimal digits over method, url and body. The order of keys, spaces and the custom id do not matter."""
    canonical = json.dumps(["POST", line.endpoint.path, line.body], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def result_line(
    id: str,
    custom_id: str | None,
    answer: LineAnswer | None,
    error: Mapping[str, Any] | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Return a line of an output or error file, including its end.

    Without an answer the request was never made, and ``error`` has the reason. ``more``: further keys of the line, beyond
    OpenAI's format.
    """
    head = json.dumps({"id": id, "custom_id": custom_id})[:-1]
    if answer is None:
        return f'{head}, "response": null, "error": {json.dumps(error)}}}\n'.encode()
    ignored = f', "ignored_fields": {json.dumps(answer.ignored)}' if answer.ignored else ""
    response = f'{{"status_code": {answer.status}, "request_id": {json.dumps(answer.request_id)}{ignored}, "body": '
    tail = "".join(f", {json.dumps(name)}: {json.dumps(value)}" for name, value in more.items())
    return head.encode() + b', "response": ' + response.encode() + answer.body + f'}}, "error": null{tail}}}\n'.encode()

"""Errors as clients see them: HTTP status, the form of the API, and the headers that steer a client's retries.

The paths of Anthropic's API have its form, all others OpenAI's, with string codes. Only this module translates a
``RequestRefused`` (or an error of aiohttp's). It never decides what is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from aiohttp import web

from ..policies.requests.refusal import SHORTER_ANSWER, Refusal, RequestRefused

_CODES = {
    400: "invalid_value",
    401: "invalid_api_key",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_encoding",
    417: "expectation_failed",
    421: "misdirected_request",
    429: "rate_limit_exceeded",
    500: "internal_error",
    503: "unavailable",
}

_ANTHROPIC = "/v1/messages"  # the paths of Anthropic's API
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

# refusal -> status, field of the body, code
_WORDS: dict[Refusal, tuple[int, str | None, str]] = {
    Refusal.UNKNOWN_MODEL: (404, "model", "model_not_found"),
    Refusal.UNKNOWN_WORKER: (404, "id", "not_found"),
    Refusal.INVALID: (400, None, "invalid_value"),
    Refusal.TOO_LONG: (400, None, "context_length_exceeded"),
    Refusal.OVERLOADED: (503, None, "unavailable"),
    Refusal.UNAVAILABLE: (503, None, "unavailable"),
    Refusal.EXPIRED: (504, None, "timeout"),
    Refusal.CANCELLED: (409, None, "request_cancelled"),
    Refusal.POISON: (500, None, "request_kills_workers"),
    Refusal.UNHELD: (500, None, "grammar_failed"),
    Refusal.BROKEN: (500, "model", "model_overflow"),
    Refusal.CONFLICT: (409, "name", "conflict"),
    Refusal.FORBIDDEN: (403, "path", "permission_denied"),
}


class ApiError(Exception):
    """The contents of an HTTP answer that refuses a request. ``kind``: the ``type`` of OpenAI's form."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "",
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
        self.code = code or _CODES.get(status, "error")  # for programs
        self.headers: dict[str, str] = {}  # further headers of the answer


class ContextExceeded(ApiError):
    """A 400 for a prompt of ``prompt`` tokens and ``new`` more that do not fit into a context of ``context`` tokens.

    ``limit``: the field that asks for the new ones.
    """

    def __init__(self, message: str, *, limit: str, prompt: int, new: int, context: int) -> None:
        param = "prompt" if prompt >= context else limit
        super().__init__(400, message, param=param, code="context_length_exceeded")
        self.prompt = prompt
        self.new = new
        self.context = context


def in_words(refused: RequestRefused) -> ApiError:
    """Return the error for a gateway's refusal or failure, in the words of HTTP and OpenAI."""
    status, param, code = _WORDS[refused.why]
    if refused.why is Refusal.TOO_LONG:
        param = refused.limit or "prompt"
    message, limit = refused.message, refused.limit
    if limit:
        message = message.replace(SHORTER_ANSWER, f"lower {limit}")
    else:
        message = message.replace(f"{SHORTER_ANSWER}, ", "").replace(f", or {SHORTER_ANSWER}", "")
    return ApiError(status, message, param=refused.param or param, code=code, retry_after=refused.retry_after)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return a 400. ``param``: the field's name."""
    return ApiError(400, message, param=param, code=code)


ErrorForm = Callable[[ApiError, str], dict[str, Any]]  # of an error and the id of its answer


def openai_form(error: ApiError, request_id: str) -> dict[str, Any]:
    """Return the object that clients of OpenAI's API read."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def anthropic_form(error: ApiError, request_id: str) -> dict[str, Any]:
    """Return the object that clients of Anthropic's API read."""
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    message = error.message
    if isinstance(error, ContextExceeded):  # agents find the numbers in these words, and shorten what they send
        if error.param == "prompt":
            message = f"prompt is too long: {error.prompt} tokens > {error.context} maximum; shorten it"
        else:
            sizes = f"{error.prompt} + {error.new} > {error.context}"
            remedy = "decrease input length or `max_tokens` and try again"
            message = f"input length and `max_tokens` exceed context limit: {sizes}, {remedy}"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id or None}


def of_anthropic(path: str) -> bool:
    """Return True for a path of Anthropic's API."""
    return path == _ANTHROPIC or path.startswith(f"{_ANTHROPIC}/")


def error_form(path: str) -> ErrorForm:
    """Return the form of errors of a path."""
    return anthropic_form if of_anthropic(path) else openai_form


def error_body(error: ApiError, form: ErrorForm = openai_form, request_id: str = "") -> bytes:
    """Return the JSON object, ASCII only, for an answer's body or an event of a stream that has begun."""
    return json.dumps(form(error, request_id)).encode()


def error_response(error: ApiError, form: ErrorForm = openai_form, request_id: str = "") -> web.Response:
    headers = dict(error.headers)
    if error.status in (429, 503) and (wait := error.retry_after or float(error.status == 503)):
        headers["Retry-After"] = str(max(1, math.ceil(wait)))
        headers["retry-after-ms"] = str(math.ceil(1000 * wait))
        headers["x-should-retry"] = "true"
    else:
        headers["x-should-retry"] = "false"  # SDKs retry a 500 and a 409 by default; these would fail again
    if error.status == 401:
        headers.setdefault("WWW-Authenticate", "Bearer")
    body = error_body(error, form, request_id)
    answer = web.Response(status=error.status, body=body, content_type="application/json", headers=headers)
    if headers.get("Connection") == "close":
        answer.force_close()
    return answer


def from_http(error: web.HTTPException, method: str, path: str, max_body: int, instead: str = "") -> ApiError:
    """Return the error for an exception of aiohttp's router or body reader. ``instead``: replacement of an unknown path."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        refusal = ApiError(405, f"{method} is not allowed on {path}; use {allowed}")
        refusal.headers["Allow"] = allowed
        return refusal
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        refusal = ApiError(413, f"the body is larger than the limit of {max_body} bytes; send less in one request")
        refusal.headers["Connection"] = "close"  # the rest of the body is not read
        return refusal
    if error.status == 404:
        return ApiError(404, f"{method} {path} is not served here; {instead or 'see /docs for what is'}")
    return ApiError(error.status, error.text or error.reason)

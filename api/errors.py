"""Errors as clients see them: OpenAI's shape, string codes, and the headers that steer a client's retries.

Owns the one place that turns a ``GatewayError`` (or what aiohttp raises) into a body. Never decides what is an error.
"""

from __future__ import annotations

import json
import math
from typing import Any

from aiohttp import web

from blockwright.actors.gateway.port import GatewayError

_CODES = {
    400: "invalid_value",
    401: "invalid_api_key",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    417: "expectation_failed",
    421: "misdirected_request",
    429: "rate_limit_exceeded",
    500: "internal_error",
    503: "unavailable",
}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> GatewayError:
    """A 400; ``param`` is the field's name."""
    return GatewayError(400, message, param=param, code=code)


def error_body(error: GatewayError) -> bytes:
    """The JSON object, ASCII only, for an answer's body or an event of a stream that has begun."""
    kind = error.kind
    if error.status >= 500 and kind == "invalid_request_error":
        kind = "server_error"  # GatewayError's default kind blames the client
    shape: dict[str, Any] = {"message": error.message, "type": kind, "param": error.param, "code": error_code(error)}
    return json.dumps({"error": shape}).encode()


def error_code(error: GatewayError) -> str:
    """What programs go by."""
    return error.code or _CODES.get(error.status, "error")


def error_response(error: GatewayError) -> web.Response:
    headers = dict(error.headers)
    if error.status in (429, 503) and (wait := error.retry_after or float(error.status == 503)):
        headers["Retry-After"] = str(max(1, math.ceil(wait)))
        headers["retry-after-ms"] = str(math.ceil(1000 * wait))
        headers["x-should-retry"] = "true"
    else:
        headers["x-should-retry"] = "false"  # SDKs retry a 500 and a 409 by themselves; what failed here fails again
    if error.status == 401:
        headers.setdefault("WWW-Authenticate", "Bearer")
    answer = web.Response(status=error.status, body=error_body(error), content_type="application/json", headers=headers)
    if headers.get("Connection") == "close":
        answer.force_close()
    return answer


def from_http(error: web.HTTPException, method: str, path: str, max_body: int) -> GatewayError:
    """What aiohttp's router and body reader raise, in our words."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        refusal = GatewayError(405, f"{method} is not allowed on {path}; use {allowed}")
        refusal.headers["Allow"] = allowed
        return refusal
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return GatewayError(413, f"the body is larger than the limit of {max_body} bytes; send less in one request")
    if error.status == 404:
        return GatewayError(404, f"{method} {path} is not served here; see /openapi.json for what is")
    if error.status == 417:  # on a path that is not served, or not so
        return GatewayError(417, f"this Expect is not known on {method} {path}; leave it out")
    return GatewayError(error.status, error.text or error.reason)

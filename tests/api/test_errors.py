"""What the gateway refuses, in HTTP's and OpenAI's words."""

from __future__ import annotations

import json

import pytest

from blockwright.api.errors import error_body, error_response, in_words
from blockwright.policies.requests.refusal import Refusal, RequestRefused


@pytest.mark.parametrize("why", Refusal)
def test_every_refusal_has_its_words(why: Refusal) -> None:
    error = in_words(RequestRefused(why, "a sentence", 2.5))
    assert 400 <= error.status < 600
    body = json.loads(error_body(error))["error"]
    assert body["message"] == "a sentence"
    assert body["type"] == ("server_error" if error.status >= 500 else "invalid_request_error")
    answer = error_response(error)
    assert ("Retry-After" in answer.headers) == (error.status == 503)


@pytest.mark.parametrize(
    ("why", "status", "code", "param"),
    [
        (Refusal.UNKNOWN_MODEL, 404, "model_not_found", "model"),
        (Refusal.TOO_LONG, 400, "context_length_exceeded", "max_tokens"),
        (Refusal.OVERLOADED, 503, "unavailable", None),
        (Refusal.POISON, 500, "request_kills_workers", None),
        (Refusal.CANCELLED, 409, "request_cancelled", None),
    ],
)
def test_words_that_clients_go_by(why: Refusal, status: int, code: str, param: str | None) -> None:
    error = in_words(RequestRefused(why, "x"))
    assert (error.status, error.code, error.param) == (status, code, param)

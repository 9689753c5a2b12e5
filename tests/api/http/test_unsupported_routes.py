"""Endpoints of other servers get a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.api.app.routes import ENDPOINTS
from blockwright.api.http.unsupported_routes import _SENTENCES


@pytest.mark.parametrize(
    ("method", "path", "says"),
    [
        ("POST", "/v1/complete", "Anthropic's older API is not served; the one of messages is: POST /v1/messages"),
        ("POST", "/v1/v1/messages", "the base URL of this client ends before /v1"),
        ("POST", "/api/chat", "ollama's API is not served; OpenAI's is, at /v1"),
        ("GET", "/slots", "GET /v1/requests lists running and waiting requests"),
        ("POST", "/embed", "texts become vectors by POST /v1/embeddings"),
        ("POST", "/reranking", "documents are ranked by POST /v1/rerank"),
        ("GET", "/v1/responses/resp_1", "responses are not stored; POST /v1/responses answers"),
        ("POST", "/v1/responses/resp_1/cancel", "responses are not stored"),
        ("POST", "/v1/uploads", "a file is uploaded in one request: POST /v1/files"),
        ("POST", "/v1beta/models/x:generateContent", "Gemini's API is not served"),
        ("GET", "/get_server_info", "GET /version and GET /admin/cluster describe the server"),
        ("POST", "/flush_cache", "the prefix cache cannot be emptied"),
        ("GET", "/nowhere", "see /docs for what is"),
        ("GET", "/apium", "see /docs for what is"),
        ("POST", "/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("POST", "/v1/Completions/", "did you mean /v1/completions?"),
        ("GET", "/v1/model", "did you mean /v1/models?"),
    ],
)
async def test_a_404_says_what_to_use(serve: Any, method: str, path: str, says: str) -> None:
    client, _ = await serve()
    answer = await client.request(method, path)
    error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (404, "not_found")
    assert error["message"].startswith(f"{method} {path} is not served here; ")
    assert says in error["message"]


def test_no_sentence_is_of_a_path_that_is_served() -> None:
    served = {endpoint.path for endpoint in ENDPOINTS}
    assert not served & set(_SENTENCES)
    assert not [path for path in served for known in _SENTENCES if path.startswith(f"{known}/")]

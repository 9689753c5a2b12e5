"""Endpoints of other servers that clients try here: the purpose of each, and what to use instead."""

from __future__ import annotations

from collections.abc import Collection

from ...policies.nearest import nearest

_OLLAMA = "ollama's API is not served; OpenAI's is, at /v1: POST /v1/chat/completions"
_ADAPTERS = "POST /admin/apps adds a model while the server runs"
_EMBEDDINGS = "texts become vectors by POST /v1/embeddings"
_RERANK = "documents are ranked by POST /v1/rerank"
_SERVER = "GET /version and GET /admin/cluster describe the server"
_SLEEP = "models are not put to sleep; DELETE /admin/apps/NAME removes one, POST /admin/apps adds it again"
_CACHE = "the prefix cache cannot be emptied; requests with a cache_salt share only with requests that have the same"
_WHOLE = "POST /v1/chat/completions takes the whole conversation"
_SENTENCES = {
    "/v1/messages/batches": "Anthropic's batches are not served; OpenAI's are: POST /v1/batches",
    "/v1/complete": "Anthropic's older API is not served; the one of messages is: POST /v1/messages",
    "/v1/v1": "the base URL of this client ends before /v1",
    **dict.fromkeys(("/embeddings", "/embedding", "/embed", "/v1/embed", "/v2/embed", "/pooling"), _EMBEDDINGS),
    **dict.fromkeys(("/reranking", "/v1/reranking"), _RERANK),
    "/classify": "texts are not classified; POST /v1/score scores pairs of texts",
    "/v1/audio": "audio is not supported: only text is generated, by POST /v1/chat/completions",
    "/v1/images": "images are not supported: only text is generated, by POST /v1/chat/completions",
    "/v1/moderations": "moderation is not supported: only text is generated, by POST /v1/chat/completions",
    "/v1/fine_tuning": "nothing is trained here; " + _ADAPTERS,
    "/v1/assistants": f"assistants are not supported; {_WHOLE}",
    "/v1/threads": f"threads are not supported; {_WHOLE}",
    "/v1/conversations": f"conversations are not kept; {_WHOLE}",
    "/v1/realtime": "the Realtime API is not supported; POST /v1/chat/completions with stream sends events",
    "/v1/vector_stores": "vector stores are not supported: only text is generated, by POST /v1/chat/completions",
    "/v1/uploads": "a file is uploaded in one request: POST /v1/files",
    "/v1/engines": "GET /v1/models lists the models",
    "/v1beta": "Gemini's API is not served; OpenAI's is: POST /v1/chat/completions",
    "/completion": "llama.cpp's own endpoint is not served; use POST /v1/completions",
    "/slots": "GET /v1/requests lists running and waiting requests, GET /admin/cluster the workers",
    "/props": "GET /v1/models lists the models, GET /version says how they are computed",
    "/generate": "SGLang's and TGI's own endpoint is not served; use POST /v1/completions",
    "/generate_stream": "TGI's own endpoint is not served; use POST /v1/completions with stream",
    **dict.fromkeys(("/server_info", "/get_server_info", "/info"), _SERVER),
    **dict.fromkeys(("/get_model_info", "/model_info"), "GET /v1/models lists the models"),
    "/infill": "a gap in a text is not filled; POST /v1/completions continues a text",
    "/apply-template": "POST /tokenize with messages gives the tokens of a conversation",
    "/lora-adapters": f"GET /admin/apps lists the models, {_ADAPTERS}",
    **dict.fromkeys(("/sleep", "/wake_up", "/is_sleeping"), _SLEEP),
    **dict.fromkeys(("/reset_prefix_cache", "/flush_cache"), _CACHE),
    "/abort_request": "POST /v1/requests/{id}/cancel cancels a request",
    "/invocations": "SageMaker's endpoint is not served; use POST /v1/chat/completions",
    "/chat/completions": "the paths begin with /v1 here: POST /v1/chat/completions",
    "/completions": "the paths begin with /v1 here: POST /v1/completions",
    "/models": "the paths begin with /v1 here: GET /v1/models",
    "/api": _OLLAMA,
}


_BELOW = {"/v1/responses": "responses are not stored; POST /v1/responses answers, and takes the whole conversation"}


def instead(path: str, served: Collection[str]) -> str:
    """Return a sentence for a path that is not served, or an empty text.

    The sentence names the server that the path belongs to, or the nearest served path.
    """
    for known, sentence in _SENTENCES.items():
        if path == known or path.startswith(f"{known}/"):
            return sentence
    for known, sentence in _BELOW.items():
        if path.startswith(f"{known}/"):
            return sentence
    meant = nearest(path, served)
    return f"did you mean {meant}?" if meant else ""

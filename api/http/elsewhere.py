"""Endpoints of other servers that people ask for here: what each was meant for, and what to use instead."""

from __future__ import annotations

from collections.abc import Collection

from blockwright.policies.nearest import nearest

_OLLAMA = "ollama's API is not served; OpenAI's is, at /v1: POST /v1/chat/completions"
_ADAPTERS = "POST /admin/apps adds a model while the server runs"
_SENTENCES = {
    "/v1/messages": "Anthropic's API is not served; OpenAI's is: POST /v1/chat/completions",
    "/v1/responses": "the Responses API is not supported yet; use POST /v1/chat/completions",
    "/v1/embeddings": "embeddings are not supported yet: only text is generated, by POST /v1/chat/completions",
    "/v1/rerank": "reranking is not supported: only text is generated, by POST /v1/chat/completions",
    "/rerank": "reranking is not supported: only text is generated, by POST /v1/chat/completions",
    "/v1/score": "scoring is not supported; POST /v1/completions with echo and logprobs gives a text's log-probabilities",
    "/v1/audio": "audio is not supported: only text is generated, by POST /v1/chat/completions",
    "/v1/images": "images are not supported: only text is generated, by POST /v1/chat/completions",
    "/v1/moderations": "moderation is not supported: only text is generated, by POST /v1/chat/completions",
    "/v1/fine_tuning": "nothing is trained here; " + _ADAPTERS,
    "/v1/assistants": "assistants are not supported; use POST /v1/chat/completions with the whole conversation",
    "/v1/threads": "threads are not supported; use POST /v1/chat/completions with the whole conversation",
    "/completion": "llama.cpp's own endpoint is not served; use POST /v1/completions",
    "/slots": "GET /v1/requests lists running and waiting requests, GET /admin/cluster the workers",
    "/props": "GET /v1/models lists the models, GET /version says how they are computed",
    "/generate": "SGLang's and TGI's own endpoint is not served; use POST /v1/completions",
    "/generate_stream": "TGI's own endpoint is not served; use POST /v1/completions with stream",
    "/server_info": "GET /version and GET /admin/cluster describe the server",
    "/get_model_info": "GET /v1/models lists the models",
    "/chat/completions": "the paths begin with /v1 here: POST /v1/chat/completions",
    "/completions": "the paths begin with /v1 here: POST /v1/completions",
    "/models": "the paths begin with /v1 here: GET /v1/models",
    "/api": _OLLAMA,
}


def instead(path: str, served: Collection[str]) -> str:
    """A sentence for a path that is not served: of whom it is known to be, or which served one is meant; else empty."""
    for known, sentence in _SENTENCES.items():
        if path == known or path.startswith(f"{known}/"):
            return sentence
    meant = nearest(path, served)
    return f"did you mean {meant}?" if meant else ""

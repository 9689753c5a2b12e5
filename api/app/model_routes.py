"""The endpoints that run models: OpenAI's and Anthropic's answers, and vectors."""

from __future__ import annotations

from .. import answers
from ..anthropic import answers as messages
from ..anthropic.bodies import COUNT_FIELDS, MESSAGE_FIELDS
from ..anthropic.endpoints import MESSAGES, count_tokens
from ..embeddings.endpoints import EMBEDDINGS, RERANK, SCORE
from ..embeddings.fields import EMBEDDING_FIELDS, RERANK_FIELDS, SCORE_FIELDS
from ..openai.bodies import CHAT_FIELDS, COMPLETION_FIELDS
from ..openai.chat import CHAT
from ..openai.completions import COMPLETIONS
from ..openai.responses.answers import ResponseAnswer, ResponseEvent
from ..openai.responses.endpoint import RESPONSES
from ..openai.responses.request import RESPONSE_FIELDS
from .endpoint import Endpoint

GENERATING = (400, 403, 404, 408, 409, 413, 429, 500, 503)
MODEL_ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/completions",
        handler=COMPLETIONS.respond,
        text="Continue one or more prompts.",
        fields=COMPLETION_FIELDS,
        answer=answers.CompletionAnswer,
        chunk=answers.CompletionChunk,
        errors=GENERATING,
    ),
    Endpoint(
        method="POST",
        path="/v1/chat/completions",
        handler=CHAT.respond,
        text="Answer a conversation with the assistant's next message.",
        fields=CHAT_FIELDS,
        answer=answers.ChatAnswer,
        chunk=answers.ChatChunk,
        errors=GENERATING,
    ),
    Endpoint(
        method="POST",
        path="/v1/responses",
        handler=RESPONSES.respond,
        text="Answer a conversation of items; nothing is stored.",
        fields=RESPONSE_FIELDS,
        answer=ResponseAnswer,
        chunk=ResponseEvent,
        stream="event: and data: lines; the last event is response.completed, incomplete or failed.",
        errors=GENERATING,
    ),
    Endpoint(
        method="POST",
        path="/v1/messages",
        handler=MESSAGES.respond,
        text="Answer a conversation with the assistant's next message, in the form of Anthropic's API.",
        fields=MESSAGE_FIELDS,
        answer=messages.MessageAnswer,
        chunk=messages.MessageEvent,
        stream="event: and data: lines; the last event is message_stop.",
        errors=GENERATING,
        error=messages.MessageErrorAnswer,
    ),
    Endpoint(
        method="POST",
        path="/v1/messages/count_tokens",
        handler=count_tokens,
        text="Count the tokens of a message's prompt.",
        fields=COUNT_FIELDS,
        answer=messages.TokenCount,
        errors=(400, 403, 404, 408, 413, 500, 503),
        error=messages.MessageErrorAnswer,
    ),
    Endpoint(
        method="POST",
        path=EMBEDDINGS.path,
        handler=EMBEDDINGS.respond,
        text="Turn texts into vectors.",
        fields=EMBEDDING_FIELDS,
        answer=answers.EmbeddingsAnswer,
        errors=GENERATING,
    ),
    *(
        Endpoint(
            method="POST",
            path=path,
            handler=RERANK.respond,
            text="Rank documents by their relevance to a query.",
            fields=RERANK_FIELDS,
            answer=answers.RerankAnswer,
            errors=GENERATING,
        )
        for path in (RERANK.path, "/v2/rerank", "/rerank")
    ),
    *(
        Endpoint(
            method="POST",
            path=path,
            handler=SCORE.respond,
            text="Score pairs of texts.",
            fields=SCORE_FIELDS,
            answer=answers.ScoreAnswer,
            errors=GENERATING,
        )
        for path in (SCORE.path, "/score")
    ),
)

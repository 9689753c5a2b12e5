"""All endpoints: the handler of each, and its text in the reference.

The application and ``/openapi.json`` share this one list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from .. import answers
from ..anthropic import answers as messages
from ..anthropic.bodies import COUNT_FIELDS, MESSAGE_FIELDS
from ..anthropic.endpoints import MESSAGES, count_tokens
from ..batches import endpoints as batches
from ..batches import files, views
from ..embeddings.endpoints import EMBEDDINGS, RERANK, SCORE
from ..embeddings.fields import EMBEDDING_FIELDS, RERANK_FIELDS, SCORE_FIELDS
from ..http import admin, health, history, info, models, page_files
from ..openai import applications, moves
from ..openai.bodies import CHAT_FIELDS, COMPLETION_FIELDS
from ..openai.chat import CHAT
from ..openai.completions import COMPLETIONS
from ..openai.field_types import Field
from ..openai.responses.answers import ResponseAnswer, ResponseEvent
from ..openai.responses.endpoint import RESPONSES
from ..openai.responses.request import RESPONSE_FIELDS
from ..openai.tokenize import DETOKENIZE_FIELDS, TOKENIZE_FIELDS, detokenize, tokenize

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ADMIN = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})  # besides /admin: the paths for admin keys
CHANGING = (400, 403, 408, 409, 413, 500, 503)
STORED = (400, 404, 408, 413, 500, 507)
GENERATING = (400, 403, 404, 408, 409, 413, 429, 500, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint.

    ``path``: in aiohttp's form. ``errors``: statuses with an ``error``, besides 401 if a key is needed.
    """

    method: str
    path: str
    handler: Handler
    text: str
    fields: tuple[Field, ...] = ()  # fields of the body
    takes: str = "application/json"  # media type of the body
    query: tuple[Field, ...] = ()  # parameters of the query
    answer: Any = None  # type of a success's JSON; None: see ``media``
    chunk: Any = None  # type of a stream's events
    stream: str = "data: lines, each with a chunk; the last is [DONE]."
    error: Any = answers.ErrorAnswer  # type of an error's JSON
    media: str = "application/json"
    errors: tuple[int, ...] = ()
    success: int = 200
    also: tuple[int, ...] = ()  # further statuses with the form of the success

    @property
    def public(self) -> bool:
        return self.path in PUBLIC


PUBLIC = health.PUBLIC  # with keys, all other paths need one; a browser that opens a page is asked for it
ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/",
        handler=page_files.index,
        text="A web page: chat, live charts, workers and blocks, events.",
        media="text/html",
    ),
    Endpoint(
        method="GET",
        path="/page/{name}",
        handler=page_files.asset,
        text="A file of the web page.",
        media="text/*",
        errors=(404,),
    ),
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
    Endpoint(
        method="POST",
        path="/v1/responses",
        handler=RESPONSES.respond,
        text="Answer a conversation of items; nothing is stored.",
        fields=RESPONSE_FIELDS,
        answer=ResponseAnswer,
        chunk=ResponseEvent,
        stream="event: and data: lines; no [DONE].",
        errors=GENERATING,
    ),
    Endpoint(
        method="GET",
        path="/v1/models",
        handler=models.list_models,
        text="List the models that the key may use.",
        answer=answers.ModelsAnswer,
        errors=(503,),
    ),
    Endpoint(
        method="GET",
        path="/v1/models/{id:.+}",
        handler=models.one_model,
        text="One model.",
        answer=answers.ModelAnswer,
        errors=(403, 404, 503),
    ),
    Endpoint(
        method="GET",
        path="/v1/requests",
        handler=admin.list_requests,
        text="List the key's latest requests (an admin key: all keys'), at most `limit` (20): unfinished ones, then others.",
        answer=answers.RequestsAnswer,
        errors=(400,),
    ),
    Endpoint(
        method="GET",
        path="/v1/requests/{id:.+}",
        handler=admin.one_request,
        text="Show where a request runs, how far it has come and what happened to it, by id or x-request-id.",
        answer=answers.RequestAnswer,
        errors=(404,),
    ),
    Endpoint(
        method="POST",
        path="/v1/requests/{id:.+}/cancel",
        handler=admin.cancel,
        text="Cancel a running request, with its key or an admin key; its own answer becomes a 409.",
        answer=answers.CancelAnswer,
        errors=(404,),
    ),
    Endpoint(
        method="POST",
        path="/v1/files",
        handler=files.upload,
        text="Upload a file of requests for a batch.",
        fields=files.UPLOAD_FIELDS,
        takes="multipart/form-data",
        answer=views.FileAnswer,
        errors=STORED,
    ),
    Endpoint(
        method="GET",
        path="/v1/files",
        handler=files.list_files,
        text="List the files of the key's tenant, including the output of batches.",
        query=files.LIST_FIELDS,
        answer=views.FilesAnswer,
        errors=(400, 404),
    ),
    Endpoint(
        method="GET",
        path="/v1/files/{id}",
        handler=files.one_file,
        text="Show a file's properties.",
        answer=views.FileAnswer,
        errors=(404,),
    ),
    Endpoint(
        method="GET",
        path="/v1/files/{id}/content",
        handler=files.content,
        text="The file itself.",
        media="application/octet-stream",
        errors=(404,),
    ),
    Endpoint(
        method="DELETE",
        path="/v1/files/{id}",
        handler=files.delete,
        text="Delete a file, unless an open batch reads it.",
        answer=views.DeletedAnswer,
        errors=(404, 409, 507),
    ),
    Endpoint(
        method="POST",
        path="/v1/batches",
        handler=batches.create,
        text="Create a batch: answer the requests in a file with the capacity that other requests leave.",
        fields=batches.CREATE_FIELDS,
        answer=views.BatchAnswer,
        errors=STORED,
    ),
    Endpoint(
        method="GET",
        path="/v1/batches",
        handler=batches.list_batches,
        text="List the batches of the key's tenant, the newest first.",
        query=batches.LIST_FIELDS,
        answer=views.BatchesAnswer,
        errors=(400, 404),
    ),
    Endpoint(
        method="GET",
        path="/v1/batches/{id}",
        handler=batches.one_batch,
        text="Show a batch's progress and its files.",
        answer=views.BatchAnswer,
        errors=(404,),
    ),
    Endpoint(
        method="POST",
        path="/v1/batches/{id}/cancel",
        handler=batches.cancel,
        text="Cancel a batch; finished answers are kept.",
        answer=views.BatchAnswer,
        errors=(404, 409, 507),
    ),
    Endpoint(
        method="POST",
        path="/tokenize",
        handler=tokenize,
        text="Convert a text or a conversation to token ids.",
        fields=TOKENIZE_FIELDS,
        answer=answers.TokenizeAnswer,
        errors=(400, 403, 404, 408, 413, 500, 503),
    ),
    Endpoint(
        method="POST",
        path="/detokenize",
        handler=detokenize,
        text="Convert token ids to text, including special tokens.",
        fields=DETOKENIZE_FIELDS,
        answer=answers.DetokenizeAnswer,
        errors=(400, 403, 404, 408, 413, 500, 503),
    ),
    Endpoint(
        method="GET",
        path="/admin/cluster",
        handler=admin.cluster,
        text="Show workers, routes, memory and counters.",
        answer=dict[str, Any],
        errors=(403, 500, 503),
    ),
    Endpoint(
        method="POST",
        path="/admin/requests/{id:.+}/move",
        handler=moves.move,
        text="Move a running request to another worker, together with its KV; its answer stays the same.",
        fields=moves.MOVE_FIELDS,
        answer=answers.MoveAnswer,
        errors=(400, 403, 404, 408, 409, 413, 500, 503),
        success=202,
    ),
    Endpoint(
        method="POST",
        path="/admin/workers/{id}/drain",
        handler=moves.drain,
        text="Drain a worker: its requests move to other workers, and it gets no new ones.",
        fields=moves.DRAIN_FIELDS,
        answer=answers.DrainedAnswer,
        errors=(400, 403, 404, 408, 409, 413, 500, 503),
        also=(202,),
    ),
    Endpoint(
        method="DELETE",
        path="/admin/workers/{id}/drain",
        handler=moves.resume,
        text="Use a drained worker again.",
        answer=answers.DrainedAnswer,
        errors=(403, 404, 500, 503),
    ),
    Endpoint(
        method="GET",
        path="/admin/apps",
        handler=applications.list_applications,
        text="List the applications: what each is based on, its memory, where it runs.",
        answer=answers.AppsAnswer,
        errors=(403, 500, 503),
    ),
    Endpoint(
        method="POST",
        path="/admin/apps",
        handler=applications.add,
        text="Add a model; answers when it is ready for requests.",
        fields=applications.ADD_FIELDS,
        answer=answers.AddedAnswer,
        errors=CHANGING,
        also=(202,),
    ),
    Endpoint(
        method="POST",
        path="/admin/apps/{name:.+}",
        handler=applications.replace,
        text="Replace a model by a new version: new requests go there, running ones finish on the old one.",
        fields=applications.REPLACE_FIELDS,
        answer=answers.AddedAnswer,
        errors=(*CHANGING, 404),
        also=(202,),
    ),
    Endpoint(
        method="DELETE",
        path="/admin/apps/{name:.+}",
        handler=applications.remove,
        text="Remove a model: new requests are refused, running ones have drain_timeout to finish, then it is unloaded.",
        query=applications.REMOVE_QUERY,
        answer=answers.RemovedAnswer,
        errors=(403, 404, 409, 500, 503),
        also=(202,),
    ),
    Endpoint(
        method="POST",
        path="/v1/load_lora_adapter",
        handler=applications.load_adapter,
        text="Like POST /admin/apps, with vLLM's field names, and for adapters alone.",
        fields=applications.LOAD_FIELDS,
        media="text/plain",
        errors=CHANGING,
    ),
    Endpoint(
        method="POST",
        path="/v1/unload_lora_adapter",
        handler=applications.unload_adapter,
        text="Like DELETE /admin/apps, with vLLM's field names.",
        fields=applications.UNLOAD_FIELDS,
        media="text/plain",
        errors=(400, 403, 404, 408, 413, 500, 503),
    ),
    Endpoint(
        method="GET",
        path="/admin/actors",
        handler=admin.actors,
        text="Show every actor of every node: mailboxes, the current message, restarts; and each node's loop lag and peers.",
        answer=dict[str, Any],
        errors=(403, 500, 503),
    ),
    Endpoint(
        method="GET",
        path="/admin/forecasts",
        handler=admin.forecasts,
        text="Show forecast and actual times of the latest requests.",
        answer=answers.ForecastsAnswer,
        errors=(403, 500, 503),
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        handler=admin.metrics,
        text="Metrics in Prometheus' text format.",
        media="text/plain",
    ),
    Endpoint(
        method="GET",
        path="/metrics/history",
        handler=history.history,
        text="Load and memory of the last `seconds` (120, a day at most), in rows of 1, 10 or 60 s; `after`: from there on.",
        answer=answers.HistoryAnswer,
        errors=(400,),
    ),
    Endpoint(
        method="GET",
        path="/grafana.json",
        handler=info.dashboard,
        text="A dashboard of these metrics, to import into Grafana.",
        answer=dict[str, Any],
    ),
    Endpoint(
        method="GET",
        path="/health/live",
        handler=health.live,
        text="Whether the process responds.",
        answer=answers.LiveAnswer,
    ),
    *(
        Endpoint(
            method=method,
            path=path,
            handler=health.ready,
            text="Whether at least one model is ready; 503 with the reason while none is.",
            answer=dict[str, Any],
            also=(503,),
        )
        for method, path in (("GET", "/health/ready"), ("GET", "/health"), ("GET", "/ping"), ("POST", "/ping"))
    ),
    Endpoint(
        method="GET",
        path="/version",
        handler=info.version,
        text="Version, and the numerics of the workers.",
        answer=answers.VersionAnswer,
    ),
    Endpoint(method="GET", path="/load", handler=info.load, text="How busy this gateway is.", answer=answers.LoadAnswer),
    Endpoint(method="GET", path="/openapi.json", handler=info.reference, text="This document.", answer=dict[str, Any]),
    Endpoint(method="GET", path="/docs", handler=info.page, text="This API as a web page.", media="text/html"),
)

"""The forms of answers, as types: handlers build them, and the reference (``/openapi.json``) is made from them.

No behavior here. A key that may be absent is ``NotRequired``; a key that may be null says so.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(TypedDict):
    """An error. ``message``: one sentence that names field, value and remedy. ``code``: for programs."""

    error: ErrorDetail


class PromptTokensDetails(TypedDict):
    """Details of the prompt. ``cached_tokens``: found in the prefix cache and not computed."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    """Tokens of the request's ``prediction`` that were verified as drafts: the accepted ones became tokens of the answer.

    ``reasoning_tokens``: tokens of the thinking, in chats with a model whose turn template is known.
    """

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: NotRequired[int]


class Usage(TypedDict):
    """``tier``: model id of the tier that answered, only for models of a family."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    tier: NotRequired[str]


class VectorUsage(TypedDict):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class VectorEntry(TypedDict):
    """A vector: numbers, or base64 of float32 values in little-endian order."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsAnswer(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[VectorEntry]
    usage: VectorUsage


class DocumentText(TypedDict):
    text: str


class RerankResult(TypedDict):
    """The score of a document; ``index``: its place in the request."""

    index: int
    relevance_score: float
    document: NotRequired[DocumentText]


class RerankAnswer(TypedDict):
    """``results``: the best first. ``method``: verdict for a reranker, else the similarity of vectors."""

    id: str
    model: str
    method: str
    results: list[RerankResult]
    usage: VectorUsage


class ScoreEntry(TypedDict):
    object: Literal["score"]
    index: int
    score: float


class ScoreAnswer(TypedDict):
    """``method``: verdict for a reranker, else the similarity of vectors."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    method: str
    data: list[ScoreEntry]
    usage: VectorUsage


class PromptLogprob(TypedDict):
    logprob: float
    rank: int
    decoded_token: str


class CompletionLogprobs(TypedDict):
    """Lists with one entry per token. With echo the prompt's tokens come first; the very first one has null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[list[dict[str, PromptLogprob] | None]]


class CompletionAnswer(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[str]
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(TypedDict):
    """An event of a stream. With include_usage the last event has no choices and ``usage``, which is null in the others."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[str]
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobAnswer(TypedDict):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprobAnswer]
    refusal: None


class CalledFunction(TypedDict):
    """``arguments``: JSON in a text."""

    name: NotRequired[str]
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ToolCallDelta(TypedDict):
    """A piece of a call. The first one has id, type and name; the arguments of all pieces join."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunction


class ChatMessage(TypedDict):
    """``content`` is null if there are only tool calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: str | int | None
    token_ids: NotRequired[list[int]]


class ChatAnswer(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[str]
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[list[dict[str, PromptLogprob] | None]]


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]


class ChatChunk(TypedDict):
    """An event of a stream: the role comes first, then pieces of the content, then the finish reason."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[str]
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]
    prompt_token_ids: NotRequired[list[int]]


class ModelAnswer(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    ready: bool
    default: bool


class ModelsAnswer(TypedDict):
    object: Literal["list"]
    data: list[ModelAnswer]


class TokenizeAnswer(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(TypedDict):
    prompt: str


class VersionAnswer(TypedDict):
    """The version. ``devices`` and ``numerics``: of the workers.

    ``batch_invariant``: the same tokens get the same bits whatever runs beside or ran before them (null while no worker is
    up). ``batch_variant_because``: the reason if it is false.
    """

    version: str
    devices: list[str]
    numerics: list[str]
    batch_invariant: bool | None
    batch_variant_because: str | None


class LoadAnswer(TypedDict):
    """The number of requests that this gateway is answering."""

    server_load: int


class LiveAnswer(TypedDict):
    status: Literal["live"]


class CancelAnswer(TypedDict):
    id: str
    cancelled: Literal[True]


class MoveAnswer(TypedDict):
    """The moves of a request.

    ``moves`` has {"request", "from", "to", "route", "pages", "bytes"} for each choice. ``pages`` of KV are copied, and the
    rest is recomputed.
    """

    id: str
    moves: list[dict[str, Any]]


class DrainedAnswer(TypedDict):
    """The state of a drain.

    ``queue``: the worker's sequences at its last heartbeat. /admin/cluster shows how many are left.
    """

    worker: str
    draining: bool
    queue: dict[str, int]


class DraftCount(TypedDict):
    """The drafts of one source: rounds, tokens verified in them, and tokens that stood."""

    rounds: int
    drafted: int
    accepted: int


class RequestGuesses(TypedDict):
    """Guesses of a request's hidden states.

    ``approximate``: one was accepted, so the text is not exactly the model's.
    """

    made: int
    accepted: int
    approximate: bool


class RequestDrafts(TypedDict):
    """The drafts of a request.

    ``tokens``: drafts of a round; 0: as many as pay. ``sources``: counts by source. ``tiers``: the lower tiers that may
    draft. ``model``: the other model that was asked to draft, or empty. ``reason``: why it has none now, or none by a tier
    or model, or empty.
    """

    prompt: bool
    prediction_tokens: int
    tiers: list[str]
    model: str
    tokens: int
    sources: dict[str, DraftCount]
    reason: str


class RequestTier(TypedDict):
    """The choice of a request's tier.

    ``tier``: the tier that answers; empty while it is not chosen. ``confidence``: of the least sure choice; with less than
    ``theta`` the request goes from ``start`` to the top tier. ``tokens``: tokens that were looked at. ``seconds``: from the
    request's arrival to the choice.
    """

    tier: str
    start: str
    escalated: bool
    confidence: float | None
    theta: float
    measure: str
    tokens: int
    seconds: float | None


class RequestService(TypedDict):
    """The service class of a request and the account that its work is charged to.

    ``account``: the tenant; without keys the model, or the family of its tier. ``tier``: model id of the tier that counts
    within the account; empty if the model has no tiers. ``risen``: classes by which it has risen with its wait. ``yielded``:
    rows that it gave to urgent requests.
    """

    asked: Literal["urgent", "normal", "batch"]
    risen: int
    account: str
    tier: str
    yielded: int


class RequestAnswer(TypedDict):
    """The history of a request; times are in seconds since it arrived.

    ``entered``: prompt tokens that began at an exit, on hidden states that a lower tier left, by the layers before the exit.
    ``variant``: the variants that serve it in its model's place or gave tokens, separated by commas; or empty.
    ``switches`` has {"at", "source", "target", "position", "why", "stay", "go", "outcome", "took"} for each change of its
    chain: ``position`` tokens of the answer come from the chains before; ``stay`` and ``go`` are the estimates that were
    compared (null: its route had ended); ``outcome`` has {"cached", "recomputed", "paused"}; ``took``: seconds to the end.
    ``chains``: for each choice the model asked for, the chain that serves it, and the reason for the last change of chains,
    and ``similarity``, once the listed chain has scored what variants gave: {"answers", "tokens", "agreed", "logprob"}.
    ``claims``: while it has a route, who wants its model's components on the route's workers, and why.
    """

    id: str
    state: Literal["waiting", "running", "finished", "cancelled", "failed"]
    attempt: int
    home: str | None
    route: list[dict[str, Any]]
    prompt_tokens: int
    computed_tokens: int
    emitted_tokens: int
    events: list[dict[str, Any]]
    dispatch: dict[str, Any] | None
    tenant: str
    model: str
    place: int
    queued: int
    starts_in: float | None
    drafts: RequestDrafts
    tier: RequestTier | None
    service: RequestService | None
    parked_steps: int
    parked_seconds: float
    entered: dict[str, int]
    guesses: RequestGuesses | None
    variant: str
    switches: list[dict[str, Any]]
    chains: list[dict[str, Any]]
    claims: list[dict[str, Any]]


class ListedRequest(TypedDict):
    """A request in a list.

    ``place``: position in the queue; 0 if it is not waiting, or waits to go on. ``age``: seconds until now or its end.
    ``ended``: seconds since its end; null before it.
    """

    id: str
    model: str
    state: Literal["waiting", "running", "finished", "cancelled", "failed"]
    place: int
    prompt_tokens: int
    computed_tokens: int
    emitted_tokens: int
    home: str | None
    attempt: int
    age: float
    tenant: str
    ended: float | None


class RequestsAnswer(TypedDict):
    object: Literal["list"]
    data: list[ListedRequest]


class ForecastedRequest(TypedDict):
    """A finished request; times are in seconds since a dispatcher was asked about it."""

    request: str
    predicted_first_token: float
    first_token: float
    predicted_last_token: float
    last_token: float


class ForecastsAnswer(TypedDict):
    data: list[ForecastedRequest]


class HistoryMemory(TypedDict):
    """Bytes of all workers: parameters, KV in use, KV cached, free. ``tenants``: KV by tenant, including cached pages."""

    parameters: float
    kv: float
    cached: float
    free: float
    tenants: dict[str, float]


class HistoryRow(TypedDict):
    """Means from ``at``, in seconds since 1970. ``p50``, ``p95``: seconds to the first token; null without one."""

    at: int
    running: float
    waiting: float
    tokens_per_second: float
    p50: float | None
    p95: float | None
    memory: HistoryMemory | None


class HistoryAnswer(TypedDict):
    """The load history. ``step``: seconds of a row. The last row may not be complete yet."""

    step: int
    rows: list[HistoryRow]


class ParameterBytes(TypedDict):
    """Bytes of parameters. ``shared``: with other applications."""

    own: int
    shared: int


class AddedAnswer(TypedDict):
    """An added model; the status is 202 while it is still loading.

    ``base``: the model that an adapter was put on; null for a whole model, or if that is not known yet. ``summary`` is for
    people.
    """

    name: str
    path: str
    state: Literal["ready", "loading"]
    base: str | None
    max_model_len: int
    bytes: ParameterBytes
    summary: str


class RemovedAnswer(TypedDict):
    """A removed model.

    ``ending``, with status 202: it still has running requests, or its blocks are still being unloaded. ``freed``: bytes of
    parameters that only it had. ``adapters``: number of adapters on it, which keep its parameters. ``default``: the id that
    stands for requests without a model; null if no such model is served now. ``summary`` is for people.
    """

    name: str
    state: Literal["removed", "ending"]
    freed: int
    adapters: int
    default: str | None
    summary: str


class AppsAnswer(TypedDict):
    """Applications by model id, as in ``/admin/cluster``. ``default``: id for requests without a model, served or not."""

    applications: dict[str, Any]
    default: str

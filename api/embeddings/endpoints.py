"""``POST /v1/embeddings``, ``/v1/rerank`` and ``/v1/score``: from a body to an answer, for HTTP and for lines of batches."""

from __future__ import annotations

import base64
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from aiohttp import web

from ...actors.gateway.port import ModelInfo
from ...gpu.weights.embedder import Embedder, Pooled, Reranker
from ...policies.plan.pooling import Pooling
from ..answers import EmbeddingsAnswer, RerankAnswer, RerankResult, ScoreAnswer
from ..checks import Body, shown
from ..errors import bad_request
from ..http.catalog import ServedModel
from ..http.context import CALLER, FRONT, IGNORED, CallContext, Front
from ..openai.json_pieces import written
from ..openai.request_body import read_body
from .call import VectorCall, fitted
from .fields import (
    BASE64,
    EmbeddingBody,
    EmbeddingOptions,
    PairOptions,
    RerankBody,
    RerankOptions,
    ScoreBody,
    VectorOptions,
    parse_embeddings,
    parse_rerank,
    parse_score,
)
from .pairs import Vector, pair_text, similarity, verdict

QUERY, DOCUMENT = ("query",), ("document", "passage", "corpus")  # names of prompts, the first one that there is
_FILES = "an embedder's folder has a modules.json with a Pooling"


class Parsed(Protocol):
    """A parsed body."""

    @property
    def options(self) -> VectorOptions: ...


Read = TypeVar("Read", bound=Parsed)


@dataclass(frozen=True, slots=True)
class Model:
    """The model of a request, and where it is served."""

    front: Front
    request: CallContext
    info: ModelInfo
    served: ServedModel

    async def tokens(self, text: str | list[int], options: VectorOptions, name: str, *, special: bool = True) -> list[int]:
        """Return the tokens of a text, which fit. ``name``: the field with the text."""
        if isinstance(text, str):
            text = await self.front.catalog.encode(self.served, text, special=special, name=name)
        return fitted(text, self.info, self.served, options, name)

    def call(
        self, options: VectorOptions, prefix: str, pooling: Pooling, prompts: list[list[int]], write: Any
    ) -> VectorCall:
        return VectorCall(
            front=self.front,
            request=self.request,
            info=self.info,
            served=self.served,
            options=options,
            prefix=prefix,
            pooling=pooling,
            prompts=prompts,
            write=write,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorEndpoint(Generic[Read]):
    """The parts of one endpoint: parse a body, and make a call of it."""

    path: str
    parse: Callable[[Body, str], Read]
    make: Callable[[Model, Read], Awaitable[VectorCall]]

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """Return the complete response; raise ApiError or RequestRefused."""
        front = request.app[FRONT]
        body = await read_body(request, lambda raw: self.parse(raw, front.settings.requests.unknown_fields))
        call = await self._check(front, request, body)
        return web.Response(body=await call.whole(), content_type="application/json")

    async def prepare(self, front: Front, asking: CallContext, body: Body) -> VectorCall:
        """Return a call that has passed all checks that are possible before a worker has it; raise ApiError."""
        return await self._check(front, asking, self.parse(body, front.settings.requests.unknown_fields))

    async def _check(self, front: Front, asking: CallContext, body: Read) -> VectorCall:
        asking[IGNORED] = body.options.ignored
        info = await front.find(asking, body.options.model)
        front.classes.check(asking[CALLER], body.options.service_tier)
        return await self.make(Model(front, asking, info, await front.catalog.load(info)), body)


# kinds of models: one generates, an embedder gives vectors, a reranker judges pairs


def _embedder_of(info: ModelInfo, served: ServedModel) -> Embedder:
    """Return the model's way to vectors. Raise a 400 if it has none."""
    if isinstance(served.pooled, Embedder):
        return served.pooled
    if served.pooled is not None:
        message = f"{info.id} is a reranker and gives no vectors; use POST /v1/rerank or /v1/score, or name an embedder"
    else:
        message = f"{info.id} generates text and gives no vectors; name an embedder ({_FILES}), or use POST /v1/completions"
    raise bad_request(message, "model", "unsupported_model")


def _judge_of(info: ModelInfo, served: ServedModel) -> Pooled:
    """Return the model's way to scores of pairs. Raise a 400 if it has none."""
    if served.pooled is None:
        message = (
            f"{info.id} generates text and scores no pairs; name an embedder ({_FILES}), or a reranker (with a LogitScore, "
            'or with classifier_from_token = ["no", "yes"] in config.json)'
        )
        raise bad_request(message, "model", "unsupported_model")
    return served.pooled


# vectors


async def _embed(model: Model, body: EmbeddingBody) -> VectorCall:
    options = body.options
    embedder = _embedder_of(model.info, model.served)
    if (dimensions := options.dimensions or 0) > embedder.width:
        message = f"dimensions is {dimensions}, but a vector of {model.info.id} has {embedder.width} numbers; lower it"
        raise bad_request(message, "dimensions")
    before = _named_prompt(model.info, embedder, options)
    if options.prompt_name and not isinstance(body.inputs[0], str):
        message = f"prompt_name is {shown(options.prompt_name)}, but token ids get no prompt; send texts, or leave it out"
        raise bad_request(message, "prompt_name")
    many = len(body.inputs) > 1
    prompts = []
    for i, one in enumerate(body.inputs):
        text = before + one if isinstance(one, str) else one
        prompts.append(
            await model.tokens(text, options, f"input[{i}]" if many else "input", special=options.add_special_tokens)
        )
    pooling = Pooling(modes=list(embedder.modes), normalize=embedder.normalize, dimensions=dimensions)

    def write(call: VectorCall, vectors: Sequence[Vector]) -> bytes:
        form = _base64 if options.encoding_format == BASE64 else list
        answer: EmbeddingsAnswer = {
            "id": call.id,
            "object": "list",
            "created": call.created,
            "model": call.info.id,
            "data": [
                {"object": "embedding", "index": index, "embedding": form(vector)} for index, vector in enumerate(vectors)
            ],
            "usage": call.usage(),
        }
        return written(answer).encode()

    return model.call(options, "embd", pooling, prompts, write)


def _named_prompt(info: ModelInfo, embedder: Embedder, options: EmbeddingOptions) -> str:
    """Return the text that is put before each text. Raise a 400 for a name that the checkpoint does not have."""
    if options.prompt_name is None:
        return embedder.prompt()
    if options.prompt_name and options.prompt_name not in embedder.prompts:
        there = ", ".join(map(shown, embedder.prompts)) or "none"
        message = f"prompt_name is {shown(options.prompt_name)}, but the prompts of {info.id} are: {there}; name one of them"
        raise bad_request(message, "prompt_name")
    return embedder.prompts.get(options.prompt_name, "")


def _base64(vector: Vector) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


# pairs


async def _pairs(
    model: Model,
    options: PairOptions,
    prefix: str,
    names: tuple[str, str],
    texts: tuple[list[str], list[str]],
    answer: Callable[[VectorCall, str, list[float]], bytes],
) -> VectorCall:
    """Return the call that scores the pairs of texts at equal places; a single first text is paired with every second one.

    ``names``: the fields with the texts. ``answer``: writes the scores, given how they were made.
    """
    judge = _judge_of(model.info, model.served)
    if isinstance(judge, Reranker):
        return await _judged(model, judge, options, prefix, names[1], texts, answer)
    if options.instruction is not None:
        message = f"{model.info.id} is an embedder, which takes no instruction; leave it out, or name a reranker"
        raise bad_request(message, "instruction")
    prompts = []
    for name, some, kinds in zip(names, texts, (QUERY, DOCUMENT), strict=True):
        before = judge.prompt(*kinds)
        for i, text in enumerate(some):
            prompts.append(await model.tokens(before + text, options, f"{name}[{i}]" if len(some) > 1 else name))
    pooling = Pooling(modes=list(judge.modes), normalize=judge.normalize)
    firsts, count = len(texts[0]), len(texts[1])
    compared = similarity(judge.similarity)

    def write(call: VectorCall, vectors: Sequence[Vector]) -> bytes:
        scores = [compared(vectors[i if firsts > 1 else 0], vectors[firsts + i]) for i in range(count)]
        return answer(call, judge.similarity, scores)

    return model.call(options, prefix, pooling, prompts, write)


async def _judged(
    model: Model,
    judge: Reranker,
    options: PairOptions,
    prefix: str,
    name: str,
    texts: tuple[list[str], list[str]],
    answer: Callable[[VectorCall, str, list[float]], bytes],
) -> VectorCall:
    """Return the call that has a reranker judge the pairs."""
    if options.truncate_prompt_tokens is not None:
        message = "truncate_prompt_tokens would cut a reranker's instruction off; leave it out, and shorten the documents"
        raise bad_request(message, "truncate_prompt_tokens")
    firsts, seconds = texts
    prompts = []
    for i, second in enumerate(seconds):
        pair = firsts[i if len(firsts) > 1 else 0], second
        text = await pair_text(model.front, model.served, judge, options.instruction, pair)
        prompts.append(await model.tokens(text, options, f"{name}[{i}]" if len(seconds) > 1 else name, special=False))
    pooling = Pooling(tokens=[token for token in (judge.yes, judge.no) if isinstance(token, int) and token >= 0])

    def write(call: VectorCall, vectors: Sequence[Vector]) -> bytes:
        return answer(call, "verdict", [verdict(judge, logits) for logits in vectors])

    return model.call(options, prefix, pooling, prompts, write)


async def _rerank(model: Model, body: RerankBody) -> VectorCall:
    options: RerankOptions = body.options

    def answer(call: VectorCall, method: str, scores: list[float]) -> bytes:
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: options.top_n]
        results: list[RerankResult] = [{"index": i, "relevance_score": scores[i]} for i in order]
        if options.return_documents:
            for result in results:
                result["document"] = {"text": body.documents[result["index"]]}
        made: RerankAnswer = {
            "id": call.id,
            "model": call.info.id,
            "method": method,
            "results": results,
            "usage": call.usage(),
        }
        return written(made).encode()

    return await _pairs(model, options, "rerank", ("query", "documents"), ([body.query], body.documents), answer)


async def _score(model: Model, body: ScoreBody) -> VectorCall:
    def answer(call: VectorCall, method: str, scores: list[float]) -> bytes:
        made: ScoreAnswer = {
            "id": call.id,
            "object": "list",
            "created": call.created,
            "model": call.info.id,
            "method": method,
            "data": [{"object": "score", "index": index, "score": score} for index, score in enumerate(scores)],
            "usage": call.usage(),
        }
        return written(made).encode()

    return await _pairs(model, body.options, "score", ("text_1", "text_2"), (body.first, body.second), answer)


EMBEDDINGS = VectorEndpoint(path="/v1/embeddings", parse=parse_embeddings, make=_embed)
RERANK = VectorEndpoint(path="/v1/rerank", parse=parse_rerank, make=_rerank)
SCORE = VectorEndpoint(path="/v1/score", parse=parse_score, make=_score)

"""From a body to an answer: what both generating endpoints share, for HTTP requests and for lines of batches.

Applies a model's limits and defaults, starts the sequences, and drives their streams to one answer, streamed or whole. A
client that goes away cancels this handler (aiohttp's ``handler_cancellation``), and leaving it cancels the sequences.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from aiohttp import web

from ...actors.gateway.port import Generation, ModelInfo
from ...policies.plan.sampling import SamplingParams
from ...policies.requests.refusal import RequestRefused
from ...policies.requests.request_ownership import sequence_id
from ...policies.sweep.events import TokensEmitted
from ...runtime.base.scope import current_traceparent
from ..answers import Usage
from ..checks import Body
from ..errors import ApiError, error_body, in_words
from ..http.catalog import ServedModel
from ..http.context import (
    ASKED,
    CALL_ID,
    CALLER,
    FRONT,
    IGNORED,
    METER,
    NAME,
    OFFLINE,
    PROGRESS,
    Asker,
    Front,
)
from ..http.headers import log_names
from ..http.limits import CHARGE
from ..http.metrics import Meter
from ..http.sse import EventStream
from ..version import FINGERPRINT
from .choice import ChoiceText, Echo, TextPiece
from .fields import Options
from .model_defaults import filled, most_tokens
from .prompt_limits import check_count, check_prompt, truncated
from .request_body import read_body
from .sampling import for_prompt, sampling_of, stop_strings, stop_tokens

log = logging.getLogger(__name__)
_LONG_WORDS = 2048  # characters of all bad words, which are tokenized in some milliseconds


@dataclass(slots=True, kw_only=True)
class GenerateHandler:
    """One request being answered. ``request``: who asks; choice i answers prompt ``i // options.n``."""

    front: Front
    request: Asker
    info: ModelInfo
    served: ServedModel
    options: Options
    shape: type[AnswerShape]
    id: str = ""
    created: int = 0  # seconds of the epoch
    prompts: list[list[int]] = field(default_factory=list)  # token ids
    limits: list[int] = field(default_factory=list)  # new tokens of each choice of each prompt
    continues: bool = False  # the answer's text continues its prompt's
    echoes: Sequence[Echo] = ()  # for each prompt, where it is to stand before its answers
    sampling: SamplingParams = field(default_factory=SamplingParams)
    ends: list[int] = field(default_factory=list)  # tokens that end a sequence
    stops: tuple[str, ...] = ()  # texts that do
    choices: list[ChoiceText] = field(default_factory=list)

    async def tokens(self, prompt: str | list[int], *, special: bool) -> list[int]:
        """Of a prompt, cut to what the request wants. Raises a 400. ``special``: a text gets the tokenizer's own too."""
        if isinstance(prompt, str):
            prompt = await self.front.catalog.encode(self.served, prompt, special=special)
        return truncated(prompt, self.options, self.info)

    def usage(self) -> Usage:
        """So far. ``cached_tokens``: of the prompts, found in the prefix cache by the first choice of each."""
        prompt = sum(len(tokens) for tokens in self.prompts)
        completion = sum(choice.completion_tokens for choice in self.choices)
        cached = sum(choice.cached for choice in self.choices[:: self.options.n])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


class AnswerShape:
    """How an endpoint writes its answer. Events are complete: each ends in a blank line. What is constant is made once."""

    prefix: ClassVar[str]  # of the ids of its requests
    default_tokens: ClassVar[int | None] = None  # new tokens where the request names no limit; None: all that fit

    def __init__(self, call: GenerateHandler) -> None:
        options = call.options
        self._call = call
        self._top = {"created": call.created, "model": call.info.id, "system_fingerprint": FINGERPRINT}
        if options.tier:
            self._top["service_tier"] = options.tier
        self._head = "data: " + json.dumps(self.chunk(), separators=(",", ":"))[:-1] + ',"choices":['
        self._usage = ',"usage":null' if options.include_usage else ""
        self._plain = not (options.return_token_ids or options.continuous_usage or options.scored >= 0)

    def chunk(self) -> dict[str, Any]:
        """What each event begins with."""
        raise NotImplementedError

    def events(self, choice: ChoiceText, piece: TextPiece) -> bytes:
        """The events for one piece of one choice; empty when there is nothing to show yet."""
        raise NotImplementedError

    def whole(self, pieces: Sequence[TextPiece]) -> dict[str, Any]:
        """The body of an answer that is not streamed; one piece for each choice."""
        raise NotImplementedError

    def usage_event(self) -> bytes:
        """The extra event of ``include_usage``."""
        return f'{self._head}],"usage":{json.dumps(self._call.usage())}}}\n\n'.encode()

    def usage_now(self) -> str:
        """What a chunk says of the usage."""
        return f',"usage":{json.dumps(self._call.usage())}' if self._call.options.continuous_usage else self._usage


class Checked(Protocol):
    """A body that was parsed."""

    @property
    def options(self) -> Options: ...


Parsed = TypeVar("Parsed", bound=Checked)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratingEndpoint(Generic[Parsed]):
    """How one endpoint checks a body, makes prompts of it and writes the answer.

    ``prompts``: fills in what a call has of prompts, ``continues`` and ``echoes``.
    """

    path: str
    parse: Callable[[Body, str], Parsed]
    prompts: Callable[[GenerateHandler, Parsed], Awaitable[None]]
    shape: type[AnswerShape]

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """The response, complete. Raises ApiError or RequestRefused where nothing of it was sent."""
        front = request.app[FRONT]
        body = await read_body(request, lambda raw: self.parse(raw, front.settings.unknown_fields))
        call = await self._check(front, request, body)
        async with _running(call) as ends:
            if call.options.stream:
                return await _stream(call, request, ends)
            return web.Response(body=await _whole(call, ends), content_type="application/json")

    async def prepare(self, front: Front, asking: Asker, body: Body) -> GenerateHandler:
        """A call that nothing is wrong with, as far as can be told before a worker has it. Raises ApiError."""
        return await self._check(front, asking, self.parse(body, front.settings.unknown_fields))

    async def _check(self, front: Front, asking: Asker, body: Parsed) -> GenerateHandler:
        asking[IGNORED] = body.options.ignored
        info = await front.find(asking, body.options.model)
        options = filled(body.options, info.defaults)
        served = await front.catalog.load(info)
        call = GenerateHandler(front=front, request=asking, info=info, served=served, options=options, shape=self.shape)
        await self.prompts(call, body)
        check_count(front, len(call.prompts), options.n)
        most = most_tokens(info.defaults, self.shape.default_tokens)
        call.limits = [check_prompt(one, info, served, options, most) for one in call.prompts]
        words = sum(map(len, options.bad_words))
        long = words > _LONG_WORDS or (words > 0 and not served.codec.quick)
        call.sampling = await front.aside(partial(sampling_of, options, served)) if long else sampling_of(options, served)
        call.ends = stop_tokens(options, served)
        call.stops = stop_strings(options, served)
        return call


async def whole_answer(call: GenerateHandler) -> bytes:
    """The JSON of an answer that is not streamed. Raises ApiError or RequestRefused."""
    async with _running(call) as ends:
        return await _whole(call, ends)


@dataclass(slots=True)
class _Ends:
    """What has ended of a call's choices, and where it is counted."""

    meter: Meter
    ended: set[int] = field(default_factory=set)


@asynccontextmanager
async def _running(call: GenerateHandler) -> AsyncIterator[_Ends]:
    """Its sequences run within; leaving it ends what has not ended by itself."""
    front, asking, options = call.front, call.request, call.options
    call.id = asking[CALL_ID] = front.new_id(call.shape.prefix)
    _name(front, asking, options)
    charge, offline = None, asking.get(OFFLINE) is not None
    if not offline:  # lines of batches are of another account than what is asked now
        most = sum(len(tokens) + options.n * limit for tokens, limit in zip(call.prompts, call.limits, strict=True))
        charge = asking[CHARGE] = await front.limits.enter(asking[CALLER], most)
    ends = None
    try:
        _start(call)
        asking[PROGRESS] = call.choices[0].stream.progress
        call.created = int(time.time())
        count, tenant = call.usage()["prompt_tokens"], asking[CALLER].tenant
        told = call.info.id, count, options.n, options.limit, tenant
        named = {"max_tokens": options.limit, "temperature": options.temperature, "top_p": options.top_p, "n": options.n}
        asking[ASKED] = {name: value for name, value in named.items() if value is not None}
        asking[METER] = meter = front.metrics.begin(*told, offline=offline)
        ends = _Ends(meter)
        yield ends
    finally:
        for choice in call.choices:
            if ends is None or choice.index not in ends.ended:
                choice.stream.cancel()
        if ends is not None:
            preemptions = sum(choice.stream.progress().preemptions for choice in call.choices)
            ends.meter.close(complete=len(ends.ended) == len(call.choices), preemptions=preemptions)
        if charge is not None:
            charge.end(call.usage()["total_tokens"] if ends is not None else 0)


def _start(call: GenerateHandler) -> None:
    """Every choice of every prompt. Raises RequestRefused; those before it run then."""
    options = call.options
    for index, sequence in enumerate(_sequences(call)):
        stream = call.front.port.generate(sequence)
        before = sequence.prompt if call.continues else ()
        detokenizer = call.served.codec.detokenizer(before, special=not options.skip_special_tokens)
        echo = call.echoes[index // options.n] if call.echoes else None
        codec = call.served.codec
        call.choices.append(ChoiceText(index, sequence, stream, codec, detokenizer, options, call.stops, echo))


def _sequences(call: GenerateHandler) -> list[Generation]:
    """One for each choice of each prompt."""
    options, caller = call.options, call.request[CALLER]
    place = call.request.get(OFFLINE)
    samplings = [for_prompt(call.sampling, call.served, options, len(prompt)) for prompt in call.prompts]
    return [
        Generation(
            id=sequence_id(call.id, index),
            application=call.info.id,
            prompt=call.prompts[index // options.n],
            max_tokens=call.limits[index // options.n],
            stop_tokens=call.ends,
            stop_strings=len(call.stops),
            sampling=replace(samplings[index // options.n], choice=index % options.n),
            tenant=caller.tenant,
            key=caller.key,
            priority=options.urgency,
            salt=_salt(call.front, caller.tenant, options.cache_salt),
            trace=current_traceparent(),
            offline=place is not None,
            home=place.home if place is not None else "",
            side=place.side if place is not None else "",
        )
        for index in range(len(call.prompts) * options.n)
    ]


def _name(front: Front, request: Asker, options: Options) -> None:
    """By which the request can be found: in ``/v1/requests`` and in the log."""
    if chosen := request.headers.get("x-request-id") or options.request_id:
        request[NAME] = chosen
        front.names.record(request[CALLER].key, chosen, request[CALL_ID])


def _salt(front: Front, tenant: str, wished: str) -> bytes:
    """Only requests with an equal one share cached prefixes: with keys those of one tenant, unless all are to share."""
    apart = front.keys.required and not front.settings.shared_cache
    return f"{len(tenant)} {tenant} {wished}".encode() if apart else wished.encode()


async def _whole(call: GenerateHandler, ends: _Ends) -> bytes:
    shape = call.shape(call)
    pieces = [TextPiece() for _ in call.choices]

    async def collect(choice: ChoiceText) -> None:
        await _consume(choice, ends, pieces[choice.index].join)

    await _each(call.choices, collect)
    return json.dumps(shape.whole(pieces)).encode()


async def _stream(call: GenerateHandler, request: web.Request, ends: _Ends) -> web.StreamResponse:
    shape, keep_alive = call.shape(call), call.front.settings.keep_alive
    async with EventStream(request, keep_alive, lambda: _progress(call.choices[0])) as out:

        async def forward(choice: ChoiceText) -> None:
            async def send(piece: TextPiece) -> None:
                events = shape.events(choice, piece)
                if events:
                    await out.write(events)

            await _consume(choice, ends, send)

        try:
            await _each(call.choices, forward)
            await out.done(shape.usage_event() if call.options.include_usage else b"")
        except ConnectionError:
            log.debug("%s: the client went away", call.id)
        except Exception as error:
            if not out.started:
                raise
            if isinstance(error, RequestRefused):
                error = in_words(error)
            if not isinstance(error, ApiError):
                log.exception("%s failed", call.id, extra=log_names(call.request))
                error = ApiError(500, "internal error; the server's log has the details")
            await out.fail(error_body(error))
        return out.response


def _progress(choice: ChoiceText) -> str:
    """Where the first choice is, for a comment."""
    if choice.completion_tokens or choice.started:
        return "keep-alive"
    now = choice.stream.progress()
    if now.place:
        return f"queued {now.place}/{now.queued}"
    return f"prefill {100 * now.computed // max(1, now.prompt)}%"


async def _consume(choice: ChoiceText, ends: _Ends, use: Callable[[TextPiece], Awaitable[None] | None]) -> None:
    """One sequence, to its end."""
    meter = ends.meter
    async for news in choice.stream:
        if not choice.completion_tokens and isinstance(news, TokensEmitted) and news.tokens:
            progress = choice.stream.progress()
            choice.cached = progress.cached
            meter.began(progress, looked=choice.looked, first=choice.index % choice.options.n == 0)
        piece = choice.take(news)
        meter.tokens(len(piece.tokens))
        if piece.finish:
            ends.ended.add(choice.index)
            meter.finished(piece.finish, choice.completion_tokens)
        waiting = use(piece)
        if waiting is not None:
            await waiting
        if piece.finish:
            return
    raise ApiError(500, f"choice {choice.index} ended without a reason; the server's log has the details")


async def _each(choices: list[ChoiceText], consume: Callable[[ChoiceText], Awaitable[None]]) -> None:
    """All choices together; the first failure ends the others."""
    if len(choices) == 1:
        await consume(choices[0])
        return
    tasks = [asyncio.ensure_future(consume(choice)) for choice in choices]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

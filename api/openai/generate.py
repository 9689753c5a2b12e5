"""The path from a body to an answer, shared by both generating endpoints, for HTTP requests and for lines of batches.

It applies a model's limits and defaults, starts the sequences, and merges their streams into one answer, streamed or whole.
A client that disconnects cancels the handler (aiohttp's ``handler_cancellation``), and the handler's end cancels the
sequences.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from aiohttp import web

from ...actors.gateway.port import AutoTier, DraftCounts, Generation, ModelInfo, TokenStream
from ...policies.drafts.choice import REJECTION
from ...policies.drafts.options import PREDICTION, DraftOptions
from ...policies.plan.sampling import SamplingParams
from ...policies.requests.event_id import seed_of
from ...policies.requests.refusal import RequestRefused
from ...policies.requests.request_ownership import further_id, sequence_id
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
    PEER,
    PROGRESS,
    CallContext,
    Front,
)
from ..http.headers import log_names
from ..http.idempotency import IDEMPOTENCY, GivenAnswer, idempotency_key, owner_of
from ..http.limits import CHARGE
from ..http.other_runs import OtherRuns
from ..http.sse import EventStream
from ..version import FINGERPRINT
from .choice import ChoiceText, Echo, TextPiece
from .drafts import drafts_of
from .event_ids import MOST_NUMBERED, EventIds, IdsWish, StreamFacts, body_hash, check_wish, event_ids
from .fields import Options
from .grammar import asked_grammar
from .json_pieces import written
from .model_defaults import filled, most_tokens
from .prompt_limits import check_count, check_generates, check_prompt, truncated
from .quality import TIER, VARIANT, auto_tier, find_model
from .reading import MANY, AnswerEnds, ChoiceReader, each
from .request_body import read_body
from .sampling import for_prompt, sampling_of, stop_strings, stop_tokens
from .turns import AnswerTurn

log = logging.getLogger(__name__)
_LONG_WORDS = 2048  # characters of all bad words, which are tokenized in some milliseconds


@dataclass(slots=True, kw_only=True)
class GenerateHandler:
    """One request in progress. ``request``: the caller. Choice i answers prompt ``i // options.n``."""

    front: Front
    request: CallContext
    info: ModelInfo
    served: ServedModel
    options: Options
    shape: type[AnswerShape]
    id: str = ""
    created: int = 0  # seconds since the epoch
    prompts: list[list[int]] = field(default_factory=list)  # token ids
    limits: list[int] = field(default_factory=list)  # for each prompt: most new tokens of each choice
    continues: bool = False  # the answer's text continues its prompt's
    echoes: Sequence[Echo] = ()  # one for each prompt, if prompts are repeated before their answers
    sampling: SamplingParams = field(default_factory=SamplingParams)
    ends: list[int] = field(default_factory=list)  # tokens that end a sequence
    stops: tuple[str, ...] = ()  # strings that end a sequence
    turn: AnswerTurn | None = None  # how answers are read; None: as one text
    drafts: DraftOptions | None = None  # of each sequence
    auto: AutoTier | None = None  # None: the request names its tier, or its model has none
    numbered: EventIds | None = None  # the ids of its events; None: they have none
    choices: list[ChoiceText] = field(default_factory=list)

    async def tokens(self, prompt: str | list[int], *, special: bool) -> list[int]:
        """Return the tokens of a prompt, truncated as the request wants; raise a 400.

        ``special``: add the tokenizer's special tokens to a text.
        """
        if isinstance(prompt, str):
            prompt = await self.front.catalog.encode(self.served, prompt, special=special)
        return truncated(prompt, self.options, self.info)

    @property
    def sequences(self) -> int:
        """The number of sequences that answer."""
        return self.options.n * len(self.prompts)

    @property
    def limit(self) -> int:
        """The most new tokens of all sequences together."""
        return self.options.n * sum(self.limits)

    async def whole(self) -> bytes:
        """Return the JSON of an answer that is not streamed; raise ApiError or RequestRefused."""
        async with _running(self) as ends:
            return await _whole(self, ends)

    @property
    def tier(self) -> str:
        """The model id of the tier that answers; "" while it is not chosen, and for a model without tiers."""
        if self.auto is not None:
            return self.choices[0].stream.progress().tier if self.choices else ""
        return self.info.id if self.info.family or self.info.tiers else ""

    @property
    def variant(self) -> str:
        """The variants that answer in the model's place, separated by commas; "" if none does."""
        found = (choice.stream.progress().variant for choice in self.choices)
        return ", ".join(dict.fromkeys(filter(None, found)))

    def usage(self) -> Usage:
        """Return the usage so far.

        ``cached_tokens``: prompt tokens that the first choice of each prompt found in the prefix cache.
        ``rejected_prediction_tokens``: tokens of the prediction that were verified as drafts and did not stand.
        """
        prompt = sum(len(tokens) for tokens in self.prompts)
        completion = sum(choice.completion_tokens for choice in self.choices)
        cached = self.cached_tokens
        predicted = self._predicted()
        usage: Usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {
                "accepted_prediction_tokens": predicted.accepted,
                "rejected_prediction_tokens": predicted.drafted - predicted.accepted,
            },
        }
        thought = [choice.reasoning_tokens for choice in self.choices]
        if any(tokens is not None for tokens in thought):
            usage["completion_tokens_details"]["reasoning_tokens"] = sum(filter(None, thought))
        if tier := self.tier:
            usage["tier"] = tier
        return usage

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the first choice of each prompt found in the cache; in its first run, if the answer goes on."""
        last = self.numbered.last if self.numbered is not None and len(self.prompts) == 1 else None
        return sum(choice.cached for choice in self.choices[:: self.options.n]) if last is None else last.digest.cached

    def _predicted(self) -> DraftCounts:
        """Return the drafts from the prediction, over all choices."""
        total = DraftCounts()
        if self.drafts is not None and self.drafts.prediction:
            for choice in self.choices:
                one = choice.stream.progress().drafts.get(PREDICTION, total)
                total = total.plus(one.rounds, one.drafted, one.accepted)
        return total


class AnswerShape:
    """The form in which an endpoint writes its answer.

    Events are complete: each ends in a blank line. Constant parts are made once, when the tier that answers is known.
    """

    prefix: ClassVar[str]  # prefix of request ids
    default_tokens: ClassVar[int | None] = None  # new tokens if the request sets no limit; None: all that fit

    def __init__(self, call: GenerateHandler) -> None:
        options = call.options
        self._call = call
        model = call.tier or call.info.id
        self._top = {"created": call.created, "model": model, "system_fingerprint": FINGERPRINT}
        if options.tier:
            self._top["service_tier"] = options.tier
        self._head = "data: " + json.dumps(self.chunk(), separators=(",", ":"))[:-1] + ',"choices":['
        self._usage = ',"usage":null' if options.include_usage else ""
        self._plain = not (options.return_token_ids or options.continuous_usage or options.scored >= 0)

    def chunk(self) -> dict[str, Any]:
        """Return the beginning of each event."""
        raise NotImplementedError

    def events(self, choice: ChoiceText, piece: TextPiece) -> bytes:
        """Return the events for one piece of one choice; empty if there is nothing to show yet."""
        raise NotImplementedError

    def whole(self, pieces: Sequence[TextPiece]) -> dict[str, Any]:
        """Return the body of an answer that is not streamed; one piece for each choice."""
        raise NotImplementedError

    def body(self, pieces: Sequence[TextPiece]) -> str:
        """Return the JSON of ``whole``."""
        return written(self.whole(pieces))

    def end(self) -> bytes:
        """Return the last events of a stream."""
        usage = f'{self._head}],"usage":{json.dumps(self._call.usage())}}}\n\n' if self._call.options.include_usage else ""
        return usage.encode() + b"data: [DONE]\n\n"

    def failure(self, error: ApiError) -> bytes:
        """Return the events that end a stream which failed after its beginning."""
        return b"data: " + error_body(error) + b"\n\n"

    def usage_now(self) -> str:
        """Return a chunk's field for the usage."""
        return f',"usage":{json.dumps(self._call.usage())}' if self._call.options.continuous_usage else self._usage


class Checked(Protocol):
    """A parsed body."""

    @property
    def options(self) -> Options: ...


Parsed = TypeVar("Parsed", bound=Checked)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratingEndpoint(Generic[Parsed]):
    """The parts of one endpoint: parse a body, make its prompts, write the answer.

    ``prompts``: fills in a call's prompts, ``continues`` and ``echoes``.
    """

    path: str
    parse: Callable[[Body, str], Parsed]
    prompts: Callable[[GenerateHandler, Parsed], Awaitable[None]]
    shape: type[AnswerShape]

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """Return the complete response; raise ApiError or RequestRefused if nothing of it was sent."""
        front = request.app[FRONT]
        unknown = front.settings.requests.unknown_fields
        wish, key = IdsWish.of(request.headers), idempotency_key(request.headers)
        hashed = bool(wish.ids or key)
        sent, body = await read_body(request, lambda raw: (body_hash(raw) if hashed else b"", self.parse(raw, unknown)))
        call = await self._check(front, request, body)
        if key and not call.options.stream:
            facts = repr((sent, self.path, call.info.id, call.options.sampling)).encode()
            owner, peers = owner_of(request[CALLER].key, key), request.app[PEER]
            given = await front.once.answer(owner, facts, partial(_given, call), OtherRuns(peers[0]) if peers else None)
            return web.Response(body=given.body, content_type="application/json", headers=given.headers)
        if wish.ids:
            await _number(call, wish, sent)
        if wish.last is not None:  # an older stream of this answer ends
            peers, viewer = request.app[PEER], request[CALLER].viewer
            await peers[0].cancel_anywhere(wish.last.request, viewer) if peers else front.cancel(wish.last.request, viewer)
        async with _running(call) as ends:
            if call.options.stream:
                return await _stream(call, request, ends)
            answer = await _whole(call, ends)
            return web.Response(body=answer, content_type="application/json", headers=_headers(call))

    async def prepare(self, front: Front, asking: CallContext, body: Body) -> GenerateHandler:
        """Return a call that has passed all checks that are possible before a worker has it; raise ApiError."""
        return await self._check(front, asking, self.parse(body, front.settings.requests.unknown_fields))

    async def prompted(self, front: Front, asking: CallContext, body: Parsed) -> GenerateHandler:
        """Return a call that has its prompts, of any length, and nothing else yet."""
        asking[IGNORED] = body.options.ignored
        info = await find_model(front, asking, body.options)
        options = filled(body.options, info.defaults)
        front.classes.check(asking[CALLER], options.service_tier)
        served = await front.catalog.load(info)
        check_generates(info, served)
        call = GenerateHandler(front=front, request=asking, info=info, served=served, options=options, shape=self.shape)
        await self.prompts(call, body)
        return call

    async def _check(self, front: Front, asking: CallContext, body: Parsed) -> GenerateHandler:
        call = await self.prompted(front, asking, body)
        info, served = call.info, call.served
        options = call.options
        check_count(front, len(call.prompts), options.n)
        max_tokens = most_tokens(info.defaults, self.shape.default_tokens)
        call.limits = [check_prompt(one, info, served, options, max_tokens) for one in call.prompts]
        words = sum(map(len, options.bad_words))
        long = words > _LONG_WORDS or (words > 0 and not served.codec.quick)
        call.sampling = (
            await front.run_in_thread(partial(sampling_of, options, served)) if long else sampling_of(options, served)
        )
        asked = await asked_grammar(front, info, served, options, call.turn, asking[CALLER].tenant)
        asking[IGNORED] = (*asking[IGNORED], *asked.ignored)
        call.sampling = replace(call.sampling, grammar=asked.grammar)
        call.continues |= asked.whole  # a blank that begins the answer is a part of its language, and is shown
        call.ends = stop_tokens(options, served, whole=asked.whole)
        call.stops = stop_strings(options, served)
        call.auto = await auto_tier(front, info, served, options, len(call.prompts) * options.n)
        start = front.catalog.info(info.starts) if call.auto is not None else info
        call.drafts = await drafts_of(front, start, served, options, may_lack=call.auto is not None)
        drafted = call.drafts is not None or (call.auto is not None and call.auto.drafts is not None)
        if drafted and front.settings.drafting.draft_rule == REJECTION:
            call.sampling = replace(call.sampling, rejection=True)
        return call


@asynccontextmanager
async def _running(call: GenerateHandler) -> AsyncIterator[AnswerEnds]:
    """Start a call's sequences; leaving the block cancels the ones that have not ended by themselves."""
    front = call.front
    asking = call.request
    options = call.options
    _identify(call)
    charge, offline = None, asking.get(OFFLINE) is not None
    if not offline:  # lines of batches are not charged to the limits of online requests
        charged = sum(len(tokens) + options.n * limit for tokens, limit in zip(call.prompts, call.limits, strict=True))
        charge = asking[CHARGE] = await front.limits.enter(asking[CALLER], charged, options.limit_name)
    ends = None
    try:
        await _start(call)
        asking[PROGRESS] = call.choices[0].stream.progress
        count, tenant = call.usage()["prompt_tokens"], asking[CALLER].tenant
        labels = call.info.id, count, options.n, options.limit, tenant or call.info.family
        named = {"max_tokens": options.limit, "temperature": options.temperature, "top_p": options.top_p, "n": options.n}
        asking[ASKED] = {name: value for name, value in named.items() if value is not None}
        asking[METER] = meter = front.metrics.begin(*labels, offline=offline)
        ends = AnswerEnds(meter)
        yield ends
    except RequestRefused as refused:
        refused.limit = options.limit_name
        raise
    finally:
        for choice in call.choices:
            if ends is None or choice.index not in ends.ended:
                choice.stream.cancel()
        if ends is not None:
            sequences = [choice.stream.progress() for choice in call.choices]
            ends.meter.close(complete=len(ends.ended) == len(call.choices), sequences=sequences)
        if charge is not None:
            charge.end(call.usage()["total_tokens"] if ends is not None else 0)


async def _number(call: GenerateHandler, wish: IdsWish, sent: bytes) -> None:
    """Give a call's events ids; it may go on after one. Raise ApiError. ``sent``: the hash of its body."""
    options = call.options
    depends = (call.info.varies and options.adaptive) or call.sampling.rejection or call.sequences > MOST_NUMBERED
    if wish.optional and depends:
        return
    owner = check_wish(wish, call.request[CALLER], call.sequences, stream=options.stream)
    if not options.stream:
        return
    auto = call.auto
    basis = await call.front.port.answer_basis([call.info.id] if auto is None else [call.info.starts, auto.top])
    if wish.optional and len(basis.numerics) > 1:
        return
    call.sampling = replace(call.sampling, rejection=False)
    call.options = replace(options, adaptive=False)
    facts = StreamFacts(
        body=sent + call.shape.prefix.encode(),
        prompt=repr((call.prompts, call.limits, call.ends, call.stops, auto and auto.threshold)).encode(),
        prompt_tokens=sum(map(len, call.prompts)),
        limits=[limit for limit in call.limits for _ in range(call.options.n)],
        sampling=call.sampling,
        seed=call.options.seed,
    )
    call.numbered = event_ids(wish, owner, basis, facts)


def _identify(call: GenerateHandler) -> None:
    """Set the id that the client sees, the time and the seed: those of its first run, if the stream goes on.

    A seed that is not set follows from the request's name, so that every gateway finds the same.
    """
    asking, seed = call.request, call.options.seed
    numbered = call.numbered
    last = numbered.last if numbered is not None else None
    call.id = call.front.new_id(call.shape.prefix) if last is None else last.request
    call.created = int(time.time()) if last is None else last.digest.created
    asking[CALL_ID] = call.id if last is None else further_id(call.id, secrets.token_hex(4))
    call.front.name_request(asking, call.options.request_id)
    if last is not None:
        call.front.names.record(asking[CALLER].key, call.id, asking[CALL_ID])
        seed = last.digest.seed
    elif seed is None:
        seed = seed_of(asking[CALLER].key, asking.get(NAME) or asking.headers.get(IDEMPOTENCY) or call.id)
    call.sampling = replace(call.sampling, seed=seed)
    if numbered is not None:
        numbered.begin(call.id, seed, call.created)


async def _start(call: GenerateHandler) -> None:
    """Start every choice of every prompt. Raise RequestRefused; choices before the refused one are running then."""
    sequences = _sequences(call)
    if call.numbered is not None and call.numbered.last is not None and call.auto is None and call.options.scored < 0:
        found = await asyncio.gather(*map(call.front.port.remembered, sequences))
        sequences = [replace(one, known=known.tokens, home=known.home) for one, known in zip(sequences, found, strict=True)]
    for index, sequence in enumerate(sequences):
        stream = call.front.port.generate(sequence)
        echo = call.echoes[index // call.options.n] if call.echoes else None
        call.choices.append(_choice(call, index, sequence, stream, echo))


def _choice(call: GenerateHandler, index: int, sequence: Generation, stream: TokenStream, echo: Echo | None) -> ChoiceText:
    before = sequence.prompt if call.continues else ()
    codec, options = call.served.codec, call.options
    turn = call.turn
    shown = frozenset(turn.special.values()) if turn is not None else frozenset[int]()
    detokenizer = codec.detokenizer(before, special=not options.skip_special_tokens, shown=shown)
    reader = turn.reader() if turn is not None else None
    return ChoiceText(index, sequence, stream, codec, detokenizer, options, call.stops, echo, reader)


def _stopped_length(call: GenerateHandler, index: int, tokens: Sequence[int]) -> int | None:
    """Return the number of tokens of an answer that begins with these, if a stop string ends it there; else None."""
    choice = call.choices[index]
    piece = _choice(call, index, choice.generation, choice.stream, None).read(tokens)
    return len(piece.tokens) if piece.finish else None


def _sequences(call: GenerateHandler) -> list[Generation]:
    """Return a generation for each choice of each prompt."""
    options, caller = call.options, call.request[CALLER]
    place = call.request.get(OFFLINE)
    samplings = [for_prompt(call.sampling, call.served, options, len(prompt)) for prompt in call.prompts]
    return [
        Generation(
            id=sequence_id(call.request[CALL_ID], index),
            application=call.info.starts or call.info.id,
            prompt=call.prompts[index // options.n],
            max_tokens=call.limits[index // options.n],
            stop_tokens=call.ends,
            stop_strings=len(call.stops),
            sampling=replace(samplings[index // options.n], choice=index % options.n),
            tenant=caller.tenant,
            key=caller.key,
            priority=options.urgency,
            salt=call.front.cache_salt(caller.tenant, options.cache_salt),
            trace=current_traceparent(),
            offline=place is not None,
            home=place.home if place is not None else "",
            side=place.side if place is not None else "",
            drafts=call.drafts,
            family=call.info.family or (call.info.id if call.info.tiers else ""),
            adaptive=options.adaptive,
            auto=call.auto
            and (replace(call.auto, length=partial(_stopped_length, call, index)) if call.stops else call.auto),
        )
        for index in range(len(call.prompts) * options.n)
    ]


def _headers(call: GenerateHandler) -> dict[str, str]:
    """Return the headers of an answer whose tier is chosen."""
    tier, variant = call.tier, call.variant
    return ({TIER: tier} if tier else {}) | ({VARIANT: variant} if variant else {})


async def _given(call: GenerateHandler) -> GivenAnswer:
    async with _running(call) as ends:
        return GivenAnswer(await _whole(call, ends), _headers(call))


def _reader(call: GenerateHandler, choice: ChoiceText, ends: AnswerEnds) -> ChoiceReader:
    first = choice.index % choice.options.n == 0
    return ChoiceReader(choice=choice, ends=ends, first=first, singly=call.numbered is not None)


async def _whole(call: GenerateHandler, ends: AnswerEnds) -> bytes:
    pieces = [TextPiece() for _ in call.choices]

    async def collect(choice: ChoiceText) -> None:
        await _reader(call, choice, ends).read(pieces[choice.index].join)

    await each(call.choices, collect)

    def answer() -> bytes:
        return call.shape(call).body(pieces).encode()

    size = sum(map(_size, call.choices, pieces))
    return answer() if size < MANY else await call.front.run_in_thread(answer)


def _size(choice: ChoiceText, piece: TextPiece) -> int:
    """Return the number of entries, about one for a token, that the JSON of a piece has besides its text."""
    return len(piece.tokens) + len(piece.shown_prompt) + len(choice.prompt_logprobs)


def _numbered(call: GenerateHandler, choice: ChoiceText, piece: TextPiece, events: bytes) -> bytes:
    """Return the events of a piece with their ids, if the stream has any."""
    return events if call.numbered is None else call.numbered.number(choice, piece, events, call.cached_tokens)


async def _stream(call: GenerateHandler, request: web.Request, ends: AnswerEnds) -> web.StreamResponse:
    keep_alive = call.front.settings.network.keep_alive
    shape = cache(partial(call.shape, call))  # made with the first news, when the tier is chosen
    async with EventStream(request, keep_alive, lambda: _progress(call), lambda: _headers(call)) as out:

        async def forward(choice: ChoiceText) -> None:
            async def send(piece: TextPiece) -> None:
                make = partial(shape().events, choice, piece)
                events = make() if _size(choice, piece) < MANY else await call.front.run_in_thread(make)
                if events := _numbered(call, choice, piece, events):
                    await out.write(events)

            def put(piece: TextPiece) -> None:
                if events := _numbered(call, choice, piece, shape().events(choice, piece)):
                    out.put(events)

            reader = _reader(call, choice, ends)
            reader.pass_on(put, out.free)
            await reader.read(send)

        try:
            await each(call.choices, forward)
            await out.end(shape().end())
        except ConnectionError:
            log.debug("%s: the client went away", call.id)
        except Exception as error:
            if not out.started:
                raise
            if isinstance(error, RequestRefused):
                error.limit = call.options.limit_name
                error = in_words(error)
            if not isinstance(error, ApiError):
                log.exception("%s failed", call.id, extra=log_names(call.request))
                error = ApiError(500, "internal error; the server's log has the details")
            await out.end(shape().failure(error))
        return out.response


def _progress(call: GenerateHandler) -> str:
    """Return the progress of the first choice, for a comment; "" while the headers wait for a choice of tier or chain."""
    choice = call.choices[0]
    if call.auto is not None and not call.tier:
        return ""
    if call.info.varies and not all(choice.stream.progress().placed for choice in call.choices):
        return ""
    if choice.completion_tokens or choice.started:
        return "keep-alive"
    now = choice.stream.progress()
    if now.place:
        return f"queued {now.place}/{now.queued}"
    return f"prefill {100 * now.computed // max(1, now.prompt)}%"

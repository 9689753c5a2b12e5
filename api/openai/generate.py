"""From a checked body to an answer: what both generating endpoints share.

Applies a model's limits and defaults, starts the sequences, and drives their streams to one response, streamed or whole. A
client that goes away cancels this handler (aiohttp's ``handler_cancellation``), and leaving it cancels the sequences.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

from aiohttp import web

from blockwright.actors.gateway.port import Generation, ModelInfo
from blockwright.api.answers import Usage
from blockwright.api.checks import Body, shown
from blockwright.api.errors import ApiError, bad_request, error_body, in_words
from blockwright.api.http.catalog import ServedModel
from blockwright.api.http.context import CALL_ID, CALLER, FRONT, IGNORED, METER, NAME, PROGRESS, Front
from blockwright.api.http.headers import log_names
from blockwright.api.http.limits import CHARGE, Charge
from blockwright.api.http.metrics import Meter
from blockwright.api.http.sse import EventStream
from blockwright.api.openai.choice import ChoiceText, Echo, TextPiece
from blockwright.api.openai.fields import Options
from blockwright.api.openai.request_body import read_body
from blockwright.api.openai.sampling import sampling_of, stop_tokens
from blockwright.api.version import FINGERPRINT
from blockwright.policies.requests.admission import part
from blockwright.policies.requests.refusal import RequestRefused
from blockwright.policies.requests.request_ownership import sequence_id
from blockwright.policies.sweep.events import TokensEmitted
from blockwright.runtime.base.scope import current_traceparent

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class GenerateHandler:
    """One HTTP request being answered. ``prompts`` are token ids; choice i answers prompt ``i // options.n``."""

    front: Front
    request: web.Request
    info: ModelInfo
    served: ServedModel
    options: Options
    id: str = ""
    created: int = 0  # seconds of the epoch
    prompts: list[list[int]] = field(default_factory=list)
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


class Checked(Protocol):
    """A body that was parsed."""

    @property
    def options(self) -> Options: ...


Parsed = TypeVar("Parsed", bound=Checked)


async def open_call(request: web.Request, parse: Callable[[Body, str], Parsed]) -> tuple[GenerateHandler, Parsed]:
    """The checked body, and a call of the model that it names."""
    front = request.app[FRONT]
    body = await read_body(request, lambda raw: parse(raw, front.settings.unknown_fields))
    request[IGNORED] = body.options.ignored
    info = front.model(request, body.options.model)
    served = await front.catalog.load(info)
    return GenerateHandler(front=front, request=request, info=info, served=served, options=body.options), body


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


def check_prompt(tokens: list[int], info: ModelInfo, served: ServedModel, options: Options, default: int | None) -> int:
    """The number of new tokens that may follow; a 400 with the numbers where that is none, or fewer than asked for.

    ``default``: new tokens when the request names no limit; None for all that fit. An echo alone (0 tokens asked for) needs
    room for one: the prompt runs to its end, and what comes after it is not shown.
    """
    if not tokens:
        raise bad_request("the prompt has no tokens; give at least one character", "prompt")
    room = info.max_length - len(tokens)
    asked = None if options.limit is None else max(1, options.limit)
    if room < 1 or (asked is not None and asked > room):
        wanted = f"{asked} new tokens" if asked is not None else "at least 1 new token"
        raise bad_request(
            f"the context of {info.id} holds {info.max_length} tokens, but the prompt has {len(tokens)} and {wanted} were "
            "asked for; shorten the prompt or lower max_tokens",
            "prompt" if room < 1 else "max_tokens",
            "context_length_exceeded",
        )
    bad = next((t for t in tokens if not 0 <= t < served.vocabulary), None)
    if bad is not None:
        raise bad_request(
            f"token id {shown(bad)} is not in the vocabulary; give ids from 0 to {served.vocabulary - 1}", "prompt"
        )
    if asked is not None:
        return asked
    return room if default is None else min(default, room)


def truncated(tokens: list[int], options: Options, info: ModelInfo) -> list[int]:
    """The end of the prompt that ``truncate_prompt_tokens`` leaves. Raises a 400 where that is nothing."""
    if options.truncate_prompt_tokens is None:
        return tokens
    if options.truncate_prompt_tokens == 0:
        message = "truncate_prompt_tokens is 0, which leaves no prompt; give at least 1, or -1 for as many as fit"
        raise bad_request(message, "truncate_prompt_tokens")
    asked = max(1, options.limit or 1)
    keep = options.truncate_prompt_tokens if options.truncate_prompt_tokens > 0 else info.max_length - asked
    if keep < 1:
        message = (
            f"the context of {info.id} holds {info.max_length} tokens and {asked} new ones were asked for, which leaves "
        )
        raise bad_request(f"{message}no room for a prompt; lower max_tokens", "max_tokens", "context_length_exceeded")
    return tokens[max(0, len(tokens) - keep) :]


async def generate(
    call: GenerateHandler,
    prompts: list[list[int]],
    shape: type[AnswerShape],
    *,
    continues: bool,
    echoes: Sequence[Echo] = (),
) -> web.StreamResponse:
    """The response, complete. Raises ApiError or RequestRefused where nothing of it was sent.

    continues: the answer's text continues its prompt's. echoes: for each prompt, where it is to stand before its answers.
    """
    front, request, options = call.front, call.request, call.options
    call.prompts = prompts
    _check_count(front, len(prompts), options.n)
    limits = [check_prompt(tokens, call.info, call.served, options, shape.default_tokens) for tokens in prompts]
    call.id = request[CALL_ID] = front.new_id(shape.prefix)
    _name(front, request, options)
    sequences = _sequences(call, limits)
    most = sum(len(tokens) + options.n * limit for tokens, limit in zip(prompts, limits, strict=True))
    charge = request[CHARGE] = await front.limits.enter(request[CALLER], most)
    try:
        for index, sequence in enumerate(sequences):
            stream = front.port.generate(sequence)
            before = sequence.prompt if continues else ()
            detokenizer = call.served.codec.detokenizer(before, special=not options.skip_special_tokens)
            echo = echoes[index // options.n] if echoes else None
            call.choices.append(ChoiceText(index, sequence, stream, detokenizer, options, echo))
    except BaseException:
        for choice in call.choices:
            choice.stream.cancel()
        charge.end(0)
        raise
    request[PROGRESS] = call.choices[0].stream.progress
    call.created = int(time.time())
    return await _answer(call, shape, charge)


def _sequences(call: GenerateHandler, limits: Sequence[int]) -> list[Generation]:
    """One for each choice of each prompt. Raises a 400."""
    options, caller = call.options, call.request[CALLER]
    sampling, ends = sampling_of(options, call.served), stop_tokens(options, call.served)
    return [
        Generation(
            id=sequence_id(call.id, index),
            application=call.info.id,
            prompt=call.prompts[index // options.n],
            max_tokens=limits[index // options.n],
            stop_tokens=ends,
            stop_strings=len(options.stop),
            sampling=replace(sampling, choice=index % options.n),
            tenant=caller.tenant,
            key=caller.key,
            priority=options.urgency,
            salt=_salt(call.front, caller.tenant, options.cache_salt),
            trace=current_traceparent(),
        )
        for index in range(len(call.prompts) * options.n)
    ]


def _name(front: Front, request: web.Request, options: Options) -> None:
    """By which the request can be found, in ``/v1/requests`` and in the log."""
    if chosen := request.headers.get("x-request-id") or options.request_id:
        request[NAME] = chosen
        front.names.note(request[CALLER].key, chosen, request[CALL_ID])


def _salt(front: Front, tenant: str, wished: str) -> bytes:
    """Only requests with an equal one share cached prefixes: with keys those of one tenant, unless all are to share."""
    apart = front.keys.required and not front.settings.shared_cache
    return f"{len(tenant)} {tenant} {wished}".encode() if apart else wished.encode()


def _check_count(front: Front, prompts: int, n: int) -> None:
    """A 400 for more choices than there can be places for: to come back, as a 503 says, would be in vain."""
    most = part(front.settings.max_waiting, 0, 0, front.settings.gateways)
    if prompts * n > most:
        message = f"{prompts * n} choices are more than a gateway ever takes at a time ({most}, by max_waiting and gateways)"
        raise bad_request(f"{message}; send fewer", "n" if n > 1 else "prompt")


async def _answer(call: GenerateHandler, shape_of: type[AnswerShape], charge: Charge) -> web.StreamResponse:
    options, usage = call.options, call.usage()
    shape = shape_of(call)
    tenant = call.request[CALLER].tenant
    meter = call.request[METER] = call.front.metrics.begin(
        call.info.id, usage["prompt_tokens"], options.n, options.limit, tenant
    )
    ended: set[int] = set()
    try:
        if options.stream:
            return await _stream(call, shape, meter, ended)
        pieces = [TextPiece() for _ in call.choices]

        async def collect(choice: ChoiceText) -> None:
            await _consume(choice, meter, ended, pieces[choice.index].join)

        await _each(call.choices, collect)
        return web.Response(body=json.dumps(shape.whole(pieces)).encode(), content_type="application/json")
    finally:
        for choice in call.choices:
            if choice.index not in ended:
                choice.stream.cancel()
        preemptions = sum(choice.stream.progress().preemptions for choice in call.choices)
        meter.close(complete=len(ended) == len(call.choices), preemptions=preemptions)
        charge.end(call.usage()["total_tokens"])


async def _stream(call: GenerateHandler, shape: AnswerShape, meter: Meter, ended: set[int]) -> web.StreamResponse:
    keep_alive = call.front.settings.keep_alive
    async with EventStream(call.request, keep_alive, lambda: _progress(call.choices[0])) as out:

        async def forward(choice: ChoiceText) -> None:
            async def send(piece: TextPiece) -> None:
                events = shape.events(choice, piece)
                if events:
                    await out.write(events)

            await _consume(choice, meter, ended, send)

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


async def _consume(
    choice: ChoiceText, meter: Meter, ended: set[int], use: Callable[[TextPiece], Awaitable[None] | None]
) -> None:
    """One sequence, to its end."""
    async for news in choice.stream:
        if not choice.completion_tokens and isinstance(news, TokensEmitted) and news.tokens:
            progress = choice.stream.progress()
            choice.cached = progress.cached
            meter.began(progress, looked=choice.looked, first=choice.index % choice.options.n == 0)
        piece = choice.take(news)
        meter.tokens(len(piece.tokens))
        if piece.finish:
            ended.add(choice.index)
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

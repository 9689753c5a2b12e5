"""The ids of a stream's events, asked for by a header, and the stream that goes on after one of them.

A client that lost its connection sends the same body with the header Last-Event-ID. The answer is generated again, bit by
bit the same, and what was said is left out. With ids, each token is news of its own: so the cuts between events depend on
nothing but the tokens. The answer is the model's own then: no variant answers, and drafts never change what is drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from ...actors.gateway.port import StreamNews
from ...policies.requests.event_id import EventId, SaidPart, StreamDigest, parse_event_id, short_hash
from ...policies.sweep.events import TokensEmitted
from ..checks import Body, shown
from ..errors import ApiError, bad_request
from ..http.context import CALLER
from .choice import ChoiceText, TextPiece
from .fields import HARMLESS, Options

if TYPE_CHECKING:
    from .generate import GenerateHandler

WANTED = "x-event-ids"  # the header that asks for ids
LAST = "Last-Event-ID"  # the header with the last one that came
MOST_NUMBERED = 64  # sequences of a request whose events have ids: each adds to every id
_SAMPLED = frozenset(one.name for one in fields(Options) if one.metadata.get("sampling"))
_APART = _SAMPLED | HARMLESS | {"model", "request_id"}  # fields that are compared otherwise, or change no answer
_SWITCH = {"": False, "true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class IdsWish:
    """What the headers of a request say. ``last``: the id after which it goes on; None: from its beginning."""

    ids: bool
    last: EventId | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> IdsWish:
        """Read the headers; raise a 400."""
        given = headers.get(WANTED, "").strip().lower()
        if given not in _SWITCH:
            raise bad_request(f"the header {WANTED} is {shown(given)}; give true, or leave it out", WANTED)
        text = headers.get(LAST, "").strip()
        if not text:
            return cls(_SWITCH[given])
        if (last := parse_event_id(text)) is None:
            raise malformed(text)
        return cls(True, last)


def malformed(text: str) -> ApiError:
    """Return the 400 for an id that no event of such a stream had."""
    message = f"the header {LAST} is {shown(text[:200])}, which is no id of an event; send the last one as it came, or none"
    return bad_request(message, LAST)


def body_hash(body: Body) -> bytes:
    """Return the hash of what a client sent, less the model, the sampling and the name of the request."""
    kept = {name: value for name, value in body.items() if name not in _APART}
    return blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=16).digest()


@dataclass(slots=True)
class EventIds:
    """The ids of one stream's events. ``last``: the id after which it goes on; earlier events are left out.

    ``digest``: without the seed and what else the stream's first events settle.
    """

    digest: StreamDigest
    last: EventId | None = None
    _said: list[SaidPart] = field(default_factory=list)  # of each choice, with the events that are left out
    _written: tuple[int, str] = (-1, "")  # the digest as it is in ids, and the cached tokens that it names

    @property
    def seed(self) -> int | None:
        """The seed of the stream that goes on, or None for a new one."""
        return None if self.last is None else self.last.digest.seed

    @property
    def cached(self) -> int | None:
        """The cached tokens in the usage of the stream that goes on, or None if they are this stream's own."""
        return None if self.last is None else self.last.digest.cached

    def number(self, call: GenerateHandler, choice: ChoiceText, piece: TextPiece, events: bytes) -> bytes:
        """Return the events of one piece with their ids, without those that were said before."""
        said = self._said = self._said or [SaidPart()] * call.sequences
        before = self.last.said[choice.index] if self.last is not None else SaidPart()
        tokens = choice.completion_tokens
        start = tokens - len(piece.tokens)
        base = said[choice.index] if said[choice.index].tokens == start else SaidPart(start)
        split = [event for event in events.split(b"\n\n") if event]
        made = []
        for number, event in enumerate(split, 1):
            whole = number == len(split) and piece.tokens
            said[choice.index] = SaidPart(tokens) if whole else SaidPart(start, base.events + number)
            if said[choice.index] > before:
                made.append(b"id: " + self._id(call).encode() + b"\n" + event + b"\n\n")
        return b"".join(made)

    def _id(self, call: GenerateHandler) -> str:
        if self._written[0] != (cached := call.cached_tokens):
            digest = replace(self.digest, seed=call.sampling.seed, created=call.created, cached=cached)
            self._written = cached, str(digest)
        parts = [max(one, then) for one, then in zip(self._said, self._before, strict=True)]
        return f"{call.id}.{self._written[1]}.{'-'.join(map(str, parts))}"

    @property
    def _before(self) -> tuple[SaidPart, ...]:
        return self.last.said if self.last is not None else (SaidPart(),) * len(self._said)


def one_by_one(news: StreamNews) -> Iterator[StreamNews]:
    """Yield news with one token each; the last one has the end."""
    if not isinstance(news, TokensEmitted) or len(news.tokens) < 2:
        yield news
        return
    last = len(news.tokens) - 1
    for i, token in enumerate(news.tokens):
        finish = news.finish if i == last else ""
        yield replace(news, position=news.position + i, tokens=[token], logprobs=news.logprobs[i : i + 1], finish=finish)


async def number_events(call: GenerateHandler, wish: IdsWish, body: bytes) -> None:
    """Give a call's events ids, and let it go on after the event that its headers name.

    Raise a 404 for another client's stream, a 409 if something changed since, and a 400. ``body``: from ``body_hash``.
    """
    if not call.options.stream:
        if wish.last is not None:
            raise bad_request(f"the header {LAST} is for streams; add stream: true, or leave the header out", LAST)
        return
    if call.sequences > MOST_NUMBERED:
        message = f"the header {WANTED} asks for ids of {call.sequences} sequences; ask for at most {MOST_NUMBERED}"
        raise bad_request(message, WANTED)
    caller, info = call.request[CALLER], call.info
    owner = short_hash(caller.tenant.encode(), caller.key.encode())
    if wish.last is not None and wish.last.digest.owner != owner:
        raise ApiError(404, f"the stream of the header {LAST} is not one of yours; leave the header out", param=LAST)
    call.sampling = replace(call.sampling, rejection=False)
    call.options = replace(call.options, adaptive=False)
    models = [info.id] if call.auto is None else [info.starts, call.auto.top]
    basis = await call.front.port.answer_basis(models)
    if len(basis.numerics) > 1:
        found = ", ".join(basis.numerics)
        message = f"events have no ids while workers have different numerics ({found}); leave the header {WANTED} out"
        raise bad_request(message, WANTED)
    rule = call.auto and call.auto.threshold
    digest = StreamDigest(
        owner=owner,
        model=short_hash(basis.chains, repr(rule).encode()),
        body=short_hash(body, call.shape.prefix.encode()),
        prompt=short_hash(repr((call.prompts, call.limits, call.ends, call.stops)).encode()),
        sampling=short_hash(_sampling(call)),
        numerics=short_hash(*(one.encode() for one in basis.numerics)),
        seed=0,
        created=0,
    )
    if wish.last is not None:
        _check(call, wish.last, digest)
    call.numbered = EventIds(digest, wish.last)


def _sampling(call: GenerateHandler) -> bytes:
    grammar = call.sampling.grammar
    plain = replace(call.sampling, seed=0, grammar=None)
    key = (grammar.key, grammar.to_the_end, grammar.forced) if grammar is not None else None
    return repr((plain, key, call.options.seed)).encode()


def _check(call: GenerateHandler, last: EventId, now: StreamDigest) -> None:
    """Raise a 409 that names what changed since the event, and a 400 for an id that no event of this stream had."""
    if changes := last.digest.changes(now):
        message = f"the stream of the header {LAST} cannot go on, since its {' and '.join(changes)} changed"
        raise ApiError(409, f"{message}; send what was sent then, or leave the header out", param=LAST, code="changed")
    limits = [limit for limit in call.limits for _ in range(call.options.n)]
    fits = len(last.said) == len(limits) and all(s.tokens <= most for s, most in zip(last.said, limits, strict=True))
    if not fits or last.digest.cached > sum(map(len, call.prompts)):
        raise malformed(str(last))

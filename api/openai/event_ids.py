"""The ids of a stream's events, asked for by a header, and the stream that goes on after one of them.

A client that lost its connection sends the same body with the header Last-Event-ID. The answer is generated again, bit by
bit the same, and what was said is left out. With ids, each token is news of its own: so the cuts between events depend on
nothing but the tokens. The answer is the model's own then: no variant answers, and drafts never change what is drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from hashlib import blake2b

from ...actors.gateway.port import StreamNews
from ...policies.plan.sampling import SamplingParams
from ...policies.requests.event_id import AnswerBasis, EventId, SaidPart, StreamDigest, parse_event_id, short_hash
from ...policies.sweep.events import TokensEmitted
from ..checks import Body, shown
from ..errors import ApiError, bad_request
from ..http.auth import ApiCaller
from .choice import ChoiceText, TextPiece
from .fields import HARMLESS, Options

WANTED = "x-event-ids"  # the header that asks for ids
LAST = "Last-Event-ID"  # the header with the last one that came
MOST_NUMBERED = 64  # sequences of a request whose events have ids: each adds to every id
_SAMPLED = frozenset(one.name for one in fields(Options) if one.metadata.get("sampling"))
_APART = _SAMPLED | HARMLESS | {"model", "request_id"}  # fields that are compared otherwise, or change no answer
AUTO = "auto"
_SWITCH = {AUTO: True, "": False, "true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class IdsWish:
    """The headers of a request about ids. ``last``: the id after which it goes on; None: from its beginning.

    ``optional``: ids are wanted only if nothing else of the answer depends on them.
    """

    ids: bool
    last: EventId | None = None
    optional: bool = False

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> IdsWish:
        """Read the headers; raise a 400."""
        given = headers.get(WANTED, "").strip().lower()
        if given not in _SWITCH:
            raise bad_request(f"the header {WANTED} is {shown(given)}; give true, auto, or leave it out", WANTED)
        text = headers.get(LAST, "").strip()
        if not text:
            return cls(_SWITCH[given], optional=given == AUTO)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """The facts of a checked request that its answer follows from, besides its model. ``limits``: tokens of each sequence.

    ``prompt``: what the model's files make of the body. ``seed``: the request's own; None: it sets none.
    """

    body: bytes
    prompt: bytes
    prompt_tokens: int
    limits: list[int]
    sampling: SamplingParams
    seed: int | None

    def digest(self, owner: bytes, basis: AnswerBasis) -> StreamDigest:
        grammar = self.sampling.grammar
        key = (grammar.key, grammar.to_the_end, grammar.forced) if grammar is not None else None
        sampling = repr((replace(self.sampling, seed=0, grammar=None), key, self.seed))
        return StreamDigest(
            owner=owner,
            model=short_hash(basis.chains),
            body=short_hash(self.body),
            prompt=short_hash(self.prompt),
            sampling=short_hash(sampling.encode()),
            numerics=short_hash(*(one.encode() for one in basis.numerics)),
            seed=0,
            created=0,
        )


@dataclass(slots=True)
class EventIds:
    """The ids of one stream's events. ``last``: the id after which it goes on; earlier events are left out.

    ``digest``: without its seed and time, until ``begin``. ``said``: of each sequence, with the events that are left out.
    """

    digest: StreamDigest
    said: list[SaidPart]
    last: EventId | None = None
    request: str = ""
    _written: tuple[int, str] = (-1, "")  # the digest as it is in ids, and the cached tokens that it names

    def begin(self, request: str, seed: int, created: int) -> None:
        """Settle the part of the ids that is known when the stream begins. ``request``: its first id."""
        self.request = request
        self.digest = replace(self.digest, seed=seed, created=created)

    def number(self, choice: ChoiceText, piece: TextPiece, events: bytes, cached: int) -> bytes:
        """Return the events of one piece with their ids, without what was said before."""
        index, tokens = choice.index, choice.completion_tokens
        before = self.last.said[index] if self.last is not None else SaidPart()
        start = tokens - len(piece.tokens)
        base = self.said[index] if self.said[index].tokens == start else SaidPart(start)
        split = [event for event in events.split(b"\n\n") if event]
        made = []
        for number, event in enumerate(split, 1):
            whole = number == len(split) and piece.tokens
            self.said[index] = SaidPart(tokens) if whole else SaidPart(start, base.events + number)
            if self.said[index] > before:
                made.append(b"id: " + self._id(cached).encode() + b"\n" + event + b"\n\n")
        return b"".join(made)

    def _id(self, cached: int) -> str:
        if self._written[0] != cached:
            self._written = cached, str(replace(self.digest, cached=cached))
        said = self.said if self.last is None else map(max, self.said, self.last.said)
        return f"{self.request}.{self._written[1]}.{'-'.join(map(str, said))}"


def one_by_one(news: StreamNews) -> Iterator[StreamNews]:
    """Yield news with one token each; the last one has the end."""
    if not isinstance(news, TokensEmitted) or len(news.tokens) < 2:
        yield news
        return
    last = len(news.tokens) - 1
    for i, token in enumerate(news.tokens):
        finish = news.finish if i == last else ""
        yield replace(news, position=news.position + i, tokens=[token], logprobs=news.logprobs[i : i + 1], finish=finish)


def check_wish(wish: IdsWish, caller: ApiCaller, sequences: int, *, stream: bool) -> bytes:
    """Return the hash of the stream's owner. Raise a 404 for another client's stream, and a 400."""
    owner = short_hash(caller.tenant.encode(), caller.key.encode())
    if wish.last is not None and not stream:
        raise bad_request(f"the header {LAST} is for streams; add stream: true, or leave the header out", LAST)
    if sequences > MOST_NUMBERED:
        message = f"the header {WANTED} asks for ids of {sequences} sequences; ask for at most {MOST_NUMBERED}"
        raise bad_request(message, WANTED)
    if wish.last is not None and wish.last.digest.owner != owner:
        raise ApiError(404, f"the stream of the header {LAST} is not one of yours; leave the header out", param=LAST)
    return owner


def event_ids(wish: IdsWish, owner: bytes, basis: AnswerBasis, facts: StreamFacts) -> EventIds:
    """Return the ids of a stream, which may go on. Raise a 409 that names what changed since, and a 400."""
    if len(basis.numerics) > 1:
        found = ", ".join(basis.numerics)
        message = f"events have no ids while workers have different numerics ({found}); leave the header {WANTED} out"
        raise bad_request(message, WANTED)
    digest, last = facts.digest(owner, basis), wish.last
    if last is not None:
        if changes := last.digest.changes(digest):
            message = f"the stream of the header {LAST} cannot go on, since its {' and '.join(changes)} changed"
            raise ApiError(409, f"{message}; send what was sent then, or leave the header out", param=LAST, code="changed")
        pairs = zip(last.said, facts.limits, strict=False)
        fits = len(last.said) == len(facts.limits) and all(said.tokens <= most for said, most in pairs)
        if not fits or last.digest.cached > facts.prompt_tokens:
            raise malformed(str(last))
    return EventIds(digest, [SaidPart()] * len(facts.limits), last)

"""The ids of a stream's events, by which a client that lost its connection gets what follows, from any gateway.

An answer follows from its model, prompt, sampling, seed and numerics alone. So an id names what an answer follows from, as
short hashes, and how much of the answer was said; nothing has to be remembered. Its form is REQUEST.DIGEST.SAID.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from hashlib import blake2b

from ..model.chain import Chain

LONGEST = 2048  # characters of an id
_BYTES = 6  # of each hash
_FORM = 1  # of the digest
_SIZES = (1, *[_BYTES] * 6, 8, 5, 4)  # bytes of the digest's parts, the form first
_REQUEST = re.compile(r"[\w-]{1,128}", re.ASCII)
_SAID = re.compile(r"(\d{1,9})(?:_(\d{1,9}))?", re.ASCII)


def short_hash(*parts: bytes) -> bytes:
    """Return a short hash of parts, each with its length."""
    hashed = blake2b(digest_size=_BYTES, person=b"event id")
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.digest()


def seed_of(key: str, name: str) -> int:
    """Return the seed of a request that sets none: the same at each gateway for one name and one client's key."""
    hashed = blake2b(digest_size=8, person=b"seed")
    for part in (key, name):
        raw = part.encode("utf-8", "surrogatepass")
        hashed.update(len(raw).to_bytes(8, "little") + raw)
    return int.from_bytes(hashed.digest(), "big") >> 1


@dataclass(frozen=True, slots=True)
class AnswerBasis:
    """The basis of the answers of models at one gateway. ``numerics``: of its workers; more than one if they differ."""

    chains: bytes  # a short hash
    numerics: tuple[str, ...]


def basis_of(chains: Sequence[Chain], numerics: Iterable[str]) -> AnswerBasis:
    """Return the basis of models with these chains."""
    known = [b"".join(component.id for component in chain.components) for chain in chains]
    return AnswerBasis(short_hash(*known), tuple(sorted(set(numerics))))


@dataclass(frozen=True, slots=True, order=True)
class SaidPart:
    """The part of a choice that was said: tokens, and events of what comes next that are not the last of their token."""

    tokens: int = 0
    events: int = 0

    def __str__(self) -> str:
        return f"{self.tokens}_{self.events}" if self.events else str(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDigest:
    """The basis of one stream's answer, and the rest of what its events repeat.

    ``owner``: the client's key. ``model``: the chain. ``body``: what the client sent, less its sampling. ``prompt``: what
    the model's files make of it. Each is a short hash.
    """

    owner: bytes
    model: bytes
    body: bytes
    prompt: bytes
    sampling: bytes
    numerics: bytes
    seed: int
    created: int  # Unix seconds
    cached: int = 0  # prompt tokens that the first run found in the cache; it is in the usage

    def changes(self, now: StreamDigest) -> list[str]:
        """Return what has changed since, in the words of clients."""
        found = []
        if self.model != now.model or (self.body == now.body and self.prompt != now.prompt):
            found.append("model")
        found += [name for name in ("body", "sampling", "numerics") if getattr(self, name) != getattr(now, name)]
        return found

    def core(self) -> str:
        """Return the part that all events of a stream share."""
        return self._written((*astuple(self)[:7], 0, 0))

    def __str__(self) -> str:
        return self._written(astuple(self))

    @staticmethod
    def _written(values: Sequence[bytes | int]) -> str:
        raw = bytes([_FORM])
        for value, size in zip(values, _SIZES[1:], strict=True):
            raw += value if isinstance(value, bytes) else value.to_bytes(size, "big")
        return urlsafe_b64encode(raw).decode()


@dataclass(frozen=True, slots=True)
class EventId:
    """The id of an event: its request, the stream's digest, and what was said of each choice up to and with it."""

    request: str
    digest: StreamDigest
    said: tuple[SaidPart, ...]

    def __str__(self) -> str:
        return f"{self.request}.{self.digest}.{'-'.join(map(str, self.said))}"


def parse_event_id(text: str) -> EventId | None:
    """Return an event id as it was written, or None if the text is none."""
    parts = text.split(".") if len(text) <= LONGEST else []
    if len(parts) != 3 or not _REQUEST.fullmatch(parts[0]):
        return None
    digest = _digest(parts[1])
    found = [_SAID.fullmatch(one) for one in parts[2].split("-")]
    said = tuple(SaidPart(int(one[1]), int(one[2] or 0)) for one in found if one is not None)
    return EventId(parts[0], digest, said) if digest is not None and len(said) == len(found) else None


def _digest(text: str) -> StreamDigest | None:
    try:
        raw = urlsafe_b64decode(text)
    except (Error, ValueError):
        return None
    if len(raw) != sum(_SIZES) or raw[0] != _FORM or urlsafe_b64encode(raw).decode() != text:
        return None
    ends = [sum(_SIZES[: i + 1]) for i in range(len(_SIZES))]
    pieces = [raw[end - size : end] for end, size in zip(ends, _SIZES, strict=True)]
    owner, model, body, prompt, sampling, numerics, seed, created, cached = pieces[1:]
    return StreamDigest(
        owner=owner,
        model=model,
        body=body,
        prompt=prompt,
        sampling=sampling,
        numerics=numerics,
        seed=int.from_bytes(seed, "big"),
        created=int.from_bytes(created, "big"),
        cached=int.from_bytes(cached, "big"),
    )

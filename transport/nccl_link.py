"""NCCL channels: chunks that travel between two cards, of one host or of two.

A channel has one direction and one communicator for each class, so that an urgent chunk waits for no other. The chunk is
announced without its bytes; the receiver posts its receive and answers how many it has posted. Only then does the sender
queue its send, so that a card never waits for a peer. The acknowledgement comes when the bytes are in the receiver's memory.
What is lost on the way is announced again, or posted already: counts are repeated, and nothing else is needed.

Where NCCL fails, or nothing comes for ``STUCK`` seconds, both ends abort: receives that have not ended are taken back, and
the link sends these chunks again by its next kind. An aborted channel is never opened again in the life of the peer.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ..policies.cluster.chunk_order import MOST, Chunk, Traffic
from . import link_wire
from .clock import Clock
from .device_link import SlotFetch, address_of
from .device_memory import CopyQueue, DeviceMemory, DeviceMemoryError, Frame, host_bytes
from .link_wire import Counts
from .wire import WireError

STUCK = 5.0  # seconds after which a posted receive is given up
LONGEST_OFFER = 4096  # bytes
SENDER, RECEIVER = 0, 1  # ranks
SAME_CARD = "NCCL refuses two processes on one card, and both ends use {}; device slots are the link between them"


class Communicator(Protocol):
    """One end of a pair in NCCL. Calls queue work and do not wait. Raises DeviceMemoryError."""

    def send(self, queue: CopyQueue, address: int, nbytes: int) -> None: ...

    def receive(self, queue: CopyQueue, address: int, nbytes: int) -> None: ...

    def error(self) -> str:
        """Return why the communicator has failed; "" while it has not."""

    def abort(self) -> None:
        """End everything that was queued on it, at this end. Idempotent."""


Joined = Callable[[Communicator | str], None]  # the communicator, or why there is none


class Nccl(Protocol):
    """NCCL on one card."""

    version: str  # both ends need the same

    def identity(self) -> bytes:
        """Return what a new pair is joined with."""

    def join(self, identity: bytes, rank: int, joined: Joined) -> None:
        """Join a pair. ``joined`` is called, from any thread, when the other end has, too; perhaps never."""


@dataclass(frozen=True, slots=True)
class PairOffer:
    """The offer of a sender. ``identities`` of its pairs, one for each class, are hexadecimal; none until NCCL is chosen."""

    version: str
    host: str
    card: str
    identities: tuple[str, ...] = ()

    def pack(self) -> bytes:
        return json.dumps([self.version, self.host, self.card, list(self.identities)]).encode()


def parse_pair_offer(text: bytes) -> PairOffer:
    """Parse the offer of a sender. Raises DeviceMemoryError with the reason."""
    try:
        if len(text) > LONGEST_OFFER:
            raise ValueError(f"{len(text)} bytes")
        version, host, card, identities = json.loads(text)
        offer = PairOffer(version, host, card, tuple(identities))
        if not all(isinstance(word, str) for word in (version, host, card, *offer.identities)):
            raise ValueError("it is not made of texts")
        if offer.identities and len(offer.identities) != len(Traffic):
            raise ValueError(f"{len(offer.identities)} pairs for {len(Traffic)} classes")
        for identity in offer.identities:
            bytes.fromhex(identity)
    except (ValueError, TypeError, RecursionError) as error:
        raise DeviceMemoryError(f"the offer of NCCL cannot be read: {error}") from error
    return offer


class _Lane:
    """One class of a channel, at either end: its communicator, its queue, and memory of the card between host and NCCL."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.queue = memory.queue()
        self.staging = memory.allocate(MOST)
        self.pair: Communicator | None = None


class _Channel:
    """The half that both ends of a channel have in common: lanes, their pairs, and the end."""

    def __init__(self, nccl: Nccl, memory: DeviceMemory, rank: int, changed: Callable[[], None]) -> None:
        self.failed = ""  # why it is not used any more
        self._nccl, self._memory = nccl, memory
        self._rank, self._changed = rank, changed
        self._lanes: dict[Traffic, _Lane] = {}
        self._ended: deque[int] = deque()  # appended to by any thread: lanes that use no memory any more

    @property
    def ready(self) -> bool:
        """True if all pairs have joined, and none has failed."""
        return not self.failed and len(self._lanes) == len(Traffic) and all(lane.pair for lane in self._lanes.values())

    @property
    def settled(self) -> bool:
        """True if it was aborted, and nothing that was queued uses its memory any more."""
        return bool(self.failed) and len(self._ended) >= len(self._lanes)

    def error(self) -> str:
        """Return why the channel cannot be used any more; "" while it can."""
        for lane in self._lanes.values():
            if not self.failed and lane.pair is not None and (why := lane.pair.error()):
                self.abort(why)
        return self.failed

    def abort(self, why: str) -> None:
        """End the channel. ``changed`` is called, from any thread, when its memory may be given back. Idempotent."""
        if self.failed:
            return
        self.failed = why
        for lane in self._lanes.values():
            if lane.pair is not None:
                lane.pair.abort()
            lane.queue.close(self._settle)

    def give_back(self) -> None:
        """Give back the memory of a channel that is settled."""
        for lane in self._lanes.values():
            self._memory.close(lane.staging)
        self._lanes.clear()
        self._ended.clear()

    def _join(self, identities: Sequence[bytes]) -> None:
        self._lanes = {kind: _Lane(self._memory) for kind in Traffic}
        for lane, identity in zip(self._lanes.values(), identities, strict=True):
            self._nccl.join(identity, self._rank, partial(self._joined, lane))

    def _joined(self, lane: _Lane, outcome: Communicator | str) -> None:
        if isinstance(outcome, str):
            self.abort(outcome)
        else:
            lane.pair = outcome
            if self.failed:  # looked at last: the end may come meanwhile, in another thread
                outcome.abort()
        self._changed()

    def _settle(self) -> None:
        self._ended.append(1)
        self._changed()


class NcclSender(_Channel):
    """The sender's end (see the module). ``changed`` is called, from any thread, when there may be more to offer."""

    def __init__(self, nccl: Nccl, memory: DeviceMemory, changed: Callable[[], None]) -> None:
        super().__init__(nccl, memory, SENDER, changed)
        self._offer = PairOffer(nccl.version, memory.host, memory.card)
        self._announced: dict[Traffic, deque[tuple[int, list[Frame]]]] = {kind: deque() for kind in Traffic}
        self._sources: dict[tuple[Traffic, int], list[object]] = {}  # what the copies of a chunk read

    @property
    def offer(self) -> bytes:
        return self._offer.pack()

    def begin(self) -> bool:
        """Join the pairs, since the receiver has chosen NCCL; return whether the offer has changed."""
        if self._lanes or self.failed:
            return False
        try:
            identities = [self._nccl.identity() for _ in Traffic]
            self._join(identities)
        except DeviceMemoryError as error:
            self.failed = str(error)
            return True
        self._offer = PairOffer(self._offer.version, self._offer.host, self._offer.card, tuple(i.hex() for i in identities))
        return True

    def leave(self, why: str) -> None:
        """End the channel, if it was begun: the receiver has chosen another kind."""
        if self._lanes:
            self.abort(why)

    def lay(self, chunk: Chunk, frames: list[Frame]) -> list[Frame]:
        """Return the announcement of a chunk; unchanged frames if it has no bytes, or too many.

        The bytes must not change until the chunk is acknowledged.
        """
        head, rest = host_bytes(frames[0]), frames[1:]
        if not 0 < sum(map(len, rest)) <= MOST:
            return frames
        self._announced[chunk.kind].append((chunk.number, rest))
        return list(link_wire.pack_laid(bytes(head), link_wire.BY_NCCL, rest))

    def rewind(self, received: Counts) -> None:
        """Forget announcements that the receiver has not got, which are repeated."""
        for kind, have in zip(Traffic, received, strict=True):
            self._announced[kind] = deque(one for one in self._announced[kind] if one[0] < have)

    def on_posted(self, posted: Counts) -> None:
        """Queue the sends of all announced chunks below these numbers, whose receives are posted."""
        for kind, upto in zip(Traffic, posted, strict=True):
            waiting = self._announced[kind]
            while waiting and waiting[0][0] < upto and self.ready:
                self._send(kind, *waiting.popleft())

    def release(self, chunk: Chunk) -> None:
        """Forget the sources of a chunk that was acknowledged."""
        self._sources.pop((chunk.kind, chunk.number), None)

    def give_back(self) -> None:
        super().give_back()
        self._sources.clear()

    def _send(self, kind: Traffic, number: int, frames: Sequence[Frame]) -> None:
        lane = self._lanes[kind]
        assert lane.pair is not None, "it is ready"
        target, sources = lane.staging, self._sources.setdefault((kind, number), [])
        for frame in frames:
            if len(frame):
                address, held = address_of(frame)
                sources.append(held)
                lane.queue.copy(target, address, len(frame))
                target += len(frame)
        try:
            lane.pair.send(lane.queue, lane.staging, target - lane.staging)
        except DeviceMemoryError as error:
            self.abort(str(error))
            self._changed()


class NcclReceiver(_Channel):
    """The receiver's end (see the module). ``changed`` is called, from any thread, when bytes have come or pairs joined.

    Raises DeviceMemoryError, with the reason, for an offer that this end cannot accept.
    """

    def __init__(self, nccl: Nccl, memory: DeviceMemory, text: bytes, clock: Clock, changed: Callable[[], None]) -> None:
        super().__init__(nccl, memory, RECEIVER, changed)
        offer = parse_pair_offer(text)
        if offer.version != nccl.version:
            raise DeviceMemoryError(f"NCCL {offer.version[:20]} was offered; this end has {nccl.version}")
        if (offer.host, offer.card) == (memory.host, memory.card):
            raise DeviceMemoryError(SAME_CARD.format(memory.card))
        self.identities = offer.identities
        self._clock = clock
        self._fetches: dict[Traffic, deque[tuple[SlotFetch, float]]] = {kind: deque() for kind in Traffic}
        self._unposted: deque[tuple[Traffic, int, memoryview, SlotFetch]] = deque()
        self._posted = dict.fromkeys(Traffic, 0)  # number of the chunk behind the last one that was posted
        if self.identities:
            self._join([bytes.fromhex(identity) for identity in self.identities])

    def fetch(self, kind: Traffic, number: int, lengths: Sequence[int]) -> SlotFetch:
        """Post the receive of an announced chunk, as frames of these lengths, as soon as the pairs have joined.

        Raises WireError for a chunk that cannot come so.
        """
        size = sum(lengths)
        _forget_ended(self._fetches[kind])
        if not self.identities or not 0 < size <= MOST:
            raise WireError(f"a chunk of {size} bytes by NCCL, in {len(self.identities)} pairs; {MOST} are the most")
        memory = self._memory.host_memory(size)
        fetch = SlotFetch(memory.toreadonly(), lengths)
        self._fetches[kind].append((fetch, self._clock.now()))
        self._unposted.append((kind, number, memory, fetch))
        self.post()
        return fetch

    def post(self) -> bool:
        """Post what could not be posted before; return whether something was."""
        any_posted = False
        while self._unposted and self.ready:
            kind, number, memory, fetch = self._unposted.popleft()
            lane = self._lanes[kind]
            assert lane.pair is not None, "it is ready"
            try:
                lane.pair.receive(lane.queue, lane.staging, len(memory))
            except DeviceMemoryError as error:
                self.abort(str(error))
                break
            address, held = address_of(memory)
            lane.queue.copy(address, lane.staging, len(memory))
            lane.queue.call(partial(self._end, fetch, held))
            self._posted[kind] = number + 1
            any_posted = True
        return any_posted

    @property
    def posted(self) -> Counts:
        """The numbers of each class below which all announced chunks have posted receives."""
        one, two, three = self._posted.values()
        return one, two, three

    def error(self) -> str:
        now = self._clock.now()
        for fetches in self._fetches.values():
            _forget_ended(fetches)
            if not self.failed and fetches and now - fetches[0][1] > STUCK:
                self.abort(f"nothing came by NCCL for {STUCK:g} seconds")
        return super().error()

    def _end(self, fetch: SlotFetch, held: object) -> None:
        """Note that the bytes of a chunk are here. ``held`` is a parameter only to keep the memory until then."""
        fetch.ended = not self.failed
        self._changed()


def _forget_ended(fetches: deque[tuple[SlotFetch, float]]) -> None:
    while fetches and fetches[0][0].ended:
        fetches.popleft()

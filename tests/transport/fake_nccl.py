"""A communicator that stands for NCCL: pairs in one process, over queues of memory files. It checks what NCCL would not say.

A send without its posted receive, another size than the receive's, and any use after an abort are violations; so is a pair
that two ends join with one rank. ``seconds`` draws how long a join takes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from blockwright.transport.clock import Clock
from blockwright.transport.device_memory import CopyQueue, DeviceMemoryError
from blockwright.transport.memory_file import FileQueue
from blockwright.transport.nccl_link import Joined

FAILED = "NCCL failed: remote process exited or there was a network error"


class NcclViolation(AssertionError):
    """A use that would hang or break NCCL."""


@dataclass(slots=True)
class Pair:
    """Both ends of a pair. Sizes are in the order of the calls, and bytes in the order in which they left."""

    joined: dict[int, tuple[Clock, Joined]] = field(default_factory=dict)
    ends: dict[int, FakeCommunicator] = field(default_factory=dict)
    posted: list[int] = field(default_factory=list)
    sent: int = 0
    arrived: list[bytes] = field(default_factory=list)


class FakeCommunicator:
    """One end."""

    def __init__(self, hub: FakeHub, pair: Pair, rank: int) -> None:
        self.hub, self.pair = hub, pair
        self.rank, self.aborted = rank, False
        self.fails = ""

    def send(self, queue: CopyQueue, address: int, nbytes: int) -> None:
        pair = self._use("send", 0)
        if len(pair.posted) <= pair.sent:
            self._violate(f"send {pair.sent} of {nbytes} bytes has no posted receive")
        if pair.posted[pair.sent] != nbytes:
            self._violate(f"send {pair.sent} has {nbytes} bytes, and its receive {pair.posted[pair.sent]}")
        pair.sent += 1

        def step() -> bool:
            if not self.aborted:
                pair.arrived.append(ctypes.string_at(address, nbytes))
            return True

        assert isinstance(queue, FileQueue)
        queue.add(step)
        self.hub.sends += 1

    def receive(self, queue: CopyQueue, address: int, nbytes: int) -> None:
        pair = self._use("receive", 1)
        number = len(pair.posted)
        pair.posted.append(nbytes)

        def step() -> bool:
            if self.aborted:
                return True
            if len(pair.arrived) <= number:
                return False
            ctypes.memmove(address, pair.arrived[number], nbytes)
            return True

        assert isinstance(queue, FileQueue)
        queue.add(step)

    def error(self) -> str:
        return self.fails

    def abort(self) -> None:
        self.aborted = True

    def _use(self, what: str, rank: int) -> Pair:
        if self.rank != rank:
            self._violate(f"{what} by rank {self.rank}")
        if self.aborted:
            self._violate(f"{what} after an abort")
        if self.fails:
            raise DeviceMemoryError(self.fails)
        return self.pair

    def _violate(self, text: str) -> None:
        self.hub.violations.append(text)
        raise NcclViolation(text)


class FakeHub:
    """All pairs of a test."""

    def __init__(self) -> None:
        self.pairs: dict[bytes, Pair] = {}
        self.violations: list[str] = []
        self.sends = 0


class FakeNccl:
    """``Nccl`` of one node. ``refuses``: why it can join no pair. ``fails``: whether an end fails some time later."""

    version = "22800"

    def __init__(
        self,
        hub: FakeHub,
        clock: Clock,
        seconds: Callable[[], float] = lambda: 0.0,
        refuses: str = "",
        fails: Callable[[], bool] = lambda: False,
    ) -> None:
        self._hub, self._clock = hub, clock
        self._seconds, self._fails = seconds, fails
        self.refuses = refuses

    def identity(self) -> bytes:
        identity = len(self._hub.pairs).to_bytes(16, "little")
        self._hub.pairs[identity] = Pair()
        return identity

    def join(self, identity: bytes, rank: int, joined: Joined) -> None:
        pair = self._hub.pairs.setdefault(identity, Pair())
        if self.refuses:
            joined(self.refuses)
            return
        if rank in pair.joined:
            self._hub.violations.append(f"rank {rank} joins twice")
        pair.joined[rank] = self._clock, joined
        if len(pair.joined) == 2:
            for at, (clock, call) in pair.joined.items():
                pair.ends[at] = end = FakeCommunicator(self._hub, pair, at)
                clock.call_at(clock.now() + self._seconds(), partial(call, end))
                if self._fails():
                    clock.call_at(clock.now() + 100 * self._seconds(), partial(setattr, end, "fails", FAILED))

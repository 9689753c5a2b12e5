"""The network of a simulation: the loopback network with time on the way, and faults.

Each lane of each direction between two lives is a pipe of its own. Without faults a pipe keeps order, delivers each message
once after a latency drawn from the seed, and loses only what was on its way when a life or the connection ended: that is
what ZeroMQ promises. ``Drop`` and ``Duplicate`` go beyond it (what a reconnect or a careless relay does), so the runtime
above must be safe under more than its own transport does. Of who was killed all that was on its way comes, up to ``LATE``
seconds later, or nothing.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from random import Random

from ...transport.address import PeerId
from ...transport.errors import QueueFull
from ...transport.handshake import Lane
from ...transport.loopback import LoopbackTransport, Message, Network
from ...transport.outbound import DISCONNECTED, QUEUE_MESSAGES
from ...transport.wire import Traffic
from .faults import BreakLink, Delay, Drop, Duplicate, Fault, Kill, Partition, Pause
from .loop import LIFE, VirtualLoop
from .trace import Trace, message_name

LATE = 1.0
AnyLane = Lane | Traffic  # of a link, its class
Strike = Callable[[PeerId, PeerId, AnyLane, bytes], Fault | None]  # source, target, lane, body (of a link: the first frame)


@dataclass(slots=True)
class _Way:
    """The faults between two nodes, in one direction."""

    drops: dict[AnyLane, int] = field(default_factory=dict)
    duplicates: dict[AnyLane, int] = field(default_factory=dict)
    lag: float = 0.0
    extra: float = 0.0  # seconds on top of the latency ...
    extra_until: float = 0.0  # ... until then
    held: dict[AnyLane, float] = field(default_factory=dict)  # lanes that stand still, and until when


class _Pipe:
    """One lane of one direction between two lives."""

    __slots__ = ("_armed", "_last", "_network", "_waiting", "closed", "lane", "source", "stalled", "target")

    def __init__(self, network: SimulatedNetwork, source: PeerId, target: LoopbackTransport, lane: AnyLane) -> None:
        self.source = source
        self.target = target
        self.lane = lane
        self.closed = self._armed = False
        self._network = network
        self._waiting: deque[tuple[float, Message]] = deque()
        self.stalled = 0.0  # nothing comes out before
        self._last = 0.0  # when the last message is due: none overtakes another

    def put(self, message: Message, due: float) -> None:
        if self.closed:
            return
        if len(self._waiting) >= QUEUE_MESSAGES:
            raise QueueFull(f"{len(self._waiting)} messages wait for {self.target.peer}; send less or slower")
        self._last = due = max(due, self._last)
        self._waiting.append((due, message))
        if not self._armed:
            self._arm(due)

    def clear(self) -> None:
        self._waiting.clear()

    def _arm(self, when: float) -> None:
        self._armed = True
        self._network.loop.call_at(when, self._fire, context=self._network.context_of(self.target))

    def _fire(self) -> None:
        """Deliver as part of the receiving life: while it is stopped, messages lie here."""
        self._armed = False
        now = self._network.loop.time()
        waiting = self._waiting
        target = self.target
        until = self._network.blocked_until(self)
        while waiting and not target.closed and not self.closed:
            due = max(waiting[0][0], until)
            if due > now:
                self._arm(due)
                return
            message = waiting.popleft()[1]
            self._network.trace.add(now, "deliver", self.source, target.peer, *_described(self.lane, message))
            if target.started:
                try:
                    message.deliver()
                except Exception as error:  # a fault above must not leave the rest of the messages lying
                    text = f"a message to {target.peer} failed"
                    self._network.loop.call_exception_handler({"message": text, "exception": error})
            else:
                target.enqueue(message)


class SimulatedNetwork(Network):
    """See the module. latency: least and most seconds. patience: seconds of a partition after which connections break."""

    def __init__(
        self, loop: VirtualLoop, random: Random, trace: Trace, *, latency: tuple[float, float], patience: float
    ) -> None:
        super().__init__()
        self.loop, self.trace = loop, trace
        self.strike: Strike | None = None  # asked of each message; see ``Simulation.strike``
        self.inject: Callable[[Fault], None] = self.apply
        self.closed = False  # nothing gets across any more: the simulation is being taken down
        self._random = random
        self._latency = latency
        self._patience = patience
        self._pipes: dict[tuple[PeerId, PeerId, AnyLane], _Pipe] = {}
        self._ways: dict[tuple[str, str], _Way] = {}
        self._partitions: list[tuple[Partition, float]] = []  # until when
        self._contexts: dict[PeerId, Context] = {}

    # ---- what loopback transports ask

    def transport(self, peer: PeerId, *, lasting: bool = False) -> LoopbackTransport:
        """Return the transport of a new member, of the life that runs now."""
        life = LIFE.get()
        assert life is not None, "a transport belongs to a life"
        self._contexts[peer] = life.context.copy()
        transport = super().transport(peer, lasting=lasting)
        transport.link_kind = "frames"  # in chunks, as between hosts
        return transport

    def cut(self, place: str) -> None:
        if (member := self.members.get(place)) is not None:
            nothing = self._random.random() < 0.5
            for (source, _, _), pipe in self._pipes.items():
                if source == member.peer:
                    pipe.stalled = self.loop.time() + self._random.choice((0.0, self._random.uniform(0.0, LATE)))
                    if nothing:
                        pipe.clear()
        super().cut(place)

    def carry(self, source: LoopbackTransport, target: LoopbackTransport, lane: AnyLane, message: Message) -> None:
        if self.closed:
            return
        now = self.loop.time()
        due = now + self._random.uniform(*self._latency)
        pipe = self._pipe(source.peer, target, lane)
        match self.strike(source.peer, target.peer, lane, message.body) if self.strike is not None else None:
            case None:
                pass
            case Drop():
                self.trace.add(now, "drop", source.peer, target.peer, *_described(lane, message))
                return
            case Delay(extra=extra):
                due += extra
            case Duplicate(lag=lag):
                self.loop.call_at(due + lag, self._again, pipe, message, context=Context())
            case fault:
                self.loop.call_soon(self.inject, fault, context=Context())
        way = self._ways.get((source.peer.name, target.peer.name))
        if way is not None:
            if way.drops.get(lane):
                way.drops[lane] -= 1
                self.trace.add(now, "drop", source.peer, target.peer, *_described(lane, message))
                return
            if now < way.extra_until:
                due += way.extra
            if way.duplicates.get(lane):
                way.duplicates[lane] -= 1
                self.loop.call_at(due + way.lag, self._again, pipe, message, context=Context())
        pipe.put(message, due)

    def notify_lost(self, member: LoopbackTransport, peer: PeerId, cause: str = DISCONNECTED) -> None:
        """Report the loss in the pipe, after earlier messages of the peer; never while the way is blocked."""
        pipe = self._pipe(peer, member, Lane.CONTROL)
        message = Message(b"", lambda: self._break(pipe, cause))
        pipe.put(message, self.loop.time() + self._random.uniform(*self._latency))

    # ---- what pipes ask

    def context_of(self, member: LoopbackTransport) -> Context:
        return self._contexts[member.peer]

    def blocked_until(self, pipe: _Pipe) -> float:
        source, target = pipe.source.name, pipe.target.peer.name
        until = pipe.stalled
        if (way := self._ways.get((source, target))) is not None:
            until = max(until, way.held.get(pipe.lane, 0.0))
        for partition, end in self._partitions:
            if end > until and partition.cuts(source, target):
                until = end
        return until

    # ---- faults

    def apply(self, fault: Fault) -> None:
        """Apply a fault that concerns the network, not a process."""
        assert not isinstance(fault, Kill | Pause), "a process, not a network, is killed or paused"
        now = self.loop.time()
        if isinstance(fault, Partition):
            self._partitions = [(partition, end) for partition, end in self._partitions if end > now]
            self._partitions.append((fault, now + fault.lasting))
            if fault.lasting > self._patience:
                self.loop.call_later(self._patience, self._break_across, fault)
            return
        if isinstance(fault, BreakLink):
            self._break_link(fault.source, fault.target)
            return
        way = self._ways.setdefault((fault.source, fault.target), _Way())
        if isinstance(fault, Drop):
            way.drops[fault.lane] = way.drops.get(fault.lane, 0) + fault.count
        elif isinstance(fault, Duplicate):
            way.duplicates[fault.lane] = way.duplicates.get(fault.lane, 0) + fault.count
            way.lag = fault.lag
        elif isinstance(fault, Delay):
            way.extra, way.extra_until = fault.extra, now + fault.lasting
        else:
            way.held[fault.lane] = now + fault.lasting

    def _again(self, pipe: _Pipe, message: Message) -> None:
        self.trace.add(self.loop.time(), "duplicate", pipe.source, pipe.target.peer, *_described(pipe.lane, message))
        pipe.put(message, self.loop.time())

    def _break_across(self, partition: Partition) -> None:
        members = list(self.members.values())
        for one in members:
            for other in members:
                if partition.breaks(one.peer.name, other.peer.name):
                    self._break(self._pipe(other.peer, one, Lane.CONTROL))

    def _break_link(self, one: str, other: str) -> None:
        for (source, peer, lane), pipe in list(self._pipes.items()):
            if isinstance(lane, Traffic) and {source.name, peer.name} == {one, other}:
                pipe.closed = True
                del self._pipes[source, peer, lane]
        pair = [member for member in self.members.values() if member.peer.name in (one, other)]
        for member, far in itertools.permutations(pair, 2):
            self.loop.call_soon(member.lose_link, far.peer, context=self._contexts[member.peer])

    def _break(self, pipe: _Pipe, cause: str = DISCONNECTED) -> None:
        """End the connection as ``pipe.target`` sees it; later messages belong to another connection."""
        member, peer = pipe.target, pipe.source
        for key in [key for key in self._pipes if key[0] == peer and key[1] == member.peer]:
            broken = self._pipes.pop(key)
            broken.closed = True
        self.trace.add(self.loop.time(), "lost", peer, "by", member.peer)
        self.loop.call_soon(member.lose, peer, cause, context=self._contexts[member.peer])

    def _pipe(self, source: PeerId, target: LoopbackTransport, lane: AnyLane) -> _Pipe:
        key = (source, target.peer, lane)
        pipe = self._pipes.get(key)
        if pipe is None:
            pipe = self._pipes[key] = _Pipe(self, source, target, lane)
        return pipe


def _described(lane: AnyLane, message: Message) -> tuple[str, int]:
    return (lane.name if isinstance(lane, Traffic) else message_name(message.body)), len(message.body)

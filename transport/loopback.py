"""The transport inside one process: several nodes on one event loop, for tests and notebooks.

Owns a ``Network`` on which loopback transports find each other. Order, limits and the moment of delivery (a later turn of
the loop) are those of sockets; buffers of messages are copied, so that a sender that changes one after sending is found out
in tests. Tensors on links pass by reference, as between actors of one process, unless ``link_kind`` says otherwise. ``cut``
is the death of a process as its peers see it, ``freeze`` is SIGSTOP. How a message gets across, and how the loss of a peer
is noticed, are methods of the network, so that ``runtime.testing`` puts time and faults there. Never used between processes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from . import wire
from .address import PeerId
from .errors import PeerGone, ReleaseRefused, TransportError
from .handshake import Admission, Greeting, Lane, ReturnRequest, pack_refusal, parse
from .interface import Receiver
from .link_wire import link_class
from .outbound import DISCONNECTED
from .wire import Buffer, Traffic


class Network:
    """All loopback transports that can reach each other."""

    def __init__(self) -> None:
        self.members: dict[str, LoopbackTransport] = {}  # by place: one for each life of a node
        self.newest: dict[str, str] = {}  # place of the newest life of a node whose address lasts, by that address

    def transport(self, peer: PeerId, *, lasting: bool = False) -> LoopbackTransport:
        """Return the transport of a new member. ``lasting``: a later life of the node gets its address."""
        return LoopbackTransport(self, peer, lasting)

    def find(self, endpoint: str) -> LoopbackTransport | None:
        """Return the member that listens at an endpoint."""
        return self.members.get(self.newest.get(endpoint, endpoint))

    def cut(self, place: str) -> None:
        """Drop a member at once: none of its queued messages is delivered, its peers see a lost connection."""
        if member := self.members.get(place):
            member.close()

    def freeze(self, place: str) -> None:
        """Stop delivery from and to a member, without notice to the others."""
        self.members[place].frozen = True

    def carry(self, source: LoopbackTransport, target: LoopbackTransport, lane: Lane | Traffic, message: Message) -> None:
        """Bring a message across: call its ``deliver`` at a later turn of the loop, in order.

        Link traffic gives its class.
        """
        target.enqueue(message)

    def notify_lost(self, member: LoopbackTransport, peer: PeerId, cause: str = DISCONNECTED) -> None:
        """Let a member notice that its connection to ``peer`` is broken."""
        asyncio.get_running_loop().call_soon(member.lose, peer, cause)


class Message(NamedTuple):
    """A message in flight."""

    body: bytes  # for link traffic: the first frame
    deliver: Callable[[], None]


class LoopbackTransport:
    """The loopback transport of one node (see the module and ``interface.Transport``)."""

    link_kind = "reference"

    def __init__(self, network: Network, peer: PeerId, lasting: bool = False) -> None:
        self.peer = peer
        self.place = self.endpoint = f"loop://{peer.name}-{peer.incarnation}"
        self.frozen = False
        self._network = network
        self._peers: dict[PeerId, str] = {}
        self._refused: dict[PeerId, str] = {}  # peers that are over and do not know it, and what they get to hear
        self._inbox: deque[Message] = deque()
        self._started = self._closed = False
        network.members[self.place] = self
        if lasting:
            self.endpoint = f"loop://{peer.name}"
            network.newest[self.endpoint] = self.place

    @property
    def started(self) -> bool:
        return self._started

    @property
    def closed(self) -> bool:
        return self._closed

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._started = True
        if self._inbox:
            self._loop.call_soon(self._drain)

    def connect(self, peer: PeerId, endpoint: str) -> None:
        if peer in self._peers or self._closed:
            return
        self._peers[peer] = endpoint
        member = self._network.find(endpoint)
        if member is None or member.peer != peer:
            self._network.notify_lost(self, peer)
        elif self.peer in member._refused:
            self._network.notify_lost(self, peer, f"refused: {member._refused[self.peer]}")

    def know(self, peer: PeerId, endpoint: str) -> None:
        pass  # every transport of the process is accepted

    def greeting(self, peer: PeerId) -> Greeting | None:
        return None  # one process is one release

    def refused(self) -> list[ReleaseRefused]:
        return []

    def rest(self, peer: PeerId) -> None:
        pass  # there are no connections to close

    def disconnect(self, peer: PeerId, why: str = "") -> None:
        self._peers.pop(peer, None)
        self._refused.setdefault(peer, why or f"{self.peer} has given {peer} up")

    def part(self, peer: PeerId) -> None:
        self._peers.pop(peer, None)

    def succeed(self, earlier: PeerId, later: PeerId, why: str) -> None:
        self.disconnect(earlier, why)

    async def ask(self, endpoint: str, request: ReturnRequest) -> Admission:
        answered: asyncio.Future[Admission | TransportError] = self._loop.create_future()
        target = self._network.find(endpoint)
        if target is None or self._closed:
            raise PeerGone(f"nothing listens at {endpoint}")
        if not target.frozen and not self.frozen:
            asked = Message(request.pack(), lambda: self._asked(target, request, answered))
            self._network.carry(self, target, Lane.CONTROL, asked)
        answer = await answered
        if isinstance(answer, TransportError):
            raise answer
        return answer

    def _asked(
        self, target: LoopbackTransport, request: ReturnRequest, answered: asyncio.Future[Admission | TransportError]
    ) -> None:
        """Let the head answer, as part of its own life, and bring the answer back."""
        answer: Admission | TransportError
        said = parse(request.pack())
        assert isinstance(said, ReturnRequest), "as it was sent"
        try:
            answer = target._receiver.on_return(said, "")
        except TransportError as refusal:
            answer = refusal

        def arrive() -> None:
            if not answered.done():
                answered.set_result(answer)

        body = answer.pack() if isinstance(answer, Admission) else pack_refusal(str(answer))
        self._network.carry(target, self, Lane.CONTROL, Message(body, arrive))

    def send(self, peer: PeerId, body: bytes, buffers: Sequence[Buffer] = (), places: bytes = b"") -> None:
        assert not places, "nothing is shared where tensors pass by reference"
        copies = [memoryview(bytes(b)) for b in wire.checked(body, buffers)]
        self._post(peer, Lane.CONTROL, body, lambda to: to._receiver.on_message(self.peer, body, copies))

    def send_pulse(self, peer: PeerId, body: bytes) -> None:
        def deliver(to: LoopbackTransport) -> None:
            if (why := to._refused.get(self.peer)) is not None:
                self._network.notify_lost(self, to.peer, f"refused: {why}")
            to._receiver.on_message(self.peer, body, [])

        self._post(peer, Lane.PULSE, body, deliver)

    def admit(self, peer: PeerId, key: str) -> None:
        pass  # no other process can reach it

    def invite(self, wanted: Callable[[], bool]) -> None:
        pass

    def watch(self, seconds: float) -> None:
        pass  # no connection here can break by itself

    def recheck(self, peer: PeerId) -> None:
        pass

    def send_link(self, peer: PeerId, frames: Sequence[Buffer]) -> None:
        views = [memoryview(frame) for frame in frames]
        self._post(peer, link_class(views[0]), bytes(views[0]), lambda to: to._receiver.on_link(self.peer, views))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        del self._network.members[self.place]
        if self._network.newest.get(self.endpoint) == self.place:
            del self._network.newest[self.endpoint]
        self._inbox.clear()
        for member in list(self._network.members.values()):
            if self.peer in member._peers:
                self._network.notify_lost(member, self.peer)

    def enqueue(self, message: Message) -> None:
        """Deliver a message that has come across, at the next turn of the loop."""
        self._inbox.append(message)
        if len(self._inbox) == 1 and self._started:
            self._loop.call_soon(self._drain)

    def lose(self, peer: PeerId, cause: str = DISCONNECTED) -> None:
        """Break the connection to ``peer``."""
        if not self._closed and self._peers.pop(peer, None) is not None:
            self._receiver.on_lost(peer, cause)

    def lose_link(self, peer: PeerId) -> None:
        """Lose the link traffic in flight from and to ``peer``."""
        if not self._closed and peer in self._peers:
            self._receiver.on_link_broken(peer)

    def _post(self, peer: PeerId, lane: Lane | Traffic, body: bytes, deliver: Callable[[LoopbackTransport], None]) -> None:
        endpoint = self._peers.get(peer)
        if endpoint is None or self._closed:
            raise PeerGone(f"node {peer} is not connected")
        member = self._network.find(endpoint)
        if member is not None and member.peer == peer and not member.frozen and not self.frozen:
            self._network.carry(self, member, lane, Message(body, lambda: deliver(member)))

    def _drain(self) -> None:
        while self._inbox and not self._closed and not self.frozen:
            try:
                self._inbox.popleft().deliver()
            except Exception as error:  # a fault above must not leave later messages undelivered
                self._loop.call_exception_handler({"message": f"a message to {self.peer} failed", "exception": error})

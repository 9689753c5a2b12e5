"""A node: the actors of one process, and the nodes it talks to.

Owns spawning and finding actors, routing of calls (in this process by reference, else by message), the greeting of peers,
heartbeats to them, and what follows when one is declared down. Who is declared down, and why, is decided by the head
(``cluster.py``); a node on its own only knows that a connection broke.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockwright.runtime.actor.actor import Actor
from blockwright.runtime.actor.cell import Cell
from blockwright.runtime.actor.ref import CALL_TIMEOUT, Address, Ref, parse_address
from blockwright.runtime.actor.streams import Inlet, Stream
from blockwright.runtime.base import envelope
from blockwright.runtime.base.buffers import Sink
from blockwright.runtime.base.clock import Clock, LoopClock, Timer, seconds
from blockwright.runtime.base.codec import encode, pack
from blockwright.runtime.base.errors import NodeDown
from blockwright.runtime.node.calls import Calls
from blockwright.runtime.node.inspection import Looking
from blockwright.runtime.node.life import STOPPED, Lives
from blockwright.runtime.node.linked import Links
from blockwright.runtime.node.membership import Membership
from blockwright.runtime.node.monitors import SYSTEM, Monitors
from blockwright.runtime.node.orphans import end_orphans
from blockwright.runtime.node.peers import Down, OnDown, Peer, PeerTable
from blockwright.runtime.node.reception import OnLink, Reception
from blockwright.runtime.node.registry import Naming, Registry
from blockwright.runtime.node.spawning import Spawn, end_anywhere
from blockwright.runtime.node.system import MAILBOX as SYSTEM_MAILBOX
from blockwright.runtime.node.system import System
from blockwright.runtime.node.vitals import measure
from blockwright.runtime.tracing.message_log import MessageLog
from blockwright.transport.address import PeerId, check_name
from blockwright.transport.curve import NodeKeys
from blockwright.transport.errors import PeerGone, QueueFull
from blockwright.transport.interface import Transport
from blockwright.transport.link import Link
from blockwright.transport.link_table import LinkTable
from blockwright.transport.sockets import SocketTransport
from blockwright.transport.wire import Buffer, Traffic

log = logging.getLogger("blockwright.runtime")
MAILBOX = 1024  # messages in each lane of an actor


class Node(Naming, Looking):
    """See the module.

    listen: True is a socket file in ``directory`` (mode 0700, a fresh one if None); "tcp://HOST:PORT" (port 0: any) is for
    peers elsewhere, with ``keys`` unless HOST is 127.0.0.1; False is none: actors of this process only.
    """

    def __init__(
        self,
        name: str,
        *,
        directory: Path | None = None,
        listen: bool | str = True,
        keys: NodeKeys | None = None,
        incarnation: int = 1,
        transport: Transport | None = None,
        clock: Clock | None = None,
        encode_local: bool = False,
        heartbeat_interval: float = 0.5,
        message_log: Path | None = None,
    ) -> None:
        self.id = PeerId(check_name(name), incarnation)
        self.heartbeat: Callable[[], dict[str, Any]] = dict  # payload of heartbeats: plain data
        self.lag = 0.0  # seconds by which the loop was late for its last heartbeat
        self._log_path = message_log
        self.membership: Membership | None = None
        self.dropped: Counter[str] = Counter()  # received messages that were not let in, by reason
        self.dismissed = asyncio.Event()  # the head told this node to stop
        self.closed = asyncio.Event()  # set when this node was told to stop, or its head is gone
        self.farewell = ""  # why it was closed
        self.last_words: Callable[[], Awaitable[None]] | None = None  # what is to be said when the actors have stopped
        self._directory, self._listen, self._keys, self._transport = directory, listen, keys, transport
        self._clock_given, self._encode_local, self._interval = clock, encode_local, heartbeat_interval
        self.table = PeerTable()
        self.lives, self.monitors, self.links = Lives(self), Monitors(self), Links(self)
        self.registry = Registry(self)
        self._reception = Reception(self)
        self.leaving = False  # this node is about to stop, and has asked others to: that they go is no news
        self.head: PeerId | None = None
        self._timer: Timer | None = None
        self._stop: asyncio.Task[None] | None = None
        self._retiring: asyncio.Task[None] | None = None
        self.open = False  # messages are let in

    @property
    def name(self) -> str:
        return self.id.name

    @property
    def incarnation(self) -> int:
        return self.id.incarnation

    @property
    def endpoint(self) -> str:
        """Where other nodes reach this one; empty when it does not listen."""
        return self._transport.endpoint if self._transport is not None else ""

    @property
    def stopping(self) -> bool:
        """No actor is started any more."""
        return self._retiring is not None

    @property
    def dead_letters(self) -> Counter[str]:
        """Casts, answers and messages of links that reached nobody, by cause."""
        return self.calls.dead.counts

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("calls", "clock"):
                raise RuntimeError(f"node {self.id} was not started; await its start() first")
            raise AttributeError(name)

    # ---- life

    async def start(self) -> None:
        """Once. Raises RuntimeError; AddressError, KeysError for an address that it cannot listen at."""
        if "calls" in vars(self):
            raise RuntimeError(f"node {self.id} was started before; make another")
        self.clock: Clock = self._clock_given if self._clock_given is not None else LoopClock()
        messages = MessageLog(self._log_path, str(self.id)) if self._log_path is not None else None
        self.calls = Calls(self.clock, self._send, self.lives.find, self._route, messages)
        self._self = Peer(self.id, "", self.clock.now(), itself=True)
        self._loop = asyncio.get_running_loop()
        await self.lives.start(System(), SYSTEM, SYSTEM_MAILBOX)
        if self._transport is None and self._listen:
            where = self._listen if isinstance(self._listen, str) else self._directory
            self._transport = SocketTransport(self.id, where, self._keys)
        if self._transport is not None:
            self.tensor_links = LinkTable(self.id, self._transport, self.clock, self._reception.on_transfer)
            self._transport.start(self._reception)
            self._beat_due = self.clock.now()
            self._beat()
        self.open = True

    async def stop_actors(self, drain: float = 0.0) -> None:
        """Start no more actors and stop those that are there, the last first, each with ``drain`` seconds for what waits;
        children are stopped by their supervisors. Idempotent; whoever waits may be cancelled, it goes on."""
        if self._retiring is None:
            work = self._retire(seconds("drain", drain))
            self._retiring = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        await asyncio.shield(self._retiring)

    async def stop(self) -> None:
        """``stop_actors``, then close the sockets. Idempotent; whoever waits may be cancelled, it goes on."""
        if self._stop is None:
            if not self.open:
                return
            self._stop = asyncio.get_running_loop().create_task(self._stopped(), context=contextvars.Context())
        await asyncio.shield(self._stop)

    async def _retire(self, drain: float) -> None:
        for life in reversed(list(self.lives.current.values())):
            if life.address.name != SYSTEM and not self.lives.owned_here(life):
                await self.lives.end(life, STOPPED, drain=drain)

    async def _stopped(self) -> None:
        await self.stop_actors()
        await self.monitors.flush()
        self.monitors.close()
        await self.lives.stop(SYSTEM)
        if self._timer is not None:
            self._timer.cancel()
        for peer in [*self.table.current.values(), self._self]:
            self.calls.abandon(peer, NodeDown(f"this node ({self.id}) stopped"), wanted=True)
        self.calls.close()
        if self.last_words is not None:
            await self.last_words()
        await asyncio.sleep(0)  # answers of the stopped actors leave with this tick
        if self._transport is not None:
            self.tensor_links.close()
            self._transport.close()
        self.open = False
        self.close("it was stopped")

    def close(self, why: str) -> None:
        """Ask whoever runs this node to stop it."""
        if not self.closed.is_set():
            self.farewell = why
            self.closed.set()

    # ---- actors

    async def spawn(
        self,
        actor: Actor | type[Actor] | str,
        *,
        name: str,
        on: str = "",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        mailbox: int = MAILBOX,
        patience: float = CALL_TIMEOUT,
        owner: Address | None = None,
        restarts: int = 0,
    ) -> Ref:
        """Start an actor under a name that is free, and return a reference to this life.

        actor: an instance (on this node only), a class, or its import name "module:Qualname". on: a node, this one if empty.
        args, kwargs: for the class; on another node typed by the annotations of its ``__init__``. mailbox: messages in
        each lane. patience: seconds until another node's answer. owner: an actor that this one does not outlive. restarts:
        to be shown. An error in the class or ``on_start`` is raised here; as RemoteError when it came from another node.
        """
        request = Spawn(actor, check_name(name), args, kwargs or {}, mailbox, owner, restarts)
        patience = seconds("patience", patience)
        return await (request.here(self) if on in ("", self.name) else request.elsewhere(self, on, patience))

    async def stop_actor(self, ref: Ref, *, drain: float = 5.0) -> None:
        """End an actor anywhere in order: it takes nothing new, handles what waits (``drain`` seconds at most), runs
        ``on_stop``; returns when it is over. Also when it is over already; raises NoSuchActor for a name that nobody has,
        NodeDown, RemoteError with what ``on_stop`` raised."""
        await end_anywhere(self, ref.address, seconds("drain", drain))

    async def kill_actor(self, ref: Ref) -> None:
        """End an actor anywhere at once, without ``on_stop``. Raises as ``stop_actor`` does."""
        await end_anywhere(self, ref.address, None)

    async def despawn(self, name: str) -> None:
        """Stop an actor of this node; what waits for it fails with ActorDied. Raises NoSuchActor; what ``on_stop`` does."""
        await self.lives.stop(name)

    def ref(self, address: str, actor: type[Actor] | None = None) -> Ref:
        """``node/actor`` (follows the current life), ``node/actor#3`` or ``node/actor#3.1`` (``ref.py``). With ``actor``,
        answers are decoded by its annotations."""
        return Ref(self, parse_address(address), actor)

    def current_incarnation(self, node: str) -> int:
        if node == self.name:
            return self.incarnation
        peer = self.table.current.get(node)
        return peer.incarnation if peer is not None else 0

    def call(
        self, target: Address, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any], patience: float, returns: Any
    ) -> Coroutine[Any, Any, Any]:
        """What ``Ref`` does; see there."""
        return self.calls.call(target, endpoint, args, kwargs, patience, returns)

    def stream(
        self, target: Address, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any], patience: float, returns: Any
    ) -> Stream:
        """What ``Ref`` does; see there."""

        def opener(patience: float) -> Inlet:
            return self.calls.streams.open(self._route(target), target, endpoint, args, kwargs, patience, returns)

        return Stream(opener, seconds("timeout", patience))

    def cast(self, target: Address, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What ``Ref`` does; see there."""
        self.calls.cast(target, endpoint, args, kwargs)

    # ---- peers

    def peers(self) -> dict[str, Peer]:
        """Nodes that are up, by name."""
        return {name: peer for name, peer in self.table.current.items() if not peer.lost}

    def monitor(self, node: str | Ref, on_down: OnDown) -> Callable[[], None]:
        """Call ``on_down`` once when the node's, or the actor's, life is over; soon, if it is. Returns what undoes this."""
        if isinstance(node, Ref):
            return self.monitors.watch(node.address, on_down)
        return self.table.monitor(node, on_down)

    def link(self, node: str) -> Link:
        """The one sender to the node's current life. Raises NodeDown."""
        peer = self._self if node == self.name else self.table.current.get(node)
        if self._transport is None:
            raise NodeDown(f"node {self.id} does not listen, and so has no links")
        if peer is None or peer.lost:
            raise NodeDown(self.table.why_down(node))
        return self.tensor_links.link(peer.id)

    def on_arrival(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back whenever a node has become known. Returns what undoes this."""
        self.table.arrivals.append(callback)
        return lambda: self.table.arrivals.remove(callback)

    def on_link(self, kind: Traffic, receive: OnLink) -> None:
        """Register what gets link traffic of a class: ``receive(sender node, header, buffers)``, on the loop.

        Buffers are read-only, and stay as they are as long as something refers to them.
        """
        self._reception.links[kind] = receive

    def join(self, head: PeerId, endpoint: str) -> None:
        """Become a worker of ``head``: obey its address book, stop when it is gone."""
        self.head = head
        self.greet(head, endpoint)

    def announce_ready(self) -> None:
        """Tell the head that the entry function has returned."""
        assert self.head is not None, "only a node that joined a head is awaited"
        self.tell(self.table.current[self.head.name], [envelope.READY])

    def known(self, peer: PeerId) -> Peer | None:
        """The peer if this is its current life; this node itself where it talks to itself by message."""
        return self._self if self._encode_local and peer == self.id else self.table.find(peer)

    def fail_calls(self, peer: Peer, cause: str) -> None:
        """End all calls to and from a life of a node that is over, or as good as."""
        self.calls.abandon(peer, NodeDown(f"node {peer.id} is down: {cause}"), wanted=self.leaving)
        if self._transport is not None:
            self.tensor_links.drop(peer.id, f"node {peer.id} is down: {cause}")

    def declare_down(self, down: Down) -> None:
        """Fence a life of a node: its calls fail, its monitors fire, nothing of it is let in any more."""
        peer = self.table.find(PeerId(down.node, down.incarnation))
        if peer is not None:
            if self._transport is not None:
                self._transport.disconnect(peer.id)
            self.fail_calls(peer, down.cause)
        self.table.remove(down)

    def recheck(self, peer: Peer) -> None:
        """Begin to watch anew a peer that was reported unreachable."""
        if self._transport is not None:
            self._transport.recheck(peer.id)

    def tell(self, peer: Peer, message: list[Any]) -> None:
        """Send a system message; a peer that cannot take it is noticed by other means."""
        with contextlib.suppress(PeerGone, QueueFull):
            self._send(peer, pack(message), [])

    # ---- routing

    def _route(self, target: Address) -> Peer | Cell:
        if target.node == self.name:
            if target.incarnation not in (0, self.incarnation):
                raise NodeDown(f"{target} is gone; node {self.name} is in incarnation {self.incarnation}")
            return self._self if self._encode_local else self.lives.find(target.key)
        peer = self.table.current.get(target.node)
        if peer is None or peer.lost or (target.incarnation and target.incarnation != peer.id.incarnation):
            raise NodeDown(self.table.why_down(target.node, target.incarnation))
        return peer

    def _send(self, peer: Peer, body: bytes, buffers: list[Buffer]) -> None:
        if peer is self._self:
            views = [memoryview(bytes(buffer)) for buffer in buffers]  # frozen: what the sender changes now is not seen
            self._loop.call_soon(self._reception.on_message, self.id, body, views)
        elif peer.lost or self._transport is None:
            raise PeerGone(f"node {peer.id} is not connected")
        elif buffers and (placed := self.tensor_links.place(peer.id, buffers)) is not None:
            self._transport.send(peer.id, body, placed.frames, placed.places)
            self.tensor_links.lend(peer.id, placed)
        else:
            self._transport.send(peer.id, body, buffers)

    def greet(self, peer: PeerId, endpoint: str) -> Peer:
        """Make a node known and tell it where this one listens. Its older life, if known, is over."""
        assert self._transport is not None, "a node that does not listen meets nobody"
        self._transport.connect(peer, endpoint)
        if (known := self.table.current.get(peer.name)) is not None:
            self.declare_down(Down(known.id.name, known.incarnation, f"replaced by incarnation {peer.incarnation}"))
        met = Peer(peer, endpoint, self.clock.now())
        self.table.add(met)
        self.tell(met, [envelope.HELLO, self._transport.endpoint])
        return met

    def _beat(self) -> None:
        """Heartbeats come from the event loop itself: a node whose loop hangs falls silent."""
        now = self.clock.now()
        self.lag, self._beat_due = max(0.0, now - self._beat_due), now + self._interval
        self._timer = self.clock.call_at(self._beat_due, self._beat)
        for peer in self.table.current.values():
            self.calls.streams.renew(peer)
            end_orphans(peer, now)
        self.send_heartbeat(self.lag)

    def send_heartbeat(self, lag: float = 0.0) -> None:
        """Tell every peer that this loop runs, how it fares, and the application's payload."""
        vitals = encode(measure(self.lives.cells.values(), self.clock.now(), lag), Sink())
        try:
            body = pack([envelope.HEARTBEAT, vitals, encode(self.heartbeat(), Sink())])
        except Exception:
            log.exception("the heartbeat payload of %s cannot be made", self.id)
            body = pack([envelope.HEARTBEAT, vitals, {}])
        for peer in list(self.table.current.values()):
            if self._transport is not None and not peer.lost:
                with contextlib.suppress(PeerGone, QueueFull):
                    self._transport.send_pulse(peer.id, body)
            self.calls.confirm(peer)

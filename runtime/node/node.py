"""A node: the actors of one process, and the nodes it talks to.

Owns what an application may ask of it, its start and its end. Everything else is done by its parts (``parts.py``). Which
nodes are declared down, and why, is decided by the head (``cluster.ClusterHead``); a node on its own only knows that a
connection broke.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from ...policies.measures import Measure
from ...transport.address import PeerId, check_name
from ...transport.clock import Clock
from ...transport.curve import NodeKeys
from ...transport.device_memory import DeviceMemory
from ...transport.handshake import SPOKEN, own_release
from ...transport.interface import Transport
from ...transport.link import Link
from ...transport.link_table import LinkTable
from ...transport.nccl_link import Nccl
from ...transport.sockets import SocketTransport
from ...transport.wire import Traffic
from ..actor.actor import MAILBOX, A, Actor, OnLink, PeerInfo
from ..actor.ref import CALL_TIMEOUT, HasRef, Ref
from ..base.address import NODE_SERVICE, Address, parse_address
from ..base.clock import LoopClock, seconds
from ..base.down import Down, OnDown
from ..base.errors import NodeDown
from ..base.last_resort import log_as_main
from ..base.node_view import NodeRelease, NodeView, RefusedRelease, measures
from ..tracing.message_log import MessageLog
from .head_follower import HeadState
from .lifecycle import LocalActors
from .links import Links
from .membership import Membership
from .parts import NodeParts, NodeState
from .peering import Peering
from .peers import Peer, PeerTable
from .service import MAILBOX as SERVICE_MAILBOX
from .spawning import SpawnRequest


class Node:
    """See the module.

    listen: True is a socket file in ``directory`` (mode 0700, a fresh one if None); "tcp://HOST:PORT" (port 0: any) is for
    peers elsewhere, with ``keys`` unless HOST is 127.0.0.1; False is none: actors of this process only. membership: of a
    head, its say in who belongs to the cluster. legacy: what lives of this process leave to the next one, by name; None:
    none follows.
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
        message_log: Path | str | None = None,
        membership: Membership | None = None,
        legacy: dict[str, Any] | None = None,
    ) -> None:
        self.id = PeerId(check_name(name), incarnation)
        self.heartbeat: Callable[[], dict[str, Any]] = dict  # payload of heartbeats: plain data
        self.table = PeerTable()
        self.dropped: Counter[str] = Counter()  # received messages that were not let in, by reason
        self.dismissed = asyncio.Event()  # the head has ordered this node to stop
        self.closed = asyncio.Event()  # set when this node must stop, or its head is gone
        self.farewell = ""  # why it was closed
        self.legacy = legacy
        self.last_words: Callable[[], Awaitable[None]] | None = None  # what is to be said when the actors have stopped
        self._directory = directory
        self._listen = listen
        self._keys = keys
        self._transport = transport
        self._clock = clock
        self._encode_local = encode_local
        self._interval = heartbeat_interval
        self._log_path, self._membership = None if message_log is None else Path(message_log), membership
        self._receivers: dict[Traffic, OnLink] = {}
        self._parts: NodeParts | None = None
        self._stop: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.id.name

    @property
    def incarnation(self) -> int:
        return self.id.incarnation

    @property
    def endpoint(self) -> str:
        """The endpoint at which other nodes reach this one; empty when it does not listen."""
        return self._transport.endpoint if self._transport is not None else ""

    @property
    def parts(self) -> NodeParts:
        """The parts of the node. Raises RuntimeError before ``start``."""
        if self._parts is None:
            raise RuntimeError(f"node {self.id} was not started; await its start() first")
        return self._parts

    @property
    def clock(self) -> Clock:
        return self.parts.clock

    @property
    def actors(self) -> LocalActors:
        """The actors of this node, by name."""
        return self.parts.actors

    @property
    def links(self) -> Links:
        """Between actors."""
        return self.parts.links

    @property
    def peering(self) -> Peering:
        """The part that connects this node to others and disconnects it."""
        return self.parts.peering

    @property
    def head(self) -> PeerId | None:
        """The head that it has joined."""
        return self.parts.peering.head

    @property
    def head_state(self) -> HeadState:
        """Its bond with a head: "led", "headless" (it goes on without one, for ``orphan_grace``), or "alone"."""
        return self.parts.peering.follower.state

    @property
    def life_over(self) -> bool:
        """The head has declared this life down, or was lost to it, and so it was closed: its process may enter the cluster
        again, as the next life (``joining.enter``), with what it keeps."""
        return self._parts is not None and self.parts.peering.follower.life_over

    @property
    def open(self) -> bool:
        """Messages are let in."""
        return self._parts is not None and self._parts.inbound.open

    @property
    def stopping(self) -> bool:
        """No actor is started any more."""
        return self._parts is not None and self._parts.actors.retiring

    @property
    def dead_letters(self) -> Counter[str]:
        """Casts, answers and link messages that reached no receiver, by cause."""
        return self.parts.dead.counts

    # ---- life

    async def start(self) -> None:
        """Once. Raises RuntimeError; AddressError, KeysError for an address that it cannot listen at."""
        if self._parts is not None:
            raise RuntimeError(f"node {self.id} was started before; make another")
        log_as_main()  # also where asyncio.run, a notebook or a test runs the loop
        messages = MessageLog(self._log_path, str(self.id)) if self._log_path is not None else None
        if self._transport is None and self._listen:
            where = self._listen if isinstance(self._listen, str) else self._directory
            self._transport = SocketTransport(self.id, where, self._keys)
        self._parts = parts = NodeParts(
            self,
            NodeState(self.table, self._receivers, self.dropped, self.dismissed),
            self._clock if self._clock is not None else LoopClock(),
            self._transport,
            self._membership,
            messages,
            self.close,
            lambda: self.heartbeat(),
            encode_local=self._encode_local,
            heartbeat_interval=self._interval,
        )
        await parts.spawner.here(SpawnRequest(parts.service(), NODE_SERVICE, (), {}, SERVICE_MAILBOX))
        if self._transport is not None:
            self._transport.start(parts.inbound)
            parts.heartbeats.beat()
        parts.inbound.open = True

    async def stop_actors(self, drain: float = 0.0) -> None:
        """Start no more actors and stop the existing ones, the last first, each with ``drain`` seconds for what waits;
        children are stopped by their supervisors. Idempotent; continues if the waiting task is cancelled."""
        if self._parts is not None:
            await self._parts.actors.retire(seconds("drain", drain))

    async def stop(self) -> None:
        """Call ``stop_actors``, then close the sockets. Idempotent; it continues if the waiting task is cancelled."""
        if self._stop is None:
            if not self.open:
                return
            self._stop = asyncio.get_running_loop().create_task(self._stopped(), context=contextvars.Context())
        await asyncio.shield(self._stop)

    async def _stopped(self) -> None:
        parts = self.parts
        await self.stop_actors()
        await parts.monitors.flush()
        parts.monitors.close()
        await parts.actors.stop(NODE_SERVICE)
        parts.fail_all(NodeDown(f"this node ({self.id}) stopped"))
        if self.last_words is not None:
            await self.last_words()
        await asyncio.sleep(0)  # answers of the stopped actors leave with this tick
        if self._transport is not None and parts.tensor_links is not None:
            parts.tensor_links.close()
            self._transport.close()
        parts.inbound.open = False
        self.close("it was stopped")

    def close(self, why: str) -> None:
        """Ask the program that runs this node to stop it."""
        if not self.closed.is_set():
            self.farewell = why
            self.closed.set()

    # ---- actors

    @overload
    async def spawn(
        self,
        actor: A | type[A],
        *,
        name: str,
        on: str = ...,
        args: Sequence[Any] = ...,
        kwargs: Mapping[str, Any] | None = ...,
        mailbox: int = ...,
        patience: float = ...,
        owner: Address | None = ...,
        restarts: int = ...,
    ) -> A: ...
    @overload
    async def spawn(
        self,
        actor: str,
        *,
        name: str,
        on: str = ...,
        args: Sequence[Any] = ...,
        kwargs: Mapping[str, Any] | None = ...,
        mailbox: int = ...,
        patience: float = ...,
        owner: Address | None = ...,
        restarts: int = ...,
    ) -> Ref: ...
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
    ) -> Any:
        """Start an actor under a name that is free, and return a reference to this life: a ``Ref``, typed as the class.

        actor: an instance (on this node only), a class, or its import name "module:Qualname". on: a node, this one if empty.
        args, kwargs: for the class; on another node typed by the annotations of its ``__init__``. mailbox: messages in
        each lane. patience: seconds until another node's answer. owner: an actor that this one does not outlive. restarts:
        to be shown. An error in the class or ``on_start`` is raised here; as RemoteError when it came from another node.
        """
        request = SpawnRequest(actor, check_name(name), args, kwargs or {}, mailbox, owner, restarts)
        patience, spawner = seconds("patience", patience), self.parts.spawner
        return await (spawner.here(request) if on in ("", self.name) else spawner.elsewhere(request, on, patience))

    async def stop_actor(self, ref: HasRef, *, drain: float = 5.0) -> None:
        """End an actor anywhere in order: it takes nothing new, handles what waits (``drain`` seconds at most), runs
        ``on_stop``; returns when it is over. Also when it is over already; raises NoSuchActor for a name that no actor has,
        NodeDown, RemoteError with what ``on_stop`` raised."""
        await self.parts.spawner.end(ref.ref.address, seconds("drain", drain))

    async def kill_actor(self, ref: HasRef) -> None:
        """End an actor anywhere at once, without ``on_stop``. Raises as ``stop_actor`` does."""
        await self.parts.spawner.end(ref.ref.address, None)

    async def despawn(self, name: str) -> None:
        """Stop an actor of this node; what waits for it fails with ActorDied. Raises NoSuchActor; what ``on_stop`` does."""
        await self.actors.stop(name)

    @overload
    def ref(self, address: str) -> Ref: ...
    @overload
    def ref(self, address: str, actor: type[A]) -> A: ...
    def ref(self, address: str, actor: type[Actor] | None = None) -> Any:
        """Return a reference to ``node/actor`` (follows the current life), ``node/actor#3`` or ``node/actor#3.1``
        (``ref.py``). With ``actor``, answers are decoded by its annotations, and type checkers know its endpoints.
        """
        return Ref(self.parts.calls, parse_address(address), actor)

    def post(self, actor: Address, work: Callable[[], Awaitable[None]]) -> None:
        """Run something in the turn of that life of an actor of this node, ahead of normal messages; if it is not over."""
        self.actors.post(actor, work)

    def end(self, actor: Address, cause: str) -> None:
        """Begin the end of that life of an actor of this node, for a cause of its own. Raises ActorDied when it is over."""
        self.actors.end(self.actors.of(actor), cause)

    def inspect(self) -> NodeView:
        """Return the current state of actors, mailboxes and peers."""
        return self.parts.view()

    async def inspect_peer(self, name: str) -> NodeView:
        """Return the same state of another node. Raises NodeDown."""
        service = Address(name, NODE_SERVICE)
        view: NodeView = await self.parts.calls.call(service, "inspect", (), {}, CALL_TIMEOUT, NodeView)
        return view

    def metrics(self) -> list[Measure]:
        """Return ``inspect`` as families of numbers, for Prometheus."""
        return measures(self.inspect())

    # ---- names in the cluster

    async def register(self, name: str, ref: HasRef, *, wait: float = 0.0) -> None:
        """Give that life of an actor (without a number: the current one) a name in the whole cluster, until it is over.

        wait: seconds for an earlier holder to go. Raises ValueError when another actor holds the name, NoSuchActor; as all
        four, NodeDown when the head is gone.
        """
        await self.parts.names.register(name, ref.ref, wait=wait)

    async def unregister(self, name: str, ref: HasRef | None = None) -> bool:
        """Free a name; with ``ref`` only if that life holds it. Whether it was held so."""
        return await self.parts.names.unregister(name, None if ref is None else ref.ref)

    @overload
    async def lookup(self, name: str, *, wait: float = 0.0) -> Ref: ...
    @overload
    async def lookup(self, name: str, actor: type[A], *, wait: float = 0.0) -> A: ...
    async def lookup(self, name: str, actor: type[Actor] | None = None, *, wait: float = 0.0) -> Any:
        """Return the life that holds a name. wait: seconds for one to come, as while it is restarted. Raises NoSuchActor."""
        return await self.parts.names.lookup(name, actor, wait=wait)

    async def names(self) -> dict[str, Ref]:
        """Return all names of the cluster."""
        return await self.parts.names.names()

    # ---- peers

    def peers(self) -> dict[str, Peer]:
        """Return the nodes that are up, by name."""
        return {name: peer for name, peer in self.table.current.items() if not peer.lost}

    def releases(self) -> list[NodeRelease]:
        """Return the release of this node and of each that is up."""
        found = [NodeRelease(self.name, own_release(), str(SPOKEN))]
        for name, peer in sorted(self.peers().items()):
            said = self._transport.greeting(peer.id) if self._transport is not None else None
            found.append(NodeRelease(name, said.release, str(said.versions)) if said else NodeRelease(name, "", ""))
        return found

    def refused_releases(self) -> list[RefusedRelease]:
        """Return the last nodes that were refused because their release is too far away."""
        refused = self._transport.refused() if self._transport is not None else []
        return [RefusedRelease(one.name, one.release, str(one)) for one in refused]

    def monitor(self, node: str | HasRef, on_down: OnDown) -> Callable[[], None]:
        """Call ``on_down`` once when the node's, or the actor's, life is over; soon, if it is. Returns what undoes this."""
        if isinstance(node, str):
            return self.table.monitor(node, on_down)
        return self.parts.monitors.watch(node.ref.address, on_down)

    def link(self, node: str) -> Link:
        """Return the one sender to the node's current life. Raises NodeDown."""
        links = self.tensor_links
        peer = self.parts.itself if node == self.name else self.table.current.get(node)
        if peer is None:
            self.seek(node)
        if peer is None or peer.lost:
            raise NodeDown(self.table.why_down(node))
        if not peer.met and not peer.itself:
            self.parts.sender.meet(peer)
        return links.link(peer.id)

    def offer_device(self, memory: DeviceMemory, nccl: Nccl | None = None) -> None:
        """Let this node's tensors travel through a device's memory, to and from nodes that use it; by ``nccl`` to others.

        Raises DeviceMemoryError if there is no room for slots; the other ways are used even so.
        """
        self.tensor_links.offer_device(memory, nccl)

    @property
    def tensor_links(self) -> LinkTable:
        """All links of this node. Raises NodeDown for one that does not listen."""
        if (links := self.parts.tensor_links) is None:
            raise NodeDown(f"node {self.id} does not listen, and so has no links")
        return links

    def on_arrival(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back whenever a node has become known. Returns what undoes this."""
        self.table.arrivals.append(callback)
        return lambda: self.table.arrivals.remove(callback)

    def on_heartbeat(self, callback: Callable[[PeerInfo], None]) -> Callable[[], None]:
        """Call back with each heartbeat of a peer, which has what it said by then. Returns what undoes this.

        A node that listens so meets every other one; others meet when they have something to say.
        """
        self.table.heartbeats.append(callback)
        if len(self.table.heartbeats) == 1 and self._parts is not None:
            self.parts.peering.meet_all()
        return lambda: self.table.heartbeats.remove(callback)

    def send_heartbeat(self) -> None:
        """Send a heartbeat now, beside the regular ones, to every node that was met: its payload is news."""
        self.parts.heartbeats.send()

    def on_headless(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when this member has lost its head and goes on without. Returns what undoes this."""
        callbacks = self.parts.peering.follower.on_headless
        callbacks.append(callback)
        return lambda: callbacks.remove(callback)

    def on_adopted(self, callback: Callable[[int], None]) -> Callable[[], None]:
        """Call back with the head's epoch when one has taken this member back: a later head, or the same, which has kept
        what it knew. Calls that were open had failed. Returns what undoes this."""
        callbacks = self.parts.peering.follower.on_adopted
        callbacks.append(callback)
        return lambda: callbacks.remove(callback)

    def on_link(self, kind: Traffic, receive: OnLink) -> None:
        """Register what gets link traffic of a class: ``receive(sender node, header, buffers)``, on the loop.

        Buffers are read-only, and stay as they are as long as something refers to them.
        """
        self._receivers[kind] = receive

    def current_incarnation(self, node: str) -> int:
        """Return the node's incarnation; 0 when it is not up."""
        return self.parts.calls.current_incarnation(node)

    def seek(self, node: str) -> None:
        """Ask the head, if this node has one, where a node is that is wanted and not known here."""
        self.parts.peering.seek(node)

    def cut_off(self) -> Mapping[str, int]:
        """Return the nodes that this one does not reach while the head reaches both, each with its life.

        To this node they are down. It meets the same life again once it reaches it.
        """
        return self.peering.cuts.lives()

    def last_down(self, node: str) -> Down | None:
        """Return the end of that node's last life, if one has ended."""
        return self.table.last_down.get(node)

"""The actor base class: a class with ``@endpoint`` methods, and the services that its node offers it.

Owns the base class and its hooks. Declaring endpoints is ``endpoint.py``, running an actor ``instance.py``, reaching it
``ref.py``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, overload

from ...transport.address import PeerId
from ...transport.clock import Clock
from ...transport.device_memory import DeviceMemory
from ...transport.link import Link
from ...transport.nccl_link import Nccl
from ...transport.wire import Traffic
from ..base.address import Address
from ..base.down import Down, OnDown
from ..base.node_view import NodeRelease, NodeView, RefusedRelease
from .endpoint import RESERVED, ActorEndpoint, EndpointMark
from .ref import CALL_TIMEOUT, HasRef, Ref

log = logging.getLogger("blockwright.runtime")
MAILBOX = 1024  # messages in each lane of an actor
A = TypeVar("A", bound="Actor")  # to type checkers a reference is the actor (``typed_endpoint.py``)
OnLink = Callable[[str, bytes, list[memoryview]], None]  # sender node, header, buffers


class PeerInfo(Protocol):
    """Another node that is up."""

    id: PeerId
    endpoint: str
    heard: float  # when its last message came, by this node's clock
    heartbeat_at: float | None  # when its last heartbeat came
    lost: bool  # the connection broke; what it means is not decided yet
    payload: dict[str, Any]  # of its last heartbeat: what its application adds

    @property
    def incarnation(self) -> int: ...


class ActorLinks(Protocol):
    """Monitors and links of the actors of a node; ``actor`` is the one that sets them."""

    def monitor(self, actor: Address, target: Address) -> Callable[[], None]: ...

    def link(self, actor: Address, target: Address) -> None: ...

    def unlink(self, actor: Address, target: Address) -> None: ...


class ActorNode(Protocol):
    """The services that a node offers its actors. ``node.Node`` is documented there and is the only implementation."""

    heartbeat: Callable[[], dict[str, Any]]
    legacy: dict[str, Any] | None

    @property
    def id(self) -> PeerId: ...
    @property
    def name(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def stopping(self) -> bool: ...
    @property
    def life_over(self) -> bool: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def links(self) -> ActorLinks: ...
    @property
    def dead_letters(self) -> Counter[str]: ...
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
        on: str = "",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        mailbox: int = MAILBOX,
        patience: float = CALL_TIMEOUT,
        owner: Address | None = None,
        restarts: int = 0,
    ) -> Ref: ...
    async def stop_actor(self, ref: HasRef, *, drain: float = 5.0) -> None: ...
    async def kill_actor(self, ref: HasRef) -> None: ...
    async def despawn(self, name: str) -> None: ...
    def post(self, actor: Address, work: Callable[[], Awaitable[None]]) -> None: ...
    def end(self, actor: Address, cause: str) -> None: ...
    @overload
    def ref(self, address: str) -> Ref: ...
    @overload
    def ref(self, address: str, actor: type[A]) -> A: ...
    async def register(self, name: str, ref: HasRef, *, wait: float = 0.0) -> None: ...
    async def unregister(self, name: str, ref: HasRef | None = None) -> bool: ...
    @overload
    async def lookup(self, name: str, *, wait: float = 0.0) -> Ref: ...
    @overload
    async def lookup(self, name: str, actor: type[A], *, wait: float = 0.0) -> A: ...
    async def names(self) -> dict[str, Ref]: ...
    def releases(self) -> list[NodeRelease]: ...
    def refused_releases(self) -> list[RefusedRelease]: ...
    def peers(self) -> Mapping[str, PeerInfo]: ...
    def current_incarnation(self, node: str) -> int: ...
    def seek(self, node: str) -> None: ...
    def last_down(self, node: str) -> Down | None: ...
    def cut_off(self) -> Mapping[str, int]: ...
    def monitor(self, node: str | HasRef, on_down: OnDown) -> Callable[[], None]: ...
    def on_arrival(self, callback: Callable[[], None]) -> Callable[[], None]: ...
    def on_heartbeat(self, callback: Callable[[PeerInfo], None]) -> Callable[[], None]: ...
    def send_heartbeat(self) -> None: ...
    def link(self, node: str) -> Link: ...
    def on_link(self, kind: Traffic, receive: OnLink) -> None: ...
    def offer_device(self, memory: DeviceMemory, nccl: Nccl | None = None) -> None: ...
    def inspect(self) -> NodeView: ...
    async def inspect_peer(self, name: str) -> NodeView: ...


class Crash(Exception):
    """Raised by an endpoint, ends its actor: the caller gets it as RemoteError, all others ActorDied with the cause."""


class Actor:
    """Base of all actors. Messages are handled one at a time, in order, each lane for itself.

    An endpoint that raises answers its caller with RemoteError; the actor goes on, unless it raised ``Crash`` or one of
    ``crashes_on`` (``(Exception,)`` is Erlang's habit). ``node`` and ``ref``, pinned to this life, are set before
    ``on_start``.
    """

    endpoints: ClassVar[dict[str, ActorEndpoint]] = {}
    crashes_on: ClassVar[tuple[type[Exception], ...]] = ()
    most_concurrent: ClassVar[int] = 1024  # messages beside the mailbox: concurrent endpoints and streams
    stop_limit: float = 30.0  # seconds that ``on_stop`` may take
    node: ActorNode
    ref: Ref
    _living = False  # see ``begin_life``

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        table = dict(cls.endpoints)
        for name, member in vars(cls).items():
            table.pop(name, None)  # overridden without the decorator: no endpoint any more
            if isinstance(mark := getattr(member, "__endpoint__", None), EndpointMark):
                if name in RESERVED or name.startswith("_"):
                    raise TypeError(f"endpoint {cls.__qualname__}.{name}: this name is reserved; choose another")
                table[name] = ActorEndpoint(name, member, mark)
        cls.endpoints = table

    async def on_start(self) -> None:
        """Prepare the actor before its first message; an error here fails ``spawn``.

        Messages sent meanwhile wait, also the actor's own.
        """

    async def on_stop(self) -> None:
        """Clean up after the last message. Called for every end of the actor except a kill."""

    async def on_down(self, down: Down) -> None:
        """Handle the end of an actor that this one monitors. Called in turn like a message, ahead of normal ones."""
        log.warning("actor %s monitors %s, which ended (%s), and has no on_down", self.ref, down.ref, down.cause)

    def missing(self) -> dict[str, str]:
        """Return the children that should be alive under this actor and are not, with the cause. ``inspect`` shows it for
        supervisors.
        """
        return {}

    def monitor(self, ref: HasRef) -> Callable[[], None]:
        """Have ``on_down`` called once when that life is over, whatever the cause. Returns what undoes this."""
        return self.node.links.monitor(self.ref.address, ref.ref.address)

    def link(self, ref: HasRef) -> None:
        """Tie two lives together: when either dies abnormally (any end but an orderly stop), so does the other."""
        self.node.links.link(self.ref.address, ref.ref.address)

    def unlink(self, ref: HasRef) -> None:
        """Undo ``link``; the reference is the one that it was given."""
        self.node.links.unlink(self.ref.address, ref.ref.address)


def begin_life(actor: Actor, node: ActorNode, ref: Ref) -> None:
    """Begin a life on this node, under this reference."""
    actor.node = node
    actor.ref = ref
    actor._living = True


def end_life(actor: Actor) -> None:
    """End the life; the actor may live again, elsewhere."""
    actor._living = False


def lives(actor: Actor) -> bool:
    """Between the two."""
    return actor._living

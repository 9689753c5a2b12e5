"""Spawning and stopping actors, on this node and on others.

Owns what a spawn is given (an instance, a class, an import name), how it is asked of another node, and what becomes of a
spawn whose answer has no waiting caller any more: the actor is ended. Lives are ``lifecycle``'s.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..actor.actor import Actor, ActorNode, begin_life, lives
from ..actor.ref import EndpointCaller, Ref
from ..base.address import NODE_SERVICE, Address, parse_address
from ..base.clock import LONGEST
from ..base.errors import DeadlineExceeded, NoSuchActor, remote_error
from ..base.names import import_name
from .actor_classes import check_arguments, load_class, portable, reconstruct
from .lifecycle import ActorLife, LocalActors
from .links import Links

_tickets = itertools.count(1)


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """A request to ``Node.spawn``."""

    actor: Actor | type[Actor] | str
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    mailbox: int
    owner: Address | None = None
    restarts: int = 0

    def make(self) -> Actor:
        """Make the instance, on its own node. Raises TypeError, ValueError, what its class raises."""
        actor = self.actor
        if isinstance(actor, str):
            actor = reconstruct(load_class(actor), self.args, self.kwargs)
        elif isinstance(actor, type) and issubclass(actor, Actor):
            actor = actor(*self.args, **self.kwargs)
        elif not isinstance(actor, Actor):
            raise TypeError(f"actor={actor!r} is neither a subclass of Actor, nor an instance of one, nor its import name")
        elif self.args or self.kwargs:
            raise ValueError(f"actor {self.name!r} is an instance already; give its class with args and kwargs")
        elif lives(actor):
            raise ValueError(f"this instance lives already, as {actor.ref}; give its class, or another instance")
        for declared in actor.endpoints.values():
            declared.check_types()
        return actor


class Spawner:
    """The spawner of one node. ``node`` is the object that its actors get as ``node``."""

    def __init__(self, node: ActorNode, actors: LocalActors, links: Links, caller: EndpointCaller) -> None:
        self._node = node
        self._actors = actors
        self._links = links
        self._caller = caller

    async def here(self, request: SpawnRequest, ticket: str = "") -> Ref:
        """Spawn the actor on this node. Raises TypeError, ValueError, NodeDown, ActorDied, what the class and its
        ``on_start`` raise.
        """
        life = await self._actors.start(
            request.make(),
            request.name,
            request.mailbox,
            self._bind,
            owner=request.owner,
            restarts=request.restarts,
            ticket=ticket,
        )
        return life.actor.ref

    def _bind(self, life: ActorLife) -> None:
        if life.owner is not None:
            self._links.own(life, life.owner)
        actor = life.actor
        begin_life(actor, self._node, Ref(self._caller, life.address, type(actor)))

    async def elsewhere(self, request: SpawnRequest, on: str, patience: float) -> Ref:
        """Ask node ``on``; ``patience``: seconds. Raises ValueError, EncodeError, and what a call does."""
        if isinstance(request.actor, Actor):
            raise ValueError(f"actor {request.name!r} exists in this process; give its class to start it on {on!r}")
        args, kwargs = portable(list(request.args)), portable(dict(request.kwargs))
        if isinstance(request.actor, type):
            check_arguments(request.actor, args, kwargs)
        path = request.actor if isinstance(request.actor, str) else import_name(request.actor)
        ticket = f"{self._node.id}-{next(_tickets)}"
        service = self._service(on)
        owner = str(request.owner) if request.owner is not None else ""
        asked = (path, request.name, args, kwargs, request.mailbox, owner, request.restarts, ticket)
        try:
            address = await self._caller.call(service, "spawn", asked, {}, patience, None)
        except (asyncio.CancelledError, DeadlineExceeded):
            # The answer may be on its way: then the cancellation finds no call, and this finds the actor.
            self._caller.cast(service, "discard", (request.name, ticket), {})
            raise
        return Ref(self._caller, parse_address(address), request.actor if isinstance(request.actor, type) else None)

    async def end(self, target: Address, drain: float | None) -> None:
        """End an actor anywhere: stop it in order or, without ``drain``, kill it."""
        if drain is not None and target.node == self._node.name and target.incarnation in (0, self._node.incarnation):
            # Not through the node service: one that stops itself would wait there for its own end.
            existed = await self._stop_here(target, drain)
        else:
            existed = await self._end_there(target, drain)
        if not existed:
            raise NoSuchActor(f"node {target.node} has no actor {target.name!r}")

    async def _stop_here(self, target: Address, drain: float) -> bool:
        try:
            return await self._actors.end_named(target.name, target.life, drain)
        except Exception as error:
            raise remote_error(error) from error

    async def _end_there(self, target: Address, drain: float | None) -> bool:
        arguments = (target.key,) if drain is None else (target.key, drain)
        service = self._service(target.node, target.incarnation)
        # Its own node bounds the end of an actor; that the node itself is alive is seen by others.
        existed: bool = await self._caller.call(service, "kill" if drain is None else "stop", arguments, {}, LONGEST, None)
        return existed

    def _service(self, node: str, incarnation: int = 0) -> Address:
        return Address(node, NODE_SERVICE, incarnation or self._caller.current_incarnation(node))

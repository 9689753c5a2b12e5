"""The node service: the actor through which other nodes spawn, stop, monitor and look up actors here.

Owns nothing but the tickets of spawns that were given up; it hands every request to the part of its node that answers it.
Every node has one, under a name that no application can take.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ...transport.address import check_name
from ..actor.actor import Actor
from ..actor.endpoint import endpoint
from ..base.address import parse_address
from ..base.clock import seconds
from ..base.node_view import NodeView
from .actor_classes import ClassLoader, construct
from .lifecycle import LocalActors
from .links import Links
from .monitors import Monitors
from .registry import Registry
from .spawning import Spawner, SpawnRequest

MAILBOX = 1 << 16
GIVEN_UP = 1024  # tickets remembered


class NodeService(Actor):
    """See the module."""

    most_concurrent = MAILBOX  # a look-up may wait for long

    def __init__(
        self,
        actors: LocalActors,
        spawner: Spawner,
        monitors: Monitors,
        links: Links,
        registry: Registry,
        view: Callable[[], NodeView],
    ) -> None:
        self._actors = actors
        self._spawner = spawner
        self._monitors = monitors
        self._links = links
        self._registry, self._view = registry, view
        self._given_up: OrderedDict[str, None] = OrderedDict()
        self._classes = ClassLoader()

    @endpoint(concurrent=True)
    async def spawn(
        self,
        what: str,
        name: str,
        args: list[Any],
        kwargs: dict[str, Any],
        mailbox: int,
        owner: str,
        restarts: int,
        ticket: str,
    ) -> str:
        """Address of the new life."""
        kind = await self._classes.load(what)
        if ticket in self._given_up:
            raise ValueError(f"this spawn of {name!r} was given up before it began")
        actor = construct(kind, args, kwargs)
        of = parse_address(owner) if owner else None
        request = SpawnRequest(actor, check_name(name), (), {}, mailbox, of, restarts)
        return str(await self._spawner.here(request, ticket))

    @endpoint
    async def discard(self, name: str, ticket: str) -> None:
        """End the actor, or keep it from starting, because the caller of this spawn does not know the outcome."""
        self._given_up[ticket] = None
        if len(self._given_up) > GIVEN_UP:
            self._given_up.popitem(last=False)
        life = self._actors.current.get(name)
        if life is not None and life.ticket == ticket:
            self._actors.end(life, "its spawner gave up")

    @endpoint(concurrent=True)
    async def stop(self, key: str, drain: float) -> bool:
        """Stop an actor; return True if it existed. Raises what its ``on_stop`` raised."""
        return await self._end(key, seconds("drain", drain))

    @endpoint(concurrent=True)
    async def kill(self, key: str) -> bool:
        """Kill an actor; return True if it existed."""
        return await self._end(key, None)

    async def _end(self, key: str, drain: float | None) -> bool:
        name, _, life = key.partition("#")
        return await self._actors.end_named(check_name(name), int(life or 0), drain)

    @endpoint(concurrent=True)
    async def inspect(self) -> NodeView:
        return self._view()

    @endpoint
    async def current(self, name: str) -> int:
        """Number of the actor's current life; 0 if it has none."""
        living = self._actors.living(name)
        return living.address.life if living is not None else 0

    @endpoint
    async def watch(self, watcher: str, number: int, key: str) -> list[Any]:
        return list(self._monitors.add(watcher, number, key))

    @endpoint
    async def unwatch(self, watcher: str, number: int) -> None:
        self._monitors.remove(watcher, number)

    @endpoint
    async def ended(self, number: int, life: int, cause: str) -> None:
        self._monitors.ended(number, life, cause)

    @endpoint
    async def tie(self, key: str, other: str) -> None:
        self._links.accept(key, other)

    @endpoint
    async def untie(self, key: str, other: str) -> None:
        self._links.release(key, other)

    @endpoint(concurrent=True)
    async def register(self, name: str, address: str, wait: float) -> str:
        return await self._registry.register(check_name(name), parse_address(address), wait)

    @endpoint
    async def unregister(self, name: str, address: str) -> bool:
        return self._registry.unregister(name, address)

    @endpoint(concurrent=True)
    async def lookup(self, name: str, wait: float) -> str:
        return await self._registry.lookup(name, wait)

    @endpoint
    async def names(self) -> dict[str, str]:
        return self._registry.names()

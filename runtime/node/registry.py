"""Names of the whole cluster: which life of which actor answers to a name.

Owns the table, kept by the head alone, so that it survives the loss of any worker; nobody keeps a copy, so that none can be
stale. An entry goes when its actor or node does. Only a later life of the same actor takes a name over, and whoever lets go
of a name can say of which life: neither an old registration nor an old withdrawal touches a successor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from blockwright.runtime.actor.actor import Actor
from blockwright.runtime.actor.ref import CALL_TIMEOUT, Address, Ref
from blockwright.runtime.base.clock import first_within, seconds
from blockwright.runtime.base.errors import NoSuchActor
from blockwright.runtime.node.monitors import SYSTEM
from blockwright.runtime.node.peers import Down
from blockwright.transport.address import PeerId, check_name

if TYPE_CHECKING:
    from blockwright.runtime.node.node import Node


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    address: Address
    undo: Callable[[], None]  # of its monitor


class Registry:
    """The table. Of all nodes' the head's is used."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._entries: dict[str, Entry] = {}
        self._changed: asyncio.Future[None] | None = None  # done when the table has changed; there while somebody waits

    async def register(self, name: str, address: Address, wait: float) -> str:
        """Empty; or the address that holds the name, still after ``wait`` seconds."""
        if not await self._until(wait, lambda: self._may_take(name, address)):
            return str(self._entries[name].address)
        if (old := self._entries.get(name)) is not None:
            if old.address == address:
                return ""
            old.undo()
        self._entries[name] = Entry(address, self._node.monitors.watch(address, partial(self._gone, name)))
        self._change()
        return ""

    def unregister(self, name: str, address: str) -> bool:
        """Whether the name was held, by that address unless it is empty; then it is free."""
        entry = self._entries.get(name)
        if entry is None or (address and str(entry.address) != address):
            return False
        entry.undo()
        self._remove(name)
        return True

    async def lookup(self, name: str, wait: float) -> str:
        """The address; empty if there was none within ``wait`` seconds."""
        found = await self._until(wait, lambda: name in self._entries)
        return str(self._entries[name].address) if found else ""

    def names(self) -> dict[str, str]:
        return {name: str(entry.address) for name, entry in self._entries.items()}

    def _may_take(self, name: str, address: Address) -> bool:
        if (entry := self._entries.get(name)) is None:
            return True
        held = entry.address
        same = (held.node, held.name) == (address.node, address.name)
        return same and (held.incarnation, held.life) <= (address.incarnation, address.life)

    def _gone(self, name: str, down: Down) -> None:
        """The life that holds the name is over; the monitor of an earlier holder was taken back."""
        self._remove(name)

    def _remove(self, name: str) -> None:
        del self._entries[name]
        self._change()

    def _change(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    async def _until(self, seconds: float, condition: Callable[[], bool]) -> bool:
        clock = self._node.clock
        until = clock.now() + seconds
        while not (held := condition()) and (left := until - clock.now()) > 0:
            if self._changed is None:
                self._changed = asyncio.get_running_loop().create_future()
            await first_within(clock, left, [self._changed])
        return held


class _Caller(Protocol):
    """What ``Naming`` needs of its node."""

    head: PeerId | None

    @property
    def name(self) -> str: ...
    def current_incarnation(self, node: str) -> int: ...
    def call(
        self, target: Address, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any], patience: float, returns: Any
    ) -> Awaitable[Any]: ...
    def ref(self, address: str, actor: type[Actor] | None = None) -> Ref: ...


class Naming:
    """The part of ``Node`` that asks the head's registry. All raise NodeDown when the head is gone."""

    async def register(self: _Caller, name: str, ref: Ref, *, wait: float = 0.0) -> None:
        """Give that life of an actor (without a number: the current one) a name in the whole cluster, until it is over.

        wait: seconds for an earlier holder to go. Raises ValueError when another actor holds the name, NoSuchActor.
        """
        address = ref.address
        if not address.life:
            system = Address(address.node, SYSTEM, address.incarnation or self.current_incarnation(address.node))
            life = await self.call(system, "current", (address.name,), {}, CALL_TIMEOUT, int)
            if not life:
                raise NoSuchActor(f"node {address.node} has no actor {address.name!r} to give the name {name!r}")
            address = Address(address.node, address.name, system.incarnation, life)
        wait = seconds("wait", wait)
        arguments = (check_name(name), str(address), wait)
        holder = await self.call(_registry(self), "register", arguments, {}, CALL_TIMEOUT + wait, str)
        if holder:
            raise ValueError(f"name {name!r} belongs to {holder}; choose another, or unregister it first")

    async def unregister(self: _Caller, name: str, ref: Ref | None = None) -> bool:
        """Free a name; with ``ref`` only if that life holds it. Whether it was held so."""
        arguments = (name, str(ref.address) if ref is not None else "")
        freed: bool = await self.call(_registry(self), "unregister", arguments, {}, CALL_TIMEOUT, bool)
        return freed

    async def lookup(self: _Caller, name: str, actor: type[Actor] | None = None, *, wait: float = 0.0) -> Ref:
        """The life that holds a name. wait: seconds for one to come, as while it is restarted. Raises NoSuchActor."""
        wait = seconds("wait", wait)
        address = await self.call(_registry(self), "lookup", (name, wait), {}, CALL_TIMEOUT + wait, str)
        if not address:
            raise NoSuchActor(f"nobody in the cluster is registered as {name!r}")
        return self.ref(address, actor)

    async def names(self: _Caller) -> dict[str, Ref]:
        """All names of the cluster."""
        table = await self.call(_registry(self), "names", (), {}, CALL_TIMEOUT, dict[str, str])
        return {name: self.ref(address) for name, address in table.items()}


def _registry(node: _Caller) -> Address:
    home = node.head.name if node.head is not None else node.name
    return Address(home, SYSTEM, node.current_incarnation(home))

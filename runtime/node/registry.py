"""The cluster-wide registry: names for actors, kept by the head (OTP's ``global``).

Owns the table, kept by the head alone, so that it survives the loss of any worker; no node keeps a copy, so that none can be
stale; and how other nodes ask for it. An entry goes when its actor or node does. Only a later life of the same actor takes a
name over, and a withdrawal can say of which life: neither an old registration nor an old withdrawal touches a successor.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ...transport.address import check_name
from ...transport.clock import Clock
from ..actor.actor import Actor
from ..actor.ref import CALL_TIMEOUT, EndpointCaller, Ref
from ..base.address import NODE_SERVICE, Address, parse_address
from ..base.clock import first_within, seconds
from ..base.down import Down
from ..base.errors import NoSuchActor, RuntimeFault
from .monitors import Monitors

log = logging.getLogger("blockwright.runtime")


@dataclass(frozen=True, slots=True, eq=False)
class RegistryEntry:
    address: Address
    undo: Callable[[], None]  # of its monitor


class Registry:
    """The table. Of all nodes' the head's is used."""

    def __init__(self, clock: Clock, monitors: Monitors) -> None:
        self._clock, self._monitors = clock, monitors
        self._entries: dict[str, RegistryEntry] = {}
        self._changed: asyncio.Future[None] | None = None  # done when the table has changed; there while a caller waits

    async def register(self, name: str, address: Address, wait: float) -> str:
        """Empty; or the address that holds the name, still after ``wait`` seconds."""
        if not await self._until(wait, lambda: self._may_take(name, address)):
            return str(self._entries[name].address)
        if (old := self._entries.get(name)) is not None:
            if old.address == address:
                return ""
            old.undo()
        self._entries[name] = RegistryEntry(address, self._monitors.watch(address, partial(self._gone, name)))
        self._change()
        return ""

    def unregister(self, name: str, address: str) -> bool:
        """Free a name; return True if it was held, by that address unless it is empty."""
        entry = self._entries.get(name)
        if entry is None or (address and str(entry.address) != address):
            return False
        entry.undo()
        self._remove(name)
        return True

    async def lookup(self, name: str, wait: float) -> str:
        """Return the address; empty if there was none within ``wait`` seconds."""
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
        """Free the name of a life that is over; the monitor of an earlier holder was removed."""
        self._remove(name)

    def _remove(self, name: str) -> None:
        del self._entries[name]
        self._change()

    def _change(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    async def _until(self, seconds: float, condition: Callable[[], bool]) -> bool:
        clock = self._clock
        until = clock.now() + seconds
        while not (held := condition()) and (left := until - clock.now()) > 0:
            if self._changed is None:
                self._changed = asyncio.get_running_loop().create_future()
            await first_within(clock, left, [self._changed])
        return held


class RegistryClient:
    """Asks the head's registry. All methods raise NodeDown when the head is gone.

    head: its name; this node's where it is alone or the head itself.
    """

    def __init__(self, caller: EndpointCaller, head: Callable[[], str]) -> None:
        self._caller, self._head = caller, head
        self._held: dict[str, Address] = {}  # what was registered through this node, and not taken back here
        self._tasks: set[asyncio.Task[None]] = set()

    def renew(self) -> None:
        """Register with a new head what was registered with an earlier one; it forgets lives that are over."""
        for name, address in self._held.items():
            task = asyncio.get_running_loop().create_task(self._again(name, address), context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _again(self, name: str, address: Address) -> None:
        try:
            await self._register(name, address, 0.0)
        except (RuntimeFault, ValueError) as error:
            log.debug("the name %s of %s is not registered again: %s", name, address, error)

    async def register(self, name: str, ref: Ref, *, wait: float = 0.0) -> None:
        """Give that life of an actor (without a number: the current one) a name in the whole cluster, until it is over.

        wait: seconds for an earlier holder to go. Raises ValueError when another actor holds the name, NoSuchActor.
        """
        address = ref.address
        if not address.life:
            incarnation = address.incarnation or self._caller.current_incarnation(address.node)
            service = Address(address.node, NODE_SERVICE, incarnation)
            life = await self._caller.call(service, "current", (address.name,), {}, CALL_TIMEOUT, int)
            if not life:
                raise NoSuchActor(f"node {address.node} has no actor {address.name!r} to give the name {name!r}")
            address = Address(address.node, address.name, incarnation, life)
        await self._register(check_name(name), address, seconds("wait", wait))
        self._held[name] = address

    async def _register(self, name: str, address: Address, wait: float) -> None:
        arguments = (name, str(address), wait)
        holder = await self._caller.call(self._registry(), "register", arguments, {}, CALL_TIMEOUT + wait, str)
        if holder:
            raise ValueError(f"name {name!r} belongs to {holder}; choose another, or unregister it first")

    async def unregister(self, name: str, ref: Ref | None = None) -> bool:
        """Free a name; with ``ref`` only if that life holds it. Whether it was held so."""
        arguments = (name, str(ref.address) if ref is not None else "")
        if ref is None or self._held.get(name) == ref.address:
            self._held.pop(name, None)
        freed: bool = await self._caller.call(self._registry(), "unregister", arguments, {}, CALL_TIMEOUT, bool)
        return freed

    async def lookup(self, name: str, actor: type[Actor] | None = None, *, wait: float = 0.0) -> Ref:
        """Return the life that holds a name. wait: seconds for one to come, as while it is restarted. Raises NoSuchActor."""
        wait = seconds("wait", wait)
        address = await self._caller.call(self._registry(), "lookup", (name, wait), {}, CALL_TIMEOUT + wait, str)
        if not address:
            raise NoSuchActor(f"no actor in the cluster is registered as {name!r}")
        return Ref(self._caller, parse_address(address), actor)

    async def names(self) -> dict[str, Ref]:
        """Return all names of the cluster."""
        table = await self._caller.call(self._registry(), "names", (), {}, CALL_TIMEOUT, dict[str, str])
        return {name: Ref(self._caller, parse_address(address)) for name, address in table.items()}

    def _registry(self) -> Address:
        head = self._head()
        return Address(head, NODE_SERVICE, self._caller.current_incarnation(head))

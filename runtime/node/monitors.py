"""Actor monitors: one ``Down`` message per watcher, on this node and between nodes.

Owns the promise of a monitor: exactly one ``Down`` for each, whatever ends the actor (its own end, its node's, or that there
never was such an actor), and none after it was undone. Both ends keep their state until the other has answered, so a lost
request or report is sent again and a duplicate does nothing. Ends no actor; links are in ``links.py``.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...transport.address import PeerId, parse_identity
from ...transport.clock import Clock
from ..actor.ref import EndpointCaller
from ..base.address import NODE_SERVICE, Address
from ..base.clock import first_within
from ..base.down import Down, OnDown, notify
from ..base.errors import DeadlineExceeded, MailboxFull, NodeDown, RuntimeFault
from .lifecycle import ActorLife, LocalActors, OnEnd
from .peers import Peer, PeerTable

log = logging.getLogger("blockwright.runtime")
ASK = 5.0  # seconds until an unanswered request between monitors is sent again
RETRY = 0.05  # seconds until one is sent again that could not be sent
FLUSH = 1.0  # seconds that a stopping node waits for its reports to be confirmed
NEVER = "no such actor"


@dataclass(slots=True, eq=False)
class ActorMonitor:
    """One monitor, on the watcher's side."""

    target: Address
    callback: OnDown
    peer: Peer | None  # where the actor is; none: on this node


class Monitors:
    """See the module. ``caller`` reaches the services of other nodes."""

    def __init__(self, node: PeerId, clock: Clock, table: PeerTable, actors: LocalActors, caller: EndpointCaller) -> None:
        self._node = node
        self._clock = clock
        self._table = table
        self._actors = actors
        self._caller = caller
        self._numbers = itertools.count(1)
        self._watches: dict[int, ActorMonitor] = {}  # by number
        self._of_peer: dict[PeerId, set[int]] = {}  # numbers, by the node they wait for
        self._watched: dict[PeerId, dict[int, tuple[ActorLife, OnEnd]]] = {}  # by other nodes, actors of this one
        self._tasks: set[asyncio.Task[None]] = set()
        self._reports: set[asyncio.Task[None]] = set()

    # ---- on the watcher's side

    def watch(self, target: Address, callback: OnDown) -> Callable[[], None]:
        """Call back once when that life (without a number: the current one) is over; soon, if it is. Returns what undoes
        this."""
        number = next(self._numbers)
        self._watches[number] = watch = ActorMonitor(target, callback, None)
        if target.node == self._node.name:
            self._watch_here(number, target)
        elif (why := self._unreachable(target)) is not None:
            self._soon(number, target.life, f"node down: {why}")
        else:
            watch.peer = peer = self._table.current[target.node]
            if peer.id not in self._of_peer:
                self._of_peer[peer.id] = set()
                peer.monitors.append(partial(self._peer_down, peer.id))
            self._of_peer[peer.id].add(number)
            self._background(self._ask(number, peer, target.key), self._tasks)
        return partial(self._undo, number)

    def ended(self, number: int, life: int, cause: str) -> None:
        """Report that the actor is over. Does nothing the second time, or after the monitor was removed."""
        watch = self._forget(number)
        if watch is not None:
            target = watch.target
            incarnation = target.incarnation or self._incarnation(watch)
            notify(watch.callback, Down(target.node, incarnation, cause, target.name, life or target.life))

    def _incarnation(self, watch: ActorMonitor) -> int:
        """Return the incarnation of the node if the address did not name one; 0 if it was never up."""
        if watch.peer is not None:
            return watch.peer.incarnation
        last = self._table.last_down.get(watch.target.node)
        return last.incarnation if last is not None else self._caller.current_incarnation(watch.target.node)

    def _watch_here(self, number: int, target: Address) -> None:
        node = self._node
        if target.incarnation not in (0, node.incarnation):
            self._soon(number, target.life, f"node down: {node.name} is in incarnation {node.incarnation}")
            return
        life = self._actors.current.get(target.name)
        if life is None or target.life not in (0, life.address.life):
            self._soon(number, target.life, self._actors.cause(target.name, target.life) or NEVER)
        else:
            life.on_end.append(partial(self.ended, number, life.address.life))

    def _unreachable(self, target: Address) -> str | None:
        peer = self._table.current.get(target.node)
        if peer is not None and target.incarnation in (0, peer.incarnation):
            return "the connection broke" if peer.lost else None
        last = self._table.last_down.get(target.node)
        return last.cause if last is not None and target.incarnation <= last.incarnation else "not up"

    async def _ask(self, number: int, peer: Peer, key: str) -> None:
        """Until the other node knows of the monitor, or is gone (which ends the monitor)."""
        while number in self._watches:
            try:
                life, cause = await self._call(peer, "watch", str(self._node), number, key)
            except (DeadlineExceeded, MailboxFull):
                await first_within(self._clock, RETRY, [])
            except NodeDown:  # the peer's end is declared soon, or was; or it is a head that comes back
                await first_within(self._clock, RETRY, [])
                if self._table.find(peer.id) is not peer:
                    return
            except RuntimeFault as fault:
                self.ended(number, 0, f"node down: {fault}")
            else:
                if cause:
                    self.ended(number, life, cause)
                elif (watch := self._watches.get(number)) is not None:
                    watch.target = watch.target._replace(life=life)
                return

    def _soon(self, number: int, life: int, cause: str) -> None:
        asyncio.get_running_loop().call_soon(self.ended, number, life, cause)

    def _undo(self, number: int) -> None:
        watch = self._forget(number)
        if watch is not None and watch.peer is not None:
            self._background(self._inform(watch.peer, "unwatch", str(self._node), number), self._tasks)

    def _peer_down(self, peer: PeerId, down: Down) -> None:
        for number in sorted(self._of_peer.pop(peer, ())):
            self.ended(number, 0, f"node down: {down.cause}")

    def _forget(self, number: int) -> ActorMonitor | None:
        watch = self._watches.pop(number, None)
        if watch is not None and watch.peer is not None:
            self._of_peer.get(watch.peer.id, set()).discard(number)
        return watch

    # ---- on the side of the monitored actor: what ``service`` is asked

    def add(self, watcher: str, number: int, key: str) -> tuple[int, str]:
        """Report the end of an actor of this node to another. (life, "") or (life, cause) if it is over."""
        name, _, wanted = key.partition("#")
        pinned = int(wanted or 0)
        life = self._actors.current.get(name)
        if life is None or pinned not in (0, life.address.life):
            return pinned, self._actors.cause(name, pinned) or NEVER
        who = parse_identity(watcher)
        if (peer := self._table.find(who)) is not None:
            if who not in self._watched:
                self._watched[who] = {}
                peer.monitors.append(partial(self._watcher_down, who))
            if number not in self._watched[who]:
                callback = partial(self._over, who, number, life.address.life)
                self._watched[who][number] = (life, callback)
                life.on_end.append(callback)
        return life.address.life, ""

    def remove(self, watcher: str, number: int) -> None:
        """Remove a monitor that the other node no longer wants."""
        self._drop(parse_identity(watcher), number)

    async def flush(self) -> None:
        """Give reports that are under way some time."""
        if self._reports:
            await first_within(self._clock, FLUSH, [asyncio.gather(*self._reports, return_exceptions=True)])

    def close(self) -> None:
        for task in [*self._tasks, *self._reports]:
            task.cancel()

    def _over(self, watcher: PeerId, number: int, life: int, cause: str) -> None:
        self._watched.get(watcher, {}).pop(number, None)
        if (peer := self._table.find(watcher)) is not None:
            self._background(self._inform(peer, "ended", number, life, cause), self._reports)

    def _watcher_down(self, watcher: PeerId, down: Down) -> None:
        for number in list(self._watched[watcher]):
            self._drop(watcher, number)
        del self._watched[watcher]

    def _drop(self, watcher: PeerId, number: int) -> None:
        if (watched := self._watched.get(watcher, {}).pop(number, None)) is not None:
            life, callback = watched
            if callback in life.on_end:
                life.on_end.remove(callback)

    # ---- both

    def inform(self, target: Address, endpoint: str, *args: Any) -> None:
        """Notify the target's node, unless that node is gone."""
        if self._unreachable(target) is None:
            self._background(self._inform(self._table.current[target.node], endpoint, *args), self._tasks)

    async def _inform(self, peer: Peer, endpoint: str, *args: Any) -> None:
        while self._table.find(peer.id) is peer:
            try:
                await self._call(peer, endpoint, *args)
                return
            except (DeadlineExceeded, MailboxFull, NodeDown):
                await first_within(self._clock, RETRY, [])
            except RuntimeFault as fault:
                log.debug("node %s was not notified (%s): %s", peer.id, endpoint, fault)
                return

    async def _call(self, peer: Peer, endpoint: str, *args: Any) -> Any:
        target = Address(peer.id.name, NODE_SERVICE, peer.incarnation)
        return await self._caller.call(target, endpoint, args, {}, ASK, None)

    def _background(self, work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> None:
        """Start a task in a context of its own.

        The deadline of the message being handled must not end work that outlives it.
        """
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        among.add(task)
        task.add_done_callback(among.discard)

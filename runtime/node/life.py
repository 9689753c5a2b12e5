"""The lives of a node's actors: how each begins, under which number, and how it ends, for which cause.

Owns the names (also while an actor starts or ends), life numbers (one more each time a name is used again, so that a
reference to an earlier life never reaches its successor), the causes of death, and the order of an end: refuse, drain,
cancel, ``on_stop``, then tell who wants to know. A name is free again only when nothing of the old life runs any more.
Which actor should live is not decided here.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from blockwright.runtime.actor.actor import Actor, Crash
from blockwright.runtime.actor.cell import Cell
from blockwright.runtime.actor.ref import Address, Ref
from blockwright.runtime.base.clock import first_within
from blockwright.runtime.base.errors import ActorDied, NodeDown, NoSuchActor, RuntimeFault, text_of
from blockwright.runtime.base.fatal import contained
from blockwright.runtime.node.monitors import SYSTEM
from blockwright.runtime.node.peers import Down

if TYPE_CHECKING:
    from blockwright.runtime.node.node import Node

log = logging.getLogger("blockwright.runtime")
CAUSE_LIMIT = 500  # characters
REMEMBERED = 4096  # ended names whose last cause is kept
GRACE = 5.0  # seconds in which cancelled work must end; after them the actor counts as ended, with an error in the log
OnEnd = Callable[[str], None]  # takes the cause
Work = Callable[[], Awaitable[None]]
STOPPED, KILLED = "stopped", "killed"  # causes; others start with "crashed: ", "start failed: ", "linked ", "owner "


@dataclass(slots=True, eq=False)
class Life:
    """One life of one actor."""

    address: Address
    actor: Actor
    cell: Cell
    owner: Address | None = None  # the actor that it does not outlive
    starter: asyncio.Task[None] | None = None  # runs ``on_start``; none when that is over
    ending: asyncio.Task[Exception | None] | None = None
    cause: str = ""  # of its end, from when that begins
    killed: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    on_end: list[OnEnd] = field(default_factory=list)  # who is told of the end
    held: dict[object, Callable[[], None]] = field(default_factory=dict)  # what to take back then: monitors that it set
    ticket: str = ""  # of the request that spawned it


class Lives:
    """See the module."""

    def __init__(self, node: Node) -> None:
        self.current: dict[str, Life] = {}  # by name, in the order in which they began
        self.cells: dict[str, Cell] = {}  # what takes messages, or did until a moment ago
        self._node = node
        self._over: OrderedDict[str, tuple[int, str]] = OrderedDict()  # name -> last life and its cause
        self._forgotten = 0  # no life that is not in ``_over`` had a higher number

    # ---- finding

    def find(self, key: str) -> Cell:
        """The cell of ``name`` or ``name#life``. Raises NoSuchActor, ActorDied."""
        cell = self.cells.get(key)
        if cell is None:
            name, _, life = key.partition("#")
            cell = self.cells.get(name)
            if cell is None or not life or str(cell.life) != life:
                raise self.missing(name, int(life) if life.isdigit() and len(life) < 19 else 0)
        return cell

    def missing(self, name: str, number: int = 0) -> RuntimeFault:
        """Why there is no such actor, or not that life of it."""
        living = self.current.get(name)
        now = f"; its current life is {living.address.life}" if living is not None else ""
        if (cause := self.cause(name, number)) is not None:
            return ActorDied(f"actor {name[:80]} (life {number}) of node {self._node.id} is over: {cause}{now}")
        return NoSuchActor(f"node {self._node.id} has no actor {name[:80]!r}{now}")

    def cause(self, name: str, number: int) -> str | None:
        """Why that life ended; None if it has not, or never was."""
        last, cause = self._over.get(name, (0, ""))
        if not number:
            return None
        return cause if number == last else "replaced by a later life" if number < last else None

    # ---- beginning

    async def start(
        self, actor: Actor, name: str, mailbox: int, *, owner: Address | None = None, restarts: int = 0, ticket: str = ""
    ) -> Ref:
        """Begin a life under a name that is free: ``on_start``, then messages. Raises what ``on_start`` raises.

        owner: an actor that this one does not outlive, wherever it is. restarts: how often its supervisor started it before.
        """
        if self._node.stopping:
            raise NodeDown(f"node {self._node.id} is stopping and starts no actor")
        if owner is not None:
            await self._make_way(name, owner)
        if name in self.current:
            raise ValueError(f"node {self._node.name} has an actor {name!r} already; choose another name or despawn it")
        number = max(self._over.get(name, (0, ""))[0], self._forgotten) + 1
        address = Address(self._node.name, name, self._node.incarnation, number)
        messages = self._node.calls.message_log
        cell = Cell(actor, name, self._node.clock, mailbox, life=number, message_log=messages)
        life = Life(address, actor, cell, owner, ticket=ticket)
        life.cell.on_crash = partial(self.crashed, life)
        life.cell.restarts = restarts
        self.current[name], self.cells[name] = life, life.cell
        if owner is not None:
            life.held[owner] = self._node.monitors.watch(owner, partial(self._owner_over, life))
        actor.node, actor.ref = self._node, Ref(self._node, address, type(actor))
        life.starter = asyncio.get_running_loop().create_task(contained(actor.on_start), name=f"start {address}")
        try:
            await life.starter
        except BaseException as error:
            if life.ending is None or not isinstance(error, asyncio.CancelledError):
                cause = life.cause or f"start failed: {describe(error)}"
                life.cell.close(cause)
                life.cell.abort(None)
                self._finish(life, cause)
                raise
        if life.ending is not None:
            self._finish(life, life.cause)
            raise ActorDied(f"actor {address} was ended while it started: {life.cause}")
        life.starter = None
        life.cell.begin()
        return actor.ref

    async def _make_way(self, name: str, owner: Address) -> None:
        """A restarted supervisor starts its children before all reports of its earlier life's end have come: what that life
        owned is over, too."""
        old = self.current.get(name)
        if old is None or old.owner is None:
            return
        if old.owner != owner and (old.owner.node, old.owner.name) == (owner.node, owner.name):
            self.end(old, f"owner {old.owner} is over: it was restarted")
        if old.ending is not None:
            await self._within(old.actor.stop_limit + GRACE, [], old.over)

    def of(self, actor: Actor) -> Life:
        """The life that this actor is in. Raises ActorDied when it is over."""
        return self._living(actor.ref.name, actor.ref.life)

    def post(self, life: Life, work: Work) -> None:
        """Run something in the actor's turn, ahead of normal messages, however full its mailbox is."""
        if not life.cell.over:
            life.cell.post(work)

    def _owner_over(self, life: Life, down: Down) -> None:
        self.end(life, f"owner {down.ref} is over: {down.cause}"[:CAUSE_LIMIT])

    # ---- ending

    async def stop(self, name: str, number: int = 0, *, drain: float = 0.0) -> None:
        """End a life in order; returns when it is over. Raises NoSuchActor, ActorDied (that life is over), what ``on_stop``
        raised.

        drain: seconds in which what waits may still be handled. Whoever waits here may be cancelled: the end goes on.
        """
        life = self._living(name, number)
        error = await asyncio.shield(self.end(life, STOPPED, drain=drain, spare=asyncio.current_task()))
        if error is not None:
            raise error

    async def kill(self, name: str, number: int = 0) -> None:
        """End a life without drain and without ``on_stop``, also one that is being stopped."""
        await asyncio.shield(self.end(self._living(name, number), KILLED, spare=asyncio.current_task()))

    async def end_named(self, name: str, number: int, drain: float | None) -> bool:
        """``stop`` or, without ``drain``, ``kill``; also of a life that is over. Whether there was such an actor."""
        try:
            await (self.kill(name, number) if drain is None else self.stop(name, number, drain=drain))
        except NoSuchActor:
            return False
        except ActorDied:
            pass
        return True

    def crashed(self, life: Life, error: BaseException) -> None:
        """An endpoint raised what its actor does not survive. The system actor does: it was what it started for others."""
        if life.address.name == SYSTEM:
            return
        log.error("actor %s crashed: %s", life.address, describe(error), exc_info=error)
        self.end(life, f"crashed: {describe(error)}", spare=asyncio.current_task())

    def end(
        self, life: Life, cause: str, *, drain: float = 0.0, spare: asyncio.Task[Any] | None = None
    ) -> asyncio.Task[Exception | None]:
        """Begin the end of a life, or join it; a kill makes one that has begun short."""
        if cause == KILLED:
            life.killed.set()
        if life.ending is None:
            life.cell.close(cause)
            if drain <= 0 or life.starter is not None:
                life.cell.abort(spare)
            life.cause = cause
            task = self._end(life, drain, spare)
            # In a context of its own: the deadline of whoever asked for it must not cut the end short.
            life.ending = asyncio.get_running_loop().create_task(task, context=contextvars.Context())
        return life.ending

    async def _end(self, life: Life, drain: float, spare: asyncio.Task[Any] | None) -> Exception | None:
        cell, error = life.cell, None
        if life.starter is not None:
            life.starter.cancel()
            await self._within(GRACE, [], life.over)
            if not life.over.is_set():
                log.error("on_start of actor %s ignores that it was cancelled; it is left behind", life.address)
                self._finish(life, life.cause)
            return None
        until = self._node.clock.now() + drain
        while (left := until - self._node.clock.now()) > 0 and (tasks := cell.busy(spare)) and not life.killed.is_set():
            await self._within(left, tasks, life.killed)
        cell.abort(spare)
        if tasks := cell.busy(spare):
            await self._all_within(GRACE, tasks)
        if tasks := cell.busy(spare):
            log.error(
                "actor %s: %d messages ignore that they were cancelled; they are left behind", life.address, len(tasks)
            )
        if not life.killed.is_set():
            error = await self._on_stop(life)
        self._finish(life, KILLED if life.killed.is_set() else life.cause)
        return error

    async def _on_stop(self, life: Life) -> Exception | None:
        task = asyncio.get_running_loop().create_task(contained(life.actor.on_stop), name=f"stop {life.address}")
        await self._within(life.actor.stop_limit, [task], life.killed)
        if not task.done():
            log.error(
                "on_stop of actor %s was cut short: %s", life.address, "killed" if life.killed.is_set() else "too slow"
            )
            task.cancel()
            await self._all_within(GRACE, [task])
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            log.error("on_stop of actor %s raised", life.address, exc_info=error)
            return error if isinstance(error, Exception) else None
        return None

    def _finish(self, life: Life, cause: str) -> None:
        if life.over.is_set():
            return
        name = life.address.name
        life.cause = cause
        life.over.set()
        del self.current[name]
        self.cells.pop(name, None)
        self._over[name] = (life.address.life, cause)
        self._over.move_to_end(name)
        if len(self._over) > REMEMBERED:
            _, (number, _) = self._over.popitem(last=False)
            self._forgotten = max(self._forgotten, number)
        for take_back in list(life.held.values()):
            take_back()
        callbacks, life.on_end = life.on_end, []
        for callback in callbacks:
            callback(cause)

    def living(self, key: str) -> Life | None:
        """The life that ``name`` or ``name#life`` is in, also while it starts or ends."""
        name, _, number = key.partition("#")
        life = self.current.get(name)
        return life if life is not None and number in ("", str(life.address.life)) else None

    def owned_here(self, life: Life) -> bool:
        """Whether another actor of this node will end it."""
        owner = life.owner
        return owner is not None and owner.node == self._node.name and self.living(owner.key) is not None

    def _living(self, name: str, number: int) -> Life:
        life = self.current.get(name)
        if life is None or number not in (0, life.address.life):
            raise self.missing(name, number)
        return life

    async def _within(self, seconds: float, tasks: Iterable[asyncio.Task[Any]], event: asyncio.Event) -> None:
        """Until one of the tasks is done, the event is set, or time has passed."""
        signal = asyncio.ensure_future(event.wait())
        try:
            await first_within(self._node.clock, seconds, [*tasks, signal])
        finally:
            signal.cancel()

    async def _all_within(self, seconds: float, tasks: Iterable[asyncio.Task[Any]]) -> None:
        waiting: Coroutine[Any, Any, Any] = asyncio.wait(list(tasks))
        gathered = asyncio.ensure_future(waiting)
        try:
            await first_within(self._node.clock, seconds, [gathered])
        finally:
            gathered.cancel()


def describe(error: BaseException) -> str:
    """An exception in a cause: one line, bounded."""
    text = text_of(error).partition("\n")[0][:300]
    if isinstance(error, Crash):
        return text or "Crash"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def abnormal(cause: str) -> bool:
    """Whether an end for this cause counts as a failure: all but being stopped in order."""
    return cause != STOPPED

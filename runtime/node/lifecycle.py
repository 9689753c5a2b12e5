"""The lifecycle of a node's actors: start, stop, kill and crash, with a number for each life and a cause for each end.

Owns the names (also while an actor starts or stops), life numbers (one more each time a name is used again, so that a
reference to an earlier life never reaches its successor), the causes of death, and the order of an end: refuse, drain,
cancel, ``on_stop``, notify monitors. A name is free again only when nothing of the old life runs any more.
Which actors there should be is not decided here.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...transport.address import PeerId
from ...transport.clock import Clock
from ..actor.actor import Actor, Crash, end_life
from ..actor.instance import ActorInstance
from ..base.address import NODE_SERVICE, Address
from ..base.clock import first_within
from ..base.down import KILLED, STOPPED
from ..base.errors import ActorDied, NodeDown, NoSuchActor, RuntimeFault, text_of
from ..base.fatal import contained
from ..tracing.message_log import MessageLog

log = logging.getLogger("blockwright.runtime")
REMEMBERED = 4096  # ended names whose last cause is kept
GRACE = 5.0  # seconds in which cancelled work must end; after them the actor counts as ended, with an error in the log
OnEnd = Callable[[str], None]  # takes the cause
Work = Callable[[], Awaitable[None]]


@dataclass(slots=True, eq=False)
class ActorLife:
    """One life of one actor."""

    address: Address
    actor: Actor
    instance: ActorInstance
    owner: Address | None = None  # the actor that it does not outlive
    starter: asyncio.Task[None] | None = None  # runs ``on_start``; none when that is over
    ending: asyncio.Task[Exception | None] | None = None
    cause: str = ""  # of its end, from when that begins
    killed: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    on_end: list[OnEnd] = field(default_factory=list)  # called at the end
    held: dict[object, Callable[[], None]] = field(default_factory=dict)  # undone then: monitors that it set
    ticket: str = ""  # of the request that spawned it


class LocalActors:
    """See the module."""

    def __init__(self, node: PeerId, clock: Clock, message_log: MessageLog | None) -> None:
        self.current: dict[str, ActorLife] = {}  # by name, in the order in which they began
        self.instances: dict[str, ActorInstance] = {}  # what takes messages, or did until a moment ago
        self._node = node
        self._clock = clock
        self._message_log = message_log
        self._retiring: asyncio.Task[None] | None = None
        self._over: OrderedDict[str, tuple[int, str]] = OrderedDict()  # name -> last life and its cause
        self._forgotten = 0  # no life that is not in ``_over`` had a higher number

    # ---- finding

    def find(self, key: str) -> ActorInstance:
        """Return the instance that runs ``name`` or ``name#life``. Raises NoSuchActor, ActorDied."""
        instance = self.instances.get(key)
        if instance is None:
            name, _, life = key.partition("#")
            instance = self.instances.get(name)
            if instance is None or not life or str(instance.life) != life:
                raise self.missing(name, int(life) if life.isdigit() and len(life) < 19 else 0)
        return instance

    def missing(self, name: str, number: int = 0) -> RuntimeFault:
        """Why there is no such actor, or not that life of it."""
        living = self.current.get(name)
        now = f"; its current incarnation is {living.address.life}" if living is not None else ""
        if (cause := self.cause(name, number)) is not None:
            return ActorDied(f"actor {name[:80]} (incarnation {number}) of node {self._node} has ended: {cause}{now}")
        return NoSuchActor(f"node {self._node} has no actor {name[:80]!r}{now}")

    def cause(self, name: str, number: int) -> str | None:
        """Why that life ended; None if it has not, or never was."""
        last, cause = self._over.get(name, (0, ""))
        if not number:
            return None
        return cause if number == last else "replaced by a later incarnation" if number < last else None

    # ---- beginning

    async def start(
        self,
        actor: Actor,
        name: str,
        mailbox: int,
        bind: Callable[[ActorLife], None],
        *,
        owner: Address | None = None,
        restarts: int = 0,
        ticket: str = "",
    ) -> ActorLife:
        """Begin a life under a name that is free: ``bind``, ``on_start``, then messages. Raises what ``on_start`` raises.

        bind: gives the actor its node and reference. owner: an actor that this one does not outlive, wherever it is.
        restarts: how often its supervisor started it before.
        """
        if self.retiring:
            raise NodeDown(f"node {self._node} is stopping and starts no actor")
        if owner is not None:
            await self._make_way(name, owner)
        if name in self.current:
            raise ValueError(f"node {self._node.name} has an actor {name!r} already; choose another name or despawn it")
        number = max(self._over.get(name, (0, ""))[0], self._forgotten) + 1
        address = Address(self._node.name, name, self._node.incarnation, number)
        instance = ActorInstance(actor, name, self._clock, mailbox, life=number, message_log=self._message_log)
        life = ActorLife(address, actor, instance, owner, ticket=ticket)
        instance.on_crash = partial(self.crashed, life)
        instance.restarts = restarts
        self.current[name], self.instances[name] = life, instance
        bind(life)
        await self._run_on_start(life)
        instance.begin()
        return life

    async def _run_on_start(self, life: ActorLife) -> None:
        life.starter = asyncio.get_running_loop().create_task(contained(life.actor.on_start), name=f"start {life.address}")
        try:
            await life.starter
        except BaseException as error:
            if life.ending is None or not isinstance(error, asyncio.CancelledError):
                cause = life.cause or f"start failed: {describe(error)}"
                life.instance.close(cause)
                life.instance.abort(None)
                self._finish(life, cause)
                raise
        if life.ending is not None:
            self._finish(life, life.cause)
            raise ActorDied(f"actor {life.address} was ended while it started: {life.cause}")
        life.starter = None

    async def _make_way(self, name: str, owner: Address) -> None:
        """End an actor of this name that an earlier life of the owner still owns.

        A restarted supervisor starts its children before all reports of its earlier life's end have come.
        """
        old = self.current.get(name)
        if old is None or old.owner is None:
            return
        if old.owner != owner and (old.owner.node, old.owner.name) == (owner.node, owner.name):
            self.end(old, f"owner {old.owner} has ended: it was restarted")
        if old.ending is not None:
            await self._within(old.actor.stop_limit + GRACE, [], old.over)

    def of(self, actor: Address) -> ActorLife:
        """Return the life that this actor is in. Raises ActorDied when it is over."""
        return self._living(actor.name, actor.life)

    def post(self, actor: Address, work: Work) -> None:
        """Run something in that life's turn, ahead of normal messages, however full its mailbox is; if it is not over."""
        life = self.current.get(actor.name)
        if life is not None and life.address.life == actor.life and not life.instance.over:
            life.instance.post(work)

    @property
    def retiring(self) -> bool:
        """No actor is started any more."""
        return self._retiring is not None

    async def retire(self, drain: float) -> None:
        """Start no more actors and stop the existing ones, the last first, each with ``drain`` seconds for waiting
        messages; children are stopped by their supervisors. Idempotent; continues if the waiting task is cancelled."""
        if self._retiring is None:
            self._retiring = asyncio.get_running_loop().create_task(self._retire(drain), context=contextvars.Context())
        await asyncio.shield(self._retiring)

    async def _retire(self, drain: float) -> None:
        for life in reversed(list(self.current.values())):
            if life.address.name != NODE_SERVICE and not self._owned_here(life):
                await self.end(life, STOPPED, drain=drain)

    # ---- ending

    async def stop(self, name: str, number: int = 0, *, drain: float = 0.0) -> None:
        """End a life in order; returns when it is over. Raises NoSuchActor, ActorDied (that life is over), what ``on_stop``
        raised.

        drain: seconds in which what waits may still be handled. The end continues if the task that waits here is cancelled.
        """
        life = self._living(name, number)
        error = await asyncio.shield(self.end(life, STOPPED, drain=drain, spare=asyncio.current_task()))
        if error is not None:
            raise error

    async def kill(self, name: str, number: int = 0) -> None:
        """End a life without drain and without ``on_stop``, also one that is being stopped."""
        await asyncio.shield(self.end(self._living(name, number), KILLED, spare=asyncio.current_task()))

    async def end_named(self, name: str, number: int, drain: float | None) -> bool:
        """Call ``stop`` or, without ``drain``, ``kill``; also for a life that is over. Return True if the actor existed."""
        try:
            await (self.kill(name, number) if drain is None else self.stop(name, number, drain=drain))
        except NoSuchActor:
            return False
        except ActorDied:
            pass
        return True

    def crashed(self, life: ActorLife, error: BaseException) -> None:
        """Handle an error that an actor does not survive.

        The node service survives it: the error came from work that it started for others.
        """
        if life.address.name == NODE_SERVICE:
            return
        log.error("actor %s crashed: %s", life.address, describe(error), exc_info=error)
        self.end(life, f"crashed: {describe(error)}", spare=asyncio.current_task())

    def end(
        self, life: ActorLife, cause: str, *, drain: float = 0.0, spare: asyncio.Task[Any] | None = None
    ) -> asyncio.Task[Exception | None]:
        """Begin the end of a life, or join it; a kill makes one that has begun short."""
        if cause == KILLED:
            life.killed.set()
        if life.ending is None:
            life.instance.close(cause)
            if drain <= 0 or life.starter is not None:
                life.instance.abort(spare)
            life.cause = cause
            task = self._end(life, drain, spare)
            # In a context of its own: the deadline of the request must not cut the end short.
            life.ending = asyncio.get_running_loop().create_task(task, context=contextvars.Context())
        return life.ending

    async def _end(self, life: ActorLife, drain: float, spare: asyncio.Task[Any] | None) -> Exception | None:
        instance, error = life.instance, None
        if life.starter is not None:
            life.starter.cancel()
            await self._within(GRACE, [], life.over)
            if not life.over.is_set():
                log.error("on_start of actor %s ignores that it was cancelled; it is left behind", life.address)
                self._finish(life, life.cause)
            return None
        until = self._clock.now() + drain
        while (left := until - self._clock.now()) > 0 and (tasks := instance.busy(spare)) and not life.killed.is_set():
            await self._within(left, tasks, life.killed)
        instance.abort(spare)
        if tasks := instance.busy(spare):
            await self._all_within(GRACE, tasks)
        if tasks := instance.busy(spare):
            log.error(
                "actor %s: %d messages ignore that they were cancelled; they are left behind", life.address, len(tasks)
            )
        if not life.killed.is_set():
            error = await self._on_stop(life)
        self._finish(life, KILLED if life.killed.is_set() else life.cause)
        return error

    async def _on_stop(self, life: ActorLife) -> Exception | None:
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

    def _finish(self, life: ActorLife, cause: str) -> None:
        if life.over.is_set():
            return
        name = life.address.name
        life.cause = cause
        life.over.set()
        end_life(life.actor)
        del self.current[name]
        self.instances.pop(name, None)
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

    def living(self, key: str) -> ActorLife | None:
        """Return the life that ``name`` or ``name#life`` is in, also while it starts or ends."""
        name, _, number = key.partition("#")
        life = self.current.get(name)
        return life if life is not None and number in ("", str(life.address.life)) else None

    def _owned_here(self, life: ActorLife) -> bool:
        """Return True if another actor of this node will end it."""
        owner = life.owner
        return owner is not None and owner.node == self._node.name and self.living(owner.key) is not None

    def _living(self, name: str, number: int) -> ActorLife:
        life = self.current.get(name)
        if life is None or number not in (0, life.address.life):
            raise self.missing(name, number)
        return life

    async def _within(self, seconds: float, tasks: Iterable[asyncio.Task[Any]], event: asyncio.Event) -> None:
        """Until one of the tasks is done, the event is set, or time has passed."""
        signal = asyncio.ensure_future(event.wait())
        try:
            await first_within(self._clock, seconds, [*tasks, signal])
        finally:
            signal.cancel()

    async def _all_within(self, seconds: float, tasks: Iterable[asyncio.Task[Any]]) -> None:
        waiting: Coroutine[Any, Any, Any] = asyncio.wait(list(tasks))
        gathered = asyncio.ensure_future(waiting)
        try:
            await first_within(self._clock, seconds, [gathered])
        finally:
            gathered.cancel()


def describe(error: BaseException) -> str:
    """Return the text of an exception for a cause: one line, bounded."""
    text = text_of(error).partition("\n")[0][:300]
    if isinstance(error, Crash):
        return text or "Crash"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

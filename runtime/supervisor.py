"""A supervisor: an actor that keeps other actors running, here and on other nodes.

Owns its children: it starts them in order, restarts them as the policy says when they end, and stops them in reverse order
when it ends itself; none outlives it, whatever ends it. Gives up by crashing, so that its own supervisor acts. Decides
nothing itself: ``policies/cluster/restart_policy.py`` decides which child is restarted, when, and where. Dead nodes are
noticed in ``cluster/cluster.py``, ended processes in ``cluster/process_watch.py``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..policies.cluster.restart_policy import Backoff, Plan, Restart, Restarts, Strategy, place
from ..transport.clock import Timer
from .actor.actor import Actor, Crash
from .actor.endpoint import endpoint
from .actor.ref import Ref
from .base.clock import seconds
from .base.down import Down, abnormal
from .base.errors import NodeDown, RemoteError, RuntimeFault
from .base.names import import_name
from .node.lifecycle import describe

log = logging.getLogger("blockwright.runtime")
AWAY = 0.25  # seconds until a node that refused a child, because it stops, is asked again


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A child that a supervisor starts.

    actor: class, or its import name "module:Qualname", which a class becomes when it goes to another node. on: a node, or
    candidates in order of preference; the supervisor's own if empty. drain: seconds for what waits when it is stopped.
    patience: seconds that a start on another node may take. dormant: it starts when ``start_child`` asks for it. Raises
    TypeError, ValueError for what is no time.
    """

    name: str
    actor: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    on: str | Sequence[str] = ""
    restart: Restart = Restart.PERMANENT
    drain: float = 5.0
    patience: float = 30.0
    mailbox: int = 1024
    dormant: bool = False

    def __post_init__(self) -> None:
        seconds("drain", self.drain)
        seconds("patience", self.patience)


@dataclass(frozen=True, slots=True)
class ChildState:
    """``state``: "up", "wanted" (it is to be started), "done" (it is not). ``cause`` of its last end, if any."""

    name: str
    state: str
    address: str  # of the current or last life; empty if it was never up
    restarts: int
    cause: str


class Supervisor(Actor):
    """See the module. When the first start of a child fails, those before it are stopped and so does the supervisor's start.

    intensity, period: more than that many restarts within that many seconds are too many: the supervisor crashes; None:
    it never gives up.
    """

    def __init__(
        self,
        children: Sequence[Child],
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        intensity: int | None = 3,
        period: float = 5.0,
        backoff: Backoff = Backoff(),  # noqa: B008 - immutable
    ) -> None:
        self._specs = {child.name: child for child in children}
        order = [(child.name, Restart(child.restart)) for child in children]
        self._rules = Restarts(order, Strategy(strategy), intensity, period, backoff)
        for child in children:
            if child.dormant:
                self._rules.dismiss(child.name)
        self._refs: dict[str, Ref] = {}  # children that are up
        self._last: dict[str, str] = {}  # addresses of their last lives
        self._causes: dict[str, str] = {}  # of their last ends
        self._came = asyncio.Event()  # another one each time that a child is up
        self._undo: list[Callable[[], None]] = []
        self._timer: Timer | None = None
        self.stop_limit = Actor.stop_limit + sum(seconds("drain", child.drain) + Actor.stop_limit for child in children)

    # ---- life

    async def on_start(self) -> None:
        self._draw = random.Random(str(self.ref)).random
        self._wake = partial(self.node.post, self.ref.address, self._advance)
        try:
            for name, child in self._specs.items():
                if self._place(name) is None and not self._expected(child):
                    raise NodeDown(f"child {name} cannot start on {child.on!r}: no such node is up, or was")
            while (first := self._next(now := self.node.clock.now())) is not None:
                await self._begin(first)
        except BaseException:
            await self._stop_all()
            raise
        self._undo.append(self.node.on_arrival(self._wake))
        self._arm(now)

    async def on_stop(self) -> None:
        for undo in self._undo:
            undo()
        if self._timer is not None:
            self._timer.cancel()
        await self._stop_all()

    async def on_down(self, down: Down) -> None:
        name = down.actor
        if name not in self._refs or str(self._refs[name]) != down.ref:
            return  # it was stopped here, and counts as such
        del self._refs[name]
        self._causes[name] = down.cause
        log.warning("supervisor %s: child %s has ended: %s", self.ref, down.ref, down.cause)
        event = f"{down.node}#{down.incarnation}" if down.cause.startswith("node down") else ""
        plan = self._rules.ended(name, abnormal(down.cause), self.node.clock.now(), self._draw(), event)
        await self._obey(name, plan)
        await self._advance()

    @endpoint(concurrent=True)
    async def children(self) -> list[ChildState]:
        """Return the children in the order in which they start."""
        out = []
        for name in self._specs:
            state, restarts = self._rules.describe(name)
            out.append(ChildState(name, state, self._last.get(name, ""), restarts, self._causes.get(name, "")))
        return out

    @endpoint(concurrent=True)
    async def find(self, name: str) -> str:
        """Return the address of a child's current life, on any node; wait until it is up, for as long as the call's
        timeout lets it. Raises KeyError.
        """
        self._spec(name)
        while name not in self._refs:
            await self._came.wait()
        return str(self._refs[name])

    def _spec(self, name: str) -> Child:
        if name not in self._specs:
            raise KeyError(f"there is no child {name!r}; there are: {', '.join(self._specs)}")
        return self._specs[name]

    @endpoint(concurrent=True)
    async def class_of(self, name: str) -> str:
        """Return the import name of a child's class; empty for a class that another process cannot import. Raises
        KeyError."""
        actor = self._spec(name).actor
        try:
            return actor if isinstance(actor, str) else import_name(actor)
        except ValueError:
            return ""

    @endpoint
    async def start_child(self, name: str) -> None:
        """Start a child that is dormant or was stopped, and keep it running from here on (OTP's restart_child); answers when
        a first start was tried. Raises KeyError."""
        self._rules.ask_for(name, self.node.clock.now())
        await self._advance()

    @endpoint
    async def stop_child(self, name: str) -> None:
        """Stop a child until ``start_child`` (OTP's terminate_child); answers when it is over. Raises KeyError."""
        self._rules.dismiss(name)
        await self._end(name)

    def missing(self) -> dict[str, str]:
        """Children that wait for their next start, with the cause of their last end."""
        return {n: self._causes.get(n, "") for n in self._specs if self._rules.describe(n)[0] == "wanted"}

    # ---- what the policy wants

    async def _advance(self) -> None:
        """Start what may start now; come back when more may."""
        while (name := self._next(now := self.node.clock.now())) is not None:
            try:
                await self._begin(name)
            except Exception as error:
                if isinstance(error, NodeDown) or (isinstance(error, RemoteError) and error.kind == "NodeDown"):
                    self._rules.wait(name, self.node.clock.now() + AWAY)
                    continue
                log.warning("supervisor %s: child %s does not start: %s", self.ref, name, describe(error))
                self._causes[name] = f"start failed: {describe(error)}"
                await self._obey(name, self._rules.failed(name, self.node.clock.now(), self._draw()))
        self._arm(now)

    async def _obey(self, name: str, plan: Plan) -> None:
        for sibling in plan.stop:
            await self._end(sibling)
        if plan.give_up:
            raise Crash(f"gave up: {plan.give_up} ({self._causes[name]})")

    def _next(self, now: float) -> str | None:
        return self._rules.next(now, lambda name: self._place(name) is not None)

    def _arm(self, now: float) -> None:
        """Set the timer. ``now``: the time at which ``_next`` had none. Timers fire a little early (uvloop's count whole
        milliseconds), so a child often falls due while this looks; by a later reading of the clock it would be neither
        started nor waited for.
        """
        if self._timer is not None:
            self._timer.cancel()
        due = self._rules.due(now)
        self._timer = self.node.clock.call_at(due, self._wake) if due is not None else None

    def _place(self, name: str) -> str | None:
        return place(self._candidates(self._specs[name]), {self.node.name, *self.node.peers()})

    def _candidates(self, child: Child) -> Sequence[str]:
        if isinstance(child.on, str):
            return [child.on or self.node.name]
        return child.on

    def _expected(self, child: Child) -> bool:
        """Return True if one of the child's nodes was here and may come back."""
        return any(self.node.last_down(node) is not None for node in self._candidates(child))

    # ---- children

    async def _begin(self, name: str) -> None:
        child, where = self._specs[name], self._place(name)
        assert where is not None, "next gives only children that have a place"
        ref = await self.node.spawn(
            child.actor,
            name=name,
            on=where if where != self.node.name else "",
            args=child.args,
            kwargs=child.kwargs,
            mailbox=child.mailbox,
            patience=child.patience,
            owner=self.ref.address,
            restarts=self._rules.upcoming(name),
        )
        self._refs[name], self._last[name] = ref, str(ref)
        self._came.set()
        self._came = asyncio.Event()
        self._rules.up(name, self.node.clock.now())
        self.monitor(ref)

    async def _stop_all(self) -> None:
        for name in reversed(self._specs):
            await self._end(name)

    async def _end(self, name: str) -> None:
        """Stop a child; returns when it is certain that it is over."""
        if (ref := self._refs.pop(name, None)) is None:
            return
        self._causes[name] = "stopped by its supervisor"
        try:
            await self.node.stop_actor(ref, drain=self._specs[name].drain)
        except NodeDown:
            log.info("supervisor %s: child %s went with its node", self.ref, ref)
        except RuntimeFault as fault:
            log.error("supervisor %s: child %s did not stop in order: %s", self.ref, ref, fault)

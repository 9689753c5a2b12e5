"""A living actor: its mailbox and the tasks that run its endpoints.

Owns delivery order, the one-at-a-time rule, cancellation (of what waits and of what runs) and the promise that every call
gets exactly one outcome: a value, the error that was raised, or ``ActorDied``. Knows no network: outcomes go to an
``Outcome``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from blockwright.runtime.actor import INTERNAL, Actor, Crash, Endpoint
from blockwright.runtime.clock import Clock
from blockwright.runtime.errors import (
    ActorDied,
    DeadlineExceeded,
    EncodeError,
    MailboxFull,
    NoSuchActor,
    RemoteError,
    RuntimeFault,
)
from blockwright.runtime.mailbox import Mailbox
from blockwright.runtime.scope import CURRENT, TRACE_BYTES, Scope
from blockwright.runtime.window import Window

log = logging.getLogger("blockwright.runtime")

MAX_CONCURRENT = 1024  # tasks of one actor beside its mailbox: concurrent endpoints and streams


class Outcome(Protocol):
    """Where the result of a call goes. Exactly one of the two is called, unless the call was cancelled."""

    def returned(self, endpoint: Endpoint, value: Any) -> None: ...

    def failed(self, fault: RuntimeFault) -> None: ...


class Outlet(Outcome, Protocol):
    """Where the items of a stream go; ``returned`` is its end."""

    window: Window

    async def item(self, endpoint: Endpoint, value: Any) -> None:
        """Send one. Raises EncodeError for a value that cannot travel."""


class _Unfit(Exception):
    """An item cannot travel (to be told from an error of the generator)."""


class Delivery(Scope):
    """One message on its way through a cell."""

    __slots__ = ("args", "cancelled", "endpoint", "kwargs", "outcome", "since", "start_by", "started", "task")

    def __init__(
        self,
        endpoint: Endpoint,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outcome: Outcome,
        *,
        deadline: float | None,
        trace: bytes,
        start_by: float | None = None,
    ) -> None:
        """``deadline``: when the work must be done; ``start_by``: when it must have begun, if that is earlier (streams)."""
        super().__init__(deadline, trace if len(trace) == TRACE_BYTES else b"")
        self.endpoint, self.args, self.kwargs, self.outcome = endpoint, args, kwargs, outcome
        self.start_by = deadline if start_by is None else start_by
        self.cancelled = self.started = False
        self.since = 0.0  # when it was started, once it is
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """The caller gave up: skip it where it waits, cancel it where it runs. No outcome is reported any more."""
        self.cancelled = True
        # A task that is cancelled before its first step never runs, not even its ``finally``; ``started`` tells.
        if self.task is not None and self.started:
            self.task.cancel()


class Cell:
    """See the module."""

    def __init__(
        self,
        actor: Actor,
        name: str,
        clock: Clock,
        limit: int,
        *,
        life: int = 1,
        crashed: Callable[[Exception], None] | None = None,
    ) -> None:
        self.actor, self.name, self.life = actor, name, life
        self.restarts = 0  # by its supervisor
        self.over = ""  # why nothing more is taken: what ends or has ended the actor
        self._crashed = crashed
        self._clock = clock
        self._mailbox: Mailbox[Delivery] = Mailbox(limit)
        self._current: Delivery | None = None
        self._running: set[Delivery] = set()

    def declared(self, endpoint: str, *, stream: bool = False) -> Endpoint:
        """Raises NoSuchActor when there is none, or it is of the other sort."""
        declared = self.actor.endpoints.get(endpoint)
        if declared is None:
            raise NoSuchActor(f"actor {self.name} ({type(self.actor).__name__}) has no endpoint {endpoint[:80]!r}")
        if declared.stream != stream:
            how = "a stream; read it with 'async for'" if declared.stream else "no stream; 'await' it"
            raise NoSuchActor(f"endpoint {endpoint} of actor {self.name} is {how}")
        return declared

    def deliver(self, delivery: Delivery) -> None:
        if self.over:
            delivery.outcome.failed(self._died())
        elif delivery.endpoint.concurrent:
            if len(self._running) >= MAX_CONCURRENT:
                delivery.outcome.failed(MailboxFull(f"actor {self.name} runs {MAX_CONCURRENT} concurrent messages"))
            else:
                self._start(delivery)
        elif not self._mailbox.put(delivery, urgent=delivery.endpoint.urgent):
            delivery.outcome.failed(MailboxFull(f"mailbox of {self.name} holds {self._mailbox.limit} messages"))
        else:
            self._pump()

    def post(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something in the actor's turn, ahead of normal messages, however full the mailbox is."""
        outcome = InternalOutcome(self.name)
        self._mailbox.put(Delivery(INTERNAL, (work,), {}, outcome, deadline=None, trace=b""), urgent=True, beyond=True)
        self._pump()

    def close(self, cause: str) -> None:
        """Refuse new messages from here on; what waits and runs is not touched."""
        self.over = cause

    def abort(self, spare: asyncio.Task[Any] | None) -> None:
        """End what waits and runs with ActorDied. The task to spare is the one that asked for this, if it is one of ours."""
        for waiting in self._mailbox.drain():
            self._fail(waiting, self._died())
        for delivery in list(self._running):
            if delivery.task is not spare:
                self._fail(delivery, self._died())
                delivery.cancel()

    def busy(self, spare: asyncio.Task[Any] | None) -> set[asyncio.Task[None]]:
        """The tasks that run now. Empty: nothing waits either."""
        return {d.task for d in self._running if d.task is not None and d.task is not spare}

    @property
    def waiting(self) -> int:
        """Messages in the mailbox."""
        return len(self._mailbox)

    @property
    def since(self) -> float | None:
        """When the oldest of the messages that run now was started; None when it is idle."""
        return min((delivery.since for delivery in self._running), default=None)

    def _died(self) -> ActorDied:
        return ActorDied(f"actor {self.name} (life {self.life}) is over: {self.over}")

    def _pump(self) -> None:
        while self._current is None and (delivery := self._mailbox.take()) is not None:
            if delivery.cancelled:
                continue
            if delivery.endpoint.stream and len(self._running) >= MAX_CONCURRENT:
                delivery.outcome.failed(MailboxFull(f"actor {self.name} runs {MAX_CONCURRENT} streams"))
            else:
                self._current = delivery
                self._start(delivery)
                if delivery.endpoint.stream:  # runs beside the mailbox from its first pause on
                    asyncio.get_running_loop().call_soon(self._release, delivery)

    def _release(self, delivery: Delivery) -> None:
        if self._current is delivery:
            self._current = None
            self._pump()

    def _start(self, delivery: Delivery) -> None:
        self._running.add(delivery)
        delivery.since = self._clock.now()
        delivery.task = asyncio.get_running_loop().create_task(self._run(delivery))

    async def _run(self, delivery: Delivery) -> None:
        delivery.started = True
        try:
            if delivery.cancelled:
                return
            if delivery.start_by is not None and self._clock.now() >= delivery.start_by:
                self._fail(delivery, DeadlineExceeded(f"{self.name}.{delivery.endpoint.name} expired before it ran"))
                return
            CURRENT.set(delivery)
            value = None
            if delivery.endpoint.stream:
                await self._produce(delivery)
            else:
                value = await delivery.endpoint.function(self.actor, *delivery.args, **delivery.kwargs)
            if not delivery.cancelled:
                delivery.outcome.returned(delivery.endpoint, value)
        except _Unfit as error:
            self._fail(delivery, EncodeError(f"an item of {delivery.endpoint.name}: {error}"))
        except asyncio.CancelledError:
            self._fail(delivery, ActorDied(f"{self.name}.{delivery.endpoint.name} was cancelled"))
        except Exception as error:
            self._fail(delivery, remote_error(error))
            if self._crashed is not None and isinstance(error, (Crash, *self.actor.crashes_on)):
                self._crashed(error)
        finally:
            delivery.over = True
            delivery.args, delivery.kwargs = (), {}  # may be large, and the task's context still holds the delivery
            self._running.discard(delivery)
            self._release(delivery)

    async def _produce(self, delivery: Delivery) -> None:
        """Run the generator no further than the consumer's window allows."""
        outlet: Outlet = delivery.outcome  # type: ignore[assignment]
        window, endpoint = outlet.window, delivery.endpoint
        items = endpoint.function(self.actor, *delivery.args, **delivery.kwargs)
        try:
            while not delivery.cancelled:
                if not window.open:
                    await window.room()
                try:
                    value = await anext(items)
                except StopAsyncIteration:
                    return
                try:
                    await outlet.item(endpoint, value)
                except EncodeError as error:
                    raise _Unfit(str(error)) from error
        finally:
            await items.aclose()

    def _fail(self, delivery: Delivery, fault: RuntimeFault) -> None:
        if not delivery.cancelled:
            delivery.outcome.failed(fault)


def remote_error(error: Exception) -> RemoteError:
    """An endpoint's exception as its caller sees it."""
    fault = RemoteError(type(error).__name__, str(error), "".join(traceback.format_exception(error)))
    fault.__cause__ = error
    return fault


class CastOutcome:
    """Nobody waits: errors are logged and counted, a value is dropped."""

    def __init__(self, target: str, count: Callable[[str], None]) -> None:
        self._target, self._count = target, count

    def returned(self, endpoint: Endpoint, value: Any) -> None:
        pass

    def failed(self, fault: RuntimeFault) -> None:
        self._count(type(fault).__name__)
        log.error("a cast to %s failed: %s", self._target, fault)


class InternalOutcome:
    """Of what the runtime itself asked the actor to do: an error is logged."""

    def __init__(self, actor: str) -> None:
        self._actor = actor

    def returned(self, endpoint: Endpoint, value: Any) -> None:
        pass

    def failed(self, fault: RuntimeFault) -> None:
        if isinstance(fault, RemoteError):
            log.error("actor %s failed: %s", self._actor, fault, exc_info=fault.__cause__)


class FutureOutcome:
    """The caller is in this process; the value passes by reference."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future

    def returned(self, endpoint: Endpoint, value: Any) -> None:
        with contextlib.suppress(asyncio.InvalidStateError):
            self._future.set_result(value)

    def failed(self, fault: RuntimeFault) -> None:
        with contextlib.suppress(asyncio.InvalidStateError):
            self._future.set_exception(fault)

"""A running actor: its mailbox and the tasks that execute its endpoints.

Owns delivery order, the one-message-at-a-time rule, cancellation (of waiting and of running messages) and the promise that
every call gets exactly one reply: a value, the error that was raised, or ``ActorDied``. Knows no network: replies go to a
``ReplyTo``.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

from ...transport.clock import Clock
from ..base.errors import (
    ActorDied,
    DeadlineExceeded,
    EncodeError,
    MailboxFull,
    NoSuchActor,
    RuntimeFault,
    remote_error,
)
from ..base.fatal import FATAL, interrupts
from ..base.mailbox import Mailbox
from ..base.scope import CURRENT, TRACE_BYTES, Scope, new_trace
from ..base.task_context import first_step, rest
from ..tracing.message_log import MessageLog
from .actor import Actor, Crash
from .endpoint import INTERNAL, ActorEndpoint
from .reply import InternalReply, Outlet, ReplyTo

log = logging.getLogger("blockwright.runtime")

TURN = 64  # messages handled before others of the event loop have their turn


class _Unfit(Exception):
    """An item cannot travel (as distinguished from an error of the generator)."""


class Delivery(Scope):
    """One message on its way through an actor."""

    __slots__ = ("args", "cancelled", "endpoint", "instance", "kwargs", "reply_to", "since", "start_by", "started", "task")

    def __init__(
        self,
        endpoint: ActorEndpoint,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reply_to: ReplyTo,
        *,
        deadline: float | None,
        trace: bytes,
        start_by: float | None = None,
    ) -> None:
        """Make a delivery.

        ``deadline``: time at which the work must be done; ``start_by``: time at which it must have begun, if earlier
        (streams).
        """
        self.deadline = deadline
        self.trace = trace if len(trace) == TRACE_BYTES else b""
        self.over = self.cancelled = self.started = False
        self.endpoint = endpoint
        self.args = args
        self.kwargs = kwargs
        self.reply_to = reply_to
        self.start_by = deadline if start_by is None else start_by
        self.since = 0.0  # when it came to wait, or was started
        self.instance: ActorInstance | None = None  # in whose mailbox it waits
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Skip the message if it waits, or cancel it if it runs, because the caller gave up. No reply is sent any more."""
        if self.cancelled:
            return
        self.cancelled = True
        if self.instance is not None:
            self.args, self.kwargs = (), {}  # it waits on in name only
            self.instance.given_up += 1
        # A task that is cancelled before its first step never runs, not even its ``finally``; ``started`` tells.
        elif self.task is not None and self.started and not self.over:
            self.task.cancel()


def _ignore_crash(error: BaseException) -> None:
    """Default crash handler: ignore."""


class ActorInstance:
    """See the module. Takes messages from the start and runs them from ``begin`` on, in a context of its own, a copy of the
    one in which the actor was spawned: what a handler sets there is not seen by the next."""

    def __init__(
        self,
        actor: Actor,
        name: str,
        clock: Clock,
        limit: int,
        *,
        life: int = 1,
        message_log: MessageLog | None = None,
    ) -> None:
        self.actor = actor
        self.name = name
        self.life = life
        self._log = message_log
        self.restarts = 0  # by its supervisor
        self.handled = self.failed = 0  # messages that were run, and those of them that ended in an error
        self.given_up = 0  # messages in the mailbox without a waiting caller
        self.over = ""  # why nothing more is taken: what ends or has ended the actor
        self.on_crash: Callable[[BaseException], None] = _ignore_crash
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._context.run(CURRENT.set, None)
        self.mailbox: Mailbox[Delivery] = Mailbox(limit)
        self.current: Delivery | None = None  # of the mailbox
        self.beside: set[Delivery] = set()  # concurrent endpoints and streams
        self._early: list[Delivery] | None = []  # concurrent messages that came while the actor starts; None: it has
        self._server: asyncio.Task[None] | None = None  # lives as long as there are messages

    def begin(self) -> None:
        """Run the messages that came while the actor started."""
        early, self._early = self._early or [], None
        for delivery in early:
            self.deliver(delivery)
        self._serve()

    def declared(self, endpoint: str, *, stream: bool = False) -> ActorEndpoint:
        """Return the declared endpoint. Raises NoSuchActor if there is none, or it is of the other kind (call or stream)."""
        declared = self.actor.endpoints.get(endpoint)
        if declared is None:
            raise NoSuchActor(f"actor {self.name} ({type(self.actor).__name__}) has no endpoint {endpoint[:80]!r}")
        if declared.stream != stream:
            how = "a stream; read it with 'async for'" if declared.stream else "no stream; 'await' it"
            raise NoSuchActor(f"endpoint {endpoint} of actor {self.name} is {how}")
        return declared

    def deliver(self, delivery: Delivery) -> None:
        if self.over:
            delivery.reply_to.failed(self._died())
        elif delivery.endpoint.concurrent:
            limit = self.actor.most_concurrent
            if len(self.beside if self._early is None else self._early) >= limit:
                delivery.reply_to.failed(MailboxFull(f"actor {self.name} runs {limit} concurrent messages"))
            elif self._early is not None:
                self._early.append(delivery)
            else:
                self._start_beside(delivery)
        elif self._put(delivery) or (self.given_up and self._put_after_clearing(delivery)):
            delivery.instance, delivery.since = self, self._clock.now()
            if self._server is None:
                self._serve()
        else:
            delivery.reply_to.failed(MailboxFull(f"mailbox of {self.name} holds {self.mailbox.limit} messages"))

    def post(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something in the actor's turn, ahead of normal messages, however full the mailbox is."""
        delivery = Delivery(INTERNAL, (work,), {}, InternalReply(self.name), deadline=None, trace=b"")
        self.mailbox.put(delivery, urgent=True, beyond=math.inf)
        delivery.instance, delivery.since = self, self._clock.now()
        self._serve()

    def close(self, cause: str) -> None:
        """Refuse new messages from here on; what waits and runs is not touched."""
        self.over = cause

    def abort(self, spare: asyncio.Task[Any] | None) -> None:
        """End what waits and runs with ActorDied. The task to spare is the one that asked for this, if it is one of ours."""
        for waiting in [*self.mailbox.drain(), *(self._early or [])]:
            waiting.instance = None
            self._fail(waiting, self._died())
        self._early = None
        for delivery in self.running:
            if delivery.task is not spare:
                self._fail(delivery, self._died())
                delivery.cancel()

    def busy(self, spare: asyncio.Task[Any] | None) -> set[asyncio.Task[None]]:
        """Return the tasks that have something to do now. If empty, no message waits either."""
        tasks = {delivery.task for delivery in self.beside if delivery.task is not None}
        if self._server is not None:
            tasks.add(self._server)
        return {task for task in tasks if task is not spare}

    @property
    def running(self) -> list[Delivery]:
        """Messages that run now."""
        return [*self.beside] if self.current is None else [self.current, *self.beside]

    @property
    def waiting(self) -> int:
        """Messages in the mailbox."""
        return len(self.mailbox)

    @property
    def since(self) -> float | None:
        """The start time of the oldest running message; None when the actor is idle."""
        return min((delivery.since for delivery in self.running), default=None)

    def _died(self) -> ActorDied:
        return ActorDied(f"actor {self.name} (incarnation {self.life}) has ended: {self.over}")

    def _put(self, delivery: Delivery) -> bool:
        # What will run next as soon as the loop turns does not count as waiting.
        return self.mailbox.put(delivery, urgent=delivery.endpoint.urgent, beyond=self.current is None)

    def _put_after_clearing(self, delivery: Delivery) -> bool:
        """Remove cancelled messages, then put this one.

        A full mailbox may be full of messages whose callers gave up.
        """
        self.given_up = 0
        self.mailbox.discard(lambda waiting: waiting.cancelled)
        return self._put(delivery)

    def _serve(self) -> None:
        if self._server is None and self._early is None and len(self.mailbox):
            self._server = self._loop.create_task(self._serve_mailbox(), context=self._context)

    async def _serve_mailbox(self) -> None:
        """Handle one message after the other until none is left.

        One task serves many messages, each in a context of its own.
        """
        task, turn = self._server, 0
        assert task is not None, "the task is set before its first step"
        try:
            while (delivery := self.mailbox.take()) is not None:
                delivery.instance = None
                if delivery.cancelled:
                    self.given_up = max(0, self.given_up - 1)
                    continue
                turn += 1
                if delivery.endpoint.stream:
                    if len(self.beside) >= self.actor.most_concurrent:
                        delivery.reply_to.failed(MailboxFull(f"actor {self.name} runs {self.actor.most_concurrent} streams"))
                        continue
                    self._start_beside(delivery)
                    await asyncio.sleep(0)  # its first step comes before the next message
                    continue
                self.current = delivery
                await self._handle(delivery, task)
                self.current = None
                if task.cancelling():
                    await _forget_cancellation(task)
                if turn % TURN == 0:
                    await asyncio.sleep(0)
        finally:
            # Cancelled from outside with messages waiting, the loop is closing; if it is not, the next message serves all.
            self.current = self._server = None

    def _start_beside(self, delivery: Delivery) -> None:
        self.beside.add(delivery)
        delivery.since = self._clock.now()
        delivery.task = self._loop.create_task(self._run_beside(delivery), context=self._context.copy())

    async def _run_beside(self, delivery: Delivery) -> None:
        try:
            if not delivery.cancelled:
                assert delivery.task is not None, "the task is set before its first step"
                await self._handle(delivery, delivery.task)
        finally:
            self.beside.discard(delivery)

    async def _handle(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        """Run a message and send its reply. Raises CancelledError only if the task was cancelled from outside."""
        delivery.task = task
        delivery.started = True
        delivery.since = self._clock.now()
        endpoint, end = delivery.endpoint, "value"
        if self._log is not None and not delivery.trace:
            delivery.trace = new_trace()
        try:
            if delivery.start_by is not None and delivery.since >= delivery.start_by:
                self._fail(delivery, DeadlineExceeded(f"{self.name}.{endpoint.name} expired before it ran"))
                end = "DeadlineExceeded"
                return
            self.handled += 1
            if endpoint.stream:
                work = self._produce(delivery)
            else:
                work = endpoint.function(self.actor, *delivery.args, **delivery.kwargs)
            context = contextvars.copy_context()
            context.run(CURRENT.set, delivery)
            over, value = first_step(work, context)
            if not over:
                value = await rest(work, context, value)
            if not delivery.cancelled:
                delivery.reply_to.returned(endpoint, value)
        except _Unfit as error:
            end = "EncodeError"
            self._fail(delivery, EncodeError(f"an item of {endpoint.name}: {error}"))
        except BaseException as error:  # the outcomes of pytest are no Exceptions
            if isinstance(error, GeneratorExit) and asyncio.current_task(self._loop) is not task:
                raise  # the loop is gone, and this task with it
            end = self._failed(delivery, error, from_outside=delivery.cancelled or task.cancelling() > 0)
            if interrupts(error) or (end == "cancelled" and not delivery.cancelled):
                raise
        finally:
            delivery.over = True
            delivery.args, delivery.kwargs = (), {}  # what was left behind may keep the scope, not the arguments
            if self._log is not None and endpoint is not INTERNAL:
                self._log.ran(delivery.trace, self.name, endpoint.name, self._clock.now() - delivery.since, end)

    def _failed(self, delivery: Delivery, error: BaseException, *, from_outside: bool) -> str:
        """Answer what a message raised, and let the actor end if it must; what the log of messages calls it."""
        if from_outside and isinstance(error, asyncio.CancelledError):
            self._fail(delivery, ActorDied(f"{self.name}.{delivery.endpoint.name} was cancelled"))
            return "cancelled"
        self.failed += 1
        self._fail(delivery, remote_error(error))
        if isinstance(error, (Crash, *FATAL, *self.actor.crashes_on)):
            self.on_crash(error)
        return type(error).__name__

    async def _produce(self, delivery: Delivery) -> None:
        """Run the generator no further than the consumer's window allows."""
        outlet: Outlet = delivery.reply_to  # type: ignore[assignment]
        window, endpoint = outlet.window, delivery.endpoint
        items, made = endpoint.function(self.actor, *delivery.args, **delivery.kwargs), 0
        try:
            while not delivery.cancelled:
                if not window.open:
                    await window.room()
                elif made and made % TURN == 0:
                    await asyncio.sleep(0)  # what was made leaves, and is read while the next are made
                made += 1
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
            delivery.reply_to.failed(fault)


async def _forget_cancellation(task: asyncio.Task[None]) -> None:
    """Clear a cancellation that still waits to be raised.

    Its message was cancelled and has ended; it must not hit the next one.
    """
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.cancelling():
        task.uncancel()

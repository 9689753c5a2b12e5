"""Calls from a gateway to workers and dispatchers, and procedures that wait until a worker or a route is empty.

Workers and dispatchers are called, not cast to, because the content must not be lost in a full mailbox. The death of a
worker is reported separately. Requests move off a drained worker or an ending route with their KV if the copy is quick
enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from ...policies.control.route_switch import SwitchRoutes
from ...policies.requests.book.dispatch_messages import Ask, Chosen
from ...policies.requests.book.messages import (
    Acknowledge,
    CancelAt,
    Effect,
    Event,
    ExportAt,
    ExportUnsent,
    HoldAnswered,
    HoldAt,
    Replay,
    RetireAt,
    Submit,
    UnholdAt,
    Unsent,
    Vacate,
    WantRoutes,
)
from ...policies.requests.book.parts import BookParts
from ...policies.requests.book.values import Generation
from ...policies.requests.remembered import KnownAnswer, answer_key, longest
from ...policies.requests.request_ownership import first_id
from ...policies.sweep.page_events import Exported, HoldPages
from ...runtime.actor.actor import ActorNode
from ...runtime.base.clock import Clock, first_within
from ...runtime.base.errors import DeadlineExceeded, NodeDown, RuntimeFault
from ...runtime.base.scope import trace

UNKNOWN_SECONDS = 0.1  # seconds until an attempt at a worker that is not known here yet is taken back
REMEMBER_SECONDS = 5.0  # seconds for a worker to say what it remembers; it may wait for a sequence to end
Handle = Callable[[Event], None]
Until = Callable[[Callable[[], bool]], Coroutine[Any, Any, None]]


async def submit(effect: Submit, node: ActorNode, handle: Handle, life: int) -> None:
    """Start an attempt at its home worker. ``life``: of that worker, as the controller knows it."""
    submission = effect.submission
    try:
        with trace(submission.trace) if submission.trace else contextlib.nullcontext():
            await node.ref(f"{effect.worker}/worker").submit(submission)
    except NodeDown as fault:
        if is_unknown(node, effect.worker, life):  # no end will be reported
            await first_within(node.clock, UNKNOWN_SECONDS, ())
            handle(Unsent(submission.request, submission.attempt, f"not delivered: {fault}"))
    except RuntimeFault as fault:
        handle(Unsent(submission.request, submission.attempt, f"not delivered: {fault}"))


def is_unknown(node: ActorNode, worker: str, life: int) -> bool:
    """Return True if a node has not heard yet of that life of a worker, nor of its end."""
    return node.current_incarnation(worker) < life and ((over := node.last_down(worker)) is None or over.incarnation < life)


async def export(effect: ExportAt, node: ActorNode, handle: Handle) -> None:
    """Ask a worker to send pages to other workers."""
    wanted = effect.wanted
    try:
        await node.ref(f"{effect.worker}/worker").export(wanted)
    except RuntimeFault as fault:
        reason = f"worker {effect.worker} was not asked: {fault}"
        handle(ExportUnsent(effect.worker, Exported(wanted.gateway, wanted.request, wanted.number, 0, 0, 0, reason)))


async def ask(effect: Ask, node: ActorNode, dispatcher: str, patience: float, handle: Handle) -> None:
    """Ask a dispatcher for a route, and handle the answer or the reason why there is none.

    The request goes on in either case.
    """
    try:
        chosen = await node.ref(dispatcher).choose(effect, timeout=patience, returns=Chosen)
    except RuntimeFault as fault:
        reason = "dispatcher_late" if isinstance(fault, DeadlineExceeded) else "dispatcher_dead"
        chosen = Chosen(request=effect.submission.request, attempt=effect.submission.attempt, reason=reason)
    handle(chosen)


async def hold(effect: HoldAt, node: ActorNode, handle: Handle) -> None:
    """Ask workers to keep pages. A worker that cannot be reached counts as having no room."""

    async def ask(worker: str, wanted: HoldPages) -> bool:
        try:
            room: bool = await node.ref(f"{worker}/worker").hold(wanted)
        except RuntimeFault:
            return False
        return room

    *others, (last, wanted) = effect.holds
    rooms = [*await asyncio.gather(*[ask(*one) for one in others]), await ask(last, wanted)]
    handle(HoldAnswered(effect.request, effect.attempt, wanted.expects, all(rooms)))


async def remembered(node: ActorNode, generation: Generation, application: str, numerics: Mapping[str, str]) -> KnownAnswer:
    """Ask workers for the beginning of an answer that was cut off. ``numerics``: of the workers."""
    of = generation

    async def ask(worker: str) -> list[int]:
        key = answer_key(f"{application} {numerics[worker]}", of.prompt, of.sampling, of.stop_tokens, of.salt)
        try:
            found: list[int] = await node.ref(f"{worker}/worker").remembered(key, first_id(of.id), timeout=REMEMBER_SECONDS)
        except RuntimeFault:
            return []
        return found

    return longest(dict(zip(numerics, await asyncio.gather(*map(ask, numerics)), strict=True)))


class Cancellations:
    """Batched cancellations: one message to each worker for all requests that end in this turn of the loop.

    Thousands of single messages at once would not fit its mailbox. The batch leaves before any later submission, because
    the task of a submission starts later.
    """

    def __init__(self) -> None:
        self._unwanted: dict[str, list[str]] = {}  # by worker

    def add(self, node: ActorNode, worker: str, requests: Iterable[str]) -> None:
        if not self._unwanted:
            asyncio.get_running_loop().call_soon(self.send, node)
        self._unwanted.setdefault(worker, []).extend(requests)

    def send(self, node: ActorNode) -> None:
        """Send all pending cancellations."""
        unwanted, self._unwanted = self._unwanted, {}
        for worker, requests in unwanted.items():
            node.ref(f"{worker}/worker").cancel.cast(requests)


class OutgoingCalls:
    """The messages of one gateway to workers, dispatchers and the controller, with the calls that are not answered yet.

    controller: its address. dispatchers: addresses asked in turn, each for ``patience`` seconds. handle: takes answers.
    lives: the current life of each worker, as the controller knows it.
    """

    def __init__(
        self, controller: str, dispatchers: Iterable[str], patience: float, handle: Handle, lives: Mapping[str, int]
    ) -> None:
        self._controller = controller
        self._dispatchers, self._patience = itertools.cycle(dispatchers), patience
        self._handle, self._lives = handle, lives
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancellations = Cancellations()

    def send(self, node: ActorNode, gateway: str, effect: Effect) -> None:
        """Send what an effect says; ``gateway`` is the sender's address."""
        match effect:
            case Submit():
                self._call(submit(effect, node, self._handle, self._lives.get(effect.worker, 0)))
            case Acknowledge(worker, serial):
                node.ref(f"{worker}/worker").ack.cast(gateway, serial)
            case CancelAt(worker, requests):
                self._cancellations.add(node, worker, requests)
            case Ask():
                self._call(ask(effect, node, next(self._dispatchers), self._patience, self._handle))
            case WantRoutes(applications):
                node.ref(self._controller).wanted.cast(applications)
            case Replay(worker, serial):
                node.ref(f"{worker}/worker").replay.cast(gateway, serial)
            case ExportAt():
                self._call(export(effect, node, self._handle))
            case RetireAt(worker, route, hashes):
                node.ref(f"{worker}/worker").retire.cast(route, [*hashes])
            case HoldAt():
                self._call(hold(effect, node, self._handle))
            case UnholdAt(workers, unhold):
                for worker in workers:
                    node.ref(f"{worker}/worker").unhold.cast(unhold)

    def ask_of(self, dispatchers: list[str]) -> None:
        """Ask these dispatchers in turn, if there are any."""
        if dispatchers:
            self._dispatchers = itertools.cycle(dispatchers)

    async def stop(self, node: ActorNode) -> None:
        """Send pending cancellations, and give up all calls."""
        self._cancellations.send(node)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _call(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def vacate(
    parts: BookParts,
    until: Until,
    handle: Callable[[Event], None],
    clock: Clock,
    order: tuple[str, int, float],
) -> None:
    """Move all requests off a worker; return when none is left there.

    order: the worker, the version of the routes without it, and the seconds that requests have. A request that is still
    there after that time is given back, unless the worker serves again meanwhile.
    """
    worker, version, grace = order
    table = parts.table

    async def empty() -> None:
        await until(lambda: table.version >= version)
        handle(Vacate(worker))
        await until(lambda: not table.on.get(worker) or table.serves(worker))

    emptied = asyncio.ensure_future(empty())
    try:
        await first_within(clock, grace, (emptied,))
    finally:
        emptied.cancel()
    for request in () if table.serves(worker) else sorted(table.on.get(worker, ())):
        handle(Unsent(request, parts.active[request].placement.attempt, f"worker {worker} is drained"))


async def switch(parts: BookParts, order: SwitchRoutes, until: Until, handle: Callable[[Event], None]) -> int:
    """Carry out a switch; return the number of stale requests once none is left on the ending routes."""
    await until(lambda: parts.table.version >= order.version)
    handle(order)
    switches = parts.switches
    await until(lambda: switches.off(order.number, parts.active, parts.pauses.leaving))
    return switches.figures(order.number).stale

"""Calls from a gateway to workers and dispatchers.

These are calls, not casts, because their content must not be lost in a full mailbox. The death of a worker is reported
separately.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from ...policies.sweep.page_events import Exported, HoldPages
from ...runtime.actor.actor import ActorNode
from ...runtime.base.errors import DeadlineExceeded, NodeDown, RuntimeFault
from ...runtime.base.scope import trace
from ..dispatcher.messages import Ask, Chosen
from .messages import Event, ExportAt, ExportUnsent, HoldAnswered, HoldAt, Submit, Unsent

Handle = Callable[[Event], None]


async def submit(effect: Submit, node: ActorNode, handle: Handle) -> None:
    """Start an attempt at its home worker."""
    submission = effect.submission
    try:
        with trace(submission.trace) if submission.trace else contextlib.nullcontext():
            await node.ref(f"{effect.worker}/worker").submit(submission)
    except NodeDown:
        return
    except RuntimeFault as fault:
        handle(Unsent(submission.request, submission.attempt, f"not delivered: {fault}"))


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

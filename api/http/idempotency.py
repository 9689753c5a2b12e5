"""Requests with an ``Idempotency-Key`` run once: a retry gets the answer that runs, or that has just been given.

A run goes on for a while when its client has gone, since a retry may come. Each gateway process knows its own runs. Errors
are shared with the requests that wait, and not kept.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from ..checks import shown
from ..errors import ApiError, bad_request

IDEMPOTENCY = "Idempotency-Key"
MOST, MOST_BYTES = 1024, 64 << 20  # answers that are kept, and their bytes
_FORM = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """An answer that is not streamed. ``headers``: of its own."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Run:
    sent: bytes  # hash of the body
    task: asyncio.Task[GivenAnswer]
    waiting: int = 0  # requests that wait for it


def idempotency_key(headers: Mapping[str, str]) -> str:
    """Return the key of a request; "" if it has none. Raise a 400."""
    key = headers.get(IDEMPOTENCY, "")
    if key and not _FORM.fullmatch(key):
        raise bad_request(f"the header {IDEMPOTENCY} is {shown(key[:80])}; give 1 to 255 printable characters", IDEMPOTENCY)
    return key


class RunsOnce:
    """The runs of one process by their client and key. ``window``: seconds for which one is kept without a client."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._runs: OrderedDict[tuple[str, str], _Run] = OrderedDict()  # the oldest first
        self._bytes = 0

    async def answer(self, owner: tuple[str, str], sent: bytes, make: Callable[[], Awaitable[GivenAnswer]]) -> GivenAnswer:
        """Return the answer of the run with this owner: a client and its key. Start it if there is none.

        ``sent``: the hash of the body; raise a 409 for another one. ``make``: makes the answer.
        """
        run = self._runs.get(owner)
        if run is not None and run.sent != sent:
            message = (
                f"the header {IDEMPOTENCY} {shown(owner[1])} was sent with another body; give each request a key of its own"
            )
            raise ApiError(409, message, param=IDEMPOTENCY, code="changed")
        if run is None:
            run = self._runs[owner] = _Run(sent, asyncio.ensure_future(make()))
            run.task.add_done_callback(lambda task: self._ended(owner, task))
        run.waiting += 1
        try:
            return await asyncio.shield(run.task)
        finally:
            run.waiting -= 1
            if not run.waiting and not run.task.done():
                asyncio.get_running_loop().call_later(self._window, self._give_up, run)

    def _give_up(self, run: _Run) -> None:
        if not run.waiting:
            run.task.cancel()

    def _ended(self, owner: tuple[str, str], task: asyncio.Task[GivenAnswer]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._runs[owner]
            return
        self._runs.move_to_end(owner)
        self._bytes += len(task.result().body)
        asyncio.get_running_loop().call_later(self._window, self._forget, owner, task)
        ended = [one for one, run in self._runs.items() if run.task.done()]
        while len(ended) > MOST or (ended and self._bytes > MOST_BYTES):
            oldest = ended.pop(0)
            self._forget(oldest, self._runs[oldest].task)

    def _forget(self, owner: tuple[str, str], task: asyncio.Task[GivenAnswer]) -> None:
        run = self._runs.get(owner)
        if run is not None and run.task is task:
            del self._runs[owner]
            self._bytes -= len(task.result().body)

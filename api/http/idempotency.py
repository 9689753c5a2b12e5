"""Requests with an ``Idempotency-Key`` run once: a retry gets the answer that runs, or that has just been given.

A run goes on for a while when its client has gone, since a retry may come. Each gateway process knows its own runs; which of
several has a key's run, its keeper knows (``policies/requests/retry_claims.py``). Errors are shared with the requests that
wait, and not kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

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


class RunsElsewhere(Protocol):
    """The runs of the other gateways."""

    async def find(self, owner: str, sent: bytes) -> GivenAnswer | None:
        """Return the answer of the gateway that runs it; None: this one is to run it. Raise ApiError."""

    def ended(self, owner: str, *, kept: bool) -> None:
        """Tell the end of a run of this gateway."""


@dataclass(slots=True)
class _Run:
    sent: bytes  # hash of the body
    task: asyncio.Task[GivenAnswer]
    waiting: int = 0  # requests that wait for it


def idempotency_key(headers: Mapping[str, str]) -> str:
    """Return the key of a request; "" if it has none. Raise a 400."""
    key = headers.get(IDEMPOTENCY)
    if key is not None and not _FORM.fullmatch(key):
        remedy = "give 1 to 255 printable characters without spaces, or leave it out"
        raise bad_request(f"the header {IDEMPOTENCY} is {shown(key[:80])}; {remedy}", IDEMPOTENCY)
    return key or ""


def owner_of(caller: str, key: str) -> str:
    """Return the name under which a client's key is known to all gateways."""
    return hashlib.blake2b(f"{len(caller)} {caller} {key}".encode(), digest_size=16).hexdigest()


class RunsOnce:
    """The runs of one process by owner: a client and its key. ``window``: seconds for which one is kept without a client."""

    def __init__(self, window: float) -> None:
        self.window = window
        self._runs: OrderedDict[str, _Run] = OrderedDict()  # the oldest first
        self._bytes = 0

    @property
    def owners(self) -> list[str]:
        """The owners of what runs here, or has just been answered."""
        return list(self._runs)

    async def answer(
        self,
        owner: str,
        sent: bytes,
        make: Callable[[], Awaitable[GivenAnswer]],
        elsewhere: RunsElsewhere | None = None,
    ) -> GivenAnswer:
        """Return the answer of the run with this owner. Start it if there is none.

        ``sent``: the hash of the body; raise a 409 for another one. ``make``: makes the answer. ``elsewhere``: the other
        gateways.
        """
        if (given := self.known(owner, sent)) is not None:
            return await given
        run = self._runs[owner] = _Run(sent, asyncio.ensure_future(_found_or_made(owner, sent, make, elsewhere)))
        run.task.add_done_callback(lambda task: self._ended(owner, task, elsewhere))
        return await self._wait(run)

    def known(self, owner: str, sent: bytes) -> Awaitable[GivenAnswer] | None:
        """Return what waits for the run with this owner, or None if there is none. Raise a 409 for another body."""
        run = self._runs.get(owner)
        if run is None:
            return None
        if run.sent != sent:
            message = f"the header {IDEMPOTENCY} was sent with another body; give each request a key of its own"
            raise ApiError(409, message, param=IDEMPOTENCY, code="changed")
        return self._wait(run)

    async def _wait(self, run: _Run) -> GivenAnswer:
        run.waiting += 1
        try:
            return await asyncio.shield(run.task)
        finally:
            run.waiting -= 1
            if not run.waiting and not run.task.done():
                asyncio.get_running_loop().call_later(self.window, self._give_up, run)

    def _give_up(self, run: _Run) -> None:
        if not run.waiting:
            run.task.cancel()

    def _ended(self, owner: str, task: asyncio.Task[GivenAnswer], elsewhere: RunsElsewhere | None) -> None:
        failed = task.cancelled() or task.exception() is not None
        if elsewhere is not None:
            elsewhere.ended(owner, kept=not failed)
        if failed:
            del self._runs[owner]
            return
        self._runs.move_to_end(owner)
        self._bytes += len(task.result().body)
        asyncio.get_running_loop().call_later(self.window, self._forget, owner, task)
        ended = [one for one, run in self._runs.items() if run.task.done()]
        while len(ended) > MOST or (ended and self._bytes > MOST_BYTES):
            oldest = ended.pop(0)
            self._forget(oldest, self._runs[oldest].task)

    def _forget(self, owner: str, task: asyncio.Task[GivenAnswer]) -> None:
        run = self._runs.get(owner)
        if run is not None and run.task is task:
            del self._runs[owner]
            self._bytes -= len(task.result().body)


async def _found_or_made(
    owner: str, sent: bytes, make: Callable[[], Awaitable[GivenAnswer]], elsewhere: RunsElsewhere | None
) -> GivenAnswer:
    found = await elsewhere.find(owner, sent) if elsewhere is not None else None
    return found if found is not None else await make()

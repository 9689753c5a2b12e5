"""Feed driver: runs one offline job on the gateway.

Reads what workers accept, lets the feed choose requests, has them answered, and reports the results to the feed. A shell
around ``policies/offline/feed.py``. Knows nothing of lines, files or stores: the owner of the driver passes a function that
answers a request and returns when its result is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from ...policies.offline.arranging import Arrangement
from ...policies.offline.density import Costs
from ...policies.offline.feed import OfflineFeed, PlacedRequest
from ...policies.offline.job_account import FeedProgress
from ...transport.clock import Clock
from ..gateway.port import Credit, GatewayPort
from .port import Answered, RetryLater

# Used until workers have measured their own costs (BlendServe's example: Llama-3.1-8B on an A100). Densities are only
# compared with each other, so the values matter little.
NOMINAL = Costs.of_model(parameters=8.0e9, hidden=4096, layers=32, kv_width=1024, compute=312e12, bandwidth=2.039e12)


Answering = Callable[[PlacedRequest, Callable[[], None]], Awaitable[Answered]]


class FeedDriver:
    """The driver of one job of one application. ``run`` may be called once.

    ``answer`` is called for many requests at once. Each call gets a function that it must call in the same turn of the loop
    in which it hands the sequences to the gateway; until then the gateway does not count them. After RetryLater nothing is
    placed until its time has passed. Any other exception ends the job, and ``run`` raises it.
    """

    def __init__(self, port: GatewayPort, application: str, feed: OfflineFeed, answer: Answering, clock: Clock) -> None:
        self._port = port
        self._application = application
        self._feed = feed
        self._answer = answer
        self._clock = clock
        self._running: dict[int, asyncio.Task[None]] = {}
        self._unsent: dict[int, PlacedRequest] = {}
        self._errand: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._stopping = False
        self._error: BaseException | None = None
        self._began = clock.now()
        self._not_before = self._began
        self.waits = ""  # why the last request sent could not be answered; empty if it was

    async def run(self) -> None:
        """Run until every request is done, or until ``stop`` was called and the requests running then have ended.

        Cancelling it cancels the running requests.
        """
        self._began = self._clock.now()
        try:
            while self._error is None and not self._feed.over and not (self._stopping and not self._running):
                self._wake.clear()
                grown = asyncio.ensure_future(self._port.credit_grown())
                waking = asyncio.ensure_future(self._wake.wait())
                try:
                    await asyncio.sleep(0)  # so that both wait, and no growth of credit is missed
                    self._place()
                    if not self._feed.over:
                        await asyncio.wait((grown, waking), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    grown.cancel()
                    waking.cancel()
            if self._error is not None:
                raise self._error
        finally:
            await self._end()

    def stop(self, *, cancel: bool = False) -> None:
        """Place nothing more. With ``cancel``, running requests end at the next sweep and count as not done."""
        self._stopping = True
        if cancel:
            for task in self._running.values():
                task.cancel()
        self._wake.set()

    @property
    def reason(self) -> str:
        """Return why nothing is answered now; empty where something is."""
        if self.waits or self._running or self._feed.over:
            return self.waits
        return "no worker has room for it now: online requests come first"

    def progress(self) -> FeedProgress:
        """Return the current progress."""
        return self._feed.progress(self._clock.now() - self._began)

    def _place(self) -> None:
        """Give every worker the requests that it accepts now."""
        if self._stopping:
            return
        feed, credits = self._feed, self._port.credits(self._application)
        for gone in feed.workers - {one.worker for one in credits}:
            feed.ended(gone)
        for credit in credits:
            if credit.room > 0:
                feed.joined(credit.worker, credit.room)
            self._feed.measured(credit.costs)
        self._begin_errand()
        if self._clock.now() < self._not_before:
            return
        given = -1
        # again: an idle worker may take from others that lacked capacity for all of theirs
        while given < len(self._running):
            given = len(self._running)
            for credit in credits:
                if credit.worker in feed.workers:
                    self._give(credit)
        self._begin_errand()  # an idle worker is to be given part of another's requests

    def _begin_errand(self) -> None:
        if self._errand is None and (errand := self._feed.errand()) is not None:
            self._errand = asyncio.create_task(self._run_errand(errand))

    def _give(self, credit: Credit) -> None:
        """Give one worker as many requests as its credit allows."""
        coming = [one for one in self._unsent.values() if one.worker == credit.worker]
        rows = credit.rows - sum(one.sequences for one in coming)
        positions = credit.positions - sum(one.positions for one in coming)
        for placed in self._feed.pull(credit.worker, rows, positions, credit.sweeps):
            self._unsent[placed.request] = placed
            task = self._running[placed.request] = asyncio.create_task(self._run_one(placed))
            task.add_done_callback(partial(self._ended, placed.request))

    async def _run_one(self, placed: PlacedRequest) -> None:
        try:
            found = await self._answer(placed, lambda: self._sent(placed.request))
            self._feed.finished(placed.request, found.output_tokens, found.cached)
            self.waits = ""
        except RetryLater as later:
            self._feed.given_back(placed.request)
            self.waits, self._not_before = str(later), max(self._not_before, self._clock.now() + later.retry_after)
            self._clock.call_at(self._not_before, self._wake.set)
        except Exception as error:
            self._error = self._error or error

    def _ended(self, request: int, task: asyncio.Task[None]) -> None:
        """Clean up after a request's task.

        The task cannot do it in its own last lines: one that is cancelled before its first turn never runs any.
        """
        if task.cancelled():
            self._feed.given_back(request)
        self._sent(request)
        del self._running[request]
        self._wake.set()

    def _sent(self, request: int) -> None:
        self._unsent.pop(request, None)

    async def _run_errand(self, errand: Callable[[], Arrangement]) -> None:
        """Run the feed's rearrangement in a thread. A large job takes seconds, in which others must be served."""
        try:
            self._feed.adopt(await asyncio.to_thread(errand))
        except Exception as error:
            self._error = self._error or error
        finally:
            self._errand = None
            self._wake.set()

    async def _end(self) -> None:
        left = [*self._running.values(), *([self._errand] if self._errand else [])]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

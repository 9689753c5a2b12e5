"""An offline job of this process over many lines: checked, ordered, and answered through the cluster's gateway.

``blockwright batch run`` and ``blockwright.generate`` are built on it. Nothing is stored here: every answer is passed to
``keep`` when it comes, once for each line.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ...actors.batches.driver import NOMINAL, FeedDriver
from ...actors.batches.port import Answered, RetryLater
from ...actors.cost_file import read_costs
from ...policies.offline.density import Costs
from ...policies.offline.estimates import PROBABILITY
from ...policies.offline.feed import OfflineFeed, OfflineRequest, PlacedRequest
from ...policies.offline.job_account import FeedProgress
from ...policies.offline.load_tries import LoadTries
from ...policies.offline.prefix_tree import packed
from ...runtime.base.clock import LoopClock
from ..errors import ApiError
from ..http.auth import ApiCaller
from ..http.context import Front, OfflinePlace
from .lines import BatchLine, LineAnswer, PreparedLine, answer, prepare, refused

YIELD = 64  # lines that are checked before other tasks get a turn


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines of one application, in the order of the feed's numbers. ``tries``: attempts to load it."""

    lines: list[int]
    requests: list[OfflineRequest]
    tries: LoadTries


class LocalJob:
    """A job (see the module).

    ``line_of``: returns a line by its number; called again whenever the line is needed, so that no prompt is kept. ``keep``:
    takes the answer of a line; its exceptions end the job. ``share``: share of the lines whose lengths are sampled first.
    """

    def __init__(
        self,
        front: Front,
        caller: ApiCaller,
        line_of: Callable[[int], BatchLine],
        keep: Callable[[int, LineAnswer], None],
        share: float = PROBABILITY,
    ) -> None:
        self._front = front
        self._caller = caller
        self._line_of = line_of
        self._keep = keep
        self._share = share
        self._parts: dict[str, _Part] = {}
        self._drivers: list[FeedDriver] = []

    async def check(self, lines: Iterable[int], done: Mapping[int, int], checked: Callable[[int], None]) -> None:
        """Prepare all lines; a refused one is answered with the refusal.

        ``done``: answered line -> tokens, which help to estimate the other lengths. ``checked``: called with the number of
        lines checked since the last call.
        """
        for count, line in enumerate(lines, 1):
            try:
                prepared = await self._prepared(line)
            except ApiError as error:
                if line not in done:
                    self._keep(line, refused(error))
            else:
                part = self._parts.setdefault(prepared.application, _Part([], [], LoadTries()))
                part.lines.append(line)
                part.requests.append(
                    OfflineRequest(prompt=packed(prepared.prompt), limit=prepared.limit, choices=prepared.choices)
                )
            checked(1)
            if not count % YIELD:
                await asyncio.sleep(0)

    async def run(self, done: Mapping[int, int]) -> None:
        """Answer every checked line that is not done. Raise the exceptions of ``keep``; cancellation ends running lines."""
        self._drivers = [await self._driver(name, part, done) for name, part in self._parts.items()]
        self._parts.clear()
        try:
            async with asyncio.TaskGroup() as group:
                for driver in self._drivers:
                    group.create_task(driver.run())
        except BaseExceptionGroup as group_of:
            raise group_of.exceptions[0] from None

    def progress(self) -> list[FeedProgress]:
        """Return the progress of each application."""
        return [driver.progress() for driver in self._drivers]

    async def _driver(self, application: str, part: _Part, done: Mapping[int, int]) -> FeedDriver:
        info = self._front.catalog.info(application)
        measured = read_costs(self._front.settings.worker.profile)
        draw = random.Random(len(part.lines))  # makes the sampling of a job reproducible
        known = {number: done[line] for number, line in enumerate(part.lines) if line in done}
        feed = await asyncio.to_thread(
            OfflineFeed,
            part.requests,
            Costs.of_coefficients(measured) if measured is not None else NOMINAL,
            draws=[draw.random() for _ in part.lines],
            share=self._share,
            known=known,
            memory=max(info.rooms, default=0),
        )
        lines, tries = part.lines, part.tries

        async def answering(placed: PlacedRequest, sent: Callable[[], None]) -> Answered:
            return await self._answer(lines[placed.request], placed, sent, tries)

        return FeedDriver(self._front.port, application, feed, answering, LoopClock())

    async def _answer(self, line: int, placed: PlacedRequest, sent: Callable[[], None], tries: LoadTries) -> Answered:
        try:
            prepared = await prepare(self._front, self._caller, self._line_of(line))
            sent()
            found = await answer(prepared, OfflinePlace(placed.worker, placed.side), tries)
        except ApiError as error:  # the model was removed meanwhile
            found = refused(error)
        self._keep(line, found)
        return Answered(found.output_tokens, found.cached)

    async def _prepared(self, line: int) -> PreparedLine:
        """Prepare a line, waiting until a model can accept or refuse it."""
        while True:
            try:
                return await prepare(self._front, self._caller, self._line_of(line))
            except RetryLater as later:
                await asyncio.sleep(later.retry_after)

"""Exchange of a gateway's length lessons with the tagger and with the request log, about once a second.

It runs beside the requests; none waits for the tagger. While the tagger does not answer, the gateway estimates with the
copy that it has.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from ...policies.prediction.length_models import restored
from ...policies.prediction.lengths import LengthSample
from ...policies.requests.book.lengths import Lengths
from ...runtime.actor.actor import ActorNode
from ...runtime.base.errors import RuntimeFault
from ..settings.tagging import TaggerSettings
from ..tagger.actor import Tagger, TaggerModel, first_tagger
from ..tagger.request_log import RequestLog

SECONDS = 1.0  # between two exchanges; also the timeout of an answer


class Tagging:
    """The exchange of one gateway. tagger: its address, or empty. log: None if no log is written."""

    def __init__(self, lengths: Lengths, tagger: str = "", log: RequestLog | None = None) -> None:
        self._lengths = lengths
        self._tagger = tagger
        self._log = log
        self._known = ""  # version of the estimator that this gateway has
        self._next = 0.0
        self._sharing: asyncio.Task[None] | None = None

    def tick(self, node: ActorNode) -> None:
        """Exchange new lessons, if the interval is over and the last answer has come."""
        now = node.clock.now()
        if not self._lengths.wanted or now < self._next or (self._sharing is not None and not self._sharing.done()):
            return
        self._next = now + SECONDS
        lessons = self._lengths.take()
        if self._log is not None and lessons:
            self._log.write(lessons)
        if self._tagger:
            self._sharing = asyncio.create_task(self._share(node, lessons))

    async def flush(self, node: ActorNode) -> None:
        """Share and write the remaining lessons."""
        if self._sharing is not None:
            await asyncio.gather(self._sharing, return_exceptions=True)
        lessons = self._lengths.take()
        if self._log is not None and lessons:
            self._log.write(lessons)
        if self._tagger and lessons:
            await self._share(node, lessons)

    async def stop(self, node: ActorNode) -> None:
        """Flush, and close the log.

        The tagger may be gone: the head's actors stop before processes of gateways.
        """
        await self.flush(node)
        if self._log is not None:
            await asyncio.to_thread(self._log.close)

    async def _share(self, node: ActorNode, lessons: list[LengthSample]) -> None:
        try:
            tagger = node.ref(self._tagger, Tagger)
            model: TaggerModel | None = await tagger.share(lessons, self._known, timeout=SECONDS)
        except RuntimeFault:
            self._lengths.figures.unanswered += 1
            return
        if model is not None:
            self._lengths.estimator, self._known = restored(model.estimator), model.version


def check_tagging(settings: TaggerSettings) -> None:
    """Check the tagger file that the settings name, before anything starts. Raises SettingsError."""
    if settings.is_on:
        first_tagger(settings)


def make_tagging(settings: TaggerSettings, lengths: Lengths, gateway: str, tagger: str) -> Tagging:
    """Make the exchange of the gateway of that name. ``tagger``: its address, if there is one."""
    folder = settings.request_log
    log = RequestLog(Path(folder).expanduser(), gateway, settings.request_log_size) if folder else None
    return Tagging(lengths, tagger if settings.is_on else "", log)

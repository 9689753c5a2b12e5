"""The head's actor for redundant pages: has workers mark cached pages that others have, too.

While anything happens it asks all workers every ``redundant_pages`` seconds for what has changed in their caches; at rest no
timer runs, and a heartbeat that reports work wakes it. ``policies/memory/redundant.py`` decides. What is lost with its end
is reported to it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ...policies.memory.cache_news import CacheReport, MarkPages
from ...policies.memory.prefix_index import Key
from ...policies.memory.redundant import RedundantPages
from ...runtime.actor.actor import Actor, PeerInfo
from ...runtime.base.errors import RuntimeFault
from ...transport.clock import Timer
from ..settings.memory import MemorySettings

log = logging.getLogger("blockwright.memory")
ASK_SECONDS = 5.0  # timeout of a worker; a late one is asked again the next time


class PageCopies(Actor):
    """The actor of redundant pages (see the module)."""

    def __init__(self, memory: MemorySettings) -> None:
        self._period = memory.redundant_pages
        self._pages = RedundantPages()
        self._lives: dict[str, int] = {}  # worker -> its current incarnation, as in its last heartbeat
        self._read: dict[str, tuple[int, int]] = {}  # worker -> incarnation, number of its last report
        self._timer: Timer | None = None
        self._waits = False  # for the next look

    async def on_start(self) -> None:
        self._deafen = self.node.on_heartbeat(self._beat)

    async def on_stop(self) -> None:
        self._deafen()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self, peer: PeerInfo) -> None:
        """Hear of a worker; plan a look if it works and is not alone."""
        if "sweep_age" not in peer.payload:  # sent by a gateway
            return
        self._lives[peer.id.name] = peer.incarnation
        if peer.payload.get("running") and len(self._lives) > 1:
            self._look_later()

    def _look_later(self) -> None:
        if not self._waits:
            self._waits = True
            at = self.node.clock.now() + self._period
            self._timer = self.node.clock.call_at(at, lambda: self.node.post(self.ref.address, self._look))

    async def _look(self) -> None:
        """Ask all workers, and have them mark pages. Look again if anything has changed."""
        self._waits = False
        for name in [one for one, life in self._lives.items() if self.node.current_incarnation(one) != life]:
            self._pages.lose(name)
            del self._lives[name]
            self._read.pop(name, None)
        changed = await asyncio.gather(*map(self._ask, self._lives))
        orders = self._pages.decide()
        await asyncio.gather(*[self._mark(worker, marks) for worker, marks in orders.items()])
        if any(changed) or orders:
            self._look_later()

    async def _ask(self, worker: str) -> bool:
        """Take all that a worker reports; return whether it has changed anything."""
        ref, life = self.node.ref(f"{worker}/worker"), self._lives[worker]
        changed = False
        kind: Any = CacheReport | None
        try:
            while True:
                known, after = self._read.get(worker, (0, 0))
                after = after if known == life else 0
                report: CacheReport | None = await ref.cached(after, timeout=ASK_SECONDS, returns=kind)
                if report is None:
                    return changed
                self._read[worker] = life, report.number
                self._pages.report(worker, report, self.node.clock.now())
                changed = changed or bool(report.gone or report.used or report.idle)
                if not report.left:
                    return changed
        except RuntimeFault as fault:
            log.debug("worker %s does not report its cached pages: %s", worker, fault)
            return changed

    async def _mark(self, worker: str, marks: MarkPages) -> None:
        unmarked: Sequence[Key] = marks.redundant
        try:
            unmarked = await self.node.ref(f"{worker}/worker").mark(marks, timeout=ASK_SECONDS, returns=list[Key])
        except RuntimeFault as fault:
            log.debug("worker %s does not mark redundant pages: %s", worker, fault)
        self._pages.unmarked(worker, unmarked)

"""The queue position of each request among those no worker has planned yet, and the number waiting for each reason.

Reads the gateway's records and changes none. Places are recounted at most once in ``FRESH`` seconds, however many clients
wait: with thousands of them each check would otherwise pass over all the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..routing_table import RoutingTable
from .record import RequestRecord
from .values import Census, StreamProgress

FRESH = 0.5  # seconds


class QueuePositions:
    """The queue positions at one gateway (see the module). ``active``: its requests that have not ended."""

    def __init__(self, active: Mapping[str, RequestRecord], table: RoutingTable) -> None:
        self._active, self._table = active, table
        self._places: dict[str, int] = {}
        self._counted = -FRESH

    def progress(self, record: RequestRecord, now: float) -> StreamProgress:
        """Return the progress of a request, ended or not."""
        queued = record.state in ("waiting", "running") and not record.progress.planned and not record.progress.emitted
        place = total = 0
        if queued:
            if now - self._counted >= FRESH or record.id not in self._places:
                self._count(now)
            place, total = self._places.get(record.id, 0), len(self._places)
        return StreamProgress(
            place=place,
            queued=total,
            prompt=len(record.generation.prompt),
            computed=min(record.progress.seen(record.progress.computed), len(record.generation.prompt)),
            cached=record.progress.seen(record.progress.cached),
            queue_seconds=None if record.history.begun is None else record.history.begun - record.arrival,
            preemptions=record.history.preemptions,
            drafts=record.history.drafts,
            tier=record.model if record.held is None else "",
            variant=record.stand_ins,
            placed=record.placement.attempt > 0,
        )

    def census(self) -> dict[str, Census]:
        """Count each model's running sequences, and its waiting ones by reason.

        Offline ones that have not begun are left out, since no client waits for them.
        """
        return self._counted_by(lambda record: record.model)

    def tenants(self) -> dict[str, Census]:
        """Count the same sequences by account."""
        return self._counted_by(lambda record: record.account)

    def _counted_by(self, name: Callable[[RequestRecord], str]) -> dict[str, Census]:
        found: dict[str, Census] = {}
        for record in self._active.values():
            if record.offline and not record.progress.planned:
                continue
            one = found.setdefault(name(record), Census())
            reason = self._reason(record)
            if reason:
                one.waiting[reason] = one.waiting.get(reason, 0) + 1
            else:
                one.running += 1
        return found

    def _reason(self, record: RequestRecord) -> str:
        """Return the reason why a request waits; empty for a running one."""
        if not record.progress.waits:
            return ""
        if record.waiting and not self._table.routes.get(record.application):
            return "no_worker"
        return "isolated" if record.waiting and record.deaths.suspect else "capacity"

    def _count(self, now: float) -> None:
        waiting = [r for r in self._active.values() if not (r.progress.planned or r.progress.emitted or r.offline)]
        waiting.sort(key=lambda record: record.key)
        self._places = {record.id: place for place, record in enumerate(waiting, 1)}
        self._counted = now

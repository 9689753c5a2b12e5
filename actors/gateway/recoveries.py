"""Reports, for people, on the recovery of requests whose worker died: where they went on, and after how long.

Reads records and changes nothing. Each gateway reports on its own requests, once all of them run again or have ended.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .record import RequestRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Loss:
    worker: str
    at: float
    requests: tuple[tuple[RequestRecord, int], ...]  # requests that ran there, each with the lost attempt


class Recoveries:
    """The worker deaths whose requests have not all recovered. ``active``: the gateway's requests, by id."""

    def __init__(self, active: Mapping[str, RequestRecord]) -> None:
        self._active = active
        self._open: list[_Loss] = []

    def lost(self, worker: str, cause: str, now: float) -> None:
        """Note that a worker has died. Call it before its requests are changed."""
        ran = tuple((record, record.attempt) for record in self._active.values() if worker in record.workers)
        if ran:
            log.info("%s died (%s); requests that ran there: %d", worker, cause, len(ran))
            self._open.append(_Loss(worker, now, ran))

    def tick(self) -> list[tuple[str, str]]:
        """Return the workers whose requests have all settled since the last call, each with a report.

        Call it periodically.
        """
        settled = [loss for loss in self._open if all(map(_settled, *zip(*loss.requests, strict=True)))]
        for loss in settled:
            self._open.remove(loss)
        return [(loss.worker, _told(loss)) for loss in settled]


def _settled(record: RequestRecord, attempt: int) -> bool:
    """Return whether the request has ended or a later attempt runs."""
    return record.state not in ("waiting", "running") or (record.attempt > attempt and record.planned)


def _told(loss: _Loss) -> str:
    homes, worst, ended = Counter[str](), 0.0, 0
    for record, attempt in loss.requests:
        again = [at for at, event, detail in record.events if event == "resumed" and detail["attempt"] > attempt]
        if not again or record.route is None:
            ended += 1
            continue
        homes[record.route.home] += 1
        worst = max(worst, min(again) - loss.at)
    moved = ", ".join(f"{count} request{'s' * (count != 1)} moved to {home}" for home, count in sorted(homes.items()))
    said = [f"{moved}, the last after {worst:.2f} s"] if homes else []
    said += [f"{ended} ended before {'they' if ended > 1 else 'it'} ran again"] if ended else []
    return f"after the death of {loss.worker}: {'; '.join(said)}"

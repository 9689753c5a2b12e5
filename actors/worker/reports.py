"""What a turn of the worker makes it say: to each gateway one numbered report, to each worker few messages.

Pure bookkeeping. A report holds everything that one gateway must know of the turn, and is kept until it is acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from blockwright.actors.worker.messages import GatewayNews, SweepReport
from blockwright.policies.sweep.events import (
    Effect,
    FlightDone,
    LeaseGranted,
    LeaseReturned,
    LeaseWanted,
    Send,
)

ToWorker = LeaseWanted | LeaseGranted | LeaseReturned | FlightDone
TOGETHER = 64


class Reports:
    """Reports of one worker incarnation, by gateway address."""

    def __init__(self, worker: str, incarnation: int) -> None:
        self._worker, self._incarnation = worker, incarnation
        self._unacknowledged: dict[str, deque[SweepReport]] = {}
        self.serials: dict[str, int] = {}  # last serial made

    def make(self, effects: Iterable[Effect], sweep: int) -> list[tuple[str, SweepReport]]:
        """A report for each gateway that ``effects`` concern; messages to other workers are not for gateways."""
        news: dict[str, list[GatewayNews]] = {}
        for effect in effects:
            if not isinstance(effect, Send):
                news.setdefault(effect.gateway, []).append(effect)
        return [(gateway, self._report(gateway, sweep, told)) for gateway, told in news.items()]

    def _report(self, gateway: str, sweep: int, news: list[GatewayNews]) -> SweepReport:
        serial = self.serials[gateway] = self.serials.get(gateway, 0) + 1
        report = SweepReport(self._worker, self._incarnation, serial, sweep, news)
        self._unacknowledged.setdefault(gateway, deque()).append(report)
        return report

    def acknowledge(self, gateway: str, serial: int) -> None:
        """All reports up to ``serial`` have arrived."""
        kept = self._unacknowledged.get(gateway, deque())
        while kept and kept[0].serial <= serial:
            kept.popleft()

    def since(self, gateway: str, serial: int) -> list[SweepReport]:
        """Kept reports from ``serial`` on."""
        return [report for report in self._unacknowledged.get(gateway, ()) if report.serial >= serial]

    def forget(self, node: str) -> None:
        """The gateways of a node are gone."""
        for gateway in [g for g in self.serials if g.partition("/")[0] == node]:
            self._unacknowledged.pop(gateway, None)
            del self.serials[gateway]


def by_worker(effects: Iterable[Effect]) -> list[tuple[str, list[ToWorker]]]:
    """What other workers are to be told, in order for each: at most ``TOGETHER`` at a time, so that no message is too large.

    Not one message each: a thousand leases asked for in one turn would not fit a mailbox.
    """
    batches: list[tuple[str, list[ToWorker]]] = []
    last: dict[str, list[ToWorker]] = {}
    for effect in effects:
        if isinstance(effect, Send):
            batch = last.get(effect.worker)
            if batch is None or len(batch) == TOGETHER:
                batch = last[effect.worker] = []
                batches.append((effect.worker, batch))
            batch.append(effect.message)
    return batches

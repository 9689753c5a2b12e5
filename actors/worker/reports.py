"""Reports of the worker: per turn, one numbered report to each gateway and a few to each other worker.

Pure bookkeeping. A report holds everything that one gateway or worker must know of the turn, and is kept until it is
acknowledged. Back-pressure: once a gateway has ``WINDOW`` unacknowledged reports, further news is joined until it has
acknowledged some. Otherwise the mailbox of a gateway that is slower than its workers would overflow, and the losses would
have to be sent again on top.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ...policies.sweep.events import GatewayNews, PeerMessage
from ...policies.sweep.offline_capacity import OfflineCapacity
from ..report_sequence import ACKNOWLEDGE_EVERY
from .coalesced_news import CoalescedNews
from .messages import PeerReport, SweepReport

TOGETHER = 64
WINDOW = 4 * ACKNOWLEDGE_EVERY  # unacknowledged reports per gateway; further news waits, joined


class Reports:
    """The reports of one worker incarnation, by address of a gateway or another worker."""

    def __init__(self, worker: str, incarnation: int) -> None:
        self._worker, self._incarnation = worker, incarnation
        self._unacknowledged: dict[str, deque[SweepReport | PeerReport]] = {}
        self._held: dict[str, CoalescedNews] = {}  # news for gateways with a full window
        self._serials: dict[str, int] = {}  # last serial used

    def make(
        self,
        emitted: Iterable[GatewayNews],
        sweep: int,
        credit: Callable[[str], list[OfflineCapacity] | None],
        seconds: float = 0.0,
    ) -> list[tuple[str, SweepReport]]:
        """Return a report for each gateway that has news, or that can take held news now.

        ``credit`` returns what a gateway must know of the offline requests
        that are accepted; it is called only when there is a report. ``seconds`` is the duration of the sweep.
        """
        news: dict[str, list[GatewayNews]] = {}
        for one in emitted:
            news.setdefault(one.gateway, []).append(one)
        for gateway in [*self._held]:
            self._held[gateway].add(news.pop(gateway, ()))
            if self._has_room(gateway):
                news[gateway] = self._held.pop(gateway).news
        made = []
        for gateway, reported in news.items():
            if self._has_room(gateway):
                made.append((gateway, self._report(gateway, sweep, reported, credit(gateway), seconds)))
            else:
                self._held[gateway] = held = CoalescedNews()
                held.add(reported)
        return made

    def _has_room(self, gateway: str) -> bool:
        return len(self._unacknowledged.get(gateway, ())) < WINDOW

    @property
    def last(self) -> dict[str, int]:
        """The last serial for each address, as sent in heartbeats.

        Includes the serial of a report that is still held back. The gateway then asks for it, which also tells how far it
        is.
        """
        return {address: serial + (address in self._held) for address, serial in self._serials.items()}

    def _report(
        self, gateway: str, sweep: int, news: list[GatewayNews], offline: list[OfflineCapacity] | None, seconds: float
    ) -> SweepReport:
        report = SweepReport(self._worker, self._incarnation, self._next(gateway), sweep, news, offline, seconds)
        self._unacknowledged.setdefault(gateway, deque()).append(report)
        return report

    def for_worker(self, address: str, messages: list[PeerMessage]) -> list[PeerReport]:
        """Return new reports for another worker, with at most ``TOGETHER`` messages each.

        The limit keeps reports small. One report for each message would be too many: a thousand leases asked for in one turn
        would not fit a mailbox.
        """
        batches = [messages[start : start + TOGETHER] for start in range(0, len(messages), TOGETHER)]
        made = [PeerReport(self._worker, self._incarnation, self._next(address), batch) for batch in batches]
        self._unacknowledged.setdefault(address, deque()).extend(made)
        return made

    def _next(self, address: str) -> int:
        serial = self._serials[address] = self._serials.get(address, 0) + 1
        return serial

    def acknowledge(self, address: str, serial: int) -> None:
        """Drop the reports up to ``serial``: they have arrived."""
        kept = self._unacknowledged.get(address, deque())
        while kept and kept[0].serial <= serial:
            kept.popleft()

    def since(self, address: str, serial: int) -> list[SweepReport | PeerReport]:
        """Return the reports from ``serial`` on. All earlier ones have arrived."""
        self.acknowledge(address, serial - 1)
        return [report for report in self._unacknowledged.get(address, ()) if report.serial >= serial]

    def forget(self, node: str) -> None:
        """Forget the gateway or worker of a node that is gone."""
        for address in [a for a in self._serials if a.partition("/")[0] == node]:
            self._unacknowledged.pop(address, None)
            self._held.pop(address, None)
            del self._serials[address]

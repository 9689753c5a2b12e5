"""Reports of the worker: to gateways, with the offline credit in them, and to and from other workers.

Per turn the worker makes one numbered report for each gateway and a few for each other worker. A report holds everything
that its receiver must know of the turn, and is kept until it is acknowledged. Reports from other workers are acknowledged in
the same way, since casts between nodes are delivered at most once: if one that asks for, grants or returns a lease were
lost, home or host would wait for ever.

Back-pressure: once a gateway has ``WINDOW`` unacknowledged reports, further news is joined until it has acknowledged some.
Otherwise the mailbox of a gateway that is slower than its workers would overflow, and the losses would have to be sent again
on top.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from ...policies.cluster.report_sequence import ACKNOWLEDGE_EVERY, ReportSequence
from ...policies.plan.coefficients import Coefficients
from ...policies.requests.book.sweep_report import SweepReport
from ...policies.sweep.events import GatewayNews, PeerMessage
from ...policies.sweep.offline_capacity import OfflineCapacity, encode_capacities
from ...policies.sweep.state import SweepState
from ...runtime.actor.actor import PeerInfo
from .coalesced_news import CoalescedNews
from .messages import PeerReport

TOGETHER = 64
WINDOW = 4 * ACKNOWLEDGE_EVERY  # unacknowledged reports per gateway; further news waits, joined
Answer = tuple[str, int]  # endpoint of the other worker ("ack" | "replay"), serial


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
        for gateway, effects in news.items():
            if self._has_room(gateway):
                made.append((gateway, self._report(gateway, sweep, effects, credit(gateway), seconds)))
            else:
                self._held[gateway] = held = CoalescedNews()
                held.add(effects)
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


class OfflineCredit:
    """The offline credit that each gateway was last sent: how many offline requests the worker accepts.

    Heartbeats always carry it; reports carry it while offline sequences are present. ``state`` is the worker's, and is only
    read.
    """

    def __init__(self, state: SweepState) -> None:
        self._state = state
        self._blends: set[str] = set()  # gateways that had a report while offline sequences were present
        # the credit last sent to each gateway; a lost heartbeat is made good by the next one
        self._sent: dict[str, list[OfflineCapacity]] = {}

    def changed_for(self, gateway: str) -> list[OfflineCapacity] | None:
        """Return the credit for a report, or None if there is no change to send.

        Changes are reported while offline sequences are present, and once more after they are gone.
        """
        if self._state.parts.queue.offline:
            self._blends.add(gateway)
        elif gateway in self._blends:
            self._blends.remove(gateway)
        else:
            return None
        rooms = self._state.offline_capacities()
        if rooms == self._sent.get(gateway):
            return None
        self._sent[gateway] = rooms
        return rooms

    def beat(self, costs: Coefficients | None) -> dict[str, object]:
        """Return the heartbeat's fields. ``costs`` are the costs of sweeps, if known."""
        rooms = self._state.offline_capacities()
        self._sent = dict.fromkeys(self._sent, rooms)
        return encode_capacities(rooms, costs)


class Peers:
    """Reports received from other workers, with a sequence for the current life of each of them.

    ``address`` is this worker's actor; other workers number their reports to it. A report that the next number or a
    heartbeat shows to be missing is asked for again.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._sequences: dict[str, ReportSequence] = {}  # worker -> reports of its current life
        self._seen: dict[str, float | None] = {}  # worker -> arrival time of the last heartbeat that was processed

    def accept(self, report: PeerReport) -> tuple[bool, Answer | None]:
        """Return whether this is the worker's next report, and the answer to send."""
        sequence = self._sequence(report.worker, report.incarnation)
        if sequence.accept(report.serial):
            due = sequence.due()
            return True, None if due is None else ("ack", due)
        first = sequence.missing(report.serial)
        return False, None if first is None else ("replay", first)

    def heartbeats(self, peers: Mapping[str, PeerInfo]) -> list[tuple[str, Answer]]:
        """Return the answers to heartbeats received since the last call, by worker."""
        answers: list[tuple[str, Answer]] = []
        for name, peer in peers.items():
            serial = peer.payload.get("reports", {}).get(self._address, 0)
            if not serial or self._seen.get(name) == peer.heartbeat_at:
                continue
            self._seen[name] = peer.heartbeat_at
            sequence = self._sequence(name, peer.incarnation)
            if (first := sequence.heard(serial)) is not None:
                answers.append((name, ("replay", first)))
            if (due := sequence.due(heartbeat=True)) is not None:
                answers.append((name, ("ack", due)))
        return answers

    def forget(self, worker: str) -> None:
        """Forget the current life of a worker, which is over."""
        self._sequences.pop(worker, None)

    def _sequence(self, worker: str, incarnation: int) -> ReportSequence:
        known = self._sequences.get(worker)
        if known is None or known.incarnation != incarnation:  # the node lets in nothing from an earlier life
            known = self._sequences[worker] = ReportSequence(incarnation)
        return known

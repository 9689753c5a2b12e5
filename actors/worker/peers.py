"""What other workers have told this one, in the order of each, and what must be said again.

Owns a sequence of reports for the current life of each other worker. Casts between nodes come at most once; of a lease that
is asked for, granted or returned in one that was lost, home or host would wait for ever. So peers number what they say as
they do for gateways, acknowledge, and ask again for what the next number or a heartbeat shows to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...runtime.actor.actor import PeerInfo
from ..report_sequence import ReportSequence
from .messages import PeerReport

Answer = tuple[str, int]  # the endpoint of the other worker ("ack" | "replay"), the serial


class Peers:
    """See the module. ``address``: of this worker's actor, under which others number what they tell it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._sequences: dict[str, ReportSequence] = {}  # worker -> reports of its current life
        self._seen: dict[str, float | None] = {}  # worker -> when the last heartbeat that was looked at came

    def accept(self, report: PeerReport) -> tuple[bool, Answer | None]:
        """Whether this is the next report of that worker, and what to answer."""
        sequence = self._sequence(report.worker, report.incarnation)
        if sequence.accept(report.serial):
            due = sequence.due()
            return True, None if due is None else ("ack", due)
        first = sequence.missing(report.serial)
        return False, None if first is None else ("replay", first)

    def heartbeats(self, peers: Mapping[str, PeerInfo]) -> list[tuple[str, Answer]]:
        """What to answer to the heartbeats that have come since the last look, by worker."""
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
        """That life of it is over."""
        self._sequences.pop(worker, None)

    def _sequence(self, worker: str, incarnation: int) -> ReportSequence:
        known = self._sequences.get(worker)
        if known is None or known.incarnation != incarnation:  # of an earlier life nothing is let in by the node
            known = self._sequences[worker] = ReportSequence(incarnation)
        return known

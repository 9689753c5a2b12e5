"""Peer reports: ordered, acknowledged delivery of other workers' messages.

Owns a report sequence for the current life of each other worker. Casts between nodes are delivered at most once. If one that
asks for, grants or returns a lease were lost, home or host would wait for ever. So peers number their reports as they do for
gateways, acknowledge them, and ask again for any that the next number or a heartbeat shows to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...runtime.actor.actor import PeerInfo
from ..report_sequence import ReportSequence
from .messages import PeerReport

Answer = tuple[str, int]  # endpoint of the other worker ("ack" | "replay"), serial


class Peers:
    """Reports received from other workers (see the module).

    ``address`` is this worker's actor; other workers number their reports to it.
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

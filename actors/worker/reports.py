"""What a turn of the worker makes it say: to each gateway one numbered report, to each worker few messages.

Pure bookkeeping. A report holds everything that one gateway must know of the turn, and is kept until it is acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from blockwright.actors.worker.messages import Emitted, Progress, Returned, Scored, SweepReport
from blockwright.policies.sweep.events import (
    Effect,
    FlightDone,
    GivenBack,
    LeaseGranted,
    LeaseReturned,
    LeaseWanted,
    Preempted,
    Progressed,
    PromptScored,
    Send,
    TokensEmitted,
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
        drafts: dict[str, SweepReport] = {}
        for effect in effects:
            if isinstance(effect, TokensEmitted | PromptScored | Progressed | GivenBack | Preempted):
                draft = drafts.get(effect.gateway)
                if draft is None:
                    draft = drafts[effect.gateway] = self._next(effect.gateway, sweep)
                _note(draft, effect)
        for gateway, report in drafts.items():
            self._unacknowledged.setdefault(gateway, deque()).append(report)
        return list(drafts.items())

    def _next(self, gateway: str, sweep: int) -> SweepReport:
        serial = self.serials[gateway] = self.serials.get(gateway, 0) + 1
        return SweepReport(self._worker, self._incarnation, serial, sweep, [], [], [], [])

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


def _note(report: SweepReport, effect: TokensEmitted | PromptScored | Progressed | GivenBack | Preempted) -> None:
    match effect:
        case TokensEmitted():
            pairs = [(entry.logprob, entry.top) for entry in effect.logprobs]
            report.emitted.append(
                Emitted(effect.request, effect.attempt, effect.position, effect.tokens, pairs, effect.finish)
            )
        case Progressed():
            report.progress.append(Progress(effect.request, effect.attempt, effect.computed, effect.cached))
        case PromptScored():
            report.scored.append(Scored(effect.request, effect.attempt, effect.position, effect.entries))
        case GivenBack():
            report.returned.append(Returned(effect.request, effect.attempt, effect.reason))
        case Preempted():
            report.preempted.append(effect.request)

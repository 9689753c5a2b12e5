"""Values of a forecast: the snapshot of a worker where it begins, messages in flight, and the timeline of a replay."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..plan.coefficients import Coefficients
from ..plan.sweep_plan import SweepPlan
from ..sweep.events import Cancelled, Event, Submission
from ..sweep.state import SweepState
from .lengths import MORE, corrected


@dataclass(slots=True)
class TimelineEntry:
    """A worker snapshot at one moment.

    state: its machine, or a replica; not changed. open: its open plans in order, with the seconds from now until each
    ends. more, spread: see ``corrected`` of ``lengths.py``.
    """

    state: SweepState
    coefficients: Coefficients
    open: Sequence[tuple[SweepPlan, float]] = ()
    more: int = MORE
    spread: float = 0.0

    def total(self, of: Submission, length: int) -> int:
        """Return the tokens at which a sequence of ``length`` tokens is expected to end, if each takes a step.

        Without an estimate of its answer (``Submission.expected``), that is its limit. Forecasts play without drafts. So of
        a sequence that has some, only as many tokens are left as it takes steps (``drafts/pace.py``).
        """
        total = of.limit
        if of.expected:
            total = of.prompt_length + corrected(of.expected, of.prompt_length, length, self.more, self.spread)
        return total if of.drafts is None else self._paced(of, length, min(total, of.limit))

    def _paced(self, of: Submission, length: int, total: int) -> int:
        parts = self.state.parts
        local = parts.routes.home(of.route)
        if of.drafts is None or local is None or not parts.drafts.takes(of):
            return total
        pace = parts.drafts.paces.find(local.route.application, of.drafts)
        return total if pace is None else length + max(1, pace.steps_for(total - length))

    def fork(self) -> TimelineEntry:
        """Return a copy, which does not change when the worker goes on."""
        return TimelineEntry(self.state.fork(), self.coefficients, self.open, self.more, self.spread)

    def without_offline(self, now: float) -> TimelineEntry:
        """Return the worker as if its offline sequences left now; itself if there are none.

        They delay others by a few percent only (``SweepConfig.offline_delay``), but with them no two sweeps are alike.
        """
        if not self.state.parts.queue.offline:
            return self
        copy = self.fork()
        rows = copy.state.parts.rows
        for s in rows.live():
            if rows.is_offline(s) and not rows.is_guest(s):
                copy.state.apply(Cancelled(rows.submission[s].request), now)
        copy.state.take_effects()
        copy.state.parts.memory.take_edits()  # no plan is made for these alone
        return copy


@dataclass(frozen=True, slots=True)
class InFlightMessages:
    """Messages in flight: sent to a worker together, they arrive after this many seconds."""

    after: float
    worker: str
    messages: list[Event]


@dataclass(slots=True)
class Timeline:
    """The timeline of a replay so far. Times are seconds from its start; sweeps are those of the home."""

    first_tokens: dict[str, float] = field(default_factory=dict)  # by request: time of its first token in the replay
    ends: dict[str, float] = field(default_factory=dict)  # by request: time of its last token
    returned: set[str] = field(default_factory=set)  # requests that went back to their gateways unfinished
    sweeps: list[int] = field(default_factory=lambda: [0])  # numbers of ended sweeps, ascending,
    times: list[float] = field(default_factory=lambda: [0.0])  # and their times

    def time_of(self, sweep: int) -> float:
        """Return when this many sweeps had ended, interpolated between two known points."""
        at = bisect_left(self.sweeps, sweep)
        if at == len(self.sweeps) or self.sweeps[at] == sweep:
            return self.times[min(at, len(self.times) - 1)]
        part = (sweep - self.sweeps[at - 1]) / (self.sweeps[at] - self.sweeps[at - 1])
        return self.times[at - 1] + part * (self.times[at] - self.times[at - 1])

"""Event recorder: a proxy in front of the sweep machine that logs every call.

A call costs the event loop one small object; encoding and writing happen in batches on the thread of
``event_log_writer.py``. Events, plans and results are kept by reference until then, so they must not be mutated.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn, Protocol

from ...policies.plan.sweep_plan import SweepPlan, SweepResult
from ...policies.sweep.event_log import Applied, Committed, Entry, Failed, Planned, describe
from ...policies.sweep.events import Event
from ...policies.sweep.state import SweepState
from .event_log_writer import EventLogWriter

FLUSH_INTERVAL = 0.1  # seconds; a killed worker loses at most this much of its log


class Machine(Protocol):
    """The mutating calls of a sweep machine."""

    def apply(self, event: Event, now: float) -> None: ...

    def plan(self, now: float) -> SweepPlan | None: ...

    def commit(self, plan: SweepPlan, result: SweepResult, now: float) -> None: ...


class EventRecorder:
    """A ``Machine`` that forwards every call to ``state``. Nothing else may change that state."""

    def __init__(self, state: SweepState, writer: EventLogWriter) -> None:
        self._state, self._writer = state, writer
        self._entries: list[Entry] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        writer.begin(state.fork())

    def apply(self, event: Event, now: float) -> None:
        self._entries.append(Applied(event, now))
        try:
            self._state.apply(event, now)
        except Exception as error:
            self._fail(error)

    def plan(self, now: float) -> SweepPlan | None:
        planned = Planned(now)
        self._entries.append(planned)
        if self._timer is None:  # armed only here, because a request for a plan follows every event and commit
            self._timer = self._loop.call_later(FLUSH_INTERVAL, self._flush)
        try:
            plan = planned.plan = self._state.plan(now)
        except Exception as error:
            self._fail(error)
        planned.made = True
        return plan

    def commit(self, plan: SweepPlan, result: SweepResult, now: float) -> None:
        self._entries.append(Committed(result, now))
        try:
            self._state.commit(plan, result, now)
        except Exception as error:
            self._fail(error)

    def close(self) -> None:
        """Flush and end the log with the digest of the state. Idempotent."""
        self._end(self._state.fork())

    def break_off(self) -> None:
        """Flush and end the log without a digest: the worker failed."""
        self._end(None)

    def _fail(self, error: Exception) -> NoReturn:
        """Log the error, which a replay should reproduce, and re-raise it."""
        self._entries.append(Failed(describe(error)))
        self.break_off()
        raise error

    def _end(self, state: SweepState | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._writer.write(self._take())
        self._writer.close(state)

    def _take(self) -> list[Entry]:
        entries, self._entries = self._entries, []
        return entries

    def _flush(self) -> None:
        self._timer = None
        self._writer.write(self._take())
        if self._writer.half_full:
            self._writer.begin(self._state.fork())

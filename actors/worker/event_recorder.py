"""Event recorder: a proxy in front of a worker's state machine that logs every call.

A call costs the event loop one small object; encoding and writing happen in batches on the thread of
``event_log_writer.py``. Events, plans and results are kept by reference until then, so they must not be mutated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn, Protocol

from ...policies.plan.sweep_plan import SweepPlan, SweepResult
from ...policies.sweep.event_log import Applied, Committed, Failed, Planned, describe
from ...policies.sweep.events import Event
from ...policies.sweep.state import SweepState
from .event_log_writer import EventLogWriter, LoggedState

FLUSH_INTERVAL = 0.1  # seconds; a killed worker loses at most this much of its log


class Machine(Protocol):
    """The mutating calls of a sweep machine."""

    def apply(self, event: Event, now: float) -> None: ...

    def plan(self, now: float) -> SweepPlan | None: ...

    def commit(self, plan: SweepPlan, result: SweepResult, now: float) -> None: ...


class Recorder:
    """The entries of one log on their way to ``writer``. ``fork`` returns a copy of the state as it is now."""

    def __init__(self, writer: EventLogWriter, fork: Callable[[], LoggedState]) -> None:
        self._writer, self._fork = writer, fork
        self._entries: list[object] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        writer.begin(fork())

    def close(self) -> None:
        """Flush and end the log with the digest of the state. Idempotent."""
        self._end(self._fork())

    def _flush_soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH_INTERVAL, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._writer.write(self._take())
        if self._writer.half_full:
            self._writer.begin(self._fork())

    def _end(self, state: LoggedState | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._writer.write(self._take())
        self._writer.close(state)

    def _take(self) -> list[object]:
        entries, self._entries = self._entries, []
        return entries


class EventRecorder(Recorder):
    """A ``Machine`` that forwards every call to ``state``. Nothing else may change that state."""

    def __init__(self, state: SweepState, writer: EventLogWriter) -> None:
        super().__init__(writer, state.fork)
        self._state = state

    def apply(self, event: Event, now: float) -> None:
        self._entries.append(Applied(event, now))
        try:
            self._state.apply(event, now)
        except Exception as error:
            self._fail(error)

    def plan(self, now: float) -> SweepPlan | None:
        planned = Planned(now)
        self._entries.append(planned)
        self._flush_soon()  # only here, because a request for a plan follows every event and commit
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

    def break_off(self) -> None:
        """Flush and end the log without a digest: the worker failed."""
        self._end(None)

    def _fail(self, error: Exception) -> NoReturn:
        """Log the error, which a replay should reproduce, and re-raise it."""
        self._entries.append(Failed(describe(error)))
        self.break_off()
        raise error

"""The event log of the controller: its recorder, and the reader of its files.

The files are those of ``actors/worker/event_log_writer.py``. An event costs the event loop one small object; every
``EVERY`` events it takes the digest of the state, unless that is a large one.
"""

from __future__ import annotations

from pathlib import Path

from ...policies.control.event_log import ControlEntry, Handled, Reached
from ...policies.control.events import Effect, Event
from ...policies.control.state import ControllerState
from ...policies.sweep.event_log import describe
from ..settings.logs import LogSettings
from ..worker.event_log_file import LogFile
from ..worker.event_log_writer import EventLogWriter
from ..worker.event_recorder import Recorder

NAME = "controller"  # of the writer, in names of files
EVERY = 1000  # events from one digest to the next
LARGE = 200  # planned routes; above, the digest takes more than 0.02 s and is taken where a file ends


class ControlLog(LogFile[ControlEntry]):
    """One file of a controller's event log, opened for reading."""

    machine = "control"
    entries = ControlEntry


class ControlRecorder(Recorder):
    """A proxy that forwards every event to ``state``. Nothing else may change that state. Raises OSError."""

    def __init__(self, state: ControllerState, logs: LogSettings, incarnation: int) -> None:
        folder = Path(logs.event_log)
        super().__init__(EventLogWriter(folder, NAME, incarnation, logs.event_log_size, "control"), state.fork)
        self._state = state
        self._events = 0  # since the last digest

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Return the effects of an event, as ``ControllerState.handle`` does."""
        entry = Handled(event, now)
        self._entries.append(entry)
        self._flush_soon()
        try:
            entry.effects = self._state.handle(event, now)
        except Exception as error:  # for the caller: an order that cannot be carried out
            entry.error = describe(error)
            raise
        self._events += 1
        if self._events >= EVERY and len(self._state.holdings.plan) <= LARGE:
            self._events = 0
            self._entries.append(Reached(self._state.digest()))
        return entry.effects

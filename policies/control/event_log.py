"""The event log of a controller's state machine (``blockwright trace replay``): entry types, and their replay.

The machine is deterministic: given the same events at the same times, it asks for the same effects. A log therefore
reproduces a crash, shows whether a change to the policies changes any decision, and can drive a simulation. It begins and
ends like the log of a worker (``policies/sweep/event_log.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..sweep.event_log import Began, Difference, Ended, describe, differences
from .events import Effect, Event
from .state import ControllerState


@dataclass(slots=True)
class Handled:
    """A call of ``handle``, and its effects or the error that it raised. Not frozen: recorded before the call."""

    event: Event
    now: float
    effects: list[Effect] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Reached:
    """The digest of the whole state between two events."""

    digest: bytes


ControlEntry = Began | Handled | Reached | Ended


class ControlReplayer:
    """A replay of a log on its own machine. ``state`` may be inspected between entries."""

    def __init__(self, began: Began) -> None:
        self.state = ControllerState.restore(began.snapshot)

    def feed(self, entry: ControlEntry) -> list[Difference]:
        """Repeat the call of one entry; return the differences between its recorded and replayed outcome."""
        match entry:
            case Handled():
                again = self._handle(entry.event, entry.now)
                return [] if entry == again else [*differences("", entry, again)]
            case Reached(digest) | Ended(digest):
                return [*differences("digest of the state", digest.hex(), self.state.digest().hex())]
        raise ValueError(f"{type(entry).__name__} is no entry within a log")

    def _handle(self, event: Event, now: float) -> Handled:
        entry = Handled(event, now)
        try:
            entry.effects = self.state.handle(event, now)
        except Exception as error:  # an order that cannot be carried out; the state goes on
            entry.error = describe(error)
        return entry

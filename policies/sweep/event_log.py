"""The event log of a sweep machine (``blockwright trace replay``): entry types, trace replay, comparison of plans.

The machine is deterministic: fed the same entries, it makes the same plans, bit by bit. A log therefore reproduces a
crash, shows whether a change to the policies changes any plan, and can drive a replica or a simulation.
``actors/worker/event_log_file.py`` reads and writes the files; ``actors/worker/event_recorder.py`` records the calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from ..plan.sweep_plan import SweepPlan, SweepResult
from .events import Event
from .state import SweepState


@dataclass(frozen=True, slots=True)
class Began:
    """The first entry: ``SweepState.snapshot`` at the start of the log."""

    snapshot: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Applied:
    """A call of ``apply``."""

    event: Event
    now: float


@dataclass(
    slots=True
)  # not frozen: recorded before the call and completed after it, so that a call that raises is in the log
class Planned:
    """A call of ``plan``, and the ``plan`` it returned (None: nothing to do)."""

    now: float
    plan: SweepPlan | None = None
    made: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """A call of ``commit`` for the open plan ``result.number``."""

    result: SweepResult
    now: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The error that the previous call raised, which ended the worker."""

    error: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The last entry of a log that was closed normally: the digest of the whole state."""

    digest: bytes


Entry = Began | Applied | Planned | Committed | Failed | Ended


def describe(error: BaseException) -> str:
    """Return the text for ``Failed``."""
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between recorded and replayed plans.

    ``field`` is a path such as ``edits[2].slots[0]``; the values are their ``repr``.
    """

    field: str
    recorded: str
    replayed: str


class Replayer:
    """A replay of a log on its own machine. ``state`` may be inspected between entries."""

    def __init__(self, began: Began) -> None:
        self.state = SweepState.restore(began.snapshot)
        self._error = ""  # error of the last call, not yet matched with a Failed entry

    def feed(self, entry: Entry) -> list[Difference]:
        """Repeat the call of one entry; return the differences between its recorded and replayed outcome."""
        if isinstance(entry, Failed):
            return self.end(entry.error)
        if self._error:
            return self.end()
        try:
            return self._do(entry)
        except Exception as error:  # perhaps the recorded one: the next entry tells
            self._error = describe(error)
            return []

    def end(self, recorded: str = "") -> list[Difference]:
        """Finish after the last entry; return differences. ``recorded``: the error that ends the log."""
        error, self._error = self._error, ""
        return [] if error == recorded else [Difference("error", recorded or "none", error or "none")]

    def _do(self, entry: Entry) -> list[Difference]:
        state = self.state
        found: list[Difference] = []
        match entry:
            case Applied():
                state.apply(entry.event, entry.now)
            case Planned():
                plan = state.plan(entry.now)
                if entry.made:
                    found = list(differences("", entry.plan, plan))
            case Committed():
                state.commit(SweepPlan(entry.result.number), entry.result, entry.now)
            case Ended():
                found = list(differences("digest of the state", entry.digest.hex(), state.digest().hex()))
            case _:
                raise ValueError(f"{type(entry).__name__} is no entry within a log")
        state.take_effects()  # the worker performed them; drop them here
        return found


def differences(path: str, recorded: object, replayed: object) -> Iterator[Difference]:
    """Yield the differences field by field, strictly: 1, 1.0 and True differ."""
    if type(recorded) is not type(replayed):
        yield Difference(path or "plan", repr(recorded), repr(replayed))
    elif is_dataclass(recorded):
        prefix = f"{path}." if path else ""
        for field in fields(recorded):
            yield from differences(prefix + field.name, getattr(recorded, field.name), getattr(replayed, field.name))
    elif isinstance(recorded, list | tuple) and isinstance(replayed, list | tuple):
        if len(recorded) != len(replayed):
            yield Difference(f"len({path})", str(len(recorded)), str(len(replayed)))
        for index, (one, other) in enumerate(zip(recorded, replayed, strict=False)):
            yield from differences(f"{path}[{index}]", one, other)
    elif repr(recorded) != repr(replayed):
        yield Difference(path, repr(recorded), repr(replayed))

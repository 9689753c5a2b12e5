"""The recorder in front of a sweep machine: every call is noted in order, and nothing is lost when the machine breaks."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.actors.worker.event_recorder import EventRecorder
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.sweep.event_log import Applied, Began, Committed, Entry, Failed, Planned, Replayer
from blockwright.policies.sweep.events import PeerLost
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.policies.event_tape import Tape, drive, make_state


class Paper:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.half_full, self.closed = False, 0
        self.parts: list[tuple[SweepState, list[Entry]]] = []
        self.last: SweepState | None = None

    def begin(self, state: SweepState) -> None:
        self.parts.append((state, []))
        self.half_full = False

    def write(self, entries: list[Entry]) -> None:
        self.parts[-1][1].extend(entries)

    def close(self, state: SweepState | None) -> None:
        self.last, self.closed = state, self.closed + 1


def recorder(state: SweepState) -> tuple[EventRecorder, Paper]:
    paper = Paper()
    return EventRecorder(state, paper), paper  # type: ignore[arg-type]


async def test_every_call_is_noted_in_order() -> None:
    state, other = make_state(), make_state()
    recording, paper = recorder(state)
    drive(recording, state)  # type: ignore[arg-type]
    recording.close()
    tape = Tape(other)
    drive(tape, other)
    ((begin, entries),) = paper.parts
    assert entries == tape.entries
    assert Began(begin.snapshot()) == tape.began
    assert paper.last is not None
    assert paper.last.digest() == other.digest() == state.digest()


async def test_another_part_begins_with_the_state_between_two_calls() -> None:
    state = make_state()
    recording, paper = recorder(state)
    driver = drive(recording, state, turns=9)  # type: ignore[arg-type]
    recording.apply(PeerLost("w7"), lost := driver.now)
    paper.half_full = True
    recording._flush()
    while driver.turn():
        continue
    recording.close()
    (_, first), (begin, second) = paper.parts
    assert Applied(PeerLost("w7"), lost) == first[-1]
    replay = Replayer(Began(begin.snapshot()))
    assert [found for entry in second if (found := replay.feed(entry))] == []
    assert replay.state.digest() == state.digest()


class Broken:
    """A state that fails where a test wants it (a compiled class cannot be inherited from)."""

    def __init__(self, state: SweepState) -> None:
        self.state = state

    def __getattr__(self, name: str) -> object:
        return getattr(self.state, name)

    def plan(self, now: float) -> SweepPlan | None:
        raise AssertionError("a queue has lost a sequence")

    def commit(self, plan: SweepPlan, result: SweepResult, now: float) -> None:
        raise KeyError(7)


async def test_what_a_broken_machine_was_asked_is_written_before_its_error_is_raised() -> None:
    state: Any = Broken(make_state())
    recording, paper = recorder(state)
    with pytest.raises(AssertionError, match="lost a sequence"):
        recording.plan(2.0)
    assert paper.parts[-1][1] == [Planned(2.0), Failed("AssertionError: a queue has lost a sequence")]
    assert (paper.closed, paper.last) == (1, None)
    with pytest.raises(KeyError):
        recording.commit(SweepPlan(1), SweepResult(1), 3.0)
    assert paper.parts[-1][1][2:] == [Committed(SweepResult(1), 3.0), Failed("KeyError: 7")]

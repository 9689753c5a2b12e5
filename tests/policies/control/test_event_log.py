"""A controller's log replays to the same effects and the same state, and whatever differs is found and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blockwright.policies.control.event_log import ControlEntry, ControlReplayer, Handled, Reached
from blockwright.policies.control.events import Deploy, Event, Load, WorkerHeartbeat
from blockwright.policies.sweep.event_log import Applied, Began, Difference, Ended, describe
from blockwright.policies.sweep.events import PeerLost
from blockwright.tests.claims import claim
from blockwright.tests.policies.control.world import ControlWorld


class ControlTape:
    """The log of a world's state machine, kept in memory: ``began``, then ``entries`` with a digest after every tenth."""

    def __init__(self, seed: int, steps: int = 120) -> None:
        world = ControlWorld(seed, self.note)
        self.state = world.state
        self.began, self.entries = Began(world.state.snapshot()), list[ControlEntry]()
        world.start()
        for _ in range(steps):
            world.step()
        self.entries.append(Ended(world.state.digest()))

    def note(self, event: Event, now: float, found: Any) -> None:
        failed = isinstance(found, Exception)
        self.entries.append(Handled(event, now, [] if failed else found, describe(found) if failed else ""))
        if len(self.entries) % 10 == 0:
            self.entries.append(Reached(self.state.digest()))

    def place_of(self, kind: type) -> tuple[int, Handled]:
        """The first entry with an effect of that kind."""
        return next(
            (place, one)
            for place, one in enumerate(self.entries)
            if isinstance(one, Handled) and any(isinstance(effect, kind) for effect in one.effects)
        )


def replayed(tape: ControlTape) -> tuple[int, list[Difference]]:
    """(entries fed, differences of the last of them)"""
    replay = ControlReplayer(tape.began)
    for number, entry in enumerate(tape.entries):
        if found := replay.feed(entry):
            return number, found
    return len(tape.entries), []


@claim("The event log of the controller replays its decisions", of="serving")
@pytest.mark.parametrize("seed", range(6))
def test_the_same_effects_and_the_same_state(seed: int) -> None:
    tape = ControlTape(seed)
    assert sum(isinstance(entry, Reached) for entry in tape.entries) > 5
    assert replayed(tape) == (len(tape.entries), [])


def test_a_planted_difference_is_found_where_it_is() -> None:
    tape = ControlTape(1)
    place, entry = tape.place_of(Load)
    at = next(n for n, effect in enumerate(entry.effects) if isinstance(effect, Load))
    effect = entry.effects[at]
    assert isinstance(effect, Load)
    entry.effects = [*entry.effects[:at], replace(effect, incarnation=99), *entry.effects[at + 1 :]]
    number, (found,) = replayed(tape)
    assert (number, found.field, found.recorded) == (place, f"effects[{at}].incarnation", "99")
    entry.effects = entry.effects[:at]
    number, (found, *_) = replayed(tape)
    assert (number, found.field) == (place, "len(effects)")


def test_an_event_that_was_otherwise_shows_in_the_next_digest() -> None:
    tape = ControlTape(1)
    beat = next(n for n, e in enumerate(tape.entries) if isinstance(e, Handled) and isinstance(e.event, WorkerHeartbeat))
    entry = tape.entries[beat]
    assert isinstance(entry, Handled)
    assert isinstance(entry.event, WorkerHeartbeat)
    entry.event = replace(entry.event, waiting=entry.event.waiting + 77)
    number, (found,) = replayed(tape)
    assert number >= beat
    assert isinstance(tape.entries[number], Reached)
    assert found.field == "digest of the state"


def test_an_order_that_cannot_be_carried_out_is_replayed_too() -> None:
    """The state goes on after it, as the live one did."""
    tape = ControlTape(1)
    error = describe(KeyError("application 'none' is not known; there are: "))
    tape.entries.insert(0, Handled(Deploy("none"), 0.0, [], error))
    assert replayed(tape) == (len(tape.entries), [])
    tape.entries[0] = Handled(Deploy("none"), 0.0)
    assert replayed(tape) == (0, [Difference("error", "''", repr(error))])


def test_an_entry_of_another_machine_is_no_entry_within_a_log() -> None:
    with pytest.raises(ValueError, match="Applied is no entry within a log"):
        ControlReplayer(ControlTape(1, 5).began).feed(Applied(PeerLost("w1"), 0.0))  # type: ignore[arg-type]

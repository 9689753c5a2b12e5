"""A log replays to the same plans and the same state, and whatever differs is found and named."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest

from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.sweep.event_log import (
    Applied,
    Began,
    Committed,
    Difference,
    Ended,
    Entry,
    Failed,
    Planned,
    Replayer,
    differences,
)
from blockwright.policies.sweep.events import Submission
from blockwright.tests.claims import claim

from ..event_tape import Tape, drive, make_state


def tape(turns: int = 10_000) -> Tape:
    made = Tape(make_state())
    drive(made, made.state, turns=turns)
    made.end()
    return made


def replayed(began: Began, entries: list[Entry]) -> tuple[int, list[Difference]]:
    """(entries fed, differences of the last of them)"""
    replay = Replayer(began)
    for number, entry in enumerate(entries):
        if found := replay.feed(entry):
            return number, found
    return len(entries), replay.end()


@claim("The event log of a worker replays its plans bit by bit, also after kill -9", of="serving")
def test_the_same_plans_and_the_same_state() -> None:
    log = tape()
    assert log.state.counters["preemptions"] > 0
    assert sum(isinstance(e, Planned) and e.plan is not None for e in log.entries) > 40
    assert replayed(log.began, log.entries) == (len(log.entries), [])


def test_from_the_middle_of_a_life() -> None:
    """With two open plans, waiting and running sequences: as the later part of a log begins."""
    state = make_state()
    driver = drive(Tape(state), state, turns=8)
    assert len(driver.open) == 2
    later = driver.machine = Tape(state)
    while driver.turn():
        continue
    later.end()
    assert replayed(later.began, later.entries) == (len(later.entries), [])


@pytest.mark.parametrize("turns", [3, 10, 30])
def test_a_planted_difference_is_found_where_it_is(turns: int) -> None:
    log = tape(turns)
    place, entry = next((i, e) for i, e in reversed([*enumerate(log.entries)]) if isinstance(e, Planned) and e.plan)
    assert isinstance(entry, Planned)
    assert entry.plan is not None
    entry.plan = deepcopy(entry.plan)
    entry.plan.start[0] += 1
    entry.plan.reasons["waiting"] = -1
    number, found = replayed(log.began, log.entries)
    assert number == place
    assert [difference.field for difference in found] == ["start[0]", "reasons"]
    assert int(found[0].recorded) == int(found[0].replayed) + 1


def test_an_event_that_was_otherwise_shows_in_a_plan() -> None:
    log = tape()
    submitted = [(i, e.event, e.now) for i, e in enumerate(log.entries) if isinstance(e, Applied)]
    place, event, now = next(one for one in submitted if isinstance(one[1], Submission))
    assert isinstance(event, Submission)
    log.entries[place] = Applied(replace(event, tokens=[9, *event.tokens[1:]]), now)
    _, found = replayed(log.began, log.entries)
    assert found[0].field == "edits[0].tokens[0]"


def test_a_state_that_no_plan_shows_is_compared_in_the_end() -> None:
    log = tape(10)
    place, entry = [(i, e) for i, e in enumerate(log.entries) if isinstance(e, Committed)][-1]
    other = replace(entry, result=replace(entry.result, tokens=[token + 1 for token in entry.result.tokens]))
    log.entries[place] = other
    number, found = replayed(log.began, log.entries)
    assert isinstance(log.entries[number], Ended)
    assert [difference.field for difference in found] == ["digest of the state"]


def test_an_error_is_replayed_too() -> None:
    log = tape(5)
    wrong = Committed(SweepResult(999), 9.0)  # of a plan that nobody made
    entries = [*log.entries, wrong]
    number, (found,) = replayed(log.began, entries)
    assert (number, found.field, found.recorded) == (len(entries), "error", "none")
    error = found.replayed
    assert "999" in error
    assert replayed(log.began, [*entries, Failed(error)]) == (len(entries) + 1, [])
    assert replayed(log.began, [*entries, Failed("other")])[1] == [Difference("error", "other", error)]
    assert replayed(log.began, [*entries, Planned(9.5)])[1] == [Difference("error", "none", error)]
    assert replayed(log.began, [*log.entries, Failed(error)])[1] == [Difference("error", error, "none")]


def test_differences_are_strict_and_have_paths() -> None:
    one, other = SweepPlan(1, row=[1, 2, 3]), SweepPlan(1, row=[1, 2])
    assert list(differences("", one, other)) == [Difference("len(row)", "3", "2")]
    assert list(differences("", SweepPlan(1, row=[True]), SweepPlan(1, row=[1]))) == [Difference("row[0]", "True", "1")]
    assert list(differences("", None, None)) == []
    assert [d.field for d in differences("", None, one)] == ["plan"]
    assert list(differences("x", 0.0, -0.0)) == [Difference("x", "0.0", "-0.0")]

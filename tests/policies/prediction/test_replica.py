"""A replica that gets the calls of a machine has the machine's state, and notices when it differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult, TokenLogprob
from blockwright.policies.prediction.replica import Learned, Replica, ReplicaError
from blockwright.policies.sweep.event_log import Applied, Began, Committed, Planned
from blockwright.policies.sweep.events import Submission
from blockwright.policies.sweep.feed import FeedEntry, PlanMade, Priced, check_of, committed, made

from ..event_tape import Tape, drive, make_state

COSTS = Coefficients(base=0.25)


def recorded(turns: int = 10_000) -> tuple[Tape, list[FeedEntry]]:
    """What a machine did, as its feed tells it."""
    tape = Tape(make_state())
    drive(tape, tape.state, turns=turns)
    entries: list[FeedEntry] = []
    for entry in tape.entries:
        match entry:
            case Planned():
                entries.append(made(entry.plan, entry.now))
            case Applied() | Committed():
                entries.append(entry)
    return tape, entries


def repeat(began: Began, entries: list[FeedEntry]) -> Replica:
    replica = Replica(began)
    for entry in entries:
        replica.take(entry)
    return replica


def test_it_ends_as_the_machine_does() -> None:
    tape, entries = recorded()
    replica = repeat(tape.began, entries)
    assert replica.state.digest() == tape.state.digest()
    assert tape.state.counters["preemptions"] > 0


def test_the_present_is_known_with_what_sweeps_cost_and_the_plans_that_run() -> None:
    tape, entries = recorded(turns=8)
    assert tape.state.open_plans == 2
    replica = repeat(tape.began, entries)
    ended = max(entry.now for entry in entries if isinstance(entry, Committed))
    assert replica.present(ended) is None
    replica.take(Priced(COSTS))
    present = replica.present(ended + 0.05)
    assert present is not None
    assert [left for _, left in present.open] == pytest.approx([0.2, 0.45])
    late = replica.present(ended + 10.0)
    assert late is not None
    assert [left for _, left in late.open] == [0.0, 0.25], "a sweep that takes longer ends now"
    begun = Replica(Began(tape.state.snapshot()), Learned(COSTS))
    assert begun.present(ended) is None, "the content of its plans was not sent"
    numbers = [plan.number for plan, _ in present.open]
    for number, plan in zip(numbers, [plan for plan, _ in present.open], strict=True):
        begun.take(Committed(SweepResult(number, [1] * len(plan.sample)), ended + 0.3))
    assert begun.present(ended + 0.3) is not None


def test_it_learns_how_wrong_estimates_are_for_those_after_it() -> None:
    tape, entries = recorded()
    learned = Learned(COSTS)
    spread = learned.spread
    for n in range(15):  # one too few
        spread.begin(f"before {n}", 0, 10)
        spread.end(f"before {n}", 10)
    assert spread.value == 0.0
    replica = Replica(tape.began, learned)
    for entry in entries:
        if isinstance(entry, Applied) and isinstance(entry.event, Submission):
            entry = Applied(replace(entry.event, expected=1), entry.now)
        replica.take(entry)
    present = Replica(Began(replica.state.snapshot()), learned).present(1e9)
    assert present is not None
    assert present.spread == spread.value > 0.1, "answers were longer than a token"


def test_a_sweep_takes_what_passes_from_end_to_end() -> None:
    learned = Learned()
    plan = SweepPlan(1, row=[0], start=[4], count=[1], sample=[0])
    learned.swept(plan, 9.0)
    assert learned.costs() is None, "what the device takes is not known"
    learned.coefficients = COSTS
    for seconds in (0.40, 0.30, 0.35):
        learned.swept(plan, seconds)
    assert (costs := learned.costs()) is not None
    assert costs.base == pytest.approx(0.35)
    for _ in range(400):
        learned.swept(plan, 0.05)
    assert learned.costs() == replace(COSTS, base=pytest.approx(0.05, abs=0.01))
    for _ in range(400):
        learned.swept(plan, -5.0)
    assert learned.costs() == replace(COSTS, base=0.0)


def test_another_plan_is_noticed_and_so_is_an_error() -> None:
    tape, entries = recorded()
    place = next(i for i, entry in enumerate(entries) if isinstance(entry, PlanMade) and entry.number == 5)
    for wrong in (
        replace(entries[place], check=1),  # type: ignore[type-var]
        replace(entries[place], number=6),  # type: ignore[type-var]
        PlanMade(entries[place].now, 0, 0),  # type: ignore[union-attr]
        Committed(SweepResult(99), 3.0),
        tape.began,
    ):
        replica = repeat(tape.began, entries[:place])
        with pytest.raises(ReplicaError):
            replica.take(wrong)
    lost = next(i for i, entry in enumerate(entries) if isinstance(entry, Applied) and isinstance(entry.event, Submission))
    with pytest.raises(ReplicaError):
        repeat(tape.began, [*entries[:lost], *entries[lost + 1 :]])


def test_a_plan_is_distinguished_by_each_of_its_columns() -> None:
    plan = SweepPlan(1, row=[0, 1], start=[4, 5], count=[1, 1], sample=[0, 1])
    others = [replace(plan, **{name: [*getattr(plan, name)[:-1], 9]}) for name in ("row", "start", "count", "sample")]
    others.append(replace(plan, row=[0, 1, 4], start=[5]))
    assert len({check_of(one) for one in (plan, *others)}) == 6


def test_log_probabilities_do_not_travel() -> None:
    entry = TokenLogprob(-1.0, [])
    outcome = committed(SweepResult(3, [7], [entry], [[entry], [entry]], 0.5, 0.4), 2.0)
    assert outcome == Committed(SweepResult(3, [7], [], [[], []], 0.5), 2.0)
    plain = SweepResult(4, [7], [None], [], 0.5)
    assert committed(plain, 2.0).result is plain

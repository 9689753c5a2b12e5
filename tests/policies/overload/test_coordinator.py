"""When drops and restores may follow one another."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from blockwright.policies.overload.coordinator import (
    SETTLE,
    BeginDrop,
    BeginRestore,
    CallForHelp,
    Decision,
    MemoryCoordinator,
    OverloadRules,
)
from blockwright.policies.overload.demand import PERIOD, READINGS, DemandReading
from blockwright.policies.overload.drop_plan import nbytes, replica
from blockwright.policies.overload.restore import HYSTERESIS
from tests.policies.overload.clusters import chain, planner

CHAIN = chain(8)
FULL, EMPTY = DemandReading(used=10, total=10, head=1, waiting=1), DemandReading(used=0, total=10)


def coordinator(page_size: int = 16) -> MemoryCoordinator:
    whole = nbytes(CHAIN, range(len(CHAIN)))
    replicas = [replica("m0", f"w{n}", CHAIN, 2 * whole) for n in range(4)]
    return MemoryCoordinator(OverloadRules(), planner({"m0": CHAIN}, most=2), CHAIN, replicas, page_size)


def told(of: MemoryCoordinator, at: float, reading: DemandReading) -> Sequence[Decision]:
    found = of.read(at, dict.fromkeys(of.groups, reading))
    return [decision for decision in found if not isinstance(decision, CallForHelp)]


def test_a_drop_follows_a_drop_and_a_restore_waits() -> None:
    of = coordinator()
    (first,) = told(of, 0.0, FULL)
    assert isinstance(first, BeginDrop)
    assert told(of, 0.1, FULL) == [], "one change at a time"
    of.dropped(first.drop.group.name, 1.0)
    assert told(of, 1.0 + SETTLE - 0.01, FULL) == [], "those who waited are about to start"
    (second,) = told(of, 1.0 + SETTLE, FULL)
    assert isinstance(second, BeginDrop)
    of.dropped(second.drop.group.name, 2.0)
    assert told(of, 2.0 + HYSTERESIS - 0.1, EMPTY) == []
    (back,) = told(of, 2.0 + HYSTERESIS, EMPTY)
    assert isinstance(back, BeginRestore)
    for load in back.loads:
        of.loaded(back.group.name, load)
    of.restored(back.group.name, 9.0)
    assert told(of, 9.0 + HYSTERESIS - 0.1, FULL) == [], "or the same group would come and go"
    assert isinstance(told(of, 9.0 + HYSTERESIS, FULL)[0], BeginDrop)


def dropped(of: MemoryCoordinator) -> None:
    """All that can be, by ``SETTLE``."""
    for at in (0.0, SETTLE):
        (drop,) = told(of, at, FULL)
        assert isinstance(drop, BeginDrop)
        of.dropped(drop.drop.group.name, at)
    assert len(of.groups) == 2


def test_what_is_quiet_for_one_group_is_quiet_for_the_next() -> None:
    of = coordinator()
    dropped(of)
    (first,) = told(of, 9.0, EMPTY)
    assert isinstance(first, BeginRestore)
    assert told(of, 9.1, EMPTY) == [], "one change at a time"
    for load in first.loads:
        of.loaded(first.group.name, load)
    of.restored(first.group.name, 10.0)
    assert told(of, 10.0 + SETTLE - 0.01, EMPTY) == []
    (second,) = told(of, 10.0 + SETTLE, EMPTY)
    assert isinstance(second, BeginRestore)
    assert second.group.name != first.group.name


@pytest.mark.parametrize(("more", "restores"), [(0, True), (3, True), (31, False)])
def test_a_load_that_stays_below_quiet_restores_and_one_that_grows_does_not(more: int, restores: bool) -> None:
    """Of 156 pages that a group has undropped 16 are in use, and so many ``more`` at the end of the window: below ``quiet``
    in any case, but not for long. Requests that have come since the last sweep wait."""
    of = coordinator(page_size=1)
    dropped(of)
    for n in range(READINGS + 1):
        used, at = 16 + more * n // READINGS, SETTLE + HYSTERESIS + 0.01 + PERIOD * (n - READINGS)
        seen = told(of, at, DemandReading(used=used, total=300, head=1, waiting=2))
        assert n == READINGS or not seen
    assert bool(seen) is restores

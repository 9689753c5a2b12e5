"""When drops and restores may follow one another."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.policies.overload.coordinator import (
    SETTLE,
    BeginDrop,
    BeginRestore,
    CallForHelp,
    Decision,
    MemoryCoordinator,
    OverloadRules,
)
from blockwright.policies.overload.demand import DemandReading
from blockwright.policies.overload.drop_plan import nbytes, replica
from blockwright.policies.overload.restore import HYSTERESIS
from tests.policies.overload.clusters import chain, planner

CHAIN = chain(8)
FULL, EMPTY = DemandReading(used=10, total=10, head=1, waiting=1), DemandReading(used=0, total=10)


def coordinator() -> MemoryCoordinator:
    whole = nbytes(CHAIN, range(len(CHAIN)))
    replicas = [replica("m0", f"w{n}", CHAIN, 2 * whole) for n in range(4)]
    return MemoryCoordinator(OverloadRules(), planner({"m0": CHAIN}, most=2), CHAIN, replicas, 16)


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

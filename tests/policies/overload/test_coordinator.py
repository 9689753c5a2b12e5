"""When drops and restores may follow one another."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from blockwright.policies.overload.coordinator import (
    SETTLE,
    BeginDrop,
    BeginRestore,
    CapacityShortage,
    Decision,
    GroupState,
    MemoryCoordinator,
    OverloadRules,
    ResumePipeline,
)
from blockwright.policies.overload.demand import PERIOD, READINGS, DemandReading
from blockwright.policies.overload.drop_plan import nbytes
from blockwright.policies.overload.restore import HYSTERESIS
from tests.policies.overload.clusters import chain, planner, replica

CHAIN = chain(8)
FULL, EMPTY = DemandReading(used=10, total=10, head=1, waiting=1), DemandReading(used=0, total=10)


def coordinator(page_size: int = 16, max_members: int = 2, quiet: float = 0.5) -> MemoryCoordinator:
    whole = nbytes(CHAIN, range(len(CHAIN)))
    replicas = [replica("m0", f"w{n}", CHAIN, 2 * whole) for n in range(4)]
    return MemoryCoordinator(
        OverloadRules(quiet=quiet), planner({"m0": CHAIN}, max_members=max_members), CHAIN, replicas, page_size
    )


def decided(of: MemoryCoordinator, at: float, reading: DemandReading) -> Sequence[Decision]:
    found = of.read(at, dict.fromkeys(of.groups, reading))
    return [decision for decision in found if not isinstance(decision, CapacityShortage)]


def drops(found: Sequence[Decision]) -> list[str]:
    assert all(isinstance(one, BeginDrop) for one in found)
    return [one.drop.group.name for one in found if isinstance(one, BeginDrop)]


def serves_as_pipeline(of: MemoryCoordinator, name: str, at: float) -> None:
    """The controller reports that a drop is over."""
    of.adopt(at, {one: of.state[one.name] for one in of.groups.values()} | {of.groups[name]: GroupState.PIPELINE})


def serves_as_replicas(of: MemoryCoordinator, name: str, at: float) -> None:
    """The controller reports that the members of a group have loaded everything."""
    left = {one: of.state[one.name] for one in of.groups.values() if one.name != name}
    back = [replica("m0", member.worker, CHAIN, member.budget) for member in of.groups[name].members]
    of.adopt(at, left | dict.fromkeys(back, GroupState.NORMAL))


def test_a_drop_follows_a_drop_and_a_restore_waits() -> None:
    of = coordinator(max_members=4)
    assert drops(decided(of, 0.0, FULL)) == ["w0+w1"]
    serves_as_pipeline(of, "w0+w1", 1.0)
    assert drops(decided(of, 1.0 + SETTLE - 0.01, FULL)) == ["w2+w3"], "those who waited at the first are about to start"
    serves_as_pipeline(of, "w2+w3", 1.0 + SETTLE)
    assert decided(of, 1.0 + SETTLE + 0.01, FULL) == [], "there is nobody to drop with who has settled"
    assert drops(decided(of, 1.0 + 2 * SETTLE, FULL)) == ["w0+w2+w1+w3"]
    serves_as_pipeline(of, "w0+w2+w1+w3", 2.0)
    assert decided(of, 2.0 + HYSTERESIS - 0.1, EMPTY) == []
    (back,) = decided(of, 2.0 + HYSTERESIS, EMPTY)
    assert isinstance(back, BeginRestore)
    serves_as_replicas(of, back.group.name, 9.0)
    assert decided(of, 9.0 + HYSTERESIS - 0.1, FULL) == [], "or the same group would come and go"
    assert drops(decided(of, 9.0 + HYSTERESIS, FULL)) == ["w0+w1"]


def test_reasons_that_take_turns_are_reported_once_in_a_while() -> None:
    """They filled the list of changes that people see, and called for a worker each time."""
    of, seen = coordinator(), list[str]()
    while found := drops(decided(of, 0.0, FULL)):
        for name in found:
            serves_as_pipeline(of, name, -1.0)
    pairs = dict.fromkeys(of.groups.values(), GroupState.PIPELINE)
    one = dict(list(pairs.items())[:1])  # a worker of the others is drained again and again
    for number in range(8):
        at = 10.0 + number / 2
        of.adopt(at, one if number % 2 else pairs)
        found = of.read(at + SETTLE, dict.fromkeys(of.groups, FULL))
        seen += [one.why for one in found if isinstance(one, CapacityShortage)]
    assert len(seen) == len({*seen}) == 2
    of.adopt(20.0, one)
    assert len(of.read(21.0, dict.fromkeys(of.groups, FULL))) == 1, "long after"
    assert not of.read(31.0, dict.fromkeys(of.groups, FULL)), "it is so still"


def test_who_lacks_memory_drops_and_does_not_wait_for_others_who_do() -> None:
    of, some = coordinator(), DemandReading(used=5, total=10)
    assert drops(of.read(0.0, {"w0": some, "w1": FULL, "w2": some, "w3": some})) == ["w1+w0"]
    assert of.read(0.1, {"w2": some, "w3": some, "w1+w0": FULL}) == [], "that one drops already"
    assert drops(of.read(0.2, {"w2": some, "w3": FULL})) == ["w3+w2"], "beside it"
    assert decided(of, 0.3, FULL) == []
    serves_as_pipeline(of, "w1+w0", 0.4)
    serves_as_pipeline(of, "w3+w2", 0.5)
    (help,) = of.read(1.0, dict.fromkeys(of.groups, FULL))
    assert isinstance(help, CapacityShortage), "nothing is under way any more that could"


def test_the_same_where_the_controller_keeps_the_groups() -> None:
    of = coordinator()
    assert drops(decided(of, 0.0, FULL)) == ["w0+w1"]
    pair, left = of.groups["w0+w1"], [of.groups[name] for name in ("w2", "w3")]
    of.adopt(0.1, {pair: GroupState.DROPPING, **dict.fromkeys(left, GroupState.NORMAL)})
    assert drops(decided(of, 0.1, FULL)) == ["w2+w3"]
    of.adopt(0.2, {pair: GroupState.PIPELINE, of.groups["w2+w3"]: GroupState.DROPPING})
    of.adopt(0.4, {pair: GroupState.PIPELINE, of.groups["w2+w3"]: GroupState.PIPELINE})
    assert decided(of, 0.4 + HYSTERESIS - 0.01, EMPTY) == []
    assert len(decided(of, 0.4 + HYSTERESIS, EMPTY)) == 2


def dropped(of: MemoryCoordinator) -> None:
    """All that can be, at once."""
    for at in (0.0, 0.1):
        (name,) = drops(decided(of, at, FULL))
        serves_as_pipeline(of, name, SETTLE)
    assert len(of.groups) == 2


def test_what_is_quiet_for_one_group_is_quiet_for_all() -> None:
    of = coordinator()
    dropped(of)
    found = decided(of, 9.0, EMPTY)
    assert [one.group.name for one in found if isinstance(one, BeginRestore)] == ["w0+w1", "w2+w3"]
    assert decided(of, 9.1, EMPTY) == [], "both change"
    assert all(isinstance(one, ResumePipeline) for one in decided(of, 9.2, FULL))
    assert set(of.state.values()) == {GroupState.PIPELINE}


def test_a_restore_follows_a_restore() -> None:
    """What one group uses is more than the 156 pages of its replicas."""
    of, much = coordinator(page_size=1, quiet=0.9), DemandReading(used=160, total=300)
    dropped(of)
    (first,) = of.read(9.0, {"w0+w1": much, "w2+w3": EMPTY})
    assert isinstance(first, BeginRestore)
    assert first.group.name == "w2+w3"
    serves_as_replicas(of, first.group.name, 10.0)
    assert decided(of, 10.0 + SETTLE - 0.01, EMPTY) == []
    (second,) = decided(of, 10.0 + SETTLE, EMPTY)
    assert isinstance(second, BeginRestore)
    assert second.group.name == "w0+w1"


@pytest.mark.parametrize(("more", "restores"), [(0, True), (3, True), (31, False)])
def test_a_load_that_stays_below_quiet_restores_and_one_that_grows_does_not(more: int, restores: bool) -> None:
    """Of 156 pages that a group has undropped 16 are in use, and so many ``more`` at the end of the window: below ``quiet``
    in any case, but not for long. Requests that have come since the last sweep wait."""
    of = coordinator(page_size=1)
    dropped(of)
    for n in range(READINGS + 1):
        used, at = 16 + more * n // READINGS, SETTLE + HYSTERESIS + 0.01 + PERIOD * (n - READINGS)
        seen = decided(of, at, DemandReading(used=used, total=300, head=1, waiting=2))
        assert n == READINGS or not seen
    assert bool(seen) is restores

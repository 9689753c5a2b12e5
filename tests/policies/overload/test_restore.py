"""Restores: when, whose, and where the parameters come from."""

from __future__ import annotations

import pytest

from blockwright.policies.overload.drop_plan import GroupMember, ParameterGroup, nbytes
from blockwright.policies.overload.restore import HYSTERESIS, GroupUse, loads, next_restores

from .clusters import applied, chain, planner, replica

CHAIN = chain(24)
WHOLE = nbytes(CHAIN, range(len(CHAIN)))


def merged(count: int, needed: int = 1) -> list[ParameterGroup]:
    groups = [replica("m", f"w{n}", CHAIN, 2 * WHOLE) for n in range(count)]
    return applied(groups, planner({"m": CHAIN}).plan(groups, needed))


@pytest.mark.parametrize(
    ("change", "restores"),
    [({}, True), ({"pending": True}, False), ({"expected": 0.51}, False), ({"since": HYSTERESIS - 0.1}, False)],
)
def test_only_when_it_is_quiet_for_good(change: dict[str, bool | float], restores: bool) -> None:
    (group,) = merged(2)
    asked = {"pending": False, "expected": 0.5, "since": HYSTERESIS, **change}
    found = next_restores([GroupUse(group, 50, 100)], **asked)  # type: ignore[arg-type]
    assert found == [group] * restores
    assert next_restores([GroupUse(group, 51, 100)], pending=False, expected=0.4, since=9.0) == []
    (single,) = merged(1)
    assert next_restores([GroupUse(single, 0, 100)], pending=False, expected=0.0, since=9.0) == []


def test_the_longest_pipeline_first_and_nobody_who_would_not_fit() -> None:
    groups = merged(5, 2 * WHOLE + 1)
    three, two = sorted(groups, key=lambda group: -len(group.members))
    assert (len(three.members), len(two.members)) == (3, 2)
    quiet = {"pending": False, "expected": 0.1, "since": 9.0}
    assert next_restores([GroupUse(two, 1, 100), GroupUse(three, 9, 100)], **quiet) == [three, two]  # type: ignore[arg-type]
    assert next_restores([GroupUse(two, 1, 200), GroupUse(three, 101, 100)], **quiet) == [two]  # type: ignore[arg-type]


@pytest.mark.parametrize("holders", [2, 3])
def test_where_several_members_have_the_same_parameters_each_link_takes_an_equal_part(holders: int) -> None:
    """In bytes, to the largest component: components are of two sizes."""
    depths = frozenset(range(len(CHAIN)))
    border = len(CHAIN) // 2
    members = [GroupMember(f"w{n}", 0, border, depths, 3 * WHOLE) for n in range(holders)]
    lacking = [GroupMember(f"v{n}", border, len(CHAIN), depths - {*range(border)}, 3 * WHOLE) for n in range(2)]
    every = loads(ParameterGroup("m", (*members, *lacking)), CHAIN)
    for member in lacking:
        sent = {one.worker: 0 for one in members}
        for load in every:
            if load.worker == member.worker:
                sent[load.source] += CHAIN[load.depth].nbytes
        assert sum(sent.values()) == nbytes(CHAIN, range(border))
        assert max(sent.values()) - min(sent.values()) <= max(component.nbytes for component in CHAIN)


def test_missing_parameters_come_from_members_links_sharing_the_work() -> None:
    (four,) = merged(4, 3 * WHOLE)
    every = loads(four, CHAIN)
    for member in four.members:
        mine = [load for load in every if load.worker == member.worker]
        assert {load.depth for load in mine} == set(range(len(CHAIN))) - member.held
        assert all(load.depth in next(m for m in four.members if m.worker == load.source).held for load in mine)
        assert len({load.source for load in mine}) == 3
        assert abs(mine[0].depth - member.first) == 1 or mine[0].depth == member.last, "next to what it has first"
    (pair,) = merged(2)
    dead = ParameterGroup("m", pair.members[:1])
    assert {load.source for load in loads(dead, CHAIN)} == {""}, "what nobody has comes from the checkpoint"


def test_the_components_nearest_to_a_stage_come_first() -> None:
    """At equal distance on both sides, the lower one does: a stage grows evenly."""
    held = frozenset(range(4, 7))
    whole = GroupMember("w0", 0, 4, frozenset(range(12)), 3 * WHOLE)
    middle = GroupMember("w1", 4, 7, held, 3 * WHOLE)
    order = [load.depth for load in loads(ParameterGroup("m", (whole, middle)), CHAIN[:12]) if load.worker == "w1"]
    assert order == [3, 7, 2, 8, 1, 9, 0, 10, 11]

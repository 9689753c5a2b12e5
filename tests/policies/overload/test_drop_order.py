"""Drop orders that cannot be carried out as things are now."""

from __future__ import annotations

import pytest

from blockwright.policies.model.chain import Hop
from blockwright.policies.overload.coordinator import GroupState
from blockwright.policies.overload.drop_order import undroppable
from blockwright.policies.overload.drop_plan import GroupMember, ParameterGroup

PIPELINE = ParameterGroup(
    "a", (GroupMember("w0", 0, 3, frozenset(range(3)), 0), GroupMember("w1", 3, 6, frozenset(range(3, 6)), 0))
)


def replica(worker: str, application: str = "a") -> ParameterGroup:
    return ParameterGroup(application, (GroupMember(worker, 0, 6, frozenset(range(6)), 0),))


def asked(*hops: Hop, **states: GroupState) -> str:
    """Of a pipeline of w0 and w1, replicas w2 and w3, and w4 with another model; ``states``: of the replicas."""
    groups = {PIPELINE: GroupState.PIPELINE, replica("w4", "b"): GroupState.NORMAL}
    groups |= {replica(worker): states.get(worker, GroupState.NORMAL) for worker in ("w2", "w3")}
    return undroppable("a", hops, groups, {"w9": "worker w9 is drained"})


def test_whole_groups_that_hold_their_stages_become_one() -> None:
    assert asked(Hop("w2", 0, 3), Hop("w3", 3, 6)) == ""
    assert asked(Hop("w0", 0, 3), Hop("w2", 3, 4), Hop("w1", 4, 6)) == ""


@pytest.mark.parametrize(
    ("hops", "says"),
    [
        ((Hop("w2", 0, 3), Hop("w9", 3, 6)), "worker w9 is drained"),
        ((Hop("w2", 0, 3), Hop("w8", 3, 6)), "worker w8 serves no whole model now"),
        ((Hop("w2", 0, 3), Hop("w4", 3, 6)), "not all of w2, w4 serve a"),
        ((Hop("w0", 0, 3), Hop("w2", 3, 6)), "a group would be cut by w0, w2"),
        ((Hop("w2", 0, 2), Hop("w3", 2, 4), Hop("w2", 4, 6)), "a group would be cut by w2, w3"),
        ((Hop("w0", 0, 4), Hop("w2", 4, 5), Hop("w1", 5, 6)), "worker w0 does not hold components 0 to 4"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(hops: tuple[Hop, ...], says: str) -> None:
    assert asked(*hops) == says


@pytest.mark.parametrize("state", [GroupState.DROPPING, GroupState.RESTORING])
def test_a_group_that_is_changing_is_left_alone(state: GroupState) -> None:
    assert asked(Hop("w2", 0, 3), Hop("w3", 3, 6), w3=state) == "a group of w2, w3 is changing"

"""Workers that serve a foundation and its fine-tune drop parameters of both: what the controller makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockwright.policies.control.drop_events import RestoreParameters
from blockwright.policies.control.drop_groups import memory_groups, refusal, serving_groups
from blockwright.policies.control.drops_view import overload_view
from blockwright.policies.control.events import KvCapacity, Load, Loaded, Remove, Unload
from blockwright.policies.control.route_switch import SwitchRoutes
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import ROOM, application, kinds
from blockwright.tests.policies.control.test_controller_overload import PAIR, A, Burst

TUNED = application("b", "eAmCnh")  # of A, with a layer of its own
BOTH = replace(PAIR, application="a, b")


@claim("Fine-tunes of one base drop the same layers together", of="parameter-dropping")
def test_models_that_are_together_on_all_members_are_dropped_together() -> None:
    """What they share is dropped with the last of them, and counts once."""
    burst = Burst("w0", "w1", served=(A, TUNED))
    assert refusal(burst.state, PAIR) == "not all of w0, w1 serve a"
    effects = burst.order(BOTH, 1.0)
    (order,) = kinds(effects, SwitchRoutes)
    assert order.ended == ["a@w0", "a@w1", "b@w0", "b@w1"]
    assert order.to == [f"a@w0+w1#{order.number}", f"b@w0+w1#{order.number}"]
    assert burst.open() == ["a@w0+w1", "b@w0+w1"]
    unloads = {(one.worker, one.holder): b"".join(id[:1] for id in one.ids) for one in kinds(burst.left(2.0), Unload)}
    assert unloads == {("w0", "a"): b"Bnh", ("w0", "b"): b"Cnh", ("w1", "a"): b"eAm", ("w1", "b"): b"eAm"}
    assert [*burst.state.routes] == order.to
    burst.switched(3.0)
    groups = memory_groups(burst.state, 0) or pytest.fail("nothing was reported")
    ((name, members),) = [(one.application, [(m.worker, m.held) for m in one.members]) for one in groups.groups]
    assert (name, members) == ("a, b", [("w0", [0, 1, 2]), ("w1", [3, 4, 5])])
    assert [one.nbytes for one in groups.chains["a, b"]] == [100, 100, 100, 200, 100, 100]
    view = overload_view(burst.state.overload, burst.state.served, burst.state.workers, 10.0, 1010.0)
    assert (view["groups"]["w0+w1"]["model"], view["totals"]["dropped_bytes"]) == ("a, b", 400 + 300)
    burst.manual = True
    effects = burst.order(RestoreParameters("w0+w1", {"w0": {3: "w1"}, "w1": {0: "w0"}}))
    loads = []
    while found := kinds(effects, Load):
        loads += [(one.worker, one.load.holder, one.load.first, one.load.source) for one in found]
        effects = [e for one in found for e in burst(Loaded(one.worker, one.incarnation, one.load))]
    assert {("w0", "a", 3, "w1"), ("w0", "b", 3, "w1"), ("w1", "a", 0, "w0"), ("w1", "b", 0, "w0")} <= {*loads}
    for worker in ("w0", "w1"):
        burst(KvCapacity(worker, burst.state.workers[worker].incarnation, ROOM))
    assert burst.stage() == "returning"
    burst.left()
    assert (burst.stage(), burst.open()) == ("", ["a@w0", "a@w1", "b@w0", "b@w1"])


@pytest.mark.parametrize("gone", ["a", "b"])
@pytest.mark.parametrize("stage", ["leaving", "exchanging", "pipeline", "loading"])
def test_of_models_that_are_together_one_goes_and_the_other_is_served_on(gone: str, stage: str) -> None:
    burst, other = Burst("w0", "w1", served=(A, TUNED)), "b" if gone == "a" else "a"
    burst.order(BOTH)
    if stage != "leaving":
        burst.left()
    if stage in ("pipeline", "loading"):
        burst.switched()
    if stage == "loading":
        burst.manual = True
        burst.order(RestoreParameters("w0+w1", {}))
    burst(Remove(gone))
    assert burst.stage() == stage
    assert burst.open() == [f"{other}@w0+w1"]
    if stage == "leaving":
        burst.left()
    if stage in ("leaving", "exchanging"):
        burst.switched()
    assert [one.application for one in serving_groups(burst.state)] == [other]


@pytest.mark.parametrize("worker", ["w0", "w1"])
@pytest.mark.parametrize("stage", ["leaving", "exchanging", "pipeline"])
def test_of_models_that_are_together_all_are_served_by_who_lives(worker: str, stage: str) -> None:
    burst = Burst("w0", "w1", served=(A, TUNED))
    burst.order(BOTH)
    if stage != "leaving":
        burst.left()
    if stage == "pipeline":
        burst.switched()
    burst.down(worker)
    lives = "w1" if worker == "w0" else "w0"
    assert (burst.stage(), burst.open()) == ("", [f"a@{lives}", f"b@{lives}"])

"""Claims: who wants which components on a worker, and why; what is held is claimed."""

from __future__ import annotations

from random import Random

import pytest

from blockwright.actors.controller.view import claims_view, cluster_view
from blockwright.policies.control.claims import Claimant, ComponentClaim
from blockwright.policies.control.drop_events import RequestsSwitched, RestoreParameters, RoutesLeft
from blockwright.policies.control.events import Idle, Retire, Undeploy
from blockwright.policies.control.state import ControllerState
from blockwright.tests.claims import claim
from blockwright.tests.policies.control.test_controller_overload import PAIR, A, Burst
from blockwright.tests.policies.control.test_controller_together import TUNED
from blockwright.tests.policies.control.test_on_demand import house
from blockwright.tests.policies.control.test_placement import OWN, narrow

WHY = "group w0+w1 serves as a pipeline, since parameters were dropped"


def of(state: ControllerState, worker: str) -> list[ComponentClaim]:
    return state.holdings.claims_on(worker)


def parties(state: ControllerState, worker: str) -> list[tuple[str, int, int, str]]:
    return [(one.by.value, one.first, one.last, " ".join(one.paused_by)) for one in of(state, worker)]


def unclaimed(state: ControllerState) -> list[tuple[str, str, int]]:
    """Return the components that workers hold without a claim."""
    found = []
    for worker, residency in state.residency.items():
        wanted = {(one.application, depth) for one in of(state, worker) for depth in range(one.first, one.last)}
        held = {(name, depth) for name, depths in residency.resident.items() for depth in depths}
        found += [(worker, *one) for one in sorted(held - wanted)]
    return found


@claim("The view of a cluster says for the components on each worker who claims them and why", of="observability")
def test_a_drop_takes_over_the_claims_of_replicas_and_gives_them_back() -> None:
    burst = Burst("w0", "w1", served=(A,))
    assert of(burst.state, "w0") == [ComponentClaim("a", 0, 6, "a@w0", Claimant.SERVING, "it is served", True)]
    burst.order(PAIR)
    assert parties(burst.state, "w0") == [("serving", 0, 6, "drops"), ("drops", 0, 3, "")]
    burst(RoutesLeft(burst.number(), 1))
    assert parties(burst.state, "w0") == [("drops", 0, 3, "")]
    assert [(one.first, one.last, one.why) for one in of(burst.state, "w1")] == [(3, 6, WHY)]
    burst(RequestsSwitched(burst.number(), ()))
    burst.manual = True
    burst(RestoreParameters("w0+w1", {}))
    assert [(one.by, one.held) for one in of(burst.state, "w0")] == [(Claimant.SERVING, False), (Claimant.DROPS, True)]
    (w0, _) = cluster_view(burst.state, {}, {}, [], [])["workers"]
    replica = {"model": "a", "first": 0, "last": 6, "route": "a@w0", "by": "serving", "why": "it is served"}
    assert w0["claims"][0] == {**replica, "held": False, "paused_by": ["drops"]}
    assert claims_view(burst.state, ["w0", "gone"], ["a"]) == [{"worker": "w0", **one} for one in w0["claims"]]
    assert claims_view(burst.state, ["w0"], ["b"]) == []


def test_an_application_that_is_not_served_has_no_claims() -> None:
    burst = Burst("w0", "w1", served=(A, TUNED))
    burst(Retire("a"))
    assert [(one.application, one.why) for one in of(burst.state, "w0")] == [
        ("a", "it takes no new requests, and running ones end"),
        (TUNED.name, "it is served"),
    ]
    burst(Undeploy(TUNED.name))
    assert [one.application for one in of(burst.state, "w0")] == ["a"]
    assert unclaimed(burst.state) == []


def test_a_block_deployed_for_a_burst_and_a_model_on_demand_say_so() -> None:
    bench = narrow()
    bench(OWN)
    why = "a block was pressed in a burst; it goes after 60 s without use"
    assert [(one.application, one.by, one.why) for one in of(bench.state, "w1")] == [("b", Claimant.COPIES, why)]
    bench(Idle("w1", 1, ("b",)))
    assert (of(bench.state, "w1"), unclaimed(bench.state)) == ([], [])
    made = house()
    assert "t3" not in {one.application for one in of(made.state, "w0")}, "parked"
    made.now = 10.0
    made.want("t3")
    wanted = {one.application: (one.by, one.why) for one in of(made.state, "w0")}
    assert wanted["t3"] == (Claimant.DEMAND, "requests asked for it")
    assert unclaimed(made.state) == []


@pytest.mark.parametrize("seed", range(3))
def test_what_is_held_is_claimed(seed: int) -> None:
    """Of walks with loads on demand: a claim that is withdrawn takes the components with it."""
    made = house()
    chance = Random(seed)
    for _ in range(60):
        made.want(name := chance.choice(["t0", "t1", "t2", "t3"]))
        made.end(name)
        made.tick(chance.choice([0.1, 3.0, 30.0]))
        assert unclaimed(made.state) == []

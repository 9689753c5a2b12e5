"""Parties: holdings in, claims out; each knows no other, leaves the holdings as they are, and faults in either are found."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from blockwright.policies.control.claims import (
    Claim,
    Claimant,
    ClaimKind,
    Dismiss,
    Know,
    PlanRoutes,
    TryAgain,
    Withdrawal,
)
from blockwright.policies.control.copies import Copies
from blockwright.policies.control.drop_events import OverloadNote
from blockwright.policies.control.events import (
    Add,
    ApplicationsWanted,
    DrainWorker,
    Event,
    LoadFailed,
    Park,
    Pressed,
    Undeploy,
    VacateWorker,
    WorkerDown,
)
from blockwright.policies.control.holdings import Holdings
from blockwright.policies.control.loads import LoadBlock
from blockwright.policies.control.on_demand import OnDemand
from blockwright.policies.control.parameter_drops import ParameterDrops
from blockwright.policies.control.party import Conclusions, Party
from blockwright.policies.control.reconcile import Reconcile
from blockwright.policies.control.route_switch import SwitchRoutes
from blockwright.policies.control.scaling import Scaling, ScalingPlan
from blockwright.policies.control.serving import Serving
from blockwright.policies.control.state import ControllerState
from blockwright.policies.model.chain import Hop, Route
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import application
from blockwright.tests.policies.control.test_controller_overload import PAIR, A, Burst
from blockwright.tests.policies.control.test_on_demand import house
from blockwright.tests.policies.control.test_placement import OWN, narrow
from blockwright.tests.policies.control.test_world_walks import at_rest
from blockwright.tests.policies.control.world import ControlWorld
from blockwright.tests.test_architecture import ROOT, imports_of

PRESSED_ROUTE = Route("b@w0+w1", 0, "b", (Hop("w0", 0, 3), Hop("w1", 3, 6)))
PIPELINE = Route("a@w0+w1#1", 0, "a", PAIR.hops)
WHY_PIPELINE = "group w0+w1 serves as a pipeline, since parameters were dropped"
REPLICAS = ("a@w0", "a@w1")


def copied() -> Holdings:
    bench = narrow()
    bench(OWN)
    return bench.state.holdings


def served() -> Holdings:
    return Burst("w0", "w1", served=(A,)).state.holdings


NEW = application("c", "xY", model="c")
TABLE: list[tuple[str, Callable[[], Party], Callable[[], Holdings], Event, list[Any]]] = [
    (
        "a pressed block gets a copy",
        lambda: Copies(60.0),
        lambda: narrow().state.holdings,
        OWN,
        [
            PlanRoutes(
                Claimant.COPIES, "a block was pressed in a burst; it goes after 60 s without use", (PRESSED_ROUTE,), 60.0
            )
        ],
    ),
    ("none while one is there", lambda: Copies(60.0), copied, OWN, []),
    ("none where it is off", lambda: Copies(0.0), lambda: narrow().state.holdings, OWN, []),
    ("none for a life that is over", lambda: Copies(60.0), copied, Pressed("w0", 9, OWN.blocks), []),
    *(
        (what, lambda: Copies(60.0), copied, event, [Withdrawal(Claimant.COPIES, ClaimKind.PLANNED, ends)])
        for what, event, ends in (
            ("a copy ends with its worker", WorkerDown("w1", 1, "killed"), ("b@w0+w1",)),
            ("and with its application", Park("b"), ("b@w0+w1",)),
            ("not with another", Undeploy("a"), ()),
            ("and when it cannot load", LoadFailed("w1", 1, LoadBlock("", 3, 5, [], "b"), "broken"), ("b@w0+w1",)),
        )
    ),
    (
        "a drop claims the pipeline and pauses what it leaves",
        ParameterDrops,
        served,
        PAIR,
        [
            PlanRoutes(Claimant.DROPS, WHY_PIPELINE, (PIPELINE,)),
            OverloadNote("w0+w1", "drop: throttling"),
            Claim(Claimant.DROPS, ClaimKind.PAUSED, REPLICAS, "requests of group w0+w1 leave it"),
            Withdrawal(Claimant.DROPS, ClaimKind.PAUSED, (PIPELINE.id,)),
            SwitchRoutes(1, [*REPLICAS], [PIPELINE.id], True),
        ],
    ),
    ("a death is no news without a group", ParameterDrops, served, WorkerDown("w0", 1, "killed"), []),
    (
        "an operator drains a worker",
        lambda: Scaling(ScalingPlan()),
        served,
        DrainWorker("w1", True),
        [
            VacateWorker("w1", 30.0, "an operator asked for it"),
            Claim(Claimant.DRAINS, ClaimKind.DRAINED, ("w1",), "an operator asked for it"),
        ],
    ),
    ("who is not drained is not resumed", lambda: Scaling(ScalingPlan()), served, DrainWorker("w1", False), []),
    (
        "an addition is known, placed and wanted",
        Serving,
        served,
        Add(NEW),
        [
            Know(NEW, 0, hidden=True),
            PlanRoutes(
                Claimant.SERVING,
                "it is placed there",
                (Route("c@w0", 0, "c", (Hop("w0", 0, 2),)), Route("c@w1", 0, "c", (Hop("w1", 0, 2),))),
            ),
            Claim(Claimant.SERVING, ClaimKind.WANTED, ("c",), "it is served"),
            TryAgain("c", anew=True),
        ],
    ),
    ("a model is undeployed", Serving, served, Undeploy("a"), [Dismiss("a")]),
    (
        "a model gives way",
        Serving,
        served,
        Park("a"),
        [Withdrawal(Claimant.SERVING, ClaimKind.WANTED, ("a",))],
    ),
    ("what is there is not asked for", OnDemand, served, ApplicationsWanted({"a": 9}), []),
]


@pytest.mark.parametrize(("party", "holdings", "event", "claims"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_holdings_in_claims_out(
    party: Callable[[], Party], holdings: Callable[[], Holdings], event: Event, claims: list[Any]
) -> None:
    concluded = [one for one in party().handle(event, holdings(), 0.0) if type(one).__name__ != "TakeFrom"]
    assert concluded == claims


def test_a_parked_model_that_is_asked_for_is_claimed_with_its_turn() -> None:
    holdings, demand = house().state.holdings, OnDemand()
    assert [*demand.handle(ApplicationsWanted({"t3": 9}), holdings, 0.0)] == []
    why = "requests asked for it"
    assert [*demand.settle(holdings, 0.0)] == [
        Claim(Claimant.DEMAND, ClaimKind.URGENT, ("t3",), why),
        Claim(Claimant.DEMAND, ClaimKind.WANTED, ("t3",), why),
    ]


@claim("No party of the controller imports another", of="code-and-tests")
def test_no_party_imports_another() -> None:
    """Nor what another one alone owns: additions, and the groups of dropped parameters."""
    folder = ROOT / "policies/control"
    parties = {path.stem: path for path in folder.glob("*.py") if "(Party):" in path.read_text()}
    assert parties.keys() == {"copies", "on_demand", "parameter_drops", "relocations", "scaling", "serving", "variants"}
    owned = {"additions": "serving", "dropped_group": "parameter_drops"}
    for name, path in parties.items():
        foreign = {*parties, *(one for one, owner in owned.items() if owner != name)} - {name}
        known = {other.rpartition(".")[2] for other in imports_of(path) if ".policies.control." in other}
        assert not known & foreign, f"{name} imports {known & foreign}"
        assert "reconcile" not in known


class Watched(ControllerState):
    """A state that fails when a party changes what it reads."""

    def _conclude(self, conclusions: Conclusions, now: float) -> bool:
        before = pickle.dumps(self.holdings)
        found = tuple(conclusions)
        assert pickle.dumps(self.holdings) == before, "a party has changed the holdings"
        return super()._conclude(found, now)


@pytest.mark.parametrize("seed", range(3))
def test_parties_leave_the_holdings_as_they_are(seed: int) -> None:
    world = ControlWorld(seed)
    world.state = Watched([*world.state.workers], 10.0, **world.options)  # type: ignore[arg-type]
    world.start()
    for _ in range(60):
        world.step()


# planted faults ------------------------------------------------------------------------------------------------------


def found(seeds: int = 12) -> str:
    """Return what a walk says of a fault, or "" if none of them notices it."""
    for seed in range(seeds):
        world = ControlWorld(seed)
        try:
            world.start()
            for _ in range(250):
                world.step()
            world.settle()
            at_rest(world)
        except (AssertionError, KeyError, IndexError) as error:
            return str(error) or type(error).__name__
    return ""


@pytest.mark.parametrize(
    "kind", [ClaimKind.PLANNED, ClaimKind.SUSPENDED, ClaimKind.PAUSED, ClaimKind.WANTED, ClaimKind.URGENT]
)
def test_a_claim_that_is_never_withdrawn_is_found(kind: ClaimKind, monkeypatch: pytest.MonkeyPatch) -> None:
    withdraw = Reconcile._withdraw

    def forgetful(self: Reconcile, withdrawal: Withdrawal) -> None:
        if withdrawal.kind is not kind:
            withdraw(self, withdrawal)

    monkeypatch.setattr(Reconcile, "_withdraw", forgetful)
    assert found()


@pytest.mark.parametrize("where", ["_vacate", "_suspend"])
def test_components_that_go_before_their_routes_are_found(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reconcile in the wrong order: the publication comes last."""
    step, publish = getattr(Reconcile, where), Reconcile.publish
    silent: list[None] = []

    def late(self: Reconcile, *args: Any, **named: Any) -> None:
        silent.append(None)
        step(self, *args, **named)
        silent.pop()

    monkeypatch.setattr(Reconcile, where, late)
    monkeypatch.setattr(Reconcile, "publish", lambda self: None if silent else publish(self))
    assert "is in force" in found()


def test_loads_before_unloads_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reconcile in the wrong order: workers go on before what is not claimed is let go."""
    monkeypatch.setattr(Reconcile, "advance", lambda self: None)
    assert found()


@pytest.mark.parametrize("party", [OnDemand, ParameterDrops, Serving])
def test_a_party_that_sees_stale_holdings_is_found(party: type[Party], monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads what was so eight of its turns ago."""
    handle, settle = party.handle, party.settle
    seen: list[bytes] = []

    def stale(view: Holdings) -> Holdings:
        seen.append(pickle.dumps(view))
        return pickle.loads(seen.pop(0)) if len(seen) > 8 else view  # noqa: S301

    monkeypatch.setattr(party, "handle", lambda self, event, view, now: handle(self, event, stale(view), now))
    monkeypatch.setattr(party, "settle", lambda self, view, now: settle(self, stale(view), now))
    assert found()

"""Workers that a launcher starts elsewhere, and the wish where an engine starts them by itself."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.policies.cluster.launching import HOPELESS
from blockwright.policies.cluster.provisioning import ProvisioningRules
from blockwright.policies.control.events import (
    DrainWorker,
    Fatal,
    GiveUpWorker,
    HeadChanged,
    KillWorker,
    LoadFailed,
    Observed,
    Serve,
    StartWorker,
    Vacated,
    VacateWorker,
    WishWorkers,
    WorkerDown,
    WorkerEnters,
    WorkerLeaves,
)
from blockwright.policies.control.scaling import ScalingPlan
from blockwright.tests.fake_cluster import FakeCluster, application, kinds

LATE = Observed(20.0, 0.0)
A = application("a", "eAmBnh")
LABELS = {"zone": "b"}


class Launching(FakeCluster):
    """One worker of its own, and the rules of a launcher elsewhere."""

    def __init__(self, launcher: str = "command", **rules: Any) -> None:
        made = ProvisioningRules(**{"mode": "off", "limit": 10.0, "window": 60.0, "places": launcher != "wait", **rules})
        names = ["w0", "w1", "w2"] if made.places else ["w0"]
        plan = ScalingPlan(made, names, 7.0, launcher, LABELS)
        super().__init__("w0", memory=dict.fromkeys([*names, "pod"], 1 << 20), scaling=plan)
        self.seen: list[Any] = self(Serve((A,)), 0.0)
        self.seen += self.up("w0", 0.5)

    def view(self) -> tuple[str, int]:
        """The launcher, and how many workers are asked of it."""
        view = self.state.scaling.view(0.0, 0.0)
        return view["launcher"], view["asked"]


def test_workers_that_run_always_are_started_once_one_serves() -> None:
    fleet = Launching(floor=3)
    started = [one.worker for one in kinds([*fleet.seen, *fleet(LATE, 1.0), *fleet(LATE, 1.0)], StartWorker)]
    assert (started, fleet.view()) == (["w1", "w2"], ("command", 2))
    fleet.up("w1", 2.0)
    fleet.up("w2", 2.0)
    assert fleet.open() == ["a@w0", "a@w1", "a@w2"]
    assert fleet.state.workers["w1"].labels == LABELS
    fleet(WorkerEnters("w1", {"host": "h"}))
    assert fleet.state.workers["w1"].labels == {"zone": "b", "host": "h"}
    assert not fleet.state.workers["w1"].joined


@pytest.mark.parametrize("drained", [False, True])
def test_a_launched_worker_that_is_asked_to_end_is_emptied_ended_and_starts_again(drained: bool) -> None:
    fleet = Launching(floor=2)
    fleet.up("w1", 2.0)
    if drained:
        fleet(DrainWorker("w1", True))
    (vacate,) = kinds(fleet(WorkerLeaves("w1", "SIGTERM was received")), VacateWorker)
    assert vacate == VacateWorker("w1", 7.0, "SIGTERM was received")
    assert (fleet.open(), kinds(fleet(WorkerLeaves("w1", "again")), VacateWorker)) == (["a@w0"], [])
    (kill,) = kinds(fleet(Vacated("w1")), KillWorker)
    assert kill == KillWorker("w1", "it was asked to leave, and is empty")
    fleet.down("w1", 3.0)
    fleet.up("w1", 4.0)
    assert fleet.open() == (["a@w0"] if drained else ["a@w0", "a@w1"])
    assert kinds(fleet(WorkerLeaves("w0", "no starter of it could say so")), VacateWorker) == []


def test_a_launched_worker_that_never_starts_or_loads_ends_nothing() -> None:
    fleet = Launching(floor=2)
    for life in range(6):
        fleet.starting("w1", 2.0 + life)
        assert kinds(fleet.down("w1", 2.0 + life, "exited 255: ssh: no route to host"), Fatal) == []
    assert (fleet.state.workers["w1"].cause, fleet.open()) == ("exited 255: ssh: no route to host", ["a@w0"])
    fleet.manual = True
    fleet.up("w1", 9.0)
    load = fleet.state.residency["w1"].loading
    assert load is not None
    assert kinds(fleet(LoadFailed("w1", fleet.incarnation, load, "there is no such folder")), Fatal) == []


def test_a_worker_whose_program_cannot_be_run_is_given_up_until_an_operator_or_a_new_head_asks_for_it() -> None:
    fleet, cause = Launching(floor=2), "not started: ssh cannot be run (No such file or directory); correct launch_command"

    def fails(count: int, why: str = cause) -> list[Any]:
        last = fleet.state.workers["w1"].last
        return kinds([one for life in range(count) for one in fleet(WorkerDown("w1", last + life + 1, why))], GiveUpWorker)

    assert fails(HOPELESS - 1) == []
    assert fails(1, "not started: no room") == []
    assert fails(HOPELESS - 1) == [], "in a row"
    assert fails(2) == [GiveUpWorker("w1", cause.removeprefix("not started: "))], "once"
    assert (fleet.state.scaling.given_up, fleet.open()) == ({"w1"}, ["a@w0"])
    assert kinds(fleet(DrainWorker("w1", False)), StartWorker) == [StartWorker("w1", "an operator asked for it")]
    assert (len(fails(HOPELESS)), fleet.state.scaling.given_up) == (1, {"w1"})
    assert kinds(fleet(HeadChanged()), StartWorker) == [StartWorker("w1", "a new head has taken over")]
    assert len(fails(HOPELESS)) == 1
    fleet.up("w1", 4.0)
    assert (fleet.state.scaling.given_up, fleet.open()) == (set(), ["a@w0", "a@w1"])


def test_an_engine_is_asked_by_a_wish_and_its_workers_count() -> None:
    fleet = Launching("wait", mode="relief", most=3)
    assert fleet.view() == ("wait", 0)
    assert kinds(fleet(LATE, 1.0), WishWorkers) == [WishWorkers(1, "20 s measured, the limit is 10 s")]
    effects = fleet(LATE, 2.0)
    assert (fleet.view(), kinds(effects, WishWorkers), kinds(effects, StartWorker)) == (("wait", 1), [], [])
    fleet(WorkerEnters("pod", {}))
    fleet.up("pod", 3.0)
    assert fleet.open() == ["a@pod", "a@w0"]
    view = fleet.state.scaling.view(0.0, 0.0)
    assert (view["workers"]["wanted"], view["most"], view["last"]["decision"]) == (2, 3, "wish 1")
    assert kinds(fleet(Observed(0.1, 0.0), 64.0), WishWorkers) == [
        WishWorkers(0, "one worker less would have kept latencies below 5 s for 60 s")
    ]
    fleet(WorkerLeaves("pod", "SIGTERM was received"), 65.0)
    assert fleet.state.scaling.view(0.0, 0.0)["workers"]["wanted"] == 1
    fleet(Vacated("pod"), 66.0)
    assert list(fleet.state.workers) == ["w0"]
    assert fleet(WorkerDown("pod", 1, "left")) == []

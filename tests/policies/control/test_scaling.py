"""Workers come and go with the load: what the controller's state machine makes of it."""

from __future__ import annotations

from typing import Any

from blockwright.actors.controller.history import History
from blockwright.actors.controller.view import cluster_view
from blockwright.policies.cluster.provisioning import ProvisioningRules
from blockwright.policies.cluster.scaling import PressedBlock
from blockwright.policies.control.events import (
    Add,
    HeadChanged,
    Load,
    Loaded,
    Observed,
    Pressed,
    StartWorker,
    StopWorker,
    Unload,
    Vacated,
    VacateWorker,
    WorkerDown,
    WorkerHeartbeat,
    WorkerStopped,
    WorkerUp,
)
from blockwright.policies.control.scaling import ScalingPlan
from blockwright.tests.fake_cluster import FakeCluster, application, kinds

LATE = Observed(20.0, 0.0)
A, B = application("a", "eAmBnh"), application("b", "eAmCoh")  # six components of 100 bytes; the first three are shared


class Fleet(FakeCluster):
    """One worker, and up to three."""

    def __init__(self, memory: int = 1 << 20, *served: Any, mode: str = "relief") -> None:
        names, rules = ["w0", "w1", "w2"], ProvisioningRules(mode=mode, limit=10.0, cool_down=5.0)
        options = {"memory": dict.fromkeys(names, memory), "scaling": ScalingPlan(rules, names, 7.0)}
        super().__init__("w0", block_idle=60.0, **options)
        self.serve(*(served or (A,)))

    def scaled_out(self) -> None:
        self(LATE, 1.0)
        self.up("w1", 2.0)
        self(Observed(1.0, 0.0), 3.0)

    def calm(self, now: float) -> list[Any]:
        return self(Observed(0.1, 0.0), now)


def test_a_worker_is_warm_before_gateways_hear_of_it() -> None:
    fleet = Fleet()
    (start,) = kinds(fleet(LATE, 1.0), StartWorker)
    assert (start.worker, start.why) == ("w1", "20 s measured, the limit is 10 s")
    assert kinds(fleet(LATE, 2.0), StartWorker) == [], "one at a time"
    assert (fleet.open(), fleet.state.whole) == (["a@w0"], False)
    fleet.manual = True
    fleet.starting("w1", 3.0)
    (load,) = kinds(fleet(WorkerUp("w1", fleet.incarnation), 3.0), Load)
    assert (load.worker, load.load.first, fleet.open()) == ("w1", 0, ["a@w0"])
    fleet.manual = False
    fleet(Loaded("w1", load.incarnation, load.load), 4.0)
    assert (fleet.open(), fleet.state.whole, fleet.state.all_up) == (["a@w0", "a@w1"], True, True)
    view = fleet.state.scaling.view(10.0, 1010.0)
    assert view["workers"] == {"wanted": 2, "active": 2, "starting": 0, "draining": 0}
    assert (view["least"], view["most"], view["decisions"]) == (1, 3, {"start": 1, "drain": 0})
    assert view["last"] == {"at": 1001.0, "decision": "start w1", "why": start.why}


def test_a_drained_worker_gets_nothing_new_and_is_forgotten_before_it_is_stopped() -> None:
    fleet = Fleet()
    fleet.scaled_out()
    assert kinds(fleet.calm(61.9), VacateWorker) == []
    effects = fleet.calm(62.1)
    (vacate,) = kinds(effects, VacateWorker)
    assert (vacate.worker, vacate.grace) == ("w1", 7.0)
    assert "one worker less" in vacate.why
    names = [type(effect).__name__ for effect in effects]
    assert names.index("Published") < names.index("VacateWorker"), "gateways hear first that its routes are paused"
    assert (fleet.open(), fleet.routes()) == (["a@w0"], ["a@w0", "a@w1"]), "what runs there goes on"
    assert cluster_view(fleet.state, {}, {}, [], [])["workers"][1]["state"] == "draining"
    fleet(Add(B), 63.0)
    assert fleet.open() == ["a@w0", "b@w0"], "nothing new is placed there"
    effects = fleet(Vacated("w1"), 64.0)
    assert [effect.worker for effect in kinds(effects, StopWorker)] == ["w1"]
    assert kinds(effects, Unload) == [], "its memory goes with the process"
    assert (fleet.routes(), list(fleet.state.workers), fleet.state.holdings.alive) == (["a@w0", "b@w0"], ["w0"], 1)
    assert fleet(WorkerDown("w1", 2, "stopped by its supervisor"), 64.0) == [], "nobody's death"
    assert kinds(fleet(LATE, 64.5), StartWorker)[0].worker == "w2", "w1 may still be there"
    fleet(WorkerStopped("w1"), 65.0)
    fleet.up("w2", 65.0)
    assert kinds(fleet(LATE, 69.9), StartWorker) == [], "it rests"
    assert kinds(fleet(LATE, 70.1), StartWorker)[0].worker == "w1"
    fleet.up("w1", 71.0)
    assert fleet.open() == [f"{name}@{worker}" for name in "ab" for worker in ("w0", "w1", "w2")]


def test_a_worker_that_a_new_head_has_vacated_once_more_is_forgotten_once() -> None:
    fleet = Fleet()
    fleet.scaled_out()
    asked = kinds([*fleet.calm(63.0), *fleet(HeadChanged(), 64.0)], VacateWorker)
    assert [one.worker for one in asked] == ["w1", "w1"]
    assert [one.worker for one in kinds(fleet(Vacated("w1"), 65.0), StopWorker)] == ["w1"]
    assert fleet(Vacated("w1"), 65.0) == []


def test_a_worker_that_dies_while_it_is_drained_comes_back_for_nothing() -> None:
    fleet = Fleet()
    fleet.scaled_out()
    fleet.calm(63.0)
    fleet.down("w1", 64.0)
    fleet.up("w1", 65.0)
    assert fleet.open() == ["a@w0"]
    fleet(Vacated("w1"), 66.0)
    fleet(WorkerStopped("w1"), 66.0)
    assert (fleet.routes(), [*fleet.state.holdings.draining]) == (["a@w0"], [])


def test_a_worker_that_dies_while_it_starts_is_started_again_three_times() -> None:
    fleet = Fleet()
    fleet(LATE, 1.0)
    for n in range(3):
        fleet.starting("w1", 2.0 + n)
        effects = fleet.down("w1", 2.0 + n, "exited 70")
        assert len(kinds(effects, VacateWorker)) == (n == 2)
    fleet(Vacated("w1"), 6.0)
    fleet(WorkerStopped("w1"), 6.0)
    assert list(fleet.state.workers) == ["w0"]
    assert kinds(fleet(LATE, 10.9), StartWorker) == []
    assert kinds(fleet(LATE, 11.1), StartWorker)[0].worker == "w1"


def test_the_only_place_of_an_application_is_not_drained() -> None:
    """Beside the first there is room for the second's parameters, and not for its pages."""
    fleet = Fleet(799 + 2048, A, B)
    fleet.scaled_out()
    assert fleet.routes() == ["a@w0", "a@w1", "b@w0"]
    fleet(WorkerHeartbeat("w1", fleet.incarnation, 0.0, 5, 5), 4.0)
    (vacate,) = kinds(fleet.calm(99.0), VacateWorker)
    assert vacate.worker == "w1", "w0 has less to do"


def test_blocks_of_a_burst_do_not_go_to_a_worker_that_is_drained() -> None:
    fleet = Fleet()
    fleet.scaled_out()
    fleet.calm(63.0)
    fleet(Pressed("w0", 1, (PressedBlock(0.9, {"a": (3, 5)}),)), 64.0)
    assert fleet.routes() == ["a@w0", "a@w1"]


def test_the_story_for_people() -> None:
    history, fleet = History(), Fleet()
    for now, event in ((1.0, LATE), (2.0, None), (63.0, Observed(0.1, 0.0)), (64.0, Vacated("w1")), (65.0, LATE)):
        effects = fleet(event, now) if event is not None else fleet.up("w1", now)
        history.tick(fleet.state, now)
        for effect in effects:
            if isinstance(effect, StartWorker | VacateWorker | StopWorker):
                history.scaled(effect, now)
    events = [event.text for event in history.events if event.event == "scaling"]
    assert [text.partition(":")[0] for text in events] == [
        "worker w1 is being added", "worker w1 is drained", "worker w1 is stopped", "worker w2 is being added",
    ]  # fmt: skip
    assert not any("died" in event.text for event in history.events)


def test_without_autoscale_workers_are_counted_and_nothing_else_happens() -> None:
    fleet = Fleet(mode="off")
    assert kinds(fleet(LATE, 1.0), StartWorker) == []
    view = fleet.state.scaling.view(0.0, 0.0)
    assert (view["mode"], view["workers"]["wanted"], view["last"]) == ("off", 1, None)

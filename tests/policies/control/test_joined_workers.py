"""Workers that join by themselves: what they get, and what becomes of it when they leave or die."""

from __future__ import annotations

from blockwright.policies.control.drop_groups import unfit
from blockwright.policies.control.events import (
    Add,
    DrainWorker,
    Fatal,
    KillWorker,
    LoadFailed,
    Observed,
    Remove,
    Serve,
    StartWorker,
    StopWorker,
    Vacated,
    VacateWorker,
    WorkerCannotStart,
    WorkerDown,
    WorkerEnters,
    WorkerLeaves,
    WorkerUp,
)
from blockwright.policies.control.scaling import ScalingPlan
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import application, kinds
from blockwright.tests.policies.control.test_placement import PAGE
from blockwright.tests.policies.control.test_scaling import Fleet
from blockwright.tests.policies.control.test_worker_reports import Reporting

A, B = application("a", "eAmBnh"), application("b", "xCyDzw")
ROOM = 600 + PAGE  # for one of them


def fleet(*joined: str) -> Reporting:
    """A worker with room for one model, and others that have joined with as much."""
    made = Reporting("w0", scaling=ScalingPlan(grace=7.0))
    made(Serve((A,)))
    made.joins("w0", ROOM)
    for name in joined:
        made(WorkerEnters(name, {"zone": "b"}))
        made.joins(name, ROOM)
    return made


@claim("A worker that joined from outside serves, and its kill -9 and its SIGTERM lose no token", of="faults")
def test_a_worker_that_joins_gets_what_fits_and_is_emptied_before_it_goes() -> None:
    cluster = fleet("far")
    assert cluster.open() == ["a@far", "a@w0"]
    record = cluster.state.workers["far"]
    assert (record.joined, record.labels, cluster.state.workers["w0"].joined) == (True, {"zone": "b"}, False)
    assert cluster(WorkerEnters("far", {})) == [], "it is there already"
    (vacate,) = kinds(cluster(WorkerLeaves("far", "SIGTERM was received")), VacateWorker)
    assert vacate == VacateWorker("far", 7.0, "SIGTERM was received")
    assert (cluster.open(), cluster.routes()) == (["a@w0"], ["a@far", "a@w0"]), "what runs there goes on"
    assert cluster(WorkerLeaves("far", "again")) == []
    assert cluster.state.scaling.undrainable("far", cluster.state.holdings) == "it leaves already"
    life = record.last
    assert kinds(cluster(Vacated("far")), StopWorker) == [StopWorker("far", life)]
    assert (list(cluster.state.workers), cluster.routes()) == (["w0"], ["a@w0"])
    assert cluster(WorkerDown("far", life, "left")) == []


def test_a_worker_that_dies_is_forgotten_and_may_come_again_under_its_name() -> None:
    cluster = fleet("far")
    (vacate,) = kinds(cluster.down("far"), VacateWorker)
    assert (vacate.grace, vacate.why) == (0.0, "it died: killed")
    cluster(WorkerLeaves("far", "too late"))
    assert len(kinds(cluster(Vacated("far")), StopWorker)) == 1
    assert list(cluster.state.workers) == ["w0"]
    cluster(WorkerEnters("far", {}))
    cluster.joins("far", ROOM)
    assert cluster.open() == ["a@far", "a@w0"]


def test_a_drain_by_an_operator_ends_with_the_worker() -> None:
    cluster = fleet("far")
    cluster(DrainWorker("far", True))
    cluster(WorkerLeaves("far", "SIGTERM was received"))
    cluster(DrainWorker("far", False))
    assert [*cluster.state.holdings.draining] == ["far"], "it leaves all the same"
    cluster(Vacated("far"))
    assert not cluster.state.scaling.drained
    assert not cluster.state.holdings.draining


def test_a_model_that_only_it_had_is_placed_again_where_there_is_room() -> None:
    cluster = Reporting("w0", scaling=ScalingPlan())
    cluster(Serve((A,)))
    cluster.joins("w0", ROOM)
    cluster(WorkerEnters("far", {}))
    cluster.joins("far", 4 * ROOM)
    cluster(Add(B))
    cluster(Remove("a"))
    assert cluster.open() == ["b@far"]
    cluster(WorkerLeaves("far", "it ends"))
    cluster(Vacated("far"))
    assert cluster.open() == ["b@w0"]


def test_a_model_without_a_worker_waits_for_the_next_that_has_room() -> None:
    cluster = Reporting("w0", scaling=ScalingPlan())
    cluster(Serve((A,)))
    cluster.joins("w0", ROOM)
    cluster(WorkerEnters("far", {}))
    cluster.joins("far", 4 * ROOM)
    cluster(Add(B))
    assert [one for one in cluster.open() if one.startswith("b@")] == ["b@far"]
    effects = cluster.down("far")
    effects += cluster(Vacated("far"))
    assert not kinds(effects, Fatal)
    assert cluster.open() == ["a@w0"]
    assert cluster.state.served["b"].planned == []
    cluster(WorkerEnters("near", {}))
    cluster.joins("near", 4 * ROOM)
    assert cluster.open() == ["a@near", "a@w0", "b@near"]


def test_its_troubles_never_end_the_cluster() -> None:
    cluster = Reporting("w0", scaling=ScalingPlan())
    cluster.manual = True
    cluster(Serve((A,)))
    cluster.joins("w0", ROOM)  # which loads, and has served nothing yet
    cluster(WorkerEnters("far", {}))
    cluster.starting("far")
    effects = cluster(WorkerCannotStart("far", cluster.incarnation, "there is no card"))
    assert kinds(effects, Fatal) == []
    assert kinds(effects, KillWorker) == [KillWorker("far", "it cannot start: there is no card")]
    for _ in range(5):
        assert kinds(cluster.down("far", cause="exited 70"), Fatal) == []
        cluster(Vacated("far"))
        cluster(WorkerEnters("far", {}))
        cluster.starting("far")
    cluster.report("far", ROOM)
    cluster(WorkerUp("far", cluster.incarnation))
    load = cluster.state.residency["far"].loading
    assert load is not None
    effects = cluster(LoadFailed("far", cluster.incarnation, load, "no folder here has the content"))
    assert kinds(effects, Fatal) == []
    assert "no folder here" in cluster.state.residency["far"].refused["a"]


def test_it_counts_neither_for_autoscaling_nor_for_drops() -> None:
    scaled = Fleet()
    scaled(WorkerEnters("far", {}), 1.0)
    scaled.up("far", 1.0)
    assert scaled.open() == ["a@far", "a@w0"]
    assert scaled.state.scaling.view(1.0, 1.0)["workers"]["wanted"] == 1
    (start,) = kinds(scaled(Observed(20.0, 0.0), 2.0), StartWorker)
    assert start.worker == "w1"
    scaled.up("w1", 3.0)
    scaled(Observed(1.0, 0.0), 4.0)
    (vacate,) = kinds(scaled.calm(70.0), VacateWorker)
    assert vacate.worker in ("w0", "w1")
    assert unfit(scaled.state, "far") == "worker far has joined, and may leave at any time"

"""Placement by what workers report: when it begins, and what unequal, late and lost workers get."""

from __future__ import annotations

import pytest

from blockwright.policies.cluster.application_life import Conflict
from blockwright.policies.cluster.provisioning import ProvisioningRules
from blockwright.policies.cluster.worker_size import SizeRules, WorkerReport
from blockwright.policies.control.events import (
    Add,
    Fatal,
    Observed,
    Serve,
    StartWorker,
    WorkerReported,
    WorkerUp,
)
from blockwright.policies.control.scaling import ScalingPlan
from blockwright.policies.control.state import ControllerState
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import application, kinds
from blockwright.tests.policies.control.test_placement import PAGE, Rooms

A, B = application("a", "eAmBnh"), application("b", "xCyDzw")  # six components of 100 bytes each; nothing is shared


class Reporting(Rooms):
    """Workers that report what they have before they are up."""

    def __init__(self, *workers: str, widening: int = 1, scaling: ScalingPlan | None = None) -> None:
        super().__init__(**dict.fromkeys(workers, 0))
        rules = SizeRules(widening=widening)
        self.state = ControllerState(workers, stall_timeout=10.0, block_idle=60.0, sizes=rules, scaling=scaling)

    def report(self, worker: str, memory: int, speed: float = 1e9, device: str = "cpu") -> list:
        """A worker starts and reports."""
        self.starting(worker)
        self.memory[worker] = memory
        said = WorkerReport(
            host=f"host of {worker}", device=device, cores=4, threads=2, memory=memory, bandwidth=speed, products=1e15
        )
        return self(WorkerReported(worker, self.incarnation, said))

    def joins(self, worker: str, memory: int, speed: float = 1e9, device: str = "cpu") -> list:
        """A worker reports and is up."""
        return [*self.report(worker, memory, speed, device), *self(WorkerUp(worker, self.incarnation))]


@claim("Workers of different memory get what fits them, by what each reported when it joined", of="fine-tunes")
def test_unequal_workers_get_what_fits_each() -> None:
    """1:4 in memory: the small one holds one model, the large one both."""
    bench = Reporting("w0", "w1")
    bench(Serve((A, B)))
    bench.joins("w0", 600 + PAGE)
    bench.joins("w1", 4 * (600 + PAGE))
    assert bench.routes() == ["a@w0", "a@w1", "b@w1"]
    assert bench.state.whole


def test_what_a_worker_reported_is_bytes_as_loaded() -> None:
    """Parameters are stored in half the bytes."""
    bench = Reporting("w0", "w1", widening=2)
    bench(Serve((A, B)))
    bench.joins("w0", 2 * (1200 + PAGE))
    bench.joins("w1", 2 * (1200 + PAGE) - 2)
    assert bench.routes() in (["a@w0", "b@w0", "b@w1"], ["a@w0", "a@w1", "b@w0"])


def test_a_pipeline_over_unequal_workers_is_cut_by_speed_and_lies_on_one_kind_of_device() -> None:
    bench = Reporting("w0", "w1", "w2")
    bench(Serve((application("a", "eAmBnCoDpEqh", span=2),)))
    bench.joins("w0", 1 << 20, speed=1e9)
    bench.joins("w1", 1 << 30, speed=9e9, device="cuda:0")
    bench.joins("w2", 1 << 20, speed=3e9)
    (route,) = bench.state.routes.values()
    assert [(hop.worker, hop.last - hop.first) for hop in route.hops] == [("w0", 3), ("w2", 9)]


@pytest.mark.parametrize(("fast", "slow"), [("w0", "w1"), ("w1", "w0")])
def test_of_workers_with_equal_memory_the_faster_one_gets_more(fast: str, slow: str) -> None:
    """Place two of three models on the faster worker, and a replica in the room that is left on the other."""
    bench = Reporting("w0", "w1")
    bench(Serve((A, B, application("c", "pQrStu"))))
    for worker in ("w0", "w1"):
        bench.joins(worker, 1200 + PAGE, speed=8e9 if worker == fast else 3e9)
    assert bench.routes() == sorted([f"a@{fast}", f"a@{slow}", f"b@{fast}", f"c@{slow}"])


def test_placement_begins_when_all_initial_workers_have_reported() -> None:
    bench = Reporting("w0", "w1")
    bench.joins("w0", 1 << 20)
    assert bench(Serve((A,))) == []
    assert bench.state.serving.unplaced == [A]
    with pytest.raises(Conflict, match="have not all reported what they have; try again"):
        bench(Add(B))
    bench.report("w1", 1 << 20)
    assert bench.routes() == ["a@w0"], "the other one has reported, and is not up yet"
    bench(WorkerUp("w1", bench.incarnation))
    assert bench.routes() == ["a@w0", "a@w1"]


def test_hashes_that_come_last_hold_nothing_up() -> None:
    bench = Reporting("w0", "w1")
    bench.joins("w0", 1 << 20)
    bench.joins("w1", 1 << 20)
    bench(Serve((A, B)))
    assert bench.routes() == ["a@w0", "a@w1", "b@w0", "b@w1"]


def test_one_that_died_before_it_reported_is_not_waited_for_and_gets_what_fits_when_it_is_back() -> None:
    bench = Reporting("w0", "w1")
    bench(Serve((A, B)))
    bench.joins("w0", 1 << 20)
    bench.starting("w1")
    bench.down("w1", cause="exited 1")
    assert bench.routes() == ["a@w0", "b@w0"]
    assert bench.state.whole, "nothing is planned where nothing is known"
    bench.joins("w1", 600 + PAGE)
    assert bench.routes() == ["a@w0", "a@w1", "b@w0"]


def test_pipelines_wait_for_the_workers_that_they_need() -> None:
    bench = Reporting("w0", "w1")
    bench(Serve((application("a", span=2),)))
    bench.joins("w0", 1 << 20)
    bench.starting("w1")
    bench.down("w1", cause="exited 1")
    assert bench.routes() == []
    bench.joins("w1", 1 << 20)
    assert bench.routes() == ["a@w0+w1"]


def test_a_restarted_worker_keeps_its_routes_and_may_have_moved_to_another_machine() -> None:
    bench = Reporting("w0", "w1")
    bench(Serve((A,)))
    bench.joins("w0", 1 << 20)
    bench.joins("w1", 1 << 20)
    bench.down("w1")
    assert bench.state.workers["w1"].report is not None
    bench.joins("w1", 1 << 19)
    assert bench.routes() == ["a@w0", "a@w1"]
    assert bench.state.workers["w1"].report.memory == 1 << 19
    bench(WorkerReported("w1", 1, bench.state.workers["w0"].report))
    assert bench.state.workers["w1"].report.memory == 1 << 19, "news of an earlier life"


def test_what_cannot_be_placed_once_all_have_reported_ends_the_start() -> None:
    bench = Reporting("w0", "w1")
    bench(Serve((application("a", "eA", span=2), application("b", "eAm", span=2))))
    bench.joins("w0", 1 << 20)
    (fatal,) = kinds(bench.joins("w1", 1 << 20, device="cuda:0"), Fatal)
    assert "2 workers cannot form pipelines of 2 on one kind of device (1 on cpu, 1 on cuda)" in fatal.message


def test_a_worker_that_the_load_brings_gets_what_fits_it_once_it_has_reported() -> None:
    rules = ProvisioningRules(mode="relief", limit=1.0, least=1)
    bench = Reporting("w0", scaling=ScalingPlan(rules, ["w0", "w1"]))
    bench(Serve((A, B)))
    bench.joins("w0", 1 << 20)
    started: list = []
    for now in range(1, 60):
        started += kinds(bench(Observed(9.0, 9.0), float(now)), StartWorker)
    assert [one.worker for one in started] == ["w1"]
    assert bench.state.whole, "nothing is planned on it yet"
    bench.report("w1", 600 + PAGE)
    assert not bench.state.whole
    bench(WorkerUp("w1", bench.incarnation))
    assert bench.routes() == ["a@w0", "a@w1", "b@w0"]

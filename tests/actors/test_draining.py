"""A worker that an operator drains: nothing new is sent there, what runs moves, and it may be used again."""

from __future__ import annotations

from blockwright.actors.controller.view import cluster_view
from blockwright.actors.controller.worker_calls import drain_worker
from blockwright.actors.gateway.port import DrainAnswered
from blockwright.policies.control.events import DrainWorker, ResumeWorker, Serve, StopWorker, Vacated, VacateWorker
from blockwright.policies.requests.refusal import Refusal
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import FakeCluster, application, kinds
from blockwright.tests.policies.control.test_controller_state import started
from blockwright.tests.policies.control.test_scaling import Fleet


def open_routes(bench: FakeCluster) -> list[str]:
    """Routes that gateways may use."""
    return sorted(route.id for route in bench.state.table.news().routes)


def asked(bench: FakeCluster, worker: str, drain: bool = True) -> tuple[DrainAnswered, list[object]]:
    """The answer, and what follows."""
    effects: list[object] = []
    return drain_worker(bench.state, worker, drain, lambda event: effects.extend(bench(event))), effects


@claim("A drained worker finishes or hands over what runs and gets nothing new", of="serving")
def test_nothing_new_is_sent_there_and_what_runs_goes_on() -> None:
    bench = started("w0", "w1")
    answer, effects = asked(bench, "w0")
    assert (answer.refused, open_routes(bench), bench.routes()) == (None, ["a@w1"], ["a@w0", "a@w1"])
    names = [type(effect).__name__ for effect in effects]
    assert names.index("Published") < names.index("VacateWorker"), "gateways hear first"
    assert cluster_view(bench.state, {}, {}, [], [])["workers"][0]["state"] == "draining"
    assert asked(bench, "w0")[1] == [], "it is so already"
    assert kinds(bench(Vacated("w0")), StopWorker) == [], "it stays"
    bench.down("w0")
    bench.up("w0")
    assert open_routes(bench) == ["a@w1"], "whatever life it is in"
    resumed = asked(bench, "w0", drain=False)[1]
    assert (open_routes(bench), kinds(resumed, ResumeWorker)) == (["a@w0", "a@w1"], [ResumeWorker("w0")])
    assert asked(bench, "w0", drain=False)[1] == []


def test_the_last_route_of_a_model_is_kept() -> None:
    bench = started("w0", "w1", applications=(application("a"), application("b", "eCmDnh", span=2)))
    answer, effects = asked(bench, "w1")
    assert answer.refused is not None
    assert (answer.refused.why, answer.refused.param, effects) == (Refusal.CONFLICT, "id", [])
    assert "model b would have no route left" in answer.refused.message
    pair = started("w0", "w1")
    asked(pair, "w0")
    answer, _ = asked(pair, "w1")
    assert answer.refused is not None
    assert "model a would have no route left" in answer.refused.message


def test_the_last_worker_is_kept_also_while_nothing_is_loaded() -> None:
    """Both could be drained while a model was being loaded, and it was served nowhere then."""
    bench = FakeCluster("w0", "w1")
    bench.manual = True
    bench(Serve((application("a"),)))
    bench.up("w0")
    assert asked(bench, "w0")[0].refused is None, "the other one will have it"
    answer, _ = asked(bench, "w1")
    assert answer.refused is not None
    assert "model a would have no route left" in answer.refused.message
    assert asked(bench, "w0", drain=False)[0].refused is None
    assert asked(bench, "w1")[0].refused is None


def test_a_worker_that_does_not_exist() -> None:
    answer, effects = asked(started("w0", "w1"), "w7")
    assert answer.refused is not None
    assert (answer.refused.why, effects) == (Refusal.UNKNOWN_WORKER, [])
    assert "there are: w0, w1" in answer.refused.message


def test_what_the_autoscaler_drains_it_stops() -> None:
    fleet = Fleet()
    fleet.scaled_out()
    (vacate,) = kinds(fleet.calm(62.1), VacateWorker)
    answer, _ = asked(fleet, vacate.worker)
    assert answer.refused is not None
    assert "the autoscaler does that already" in answer.refused.message
    fleet(DrainWorker("w7", True), 63.0)
    assert fleet.state.scaling.drained == set()

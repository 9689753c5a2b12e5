"""Applications that no worker can load: what is published to gateways, and when the load is tried again."""

from __future__ import annotations

import pytest

from blockwright.policies.cluster.demand import SETTLING
from blockwright.policies.control.events import ApplicationsWanted, WorkerDown, WorkerUp
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import KV, FakeCluster, application
from blockwright.tests.policies.control.test_on_demand import house


@claim("A model that cannot be loaded gives each request the reason at once and is tried again later", of="fine-tunes")
def test_what_cannot_be_loaded_is_parked_with_the_reason_and_tried_again_when_it_is_asked_for():
    made = house()
    made.broken["t3"] = "FileNotFoundError: '/models/t3/config.json'"
    made.want("t3")
    assert made.failed() == [("t3", "worker w0: FileNotFoundError: 't3/config.json'", False)]
    assert made.states()["t3"] == "on demand"
    assert made.state.demand.coming == "", "others can come"
    assert made.state.publication().failed == made.state.table.news(made.state.version - 1).failed
    first = made.state.publication().failed[0].number
    made.want("t3")
    assert made.state.publication().failed[0].number > first, "the second failure is news"
    made.broken.clear()
    made.want("t3")
    assert ("t3" in made.published(), made.failed()) == (True, [])


def test_it_can_come_where_another_worker_can_load_it():
    made = house("w0", "w1")
    made(WorkerDown("w1", 1, "killed"))
    made.broken["t3"] = "the disk of w0"
    made.want("t3")
    assert made.failed() == [], "w1 may come back, and be able to"
    made.broken.clear()
    made(WorkerUp("w1", 2))
    made.want("t3")
    assert "t3" in made.published()


def test_what_has_all_the_memory_and_still_no_room_is_refused_for_good():
    """Its blocks fit one by one, so that no worker says that it never does."""
    huge = application("huge", "abcdefghi", kv=KV)
    made = FakeCluster(room=8).serve(application("base", "abcd", kv=KV), application("t0", "abcdpP", kv=KV), huge)
    made.active = {"huge": 1}
    made(ApplicationsWanted({"huge": 9}))
    assert made.published() == []
    made.tick(SETTLING / 2)
    made.tick(0.0)
    assert made.failed() == [], "what went may not have ended"
    for _ in range(4):
        made.tick(SETTLING / 3)
    assert made.failed() == [("huge", "worker w0: no room", True)]
    before = len(made.log)
    made(ApplicationsWanted({"huge": 9}))
    assert made.log[before:] == [], "nobody is unloaded for it again"
    made.want("t0")
    assert made.published() == ["t0"]


def test_what_is_not_on_demand_and_cannot_be_loaded_waits_for_its_workers():
    made = house()
    made.broken["base"] = "it is gone"
    made(WorkerDown("w0", 1, "killed"))
    made(WorkerUp("w0", 2))
    assert made.failed() == [("base", "worker w0: it is gone", True)]
    made.broken.clear()
    made(WorkerDown("w0", 2, "killed"))
    assert made.failed() == []
    made(WorkerUp("w0", 3))
    assert ("base" in made.published(), made.failed()) == (True, [])


@pytest.mark.parametrize(("broken", "other"), [("w0", "w1"), ("w1", "w0")])
def test_where_one_worker_cannot_load_it_others_give_way_on_the_other(broken: str, other: str):
    made = house("w0", "w1")
    made.broken[f"t3@{broken}"] = "its disk is gone"
    made.want("t3")
    made.tick(0.1)
    assert made.workers[other].names() > {"t3"}
    assert ("t3" in made.published(), made.failed()) == (True, [])
    assert made.state.demand.coming == "", "it is there, and the next can come"


@pytest.mark.parametrize(("broken", "other"), [("w0", "w1"), ("w1", "w0")])
def test_where_one_cannot_load_it_and_the_other_never_has_room_both_reasons_are_reported(broken: str, other: str):
    made = FakeCluster("w0", "w1", room=8).serve(application("base", "abcd", kv=KV), application("huge", "abcdefghi", kv=KV))
    made.broken[f"huge@{broken}"] = "/models/huge/model.safetensors is damaged"
    made.want("huge")
    for _ in range(4):
        assert made.failed() == [], "what went may not have ended"
        made.tick(SETTLING / 4)
    outcome = {f"worker {broken}: huge/model.safetensors is damaged", f"worker {other}: no room"}
    ((name, why, final),) = made.failed()
    assert (name, {*why.split("; ")}, final) == ("huge", outcome, False)
    assert made.states()["huge"] == "on demand"
    made.want("base")
    assert made.published() == ["base", "base"]
    made.end("huge")
    made.want("huge")
    assert (made.failed()[0][1], made.published()) == (why, ["base", "base"]), "nobody is unloaded for it again"

"""Applications that no worker can load: what gateways are told, and when it is tried again."""

from __future__ import annotations

from blockwright.actors.controller.messages import (
    ApplicationsWanted,
    WorkerDown,
    WorkerUp,
)
from blockwright.policies.cluster.demand import SETTLING
from blockwright.tests.actors.demand_house import House, application, house


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
    assert ("t3" in made.told(), made.failed()) == (True, [])


def test_it_can_come_where_another_worker_can_load_it():
    made = house(workers=("w0", "w1"))
    made(WorkerDown("w1", 1, "killed"))
    made.broken["t3"] = "the disk of w0"
    made.want("t3")
    assert made.failed() == [], "w1 may come back, and be able to"
    made.broken.clear()
    made.held["w1"] = {}
    made(WorkerUp("w1", 2))
    made.want("t3")
    assert "t3" in made.told()


def test_what_has_all_the_memory_and_still_no_room_is_refused_for_good():
    """Its blocks fit one by one, so that no worker says that it never does."""
    huge = application("huge", "abcdefghi")
    made = House(8).start(application("base", "abcd"), application("t0", "abcdpP"), huge)
    made.active = {"huge": 1}
    made(ApplicationsWanted({"huge": 9}))
    assert made.told() == []
    made.look(SETTLING / 2)
    made.look(0.0)
    assert made.failed() == [], "what went may not have ended"
    for _ in range(4):
        made.look(SETTLING / 3)
    assert made.failed() == [("huge", "worker w0: no room", True)]
    before = len(made.log)
    made(ApplicationsWanted({"huge": 9}))
    assert made.log[before:] == [], "nobody is unloaded for it again"
    made.want("t0")
    assert made.told() == ["t0"]


def test_what_is_not_on_demand_and_cannot_be_loaded_waits_for_its_workers():
    made = house()
    made.broken["base"] = "it is gone"
    made(WorkerDown("w0", 1, "killed"))
    made.held["w0"] = {}
    made(WorkerUp("w0", 2))
    assert made.failed() == [("base", "worker w0: it is gone", True)]
    made.broken.clear()
    made(WorkerDown("w0", 2, "killed"))
    assert made.failed() == []
    made.held["w0"] = {}
    made(WorkerUp("w0", 3))
    assert ("base" in made.told(), made.failed()) == (True, [])

"""Applications that do not fit beside the others are parked, asked for and make room; without any worker or gateway."""

from __future__ import annotations

from typing import Any

from blockwright.policies.cluster.demand import PATIENCE
from blockwright.policies.control.events import (
    Add,
    Added,
    ApplicationsWanted,
    Deploy,
    Fatal,
    HeadChanged,
    Load,
    Quiet,
    RecheckLater,
    Remove,
    Serve,
    Undeploy,
    WorkerDown,
    WorkerUp,
)
from blockwright.policies.control.on_demand import RETURN, RETURNS
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import KV, SIZE, FakeCluster, application, kinds


def house(*workers: str, **options: Any) -> FakeCluster:
    """Return a base of four components, and tunes of it with two of their own, of which two have room."""
    tunes = [application(f"t{i}", "abcd" + own, kv=KV) for i, own in enumerate(("pP", "qQ", "rR", "sS"))]
    return FakeCluster(*workers, room=8, **options).serve(application("base", "abcd", kv=KV), *tunes)


def test_what_has_no_room_is_on_demand_and_the_rest_is_served():
    made = house()
    assert made.published() == ["base", "t0", "t1"]
    assert made.states() == {"base": "ready", "t0": "ready", "t1": "ready", "t2": "on demand", "t3": "on demand"}
    assert made.state.serves
    assert made.state.whole
    assert made.state.publication().on_demand == ["t2", "t3"]
    assert not [effect for effect in made.log if isinstance(effect, Fatal)]


@claim("Adapters that do not fit in memory are loaded on demand and evicted by use", of="fine-tunes", headline=True)
def test_the_first_request_brings_it_in_place_of_the_least_recently_used():
    made = house()
    made.now = 10.0
    made.last = {"t0": 5.0, "t1": 2.0, "base": 1.0}
    made.want("t2")
    assert made.published() == ["base", "t0", "t2"], "the base would free nothing while others have its tensors"
    assert made.states()["t1"] == "on demand"
    assert made.workers["w0"].held.keys() == {c.encode() * 16 for c in "abcdpPrR"}
    made.want("t2")
    assert made.published() == ["base", "t0", "t2"]


def test_one_that_needs_more_takes_the_place_of_several():
    made = house()
    made(Serve((application("large", "ABCDEF", kv=KV),)))
    made.now = 10.0
    made.want("large")
    assert made.published() == ["large"], "what the others share goes with the last of them"


def test_a_whole_model_comes_in_place_of_tunes_whose_base_is_not_here():
    """What these share is nobody's own, so what they own does not seem enough."""
    made = FakeCluster(room=8).serve(
        application("t0", "abcdpP", kv=KV), application("t1", "abcdqQ", kv=KV), application("whole", "stuvwxy", kv=KV)
    )
    assert made.published() == ["t0", "t1"]
    made.want("whole")
    assert made.published() == ["whole"]
    assert made.states() == {"t0": "on demand", "t1": "on demand", "whole": "ready"}


def test_it_is_tried_again_when_all_have_gone_whose_memory_was_not_free_yet():
    """None was left to give way, and nothing reported that their last plans had ended: nothing ever came."""
    made = FakeCluster(room=6).serve(application("t0", "abcdpP", kv=KV), application("whole", "stuvwx", kv=KV))
    assert made.published() == ["t0"]
    made.workers["w0"].ending = 2
    made.want("whole")
    for _ in range(3):
        assert made.published() == []
        loads = [effect for effect in made.log if isinstance(effect, Load)]
        made.tick(0.03)
        assert len([effect for effect in made.log if isinstance(effect, Load)]) == len(loads) + 1, "once in each look"
    made.workers["w0"].ending = 0
    made.tick(0.03)
    assert made.published() == ["whole"]


def test_what_is_in_use_stays_until_its_turn_is_over_and_starts_nothing_new_then():
    made = house()
    made.active = {"t0": 1, "t1": 2, "base": 1}
    made.now = 100.0
    made.want("t2")
    assert made.published() == ["base", "t0", "t1"]
    assert len(kinds(made.log, RecheckLater)) == 1
    made.tick(1.1 * PATIENCE)
    (leaving,) = made.awaited
    assert made.published() == sorted({"base", "t0", "t1"} - {leaving})
    assert leaving in {route.application for route in made.state.table.parts({"w0": 0})["w0"].routes}, "workers go on"
    made.active[leaving] = 0
    made(Quiet(leaving))
    assert made.published() == sorted({"base", "t0", "t1", "t2"} - {leaving})
    assert made.states()[leaving] == "on demand"


def giving_way():
    """A full house in which one of three that are in use gives way to t2, and the name of that one."""
    made = house()
    made.active = {"t0": 1, "t1": 1, "base": 1}
    made.now = 100.0
    made.want("t2")
    made.tick(1.1 * PATIENCE)
    (leaving,) = made.awaited
    return made, leaving


def test_nothing_has_to_leave_when_something_else_becomes_idle():
    made, leaving = giving_way()
    (idle,) = {"t0", "t1"} - {leaving}
    made.end(idle)
    made.tick(0.1)
    assert made.published() == sorted({"base", leaving, "t2"})
    made(Quiet(leaving))
    assert made.published() == sorted({"base", leaving, "t2"}), "a late answer"


def test_they_come_in_the_order_in_which_they_were_asked_for_and_each_has_its_turn():
    made = house()
    made.active = {"t0": 1, "t1": 1, "base": 1}
    made.now = 100.0
    made.want("t3")
    made.want("t2")
    made.end("t0")
    made.tick(0.1)
    assert made.published() == ["base", "t1", "t3"]
    assert made.state.demand.coming == "t2"
    made.tick(1.1 * PATIENCE)
    assert made.awaited == ["t1"], "t3 has just come"


def test_who_asked_and_went_makes_nobody_leave():
    made = house()
    made.active = {"t0": 1, "t1": 1, "base": 1}
    made.want("t2")
    made.end("t2")
    made.tick(1.1 * PATIENCE)
    assert made.published() == ["base", "t0", "t1"]
    assert made.awaited == []
    assert not made.state.demand.coming


def test_on_two_workers_it_comes_to_both():
    made = house("w0", "w1")
    made.want("t3")
    assert [sorted(one.held) for one in made.workers.values()] == [sorted(made.workers["w0"].held)] * 2
    assert made.published().count("t3") == 2


def test_after_a_death_what_was_resident_is_loaded_again():
    made = house()
    made.want("t3")
    before = made.published()
    made(WorkerDown("w0", 1, "killed"))
    made(WorkerUp("w0", 2))
    assert made.published() == before
    made.want("t2")
    assert "t2" in made.published()


def test_an_addition_without_room_is_served_on_demand():
    made = house()
    made(Add(application("t9", "abzZ", kv=KV)))
    assert made.states()["t9"] == "on demand"
    assert Added("t9") in made.log
    made.want("t9")
    assert "t9" in made.published()
    made(Remove("t9"))
    assert "t9" not in made.states()
    made.want("t2")
    assert "t2" in made.published()


def test_what_never_fits_is_refused():
    made = house()
    made(Add(application("huge", "123456789", kv=KV)))
    assert Added("huge", "worker w0 cannot load it: no room") in made.log
    assert "huge" not in made.states()


def test_without_on_demand_what_does_not_fit_is_refused():
    made = house(on_demand=False)
    assert [effect.message for effect in made.log if isinstance(effect, Fatal)] == [
        "worker w0 cannot load t2: no room",
        "worker w0 cannot load t3: no room",
    ]


def test_one_that_is_removed_while_it_comes_holds_nothing_up():
    made = house()
    made.active = {"t0": 1, "t1": 1, "base": 1}
    made.now = 100.0
    made.want("t2")
    made.tick(1.1 * PATIENCE)
    made(Remove("t2"))
    assert made.published() == ["base", "t0", "t1"]
    made.end("t0")
    made.want("t3")
    assert "t3" in made.published()


def test_one_that_gives_way_and_is_withdrawn_is_open_when_it_is_deployed_again():
    """Its routes stayed closed to gateways for ever."""
    made, leaving = giving_way()
    made(Undeploy(leaving))
    made.end("t2")
    made(Remove("t2"))
    made(Deploy(leaving))
    assert made.published() == ["base", "t0", "t1"]
    assert made.state.table.paused == set()


def test_an_idle_base_stays_while_its_tunes_are_in_use():
    made = house()
    made.active = {"t0": 1, "t1": 1}
    made.now = 100.0
    made.want("t2")
    assert made.published() == ["base", "t0", "t1"], "its tensors would not become free"
    made.end("t0")
    made.tick(0.1)
    assert made.published() == ["base", "t1", "t2"]


def test_a_batch_takes_the_place_of_what_is_idle_and_of_nothing_in_use():
    made = house()
    made.active = {"t0": 1, "t1": 1}
    made.now, made.offline = 100.0, {"t2"}
    made.want("t2")
    made.tick(2 * PATIENCE)
    assert made.published() == ["base", "t0", "t1"]
    assert made.awaited == [], "nobody has to leave for it"
    assert made.state.demand.coming == "", "nor to wait for it"
    made.want("t3")
    made.tick(0.0)
    assert made.state.demand.coming == "t3"
    made.tick(1.1 * PATIENCE)
    made(Quiet(made.awaited[0]))
    assert "t3" in made.published()
    made.end("t3")
    made.tick(0.0)
    made(ApplicationsWanted({"t2": 9}))
    assert "t2" in made.published(), "gateways ask again, and now one is idle"


def crowded(*workers: str) -> FakeCluster:
    """Return a cluster in which everything was loaded, until w0 died and had no room for t1 when it restarted."""
    tunes = [application(f"t{i}", "abcd" + own, kv=KV) for i, own in enumerate(("pP", "qQ"))]
    made: FakeCluster = FakeCluster(*workers, room=8).serve(*tunes)
    made.down("w0")
    made.rooms["w0"] = 7
    made.up("w0")
    assert made.states() == {"t0": "ready", "t1": "on demand"}
    return made


@claim("A model for which a restarted worker has no room is loaded again without a request once there is room", of="faults")
def test_what_has_served_is_loaded_again_when_there_is_room() -> None:
    made = crowded()
    (later,) = made.pending(RecheckLater)
    assert (later.seconds, later.application) == (RETURN, "t1")
    made.workers["w0"].room = 8
    made.reply(later)
    assert made.states() == {"t0": "ready", "t1": "ready"}
    assert made.state.publication().on_demand == [], "it counts as having fitted from the beginning"
    made.reply(made.pending(RecheckLater)[0])
    assert not made.pending(RecheckLater)


def test_nothing_gives_way_for_what_no_request_asks_for_and_pauses_double() -> None:
    made, seconds = crowded(), list[float]()
    while later := made.pending(RecheckLater):
        (one,) = later
        seconds.append(one.seconds)
        loads = len(kinds(made.log, Load))
        made.reply(one)
        assert len(kinds(made.log, Load)) > loads, "it is tried, and refused"
        assert made.states() == {"t0": "ready", "t1": "on demand"}
    assert seconds == [RETURN * 2**tries for tries in range(RETURNS)]
    made.want("t1")
    assert made.states()["t1"] == "ready", "a request brings it all the same"


def test_without_room_by_the_workers_reports_it_is_not_tried() -> None:
    made = crowded()
    made.spare = -SIZE
    made(made.capacity("w0"))
    loads = len(kinds(made.log, Load))
    made.reply(made.pending(RecheckLater)[0])
    assert len(kinds(made.log, Load)) == loads
    assert made.pending(RecheckLater)[0].seconds == 2 * RETURN


def test_what_requests_have_brought_or_what_is_gone_is_not_loaded_again() -> None:
    for event in (ApplicationsWanted({"t1": 9}), Undeploy("t1"), Remove("t1")):
        made = crowded()
        made.active["t1"] = 1
        made(event)
        made.active["t1"] = 0
        loads = len(kinds(made.log, Load))
        (later,) = [one for one in made.pending(RecheckLater) if one.application]
        made.reply(later)
        assert len(kinds(made.log, Load)) == loads
        assert not [one for one in made.pending(RecheckLater) if one.application]


def test_a_new_head_loads_it_again() -> None:
    made = crowded()
    made.asked.clear()
    made(HeadChanged())
    (later,) = made.pending(RecheckLater)
    made.workers["w0"].room = 8
    made.reply(later)
    assert made.states()["t1"] == "ready"


def test_what_never_had_room_is_loaded_for_requests_only() -> None:
    assert not house().pending(RecheckLater)

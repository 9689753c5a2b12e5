"""What comes while parameters are dropped is served by workers outside of the pipeline, and by all after the restore."""

from __future__ import annotations

import pytest

from blockwright.policies.cluster.demand import BURST_PATIENCE, TURN
from blockwright.policies.cluster.scaling import PressedBlock
from blockwright.policies.control.drop_events import RestoreParameters, RoutesLeft
from blockwright.policies.control.drop_groups import memory_groups, refused_workers, serving_groups
from blockwright.policies.control.events import Add, Added, Pressed, Quiet, RecheckLater, Remove, WorkerDown, WorkerUp
from blockwright.policies.model.chain import KvLayout
from blockwright.tests.fake_cluster import KV, SIZE, application
from blockwright.tests.policies.control.test_on_demand_overload import PAIR, Tight

TRIO = ("w0", "w1", "w2")
PAGE = 6 * 1024  # bytes, of ``a`` and ``b``


def groups(tight: Tight) -> list[tuple[str, list[str]]]:
    return sorted((one.application, [member.worker for member in one.members]) for one in serving_groups(tight.state))


def try_again(made: Tight) -> None:
    """Loads that had no room."""
    for one in made.pending(RecheckLater):
        made.reply(one)


def beside() -> Tight:
    """``a`` is dropped on two of three workers, and ``b`` has come to the third."""
    made = Tight(*TRIO)
    made.drop()
    made.room = 12
    made.want("b")
    assert made.open() == ["a@w0+w1", "a@w2", "b@w2"]
    assert made.state.demand.coming == ""
    made.log.clear()
    return made


def test_it_comes_to_the_other_workers_with_the_restore() -> None:
    made = beside()
    made.restore()
    assert (made.stage(), made.open()) == ("", [f"{name}@{worker}" for name in "ab" for worker in TRIO])
    assert {*made.loads("b")} == {"w0", "w1"}
    assert not any(one.late for one in made.state.residency.values())


def test_where_there_is_no_room_yet_it_is_tried_again_and_stays_where_it_is() -> None:
    """It would be on demand, and leave the worker that serves it."""
    made = beside()
    made.room = 9
    made.restore()
    served = ["a@w0", "a@w1", "a@w2", "b@w2"]
    assert (made.open(), made.states()["b"]) == (served, "ready")
    assert groups(made) == [("a", ["w0"]), ("a", ["w1"]), ("a, b", ["w2"])]
    again = made.pending(RecheckLater)
    assert sorted((one.worker, one.application) for one in again) == [("w0", "b"), ("w1", "b")]
    known_groups = memory_groups(made.state, 0) or pytest.fail("nothing was reported")
    made.reply(again[0])
    assert made.open() == served
    assert memory_groups(made.state, known_groups.version) is not None, "that it loaded and does not any more"
    made.room = 12
    for one in made.pending(RecheckLater):
        made.reply(one)
    assert made.open() == [f"{name}@{worker}" for name in "ab" for worker in TRIO]


def test_while_it_waits_for_room_for_a_request_too_nothing_is_forgotten() -> None:
    """A worker that had no room meanwhile was not asked again."""
    made = Tight(*TRIO)
    made.spare = 10 * PAGE - SIZE
    made.drop()
    made.room = 12
    made.want("b")
    made.room = 9
    made.restore()
    made.waits["b"] = 10 * 16
    made.want("b", 10 * 16)
    assert made.state.demand.coming == "b", "it waits for memory that a has"
    for one in made.pending(RecheckLater):
        made.reply(one)
    made.waits.clear()
    made.tick(0.03)
    assert made.state.demand.coming == ""
    made.room = 12
    for again in made.late:
        made.reply(again)
    assert made.open() == [f"{name}@{worker}" for name in "ab" for worker in TRIO]


def test_the_memory_actor_hears_that_workers_take_part_without_what_they_had_no_room_for() -> None:
    made = beside()
    made.restore()
    assert groups(made) == [("a, b", [worker]) for worker in TRIO]
    made = beside()
    made(RestoreParameters("w0+w1", {}))
    known_groups = memory_groups(made.state, 0) or pytest.fail("nothing was reported")
    made.room = 9
    made.left()
    again = memory_groups(made.state, known_groups.version) or pytest.fail("nothing was reported")
    assert sorted(again.chains) == ["a", "a, b"]


def test_a_new_drop_leaves_it_out_until_the_next_restore() -> None:
    made = beside()
    made.room = 9
    made.restore()
    made.drop()
    made.room = 12
    made.log.clear()
    for one in made.pending(RecheckLater):
        made.reply(one)
    assert (made.loads("b"), made.open()) == ([], ["a@w0+w1", "a@w2", "b@w2"])
    made.restore()
    assert made.open() == [f"{name}@{worker}" for name in "ab" for worker in TRIO]


def test_what_found_room_for_a_part_of_itself_leaves_it_to_a_new_drop() -> None:
    made = Tight(*TRIO)
    made.drop()
    made.room = 12
    made(Add(application("u", "abcuvw", kv=KV)))
    assert made.open() == ["a@w0+w1", "a@w2", "u@w2"]
    made.room = 6
    made.restore()
    assert made.workers["w0"].names() == {"a", "u"}, "it shares three components"
    assert refused_workers(made.state) == {}
    made.drop()
    assert made.workers["w0"].names() == {"a"}
    made.room = 12
    made.restore()
    assert made.open() == [f"{name}@{worker}" for name in "au" for worker in TRIO]


def test_what_is_added_meanwhile_is_in_service_where_it_can_be_and_comes_to_the_others() -> None:
    made = Tight(*TRIO)
    made.drop()
    made.room = 12
    made.log.clear()
    made(Add(application("x", "012", kv=KV)))
    assert Added("x") in made.log
    assert made.open() == ["a@w0+w1", "a@w2", "x@w2"]
    assert (made.loads("x"), made.states()["x"]) == (["w2"], "ready")
    made.restore()
    assert made.open() == [f"{name}@{worker}" for name in "ax" for worker in TRIO]


def test_a_block_that_is_deployed_for_a_burst_is_not_withheld() -> None:
    """It has room beside what comes back, and one more can be deployed only once it is there."""
    made = Tight(*TRIO, block_idle=60.0)
    made.drop()
    made.room = 12
    for worker in ("w0", "w1"):
        made.state.residency[worker].set_room(0, {}, {})
    made(Add(application("x", "012", kv=KV)))
    made.state.residency["w0"].set_room(made.spare, {}, {})
    made(Pressed("w2", 1, (PressedBlock(0.9, {"x": (0, 1)}),)))
    assert made.open() == ["a@w0+w1", "a@w2", "x@w0+w2", "x@w2"]


def test_what_is_added_where_only_pipelines_are_is_on_demand() -> None:
    made = Tight("w0", "w1")
    made.drop()
    made.log.clear()
    made(Add(application("x", "01", kv=KV)))
    assert Added("x") in made.log
    assert (made.loads("x"), made.states()["x"]) == ([], "on demand")
    made.restore()
    made.active = {"a": 0}
    made.want("x")
    assert made.open() == ["a@w0", "a@w1", "x@w0", "x@w1"]


def test_a_fine_tune_that_is_added_meanwhile_needs_no_room_for_what_comes_back() -> None:
    """Of what is dropped it counted the memory twice: as promised, and as its own."""
    made = Tight(*TRIO)
    made.drop()
    made.spare = PAGE - SIZE  # of three components that are left without what it has alone
    for worker in TRIO:
        made.state.residency[worker].room = made.spare + 100 * (made.room - len(made.workers[worker].held))
    routes, parked = made.state.placement.of_one(application("t", "abcdeT", kv=KV), on_demand=True)
    assert ([route.home for route in routes], parked) == ([*TRIO], False)


def test_nothing_is_lost_where_the_worker_dies_that_has_it() -> None:
    made = beside()
    made(WorkerDown("w2", 1, "killed"))
    made.want("b")
    assert made.state.demand.coming == "b"
    made(WorkerUp("w2", 2))
    assert made.open() == ["a@w0+w1", "a@w2", "b@w2"]
    made.restore()
    assert made.open() == [f"{name}@{worker}" for name in "ab" for worker in TRIO]


def test_a_drop_that_is_given_up_before_anything_is_dropped_lets_it_come() -> None:
    made = Tight(*TRIO)
    made(PAIR)
    made.room = 12
    made.want("b")
    assert made.open() == ["a@w0+w1", "a@w2", "b@w2"]
    made(WorkerDown("w1", 1, "killed"))
    assert made.open() == ["a@w0", "a@w2", "b@w0", "b@w2"]
    made(WorkerUp("w1", 2))
    assert made.open() == [f"{name}@{worker}" for name in "ab" for worker in TRIO]


# what is loaded on demand is dropped like any other ------------------------------------------------------------------


def swapped() -> Tight:
    """``b`` has taken the place of ``a``."""
    made = Tight("w0", "w1")
    made.end("a")
    made.want("b")
    assert made.published() == ["b", "b"]
    return made


def test_after_a_swap_the_parameters_of_what_is_loaded_are_dropped() -> None:
    """They never were again, until the next start."""
    made = swapped()
    assert (groups(made), refused_workers(made.state)) == ([("b", ["w0"]), ("b", ["w1"])], {})
    made.drop("b")
    assert made.open() == ["b@w0+w1"]
    made.log.clear()
    made.want("a")
    assert (made.loads("a"), made.state.demand.coming) == ([], "a"), "it waits for the end of the burst"
    made.restore()
    made.tick(TURN)
    assert (made.awaited, made.open()) == (["b"], [])
    made.end("b")
    made(Quiet("b"))
    assert made.published() == ["a", "a"]


def test_what_is_loaded_beside_it_and_idle_is_dropped_with_it() -> None:
    made = Tight("w0", "w1")
    made.room = 12
    made.want("b")
    made.end("b")
    assert groups(made) == [("a, b", ["w0"]), ("a, b", ["w1"])]
    made.drop("a, b")
    assert made.open() == ["a@w0+w1", "b@w0+w1"]
    assert [len(made.workers[worker].held) for worker in ("w0", "w1")] == [6, 6]
    made.restore()
    assert made.open() == ["a@w0", "a@w1", "b@w0", "b@w1"]


@pytest.mark.parametrize("used", ["a", "b", ""])
def test_what_finds_no_room_to_come_back_makes_who_is_idle_give_way(used: str) -> None:
    """Parameters had filled the memory, and left other gaps than before: nothing could be dropped or loaded any more."""
    made = Tight("w0", "w1")
    made.room = 12
    made.want("b")
    made.active = {used: 1}
    made.drop("a, b")
    made.room = 11
    made(RestoreParameters("w0+w1", {}))
    for _ in range(3):
        assert (made.stage(), made.open()) == ("loading", ["a@w0+w1", "b@w0+w1"])
        made.tick(BURST_PATIENCE / 2)
        try_again(made)
        if made.stage() == "returning":
            break
    made.left()
    stays = used or "a"
    assert (made.stage(), made.open()) == ("", [f"{stays}@w0", f"{stays}@w1"])
    assert made.state.demand.coming == ""


def test_what_alone_comes_back_waits_for_room_and_nobody_gives_way() -> None:
    made = Tight("w0", "w1")
    made.drop()
    made.room = 5
    made(RestoreParameters("w0+w1", {}))
    for _ in range(4):
        made.tick(BURST_PATIENCE)
        try_again(made)
    assert (made.stage(), made.open(), made.state.demand.coming) == ("loading", ["a@w0+w1"], "")


def test_of_another_form_it_keeps_its_workers_out_as_any_model_does() -> None:
    made = Tight("w0", "w1")
    made.room = 12
    made(Add(application("c", "012", kv=KvLayout(1, 4, "float32", 16))))
    assert refused_workers(made.state)["w0"] == "worker w0 serves 2 models (a, c) whose layers have different KV"
    made(Remove("c"))
    assert refused_workers(made.state) == {}


def test_what_is_loaded_and_stays_is_no_longer_on_demand_once_everything_fits() -> None:
    made = swapped()
    assert made.state.publication().on_demand == ["a", "b"]
    made(Remove("a"))
    assert made.state.publication().on_demand == []
    made = Tight("w0", "w1")
    made.room = 12
    made.want("b")
    assert made.state.publication().on_demand == [], "both are loaded"


def test_what_waits_for_more_room_keeps_nobody_waiting_once_it_is_dropped() -> None:
    """It was not there for good before the restore, and no other model could come anywhere."""
    made = Tight(*TRIO)
    made.room, made.spare = 12, 10 * PAGE - SIZE
    made.want("b")
    made.waits["a"] = 10 * 16
    made.want("a", 10 * 16)
    assert made.state.demand.coming == "a", "it waits for memory that b has"
    made.drop("a, b")
    assert made.state.demand.coming == ""


def test_what_waits_for_memory_of_another_worker_has_it_though_it_is_dropped_on_the_first() -> None:
    made = Tight(*TRIO)
    made.room = 10
    for worker in ("w0", "w1"):
        made.state.residency[worker].set_room(0, {}, {})
    made(Add(application("x", "0123", kv=KV)))
    made.active, made.room = {"x": 1}, 9
    made.want("b")
    assert (made.open(), made.state.demand.coming) == (["b@w0", "b@w1", "x@w2"], "b")
    made.drop("b")
    assert made.state.demand.coming == "b"
    made.end("x")
    made.tick(0.03)
    assert (made.open(), made.state.demand.coming) == (["b@w0+w1", "b@w2"], "")


def test_a_pipeline_goes_on_though_nobody_can_load_what_was_dropped() -> None:
    """It was said that the model could come nowhere, and one on demand would have been unloaded."""
    for swap in (False, True):
        made = swapped() if swap else Tight("w0", "w1")
        name = "b" if swap else "a"
        made.drop(name)
        made.broken[name] = "the disk is broken"
        made(RestoreParameters("w0+w1", {}))
        assert (made.stage(), made.open(), made.failed()) == ("loading", [f"{name}@w0+w1"], [])
        made.broken.clear()
        for one in made.pending(RecheckLater):
            made.reply(one)
        assert made.stage() == "returning"
        made(RoutesLeft(next(iter(made.state.overload.groups.values())).order, 1))
        assert made.open() == [f"{name}@w0", f"{name}@w1"]


def test_what_waited_for_the_restore_and_cannot_be_loaded_then_holds_nothing_up() -> None:
    """It counted as waiting for ever, and no other model came."""
    made = Tight("w0", "w1")
    made.drop()
    made.want("b")
    assert made.state.demand.coming == "b", "it waits"
    made.broken["b"] = "its disk is gone"
    made.restore()
    assert (made.state.demand.coming, made.open()) == ("", ["a@w0", "a@w1"])
    assert [name for name, _, _ in made.failed()] == ["b"]

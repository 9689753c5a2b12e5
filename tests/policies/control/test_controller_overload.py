"""Parameters are dropped and come back: what the controller's state machine makes of it, whoever dies meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blockwright.policies.cluster.provisioning import ProvisioningRules
from blockwright.policies.control.drop_events import (
    AwaitSwitched,
    DropParameters,
    MemoryLacks,
    RequestsSwitched,
    RestoreParameters,
    RoutesLeft,
)
from blockwright.policies.control.drop_groups import memory_groups, refusal, refused_workers, serving_groups
from blockwright.policies.control.dropped_group import GroupStage
from blockwright.policies.control.drops_view import overload_view
from blockwright.policies.control.events import (
    Application,
    AskCapacity,
    KvCapacity,
    Load,
    Loaded,
    LoadFailed,
    LoadRefused,
    Recheck,
    RecheckLater,
    Remove,
    Serve,
    Undeploy,
    Unload,
    WorkerUp,
)
from blockwright.policies.control.loads import NoCapacity
from blockwright.policies.control.route_switch import SwitchRoutes
from blockwright.policies.control.scaling import ScalingPlan
from blockwright.policies.control.state import ControllerState
from blockwright.policies.model.chain import Hop
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import ROOM, FakeCluster, Published, application, kinds

A = application("a")  # six components of 100 bytes: 0, 2, 4 without KV, 1, 3, 5 with
PAIR = DropParameters("a", (Hop("w0", 0, 3), Hop("w1", 3, 6)), "throttling")


class Burst(FakeCluster):
    """Replicas of one model."""

    def __init__(self, *workers: str, served: tuple[Any, ...] = (A,)) -> None:
        super().__init__(*workers)
        self.serve(*served)

    def held(self, worker: str) -> list[int]:
        return sorted(self.state.residency[worker].resident.get("a", ()))

    def dropped(self, order: DropParameters = PAIR) -> None:
        self.order(order)
        self.left()
        self.switched()

    def restoring(self, name: str = "w0+w1") -> None:
        self.dropped()
        self.manual = True
        self.order(RestoreParameters(name, {}))

    def load(self, effects: list[Any]) -> list[Any]:
        """Answer all loads and questions, and what follows from that."""
        self.manual = False
        return [one for effect in effects for answer in self.answers(effect) for one in self(answer)]


def test_a_drop_goes_step_by_step_and_its_memory_is_kv_at_once() -> None:
    burst = Burst("w0", "w1")
    assert burst.open() == ["a@w0", "a@w1"]
    effects = burst.order(PAIR, 1.0)
    (published,) = kinds(effects, Published)
    (order,) = kinds(effects, SwitchRoutes)
    assert sorted(published.first) == ["w0", "w1"], "workers hear first of the pipeline"
    assert effects.index(order) > effects.index(published)
    assert (order.ended, order.dropped) == (["a@w0", "a@w1"], True)
    assert order.to == [f"a@w0+w1#{order.number}"]
    assert (burst.open(), burst.stage()) == (["a@w0+w1"], "leaving")
    assert {"a@w0", "a@w1"} <= {*burst.state.routes}, "what runs there still runs"
    assert kinds(effects, Unload) == []
    effects = burst.left(2.0)
    (published,) = kinds(effects, Published)
    unloads = kinds(effects, Unload)
    assert [(u.worker, u.ids) for u in unloads] == [("w0", tuple(A.components[d].shared for d in (3, 4, 5))),
                                                    ("w1", tuple(A.components[d].shared for d in (0, 1, 2)))]  # fmt: skip
    assert all(effects.index(published) < effects.index(one) for one in unloads)
    assert [*burst.state.routes] == order.to, "the replicas are out of force"
    assert {"a@w0", "a@w1"} <= {route.id for route in published.update.planned}, "and planned: their pages stay"
    assert (burst.held("w0"), burst.held("w1")) == ([0, 1, 2], [3, 4, 5])
    assert {one.worker for one in kinds(effects, AskCapacity)} == {"w0", "w1"}, "the room for KV is asked for at once"
    assert kinds(effects, Load) == [], "and what was dropped is not wanted again"
    assert (len(kinds(effects, AwaitSwitched)), burst.stage()) == (1, "exchanging")
    burst.switched(3.5)
    assert burst.stage() == "pipeline"
    view = overload_view(burst.state.overload, burst.state.served, burst.state.workers, 10.0, 1010.0)
    stages = [{"worker": "w0", "first": 0, "last": 3}, {"worker": "w1", "first": 3, "last": 6}]
    assert view["groups"] == {"w0+w1": {"model": "a", "state": "pipeline", "step": "pipeline", "stages": stages}}
    pipeline = {"state": "pipeline", "group": "w0+w1"}
    assert view["workers"] == {"w0": pipeline, "w1": pipeline}
    totals = {"dropped_bytes": 600, "stale_requests": 3, "copied_bytes": 900, "recomputed_tokens": 5, "stall_seconds": 0.5}
    assert (view["totals"], view["counts"]["drop"], {*view["failures"].values()}) == (totals, 1, {0})
    (change,) = view["changes"]
    expected = {"at": 1001.0, "what": "drop", "why": "throttling", "bytes": 600, "seconds": 2.5}
    expected |= {"requests": 3, "copied": 2, "copied_bytes": 900, "recomputed": 5, "stall_worst": 0.25}
    assert change.items() >= expected.items()


def test_a_restore_brings_all_replicas_back_before_the_pipeline_ends() -> None:
    burst = Burst("w0", "w1")
    burst.dropped()
    burst.manual = True
    effects = burst.order(RestoreParameters("w0+w1", {"w0": {3: "w1"}, "w1": {}}), 10.0)
    assert [(one.worker, one.load.first, one.load.source) for one in kinds(effects, Load)] == [
        ("w0", 3, "w1"),
        ("w1", 0, ""),
    ]
    assert (burst.open(), burst.stage()) == (["a@w0+w1"], "loading")
    first, second = kinds(effects, Load)
    burst(Loaded("w0", first.incarnation, first.load))
    burst(KvCapacity("w0", first.incarnation, ROOM))
    assert (burst.open(), burst.stage()) == (["a@w0+w1"], "loading"), "one replica is not enough"
    burst.manual = False
    effects = burst(Loaded("w1", second.incarnation, second.load), 12.0)
    (order,) = kinds(effects, SwitchRoutes)
    assert (order.to, order.dropped, burst.stage()) == (["a@w0", "a@w1"], False, "returning")
    assert burst.open() == ["a@w0", "a@w1"]
    assert [*order.ended] == [id for id in burst.state.routes if "+" in id], "the pipeline goes on until they have left"
    effects = burst.left(13.0)
    assert (burst.routes(), burst.stage()) == (["a@w0", "a@w1"], "")
    assert (burst.state.whole, kinds(effects, Unload)) == (True, [])
    restore = burst.state.overload.changes[-1]
    assert (restore.what, restore.at, restore.ended) == ("restore", 10.0, 13.0)
    burst(RequestsSwitched(order.number, ()))
    burst.dropped()
    assert burst.stage() == "pipeline", "and dropped again"


def test_a_restore_that_is_broken_off_keeps_what_is_loaded_until_that_is_trimmed() -> None:
    burst = Burst("w0", "w1")
    burst.restoring()
    worker, load = next((w, r.loading) for w, r in burst.state.residency.items() if r.loading is not None)
    burst.order(replace(PAIR, why="a burst came"), 4.0)
    restore, broken = [*burst.state.overload.changes][-2:]
    assert (restore.what, restore.ended, restore.why) == (
        "restore",
        4.0,
        "KV memory is little used; broken off, as a burst came",
    )
    assert (broken.what, broken.ended) == ("break off", 4.0)
    effects = burst(Loaded(worker, burst.state.workers[worker].incarnation, load))
    assert (burst.stage(), kinds(effects, Load)) == ("pipeline", []), "nothing more is loaded"
    assert burst.held(worker) == [0, 1, 2, 3, 4, 5]
    assert burst.open() == ["a@w0+w1"]
    burst.manual = False
    (unload,) = kinds(burst.order(PAIR), Unload)
    assert (unload.worker, len(unload.ids), burst.held(worker)) == (worker, 3, [0, 1, 2])


def test_there_is_no_room_for_what_comes_back_and_nothing_gives_way() -> None:
    burst = Burst("w0", "w1")
    burst.restoring()
    load = burst.state.residency["w0"].loading
    assert load is not None
    life = burst.state.workers["w0"].incarnation
    effects = burst(LoadRefused("w0", life, load, NoCapacity("no room", 300, False, {"a": 300})))
    (later,) = kinds(effects, RecheckLater)
    assert (kinds(effects, Load), kinds(effects, Unload), burst.open()) == ([], [], ["a@w0+w1"])
    for news in (LoadFailed("w0", life, load, "disk"), None):
        (again,) = kinds(burst(Recheck("w0", "a"), later.seconds), Load)
        assert again.load == load
        if news is not None:
            (later,) = kinds(burst(news), RecheckLater)
    assert burst.state.overload.failures == {"no_room": 1, "load_failed": 1}


@claim("Members that die or stand still in any phase of a drop lose no request", of="parameter-dropping")
@pytest.mark.parametrize("dead", ["w0", "w1"])
@pytest.mark.parametrize("stage", [*GroupStage])
def test_a_member_dies(stage: GroupStage, dead: str) -> None:
    """In each phase: whoever lives serves alone as soon as it has its parameters, and both do in the end."""
    burst = Burst("w0", "w1")
    alive = "w1" if dead == "w0" else "w0"
    burst.order(PAIR)
    for step in [*GroupStage][: [*GroupStage].index(stage)]:
        match step:
            case GroupStage.LEAVING:
                burst.left()
            case GroupStage.EXCHANGING:
                burst.switched()
            case GroupStage.PIPELINE:
                burst.manual = True
                effects = burst.order(RestoreParameters("w0+w1", {}))
            case GroupStage.LOADING:
                burst.load(effects)
    assert burst.stage() == stage
    number = burst.number()
    burst.manual = True
    effects = burst.down(dead)
    assert burst.open() == ([f"a@{alive}"] if stage in (GroupStage.LEAVING, GroupStage.RETURNING) else [])
    assert burst.state.overload.failures == {"worker_died": 1}
    burst.load([*effects, *([Load(alive, burst.state.workers[alive].incarnation, load)] if (
        load := burst.state.residency[alive].loading) and not kinds(effects, Load) else [])])  # fmt: skip
    assert (burst.open(), burst.stage()) == ([f"a@{alive}"], "")
    changes = burst.state.overload.changes
    assert all(one.ended is not None for one in changes), "nothing is under way any more"
    broken = [one.what for one in changes if one.why.endswith(f"; given up, as worker {dead} died")]
    drops = stage in (GroupStage.LEAVING, GroupStage.EXCHANGING)
    assert broken == ([] if stage is GroupStage.PIPELINE else ["drop"] if drops else ["restore"])
    burst(RoutesLeft(number, 1))  # late answers change nothing
    burst(RequestsSwitched(number, ()))
    assert burst.open() == [f"a@{alive}"]
    burst.up(dead)
    assert (burst.routes(), burst.state.whole) == (["a@w0", "a@w1"], True)
    burst.dropped()
    assert burst.stage() == "pipeline"


def test_the_dead_member_is_back_before_the_other_is_whole() -> None:
    """Its stage is whole first: the pipeline serves again, and requests leave it for the first replica."""
    burst = Burst("w0", "w1")
    burst.dropped()
    burst.manual = True
    burst.down("w1")
    slow = burst.state.residency["w0"].loading
    assert slow is not None
    assert (slow.first, burst.stage()) == (3, "loading")
    burst.starting("w1")
    effects = burst(WorkerUp("w1", burst.incarnation))
    while burst.held("w1") != [0, 1, 2, 3, 4, 5]:
        (load,) = kinds(effects, Load)
        effects = burst(Loaded("w1", load.incarnation, load.load))
    (order,) = kinds(burst(KvCapacity("w1", burst.incarnation, ROOM)), SwitchRoutes)
    assert (order.to, order.dropped, burst.open()) == (["a@w1"], False, ["a@w1"])
    burst.left()
    burst(Loaded("w0", burst.state.workers["w0"].incarnation, slow))
    assert burst.stage() == ""


def test_three_members_one_after_the_other_and_back() -> None:
    burst = Burst("w0", "w1", "w2")
    burst.dropped()
    assert burst.open() == ["a@w0+w1", "a@w2"]
    triple = DropParameters("a", (Hop("w0", 0, 2), Hop("w2", 2, 4), Hop("w1", 4, 6)))
    (order,) = kinds(burst.order(triple), SwitchRoutes)
    assert [id.partition("#")[0] for id in order.ended] == ["a@w2", "a@w0+w1"]
    assert burst.open() == ["a@w0+w2+w1"]
    burst.left()
    assert [burst.held(f"w{n}") for n in range(3)] == [[0, 1], [4, 5], [2, 3]]
    planned = [sum("#" in route.id for route in burst.state.publication().planned)]
    burst.switched()
    planned.append(sum("#" in route.id for route in burst.state.publication().planned))
    assert planned == [2, 1], "pages of the first pipeline stay until requests have switched"
    burst.order(RestoreParameters("w0+w2+w1", {}))
    assert burst.stage() == "returning"
    burst.left()
    assert (burst.routes(), burst.state.whole) == (["a@w0", "a@w1", "a@w2"], True)


def test_a_third_member_dies_before_anything_is_gone() -> None:
    burst = Burst("w0", "w1", "w2")
    burst.dropped()
    burst.order(DropParameters("a", (Hop("w0", 0, 2), Hop("w2", 2, 4), Hop("w1", 4, 6))))
    burst.down("w2")
    assert (burst.open(), burst.stage()) == (["a@w0+w1"], "pipeline"), "the first goes on"
    burst.up("w2")
    burst.order(DropParameters("a", (Hop("w0", 0, 2), Hop("w2", 2, 4), Hop("w1", 4, 6))))
    burst.down("w1")
    assert (burst.open(), burst.stage()) == (["a@w0", "a@w2"], ""), "w0 loaded what it had dropped"


def test_what_comes_back_keeps_its_room() -> None:
    """A model that is added meanwhile gets nothing of the memory that parameters have left to KV."""
    burst, large = Burst("w0", "w1"), Application("l", "", (replace(A.components[1], id=b"l" * 16, nbytes=ROOM - 1200),), 16)
    assert len(burst.state.placement.of_one(large, on_demand=False)[0]) == 2
    burst.dropped()
    with pytest.raises(ValueError, match="bytes"):
        burst.state.placement.of_one(large, on_demand=False)


def test_a_model_that_is_removed_or_withdrawn_takes_its_group_along() -> None:
    for gone in (Remove("a"), Undeploy("a")):
        burst = Burst("w0", "w1")
        burst.order(PAIR)
        burst(gone, 3.0)
        (change,) = burst.state.overload.changes
        assert (change.ended, change.why) == (3.0, "throttling; given up, as the model is not served any more")
        burst = Burst("w0", "w1")
        burst.dropped()
        effects = burst(gone)
        assert (burst.stage(), burst.routes()) == ("", [])
        assert {(one.worker, len(one.ids)) for one in kinds(effects, Unload)} == {("w0", 3), ("w1", 3)}


def test_orders_that_cannot_be_are_refused_with_a_sentence() -> None:
    burst = Burst("w0", "w1", "w2")
    cut = DropParameters("a", (Hop("w0", 0, 3), Hop("w9", 3, 6)))
    assert refusal(burst.state, RestoreParameters("w0+w1", {})) == "group w0+w1 is no pipeline"
    burst.dropped()
    part = DropParameters("a", (Hop("w0", 0, 3), Hop("w2", 3, 6)))
    assert refusal(burst.state, part) == "a group would be cut by w0, w2"
    wide = DropParameters("a", (Hop("w0", 0, 3), Hop("w2", 3, 4), Hop("w1", 4, 6)))
    assert refusal(burst.state, wide) == ""
    grown = DropParameters("a", (Hop("w0", 0, 4), Hop("w2", 4, 5), Hop("w1", 5, 6)))
    assert refusal(burst.state, grown) == "worker w0 does not hold components 0 to 4"
    burst.down("w2")
    assert refusal(burst.state, wide) == "worker w2 serves no whole model now"
    assert refusal(burst.state, cut) == "worker w9 does not exist"
    assert burst.state.scaling.undrainable("w0", burst.state.holdings).startswith("it serves as a part of a pipeline")
    two = Burst("w0", "w1", served=(A, application("b", "eAmxBh")))  # of another form
    sentence = "worker w0 serves 2 models (a, b) whose layers have different KV"
    assert refusal(two.state, PAIR) == sentence
    assert serving_groups(two.state) == []


def test_it_is_said_of_each_worker_why_it_is_in_no_group() -> None:
    burst = Burst("w0", "w1", "w2")
    assert refused_workers(burst.state) == {}
    burst.dropped()
    assert refused_workers(burst.state) == {}, "a member of a pipeline takes part"
    burst.manual = True
    burst.down("w2")
    assert refused_workers(burst.state) == {"w2": "worker w2 has not loaded all of a"}
    parts = Burst("w0", "w1", served=(application("a", "eAmxBh", span=2),))
    assert refused_workers(parts.state) == {name: f"worker {name} serves only a part of a" for name in ("w0", "w1")}
    assert serving_groups(parts.state) == []
    spare = Burst("w0", "w1", served=(A, application("b", "eAmxBh")))
    assert refused_workers(spare.state)["w0"].endswith("whose layers have different KV")
    spare(Undeploy("b"))
    assert refused_workers(spare.state) == {}
    spare(Undeploy("a"))
    assert refused_workers(spare.state) == {name: f"worker {name} serves no model" for name in ("w0", "w1")}


def test_the_memory_actor_hears_of_groups_only_when_they_changed() -> None:
    burst = Burst("w0", "w1")
    groups = memory_groups(burst.state, 0) or pytest.fail("nothing was reported")
    assert [(one.state, [m.worker for m in one.members]) for one in groups.groups] == [
        ("normal", ["w0"]),
        ("normal", ["w1"]),
    ]
    assert memory_groups(burst.state, groups.version) is None
    burst.dropped()
    again = memory_groups(burst.state, groups.version) or pytest.fail("nothing was reported")
    ((stage, members),) = [(one.state, [(m.worker, m.first, m.last, m.held) for m in one.members]) for one in again.groups]
    assert (stage, members) == ("pipeline", [("w0", 0, 3, [0, 1, 2]), ("w1", 3, 6, [3, 4, 5])])
    assert again.chains == {"a": list(A.components)}


def test_what_no_drop_can_serve_starts_a_worker_where_that_is_allowed() -> None:
    burst = Burst("w0")
    burst(MemoryLacks(700, "there is no second instance"))
    view = overload_view(burst.state.overload, {}, ["w0"], 0.0, 0.0)
    assert (view["failures"]["lacking"], view["workers"]) == (1, {"w0": {"state": "normal", "group": ""}})
    names, rules = ["w0", "w1"], ProvisioningRules(mode="relief", limit=10.0)
    burst.state = ControllerState(["w0"], 10.0, scaling=ScalingPlan(rules, names))
    burst(Serve((A,)))
    burst.up("w0")
    assert [(e.worker, e.why) for e in burst(MemoryLacks(700, "no second")) if hasattr(e, "why")] == [("w1", "no second")]

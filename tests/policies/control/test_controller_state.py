"""Placement, loading, routes and the life of workers, without any of them."""

import pytest

from blockwright.actors.controller.view import cluster_view
from blockwright.actors.worker.messages import WorkerStatus
from blockwright.policies.cluster.restart_policy import HOPELESS
from blockwright.policies.control.events import (
    Deploy,
    Fatal,
    KillWorker,
    KvCapacity,
    Load,
    Loaded,
    LoadFailed,
    Serve,
    Undeploy,
    Unload,
    WorkerCannotStart,
    WorkerDown,
    WorkerHeartbeat,
    WorkerStarting,
)
from blockwright.tests.fake_cluster import ROOM, FakeCluster, Published, application, kinds


def started(*workers, applications=()):
    return FakeCluster(*workers).serve(*(applications or (application("a"),)))


def test_a_route_is_published_when_its_blocks_are_resident_and_workers_hear_of_it_first():
    bench = FakeCluster("w0", "w1")
    (known,) = kinds(bench(Serve((application("a"),))), Published)
    assert (known.update.routes, [c.application for c in known.update.chains]) == ([], ["a"])
    assert [r.id for r in known.update.planned] == ["a@w0", "a@w1"]
    publish = kinds(bench.up("w0"), Published)[-1]
    assert [r.id for r in publish.update.routes] == ["a@w0"]
    assert publish.first == ("w0",)
    assert publish.update.version > known.update.version
    assert bench.state.ready("a")
    assert not bench.state.whole
    bench.up("w1")
    assert bench.state.whole


def test_capacity_is_what_the_room_holds_of_pages():
    bench = started("w0")
    # two attention components of 1,024 bytes a page: 32 pages of 16 tokens
    assert bench.state.publication().capacity == {"a@w0": 32 * 16}


def test_a_pipeline_loads_each_hop_where_it_belongs():
    bench = FakeCluster("w0", "w1", manual=True)
    bench(Serve((application("a", span=2),)))
    loads = kinds(bench.up("w0"), Load) + kinds(bench.up("w1"), Load)
    assert [(e.worker, e.load.first, e.load.last) for e in loads] == [("w0", 0, 3), ("w1", 3, 6)]
    for load in loads:
        bench(Loaded(load.worker, load.incarnation, load.load))
    assert bench.routes() == []
    bench(KvCapacity("w0", 1, ROOM))
    assert bench.routes() == []
    effects = bench(KvCapacity("w1", 1, ROOM // 2))
    assert bench.routes() == ["a@w0+w1"]
    publish = kinds(effects, Published)[-1]
    assert publish.first == ("w0", "w1")
    assert publish.update.capacity == {"a@w0+w1": 32 * 16}, "the smaller of the two hops"


def test_applications_come_into_force_one_after_the_other():
    bench = FakeCluster("w0")
    bench(Serve((application("a"), application("b", "eAmCoh"))))
    publishes = kinds(bench.up("w0"), Published)
    assert [[r.id for r in p.update.routes] for p in publishes[:2]] == [["a@w0"], ["a@w0", "b@w0"]]
    loads = [one.load.holder for one in kinds(bench.log, Load)]
    assert loads == ["a"] * 3 + ["b"] * 3, "block by block: before, within and after the difference"


def test_a_death_ends_its_routes_at_once():
    bench = started("w0", "w1")
    effects = bench.down("w0", now=100.0)
    publish = kinds(effects, Published)[-1]
    assert [r.id for r in publish.update.routes] == ["a@w1"]
    assert publish.first == ()
    version = publish.update.version
    back = kinds(bench.up("w0", now=100.1), Published)[-1]
    routes = {r.id: r.version for r in back.update.routes}
    assert routes["a@w0"] > version, "a new version of the route"
    assert routes["a@w1"] < version, "the other goes on as it was"


def test_a_pipeline_ends_with_either_worker():
    for victim in ("w0", "w1"):
        bench = started("w0", "w1", applications=(application("a", span=2),))
        assert bench.routes() == ["a@w0+w1"]
        bench.down(victim)
        assert bench.routes() == []
        bench.up(victim)
        assert bench.routes() == ["a@w0+w1"]


def test_a_death_during_loading_starts_over_and_late_answers_are_ignored():
    bench = FakeCluster("w0", manual=True)
    bench(Serve((application("a"),)))
    (load,) = kinds(bench.up("w0"), Load)
    bench.down("w0")
    assert bench(Loaded("w0", 1, load.load)) == []
    assert kinds(bench.up("w0"), Load)[0].load == load.load
    assert bench(Loaded("w0", 1, load.load)) == []


def test_a_death_before_it_was_up_counts_once():
    bench = FakeCluster("w0")
    bench.starting("w0")
    worker = bench.state.workers["w0"]
    assert (worker.state, worker.pid, worker.restarts) == ("starting", 71, 0)
    for _ in range(2):
        bench(WorkerDown("w0", 1, "exited 1"))
        assert (worker.state, worker.pid, worker.restarts) == ("down", 0, 1)
    bench(WorkerDown("w0", 2, "not started: no memory"))  # nobody said that it was starting
    assert (worker.state, worker.restarts, worker.deaths.count) == ("down", 2, 2)
    bench.up("w0")
    bench(WorkerStarting("w0", 3, 72))
    assert (worker.state, worker.incarnation) == ("loading", 3), "late news"


def test_an_old_incarnations_death_is_no_news():
    bench = started("w0")
    bench.down("w0")
    bench.up("w0")
    assert bench(WorkerDown("w0", 1, "late")) == []
    assert bench.routes() == ["a@w0"]


def test_a_stalled_worker_is_killed_once_and_comes_back():
    bench = started("w0")
    assert kinds(bench(WorkerHeartbeat("w0", 1, 10.0, 0, 1)), KillWorker) == []
    assert kinds(bench(WorkerHeartbeat("w0", 1, 10.1, 0, 1)), KillWorker) == [KillWorker("w0", "stalled")]
    assert bench.routes() == []
    assert kinds(bench(WorkerHeartbeat("w0", 1, 10.6, 0, 1)), KillWorker) == []
    bench.down("w0", cause="stalled")
    bench.up("w0")
    assert bench.routes() == ["a@w0"]


def test_what_does_not_fit_at_start_is_fatal_with_the_sentence():
    bench = FakeCluster("w0", manual=True)
    bench(Serve((application("a"),)))
    (load,) = kinds(bench.up("w0"), Load)
    (fatal,) = kinds(bench(LoadFailed("w0", 1, load.load, "needs 9 bytes, has 8")), Fatal)
    assert fatal.message == "worker w0 cannot load a: needs 9 bytes, has 8"


def test_no_room_for_a_page_at_start_is_fatal_with_the_sentence():
    for room, fatal in ((2047, True), (2048, False)):
        bench = FakeCluster("w0", manual=True)
        bench.up("w0")
        (load,) = [e for e in bench(Serve((application("m"),))) if isinstance(e, Load)]
        bench(Loaded("w0", 1, load.load))
        said = [e.message for e in bench(KvCapacity("w0", 1, room)) if isinstance(e, Fatal)]
        assert ["2.0 KiB left for sequences of m, less than one page of 2.0 KiB" in m for m in said] == [True] * fatal


def test_what_cannot_be_loaded_later_is_left_out_and_shown():
    bench = started("w0")
    bench(Undeploy("a"))
    bench.manual = True
    (load,) = kinds(bench(Deploy("a")), Load)
    (published,) = bench(LoadFailed("w0", 1, load.load, "no room"))
    assert isinstance(published, Published)
    assert published.update.routes == []
    assert [(one.application, one.why) for one in published.update.failed] == [("a", "worker w0: no room")]
    assert cluster_view(bench.state, {}, {}, [], [])["applications"]["a"]["refused"] == {"w0": "no room"}
    assert kinds(bench(Deploy("a")), Load), "asked again, tried again"


def test_a_cluster_that_cannot_start_says_so():
    bench = FakeCluster("w0")
    fatal = [kinds(bench(WorkerDown("w0", life, "no such file"), 5.0 * life), Fatal) for life in range(1, HOPELESS + 1)]
    assert fatal[:-1] == [[]] * (HOPELESS - 1)
    assert [f.message for f in fatal[-1]] == [f"worker w0 died {HOPELESS} times while starting: no such file"]


def test_undeploy_withdraws_first_then_unloads_and_deploy_brings_back():
    bench = started("w0", applications=(application("a"), application("b", "eAmCoh")))
    effects = bench(Undeploy("b"))
    publish, unload = (e for e in effects if isinstance(e, Published | Unload))
    assert ([c.application for c in publish.update.chains], publish.update.withdrawn) == (["a", "b"], ["b"])
    assert publish.first == ()
    assert (unload.worker, unload.holder) == ("w0", "b")
    assert b"".join(i[:1] for i in unload.ids) == b"eAmCoh", "the worker counts holders and keeps what a needs"
    assert bench.routes() == ["a@w0"]
    assert len(bench.state.holdings.blocks["a"]) > 1, "borders stay, and with them the KV of a"
    bench(Deploy("b"))
    assert bench.routes() == ["a@w0", "b@w0"]
    with pytest.raises(KeyError, match="there are: a, b"):
        bench(Deploy("zz"))


@pytest.mark.parametrize(
    ("cause", "age", "ends"),
    [("exited 70", 1.0, True), ("exited -9", 1.0, False), ("hung", 1.0, False), ("exited 70", 10.0, False)],
)
def test_a_worker_that_gets_ready_and_ends_itself_again_and_again_ends_the_cluster(cause, age, ends):
    """As one that may not map what it needs: it loads, its route comes into force, and then it fails."""
    bench = started("w0")
    now = 0.0
    fatal = []
    bench.down("w0", now, "killed")
    for _ in range(HOPELESS):
        now += 4.0
        bench.up("w0", now)
        assert bench.routes() == ["a@w0"]
        now += age
        fatal += kinds(bench.down("w0", now, cause), Fatal)
    assert [f.message for f in fatal] == [f"worker w0 died {HOPELESS} times while starting: {cause}"] * ends


def test_while_another_worker_serves_one_that_ends_itself_is_tried_again_for_ever():
    bench, now = started("w0", "w1"), 10.0
    for _ in range(3 * HOPELESS):
        assert not kinds(bench.down("w0", now, "exited 70"), Fatal)
        now += 4.0
        bench.up("w0", now)


def test_a_worker_that_cannot_start_ends_a_cluster_that_never_served():
    bench = FakeCluster("w0", "w1")
    bench.starting("w0")
    assert bench(WorkerCannotStart("w0", 1, "no kernels")) == [Fatal("worker w0 cannot start: no kernels")]


def test_a_worker_that_cannot_start_again_is_killed_for_that_reason_and_tried_later():
    bench = started("w0", "w1", applications=(application("a"),))
    bench.down("w0")
    bench.starting("w0")
    assert kinds(bench(WorkerCannotStart("w0", 2, "no kernels")), KillWorker) == [
        KillWorker("w0", "it cannot start: no kernels")
    ]
    assert not bench(WorkerCannotStart("w1", 1, "no kernels")), "it runs: a late word of nobody"
    bench(WorkerDown("w0", 2, "it cannot start: no kernels"))
    bench.starting("w0")
    assert not bench(WorkerCannotStart("w0", 2, "no kernels")), "of the life before"


def test_undeployed_while_it_loads_it_is_unloaded_when_it_came():
    bench = FakeCluster("w0", manual=True)
    bench(Serve((application("a"), application("b", "eAmCoh"))))
    (load,) = kinds(bench.up("w0"), Load)
    bench(Undeploy("a"))
    effects = bench(Loaded("w0", 1, load.load))
    assert kinds(effects, Unload) == [Unload("w0", 1, "a", tuple(load.load.ids))]
    assert kinds(effects, Load)[0].load.holder == "b"


def test_the_view_shows_shared_and_own_bytes_blocks_and_queues():
    bench = started("w0", "w1", applications=(application("a"), application("b", "eAmCoh")))
    bench(WorkerHeartbeat("w1", 1, 0.0, 3, 4))
    status = WorkerStatus(
        name="w0", incarnation=1, pid=77, device="cpu", numerics="n", budget=100, parameters=60, kv=7, cached=3, free=30,
        components=[], waiting=1, running=2, sweep=5, sweep_age=0.0, counters={"shared_pages": 6.0},
        kv_by_tenant={"ann": 10}, served_by_tenant={}, kv_cap_hits={}, parameters_by_application={"base": (7, 3)},
        links={"w1": "device-slot"},
    )  # fmt: skip
    view = cluster_view(bench.state, {"w0": status}, {}, [], [])
    w0, w1 = view["workers"]
    assert (w0["id"], w0["pid"], w0["state"], w0["device"]) == ("w0", 77, "ready", "cpu")
    assert w0["memory"] == {"budget": 100, "parameters": 60, "kv": 7, "cached": 3, "free": 30, "other": 0}
    assert (w0["kv_by_tenant"], w1["kv_by_tenant"]) == ({"ann": 10}, {})
    assert (w0["parameters_by_application"], w1["parameters_by_application"]) == ({"base": {"owned": 7, "shared": 3}}, {})
    assert (w0["links"], w1["links"]) == ({"w1": "device-slot"}, {})
    assert (w0["queue"], w1["queue"]) == ({"waiting": 1, "running": 2}, {"waiting": 3, "running": 4})
    assert w1["pid"] == 71
    assert len(w0["blocks"]) == 4, "the shared ones once: below, two middles, above"
    assert view["kv_pages_shared"] == 6
    alone = sum(sum(one["bytes"].values()) for one in view["applications"].values())
    for one in view["applications"].values():
        assert sum(part["bytes"] + part["delta"] for part in one["segments"]) == sum(one["bytes"].values())
    a, b = (view["applications"][name]["segments"] for name in ("a", "b"))
    assert [part["of"] for part in a if len(part["of"]) > 1] == [part["of"] for part in b if len(part["of"]) > 1]
    assert 0 < view["saved_bytes"] == alone - view["parameter_bytes"], "what further copies of equal tensors would take"
    assert view["applications"]["b"]["bytes"] == {"shared": 400, "own": 200}
    assert {r["id"] for r in view["routes"]} == {"a@w0", "a@w1", "b@w0", "b@w1"}

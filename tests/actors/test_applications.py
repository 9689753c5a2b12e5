"""Adding, replacing and ending applications: what the controller's state machine does with each, and what it undoes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from blockwright.actors.block.messages import BlockStatus
from blockwright.actors.controller.history import History
from blockwright.actors.controller.view import (
    ParameterShares,
    application_view,
    cluster_view,
    holders,
    parameter_shares,
    removal_view,
)
from blockwright.actors.gateway.port import Census, ModelInfo
from blockwright.actors.worker.messages import WorkerStatus
from blockwright.policies.cluster.adapter_base import WholeModel
from blockwright.policies.cluster.application_life import Conflict, check_default
from blockwright.policies.cluster.block_life import BlockStage
from blockwright.policies.cluster.scaling import BlockUse
from blockwright.policies.control.events import (
    Add,
    Added,
    Application,
    AskCapacity,
    Deploy,
    Fatal,
    FinishRequests,
    Load,
    Loaded,
    LoadFailed,
    Remove,
    Retire,
    Serve,
    Undeploy,
    Unload,
    WorkerHeartbeat,
)
from blockwright.policies.control.residency import serving, whole_models
from blockwright.policies.requests.book.catalogue import Catalogue
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.requests.routing_table import RoutingTable
from blockwright.policies.sweep.local_routes import merged
from blockwright.runtime.base.buffers import Sink
from blockwright.runtime.base.codec import encode, pack
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import ROOM, FakeCluster, Published, application, kinds
from blockwright.tests.policies.control.test_controller_state import started

STATUS = WorkerStatus(
    name="w0", incarnation=1, pid=1, device="cpu", numerics="n", budget=9, parameters=1, kv=1, free=7, components=[],
    waiting=0, running=0, sweep=0, sweep_age=0.0, counters={}, kv_by_tenant={}, served_by_tenant={}, kv_cap_hits={},
)  # fmt: skip


def named(model: str, ids: str, name: str = "", span: int = 1) -> Application:
    made = application(name or model, ids, span)
    return replace(made, model=model, created=5)


def paused(*workers: str) -> FakeCluster:
    """A cluster that serves ``a``; from here on the test answers for the workers."""
    bench = started(*workers)
    bench.manual = True
    return bench


def load_all(bench: FakeCluster, effects: list, refuse: str = "") -> list:
    """Answer every load and question that follows; ``refuse``: the worker that fails its last load."""
    done = list(effects)
    for effect in done:
        if isinstance(effect, Load) and effect.worker == refuse and effect.load.last == 6:
            done += bench(LoadFailed(effect.worker, effect.incarnation, effect.load, "component head needs 9 bytes"))
        elif isinstance(effect, Load | AskCapacity):
            done += bench.reply(effect)
    return done


def test_nobody_sees_it_before_it_is_whole_everywhere() -> None:
    bench = paused("w0", "w1")
    before = bench.state.publication()
    effects = bench(Add(named("b", "eAmBxy")))
    assert bench.state.publication() == before
    done = load_all(bench, effects)
    publications = kinds(done, Published)
    assert sorted(r.id for r in publications[-1].update.routes) == ["a@w0", "a@w1", "b@w0", "b@w1"]
    assert len(publications) == 1, "chain, planned routes and routes come at once"
    assert set(publications[0].first) == {"w0", "w1"}
    assert done[-1] == Added("b")
    assert {c.application: c.place for c in publications[-1].update.chains} == {"a": 0, "b": 1}
    assert bench.state.whole


def test_one_worker_that_cannot_load_it_leaves_everything_as_it_was() -> None:
    bench = paused("w0", "w1")
    before = bench.state.publication()
    done = load_all(bench, bench(Add(named("b", "eAmBxy"))), refuse="w1")
    assert kinds(done, Added) == [Added("b", "worker w1 cannot load it: component head needs 9 bytes")]
    assert not kinds(done, Published)
    assert not kinds(done, Fatal)
    assert bench.state.publication() == before
    assert list(bench.state.served) == ["a"]
    unloaded = {(e.worker, e.holder) for e in kinds(done, Unload)}
    assert ("w0", "b") in unloaded, "what others had loaded goes"
    assert all(not r.resident.get("b") for r in bench.state.residency.values())


def test_a_block_that_comes_after_the_end_is_unloaded() -> None:
    bench = paused("w0")
    (load,) = kinds(bench(Add(named("b", "eAmBxy"))), Load)
    assert kinds(bench(Remove("b")), Added) == []
    late = bench(Loaded("w0", load.incarnation, load.load))
    assert kinds(late, Unload)[0].ids == tuple(load.load.ids)


def test_a_worker_that_dies_comes_back_and_loads_it_but_not_for_ever() -> None:
    bench = paused("w0", "w1")
    effects = bench(Add(named("b", "eAmBxy")))
    mine = [e for e in effects if getattr(e, "worker", "") == "w0"]
    bench.down("w1")
    done = load_all(bench, mine)
    assert done[-1] == Added("b"), "the other worker is enough to begin"
    load_all(bench, bench.up("w1"))
    assert bench.state.whole


def test_a_worker_that_dies_twice_while_it_loads_it_is_not_asked_again() -> None:
    bench = paused("w0")
    bench(Add(named("b", "eAmBxy")))
    assert not kinds(bench.down("w0"), Added)
    bench.manual = False  # it loads what was served before
    held = bench.state.handle
    bench.state.handle = lambda event, now: (
        [] if isinstance(event, Loaded) and event.load.holder == "b" else held(event, now)
    )
    bench.up("w0")
    assert bench.state.residency["w0"].loading.holder == "b"
    assert kinds(bench.down("w0"), Added) == [Added("b", "2 workers died while they loaded it")]
    assert list(bench.state.served) == ["a"]


def test_what_it_shares_needs_no_room_and_what_is_missing_is_said() -> None:
    bench = paused("w0")
    bench.state.holdings.on_demand = False
    bench(Add(named("copy", "eAmBnh")))  # a copy needs only a page
    wide = named("b", "eAmBxy")
    components = tuple(c if c.id in (b"e" * 16, b"A" * 16) else replaced(c, ROOM) for c in wide.components)
    big = replace(wide, components=components)
    with pytest.raises(
        ValueError, match=r"needs \d+ bytes on worker w0 beyond what it shares, but only 65536 are left.*missing"
    ):
        bench(Add(big))
    bench.state.check()
    assert "b" not in bench.state.served


def replaced(component, nbytes):
    return type(component)(component.id, component.kind, nbytes, component.width_in, component.width_out, component.kv)


def test_the_new_version_takes_over_in_one_publication_and_the_old_one_ends() -> None:
    bench = paused("w0")
    done = load_all(bench, bench(Add(named("a", "eAmBnx", name="a~2"), "a")))
    (published,) = kinds(done, Published)
    assert published.update.draining == ["a"]
    assert [r.id for r in published.update.routes] == ["a@w0", "a~2@w0"]
    assert [(c.application, c.served_as, c.place) for c in published.update.chains] == [("a", "a", 0), ("a~2", "a", 0)]
    assert done[-2:] == [Added("a~2"), FinishRequests("a")] or done[-2:] == [FinishRequests("a"), Added("a~2")]
    done = load_all(bench, bench(Remove("a")))
    assert [r.id for r in kinds(done, Published)[0].update.routes] == ["a~2@w0"]
    assert {e.holder for e in kinds(done, Unload)} == {"a"}
    assert bench.state.additions.new_name("a", bench.state.served) == "a~3", "no name comes twice"
    assert [r.id for r in bench.state.publication().planned] == ["a~2@w0"]


def test_while_one_is_replaced_nothing_else_is_done_to_it() -> None:
    bench = paused("w0")
    bench(Add(named("a", "eAmBnx", name="a~2"), "a"))
    with pytest.raises(Conflict, match="model 'a' is being replaced"):
        bench.state.additions.admit(named("a", "eAmBny"), True, bench.state.served)
    with pytest.raises(Conflict, match="model 'a' is being replaced"):
        bench.state.additions.check_settled("a", "a")


def test_an_end_in_two_steps() -> None:
    bench = paused("w0")
    load_all(bench, bench(Add(named("b", "eAmBxy"))))
    retired = bench(Retire("b"))
    assert kinds(retired, Published)[0].update.draining == ["b"]
    assert kinds(retired, FinishRequests) == [FinishRequests("b")]
    assert not kinds(bench(Retire("b")), FinishRequests), "asked twice, done once"
    assert "b@w0" in bench.routes()
    load_all(bench, bench(Remove("b")))
    assert bench.routes() == ["a@w0"]
    assert bench(Remove("b")) == []
    with pytest.raises(KeyError, match="application 'b' is not served"):
        bench(Retire("b"))
    assert bench(WorkerHeartbeat("w0", bench.state.workers["w0"].incarnation, 0.0, 0, 0)) == []


def test_what_is_own_and_what_is_shared() -> None:
    bench = paused("w0")
    load_all(bench, bench(Add(named("b", "eAmBxy"))))
    view = application_view(bench.state, bench.state.served["b"])
    assert (view.id, view.ready, view.own, view.shared) == ("b", True, 200, 400)
    other = replace(
        application("b", "ey"),
        hashes=({"weight": b"1"}, {"norm": b"2", "up": b"3"}),
        sizes=({"weight": 10}, {"norm": 1, "up": 5}),
    )
    same_norm = replace(other, hashes=({"weight": b"4"}, {"norm": b"2", "up": b"5"}))
    assert parameter_shares(other, holders([other, same_norm])) == ParameterShares(own=15, shared=1)


def test_the_view_shows_models_and_what_ends_beside_them() -> None:
    bench = paused("w0")
    load_all(bench, bench(Add(named("b", "eAmBxy"))))
    load_all(bench, bench(Add(named("b", "eAmBxz", name="b~2"), "b")))
    use = {"a": (40, 10), "b~2": (20, 10)}
    census = [{"b": Census(running=2, waiting={"capacity": 1})}, {"b": Census(running=1)}]
    view = cluster_view(bench.state, {"w0": replace(STATUS, kv_by_application=use)}, {}, census, [])
    shown = view["applications"]
    assert list(shown) == ["a", "b (#1)", "b"]
    assert [(one["model"], one["base"], one["state"]) for one in (shown["a"], shown["b"])] == [
        ("a", None, "ready"),
        ("b", "a", "ready"),
    ]
    assert (shown["b"]["kv"], shown["b"]["requests"]) == ({"bytes": 20, "shared": 10}, {"running": 3, "waiting": 1})
    assert (shown["b"]["bytes"], shown["b"]["checkpoint"]) == ({"own": 100, "shared": 500}, "/models/b~2")
    (ending,) = [one for one in shown.values() if one["state"] == "ending"]
    assert ending["requests"] == {"running": 0, "waiting": 0}
    assert {route["application"] for route in view["routes"]} == set(shown)


def test_versions_are_reported_as_their_model() -> None:
    bench, history = paused("w0"), History()
    load_all(bench, bench(Add(named("b", "eAmBxy"))))
    history.tick(bench.state, 0.0)
    load_all(bench, bench(Add(named("b", "eAmBxz", name="b~2"), "b")))
    history.tick(bench.state, 1.0)
    status = replace(STATUS, parameters_by_application={"a": (6, 0), "b": (1, 5), "b~2": (1, 5), "b~3": (0, 1)})
    block = BlockStatus("block-1", BlockStage.RESIDENT, ["a", "b~2", "b~3"], 1, 100, BlockUse(0, 0, 0, 0.0), 0.0)
    (worker,) = cluster_view(bench.state, {"w0": status}, {"w0": [block]}, [], [])["workers"]
    assert list(worker["parameters_by_application"]) == ["a", "b (#1)", "b"]
    assert worker["busiest_blocks"][0]["applications"] == ["a", "b", "b"]
    load_all(bench, bench(Remove("b")))
    history.tick(bench.state, 2.0)
    load_all(bench, bench(Remove("b~2")))
    history.tick(bench.state, 3.0)
    events = [(event.subject, event.text) for event in history.events if event.event == "routes"]
    assert events[1:] == [
        ("b", "model b is ready on 1 of 1 routes"),
        ("b", "the version before of model b is removed"),
        ("b", "model b is removed"),
    ]


def test_who_takes_differences_knows_what_one_that_takes_wholes_knows() -> None:
    """Gateways and workers, whatever comes and goes, however far behind it is, and with each difference taken twice."""
    random, bench = Random(5), started("w0", "w1", "w2")
    whole, behind = RoutingTable(["a"]), RoutingTable(["a"])
    for table in (whole, behind):
        for worker in bench.state.workers:
            table.join(worker, 0.0)
    learn = {id(table): Catalogue([ModelInfo("a", "", 1, 0, False)], table).learn for table in (whole, behind)}
    parts: dict[tuple[str, int], RoutesChanged] = {}  # by life of a worker
    differences = partial = 0
    for number in range(120):
        served = [name for name in bench.state.served if name != "a" and not bench.state.served[name].draining]
        match random.randrange(6):
            case 0 | 1:
                model = f"m{number % 7}"
                known = serving(bench.state.served, model)
                name = bench.state.additions.new_name(model, bench.state.served)
                bench(Add(named(model, f"eAmB{chr(192 + number)}h", name=name), known.application.name if known else ""))
            case 2 if served:
                bench(Retire(random.choice(served)))
            case 3 if served:
                bench(Remove(random.choice(served)))
            case 4:
                bench.down(random.choice(list(bench.state.workers)))
            case 5 if random.random() < 0.5:
                bench(Undeploy("a") if "a" in bench.state.holdings.blocks else Deploy("a"))
            case _:
                for name in [name for name, worker in bench.state.workers.items() if not worker.alive]:
                    bench.up(name)
        learn[id(whole)](bench.state.publication(), float(number))
        if random.random() < 0.5:
            update = bench.state.table.news(behind.settled)
            differences += update.since > 0 and update.version > update.since
            assert update.planned == []
            for _ in range(2):
                learn[id(behind)](update, float(number))
            assert (behind.version, behind.models, behind.bases) == (whole.version, whole.models, whole.bases)
            assert (behind.capacity, behind.chains) == (whole.capacity, whole.chains)
            assert {a: sorted(map(str, routes)) for a, routes in behind.routes.items()} == {
                a: sorted(map(str, routes)) for a, routes in whole.routes.items()
            }
            behind.check()
        for name, worker in bench.state.workers.items():
            if worker.alive and random.random() < 0.5:
                known = parts.get((name, worker.incarnation), RoutesChanged(0, [], [], []))
                both = bench.state.table.parts({name: known.version}), bench.state.table.parts({name: 0})
                update, expected = (found[name] for found in both)
                for _ in range(2):
                    known = merged(known, update)
                parts[name, worker.incarnation] = known
                partial += update.since > 0 and update.version > update.since
                assert listed(known) == listed(expected)
    assert differences > 20
    assert partial > 20


def listed(part: RoutesChanged) -> tuple[object, ...]:
    """In an order of its own."""
    chains = {chain.application: chain for chain in part.chains}
    return part.version, chains, {r.id: r for r in part.routes}, {r.id: r for r in part.planned}


def test_a_worker_is_sent_all_that_concerns_it_and_nothing_else() -> None:
    bench = FakeCluster("w0", "w1", "w2", "w3")
    bench(Serve((application("a"), application("b", "eAmByz", span=2))))
    for worker in ("w0", "w1", "w2", "w3"):
        bench.up(worker)
    part = bench.state.table.parts({"w2": 0})["w2"]
    assert [route.id for route in part.planned] == ["a@w2", "b@w2+w3"]
    assert sorted(route.id for route in part.routes) == ["a@w2", "b@w2+w3"]
    assert (part.version, [chain.application for chain in part.chains]) == (bench.state.version, ["a", "b"])
    bench.down("w3")
    assert [route.id for route in bench.state.table.parts({"w2": 0})["w2"].routes] == ["a@w2"]


def test_one_more_than_a_hundred_is_one_route_for_each_worker() -> None:
    """Of those through it, and nothing about those that it knows."""
    applications = tuple(application(f"a{n}", f"eA{chr(192 + n)}Bnh") for n in range(100))
    bench = started("w0", "w1", applications=applications)
    version = bench.state.version
    bench.manual = True
    load_all(bench, bench(Add(named("b", "eAmByz"))))
    assert bench.state.version == version + 1
    update = bench.state.table.parts({"w0": version, "w1": version})["w1"]
    assert [route.id for route in update.planned] == [route.id for route in update.routes] == ["b@w1"]
    assert ([chain.application for chain in update.chains], update.ended, update.since) == (["b"], [], version)
    size = len(pack(encode(update, Sink())))
    assert size * 50 < len(pack(encode(bench.state.table.parts({"w1": 0})["w1"], Sink())))
    version += 1
    bench.down("w0")
    update = bench.state.table.parts({"w1": version})["w1"]
    assert (update.planned, update.routes, update.ended) == ([], [], []), "what another loses is nothing to it"
    bench(Remove("b"))
    assert bench.state.table.parts({"w1": bench.state.version - 1})["w1"].ended == ["b@w1"]
    whole = bench.state.table.parts({"w1": version - 100})["w1"]
    assert (whole.since, len(whole.planned)) == (0, 100), "too long ago"


def test_a_front_is_notified_of_an_adapters_own_folder() -> None:
    bench = started("w0")
    bench(Add(replace(named("tuned", "eAmBx"), checkpoint="/adapter", base="/base"), ""))
    table = RoutingTable(["a"])
    table.join("w0", 0.0)
    catalogue = Catalogue([ModelInfo("a", "/a", 1, 0, False)], table)
    catalogue.learn(bench.state.publication(), 0.0)
    found = {info.id: info for info in catalogue.models()}
    assert (found["tuned"].checkpoint, found["tuned"].adapter, found["tuned"].folders) == (
        "/base",
        "/adapter",
        ("/adapter", "/base"),
    )
    assert len(found["a"].folders) == 1


def adapter(model: str, base: str, checkpoint: str, delta: str = "d") -> Application:
    """An adapter over ``eAmBnh``, which changes its second component."""
    made = named(model, "eAmBnh")
    second = made.components[1].adapted((delta * 16).encode(), 1)
    return replace(made, components=(made.components[0], second, *made.components[2:]), base=checkpoint, base_model=base)


def shown(bench: FakeCluster) -> dict[str, str | None]:
    """BASE of what is served, by model."""
    view = cluster_view(bench.state, {}, {}, [], [])["applications"].values()
    return {one["model"]: one["base"] for one in view if one["state"] != "ending"}


def parents(bench: FakeCluster) -> dict[str, str | None]:
    """The same as ``/v1/models`` tells it."""
    table = RoutingTable([])
    catalogue = Catalogue([], table)
    catalogue.learn(bench.state.publication(), 0.0)
    return {info.id: info.parent for info in catalogue.models()}


def test_an_adapter_shows_what_it_was_put_on_whatever_becomes_of_that() -> None:
    """Never what it shares most with: here both models share all of it."""
    bench = paused("w0")
    load_all(bench, bench(Add(named("full0", "eAmBnx"))))
    load_all(bench, bench(Add(adapter("ann", "full0", "/models/full0"))))
    load_all(bench, bench(Add(adapter("bob", "a", "/models/a", "f"))))
    assert shown(bench) == parents(bench) == {"a": None, "full0": "a", "ann": "full0", "bob": "a"}
    view = application_view(bench.state, bench.state.served["bob"])
    assert (view.base, application_view(bench.state, bench.state.served["full0"]).base) == ("a", "")
    load_all(bench, bench(Remove("a")))
    assert shown(bench) == {"full0": None, "ann": "full0", "bob": "a"}
    assert parents(bench) == {"full0": None, "ann": "full0", "bob": None}, "what is not listed has no entry"
    load_all(bench, bench(Add(named("a", "eAmBnh", name="a~2"))))
    assert list(shown(bench)) == ["a", "full0", "ann", "bob"]
    assert shown(bench) == {"full0": "a", "ann": "full0", "bob": "/models/a", "a": None}, "that is another folder"
    assert list(parents(bench)) == ["a", "full0", "ann", "bob"], "what comes again has its place again"
    load_all(bench, bench(Remove("a~2")))
    same = replace(named("a", "eAmBnh", name="a~3"), checkpoint="/models/a")
    load_all(bench, bench(Add(same)))
    assert shown(bench) == parents(bench) == {"full0": "a", "ann": "full0", "bob": "a", "a": None}


def test_what_an_adapter_can_be_put_on() -> None:
    """Whole models that stay, and removed ones that others are on."""
    bench = paused("w0")
    load_all(bench, bench(Add(named("full0", "eAmBnx"))))
    load_all(bench, bench(Add(adapter("ann", "a", "/models/a"))))
    here = [WholeModel("a", "/models/a"), WholeModel("full0", "/models/full0")]
    assert whole_models(bench.state.served) == here
    bench(Retire("a"))
    assert whole_models(bench.state.served) == [here[1], WholeModel("a", "/models/a", served=False)]
    load_all(bench, bench(Remove("a")))
    assert whole_models(bench.state.served) == [here[1], WholeModel("a", "/models/a", served=False)]
    load_all(bench, bench(Remove("ann")))
    assert whole_models(bench.state.served) == [here[1]]


@claim("The default model changes only on request", of="fine-tunes")
def test_the_default_changes_only_when_somebody_says_so() -> None:
    """Whatever is removed; what comes again under that id is it again."""
    bench = paused("w0")
    bench.state.table.choose_default("a")
    load_all(bench, bench(Add(named("b", "eAmBxy"))))
    load_all(bench, bench(Add(adapter("ann", "a", "/models/a"))))
    view = removal_view(bench.state, bench.state.served["a"], "")
    assert (view.freed, view.adapters, view.default, view.answered) == (0, 1, "a", False), "ann keeps all of it"
    view = removal_view(bench.state, bench.state.served["b"], "")
    assert (view.freed, view.adapters, view.default, view.answered) == (200, 0, "a", True)
    assert removal_view(bench.state, bench.state.served["a"], "b").answered
    table, seen = RoutingTable(["a", "b"]), []
    learn = Catalogue([], table).learn
    for event in (Remove("a"), Add(named("a", "eAmBnh", name="a~2"))):
        load_all(bench, bench(event))
        learn(bench.state.publication(), 0.0)
        seen.append((table.default, table.default in table.models, next(iter(table.models))))
    assert seen == [("a", False, "b"), ("a", True, "a")]
    before = table.settled
    bench.state.table.choose_default("b")
    bench(Retire("a~2"))
    learn(bench.state.table.news(before), 0.0)
    assert (table.default, list(table.models)) == ("b", ["b", "ann"]), "in the publication that ends the other"


def test_a_default_that_a_setting_names_is_not_removed_by_the_way() -> None:
    with pytest.raises(Conflict, match=r"model 'a' is the one for requests without a model .* --default NAME"):
        check_default("a", named="a", instead="")
    with pytest.raises(Conflict, match=r"model 'a:auto' is the one for requests without a model"):
        check_default("a", named="a:auto", instead="")
    check_default("a", named="a", instead="b")
    check_default("b", named="a", instead="")
    check_default("a", named="", instead="")

"""Routes are compared by what their workers have left to do."""

from dataclasses import replace
from random import Random

import pytest

from blockwright.policies.model.chain import Hop, Route
from blockwright.policies.requests.dispatch import (
    RouteQuery,
    choose,
    dispatch,
    fitting,
    is_idle,
    lacking_room,
    outstanding,
    workers_of,
)
from blockwright.policies.requests.poison import Quarantine
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.requests.routing_table import RoutingTable
from blockwright.tests.claims import claim


def route(*workers: str) -> Route:
    return Route("m@" + "+".join(workers), 1, "m", tuple(Hop(w, i, i + 1) for i, w in enumerate(workers)))


def test_outstanding_counts_prefill_and_decode():
    assert outstanding(known=10, computed=0, total=15) == 15
    assert outstanding(known=10, computed=9, total=15) == 6
    assert outstanding(known=15, computed=15, total=15) == 0


@claim("Requests go to the route with the least work, and a route that can hold the request goes first", of="serving")
def test_least_work_wins_and_names_break_ties():
    routes = [route("w1"), route("w0"), route("w2")]
    assert choose(routes, {}) == route("w0")
    assert choose(routes, {"w0": 5, "w1": 4, "w2": 4}) == route("w1")


@pytest.mark.parametrize("seed", range(40))
def test_the_short_way_through_replicas_finds_what_the_comparison_of_all_routes_finds(seed: int):
    """A pipeline that has no room has all routes compared in full."""
    source = Random(seed)
    names = [f"w{n}" for n in range(source.randint(1, 6))]
    routes = [replace(route(name), application=source.choice("mv"), id=f"{source.random()}") for name in names * 2]
    source.shuffle(routes)
    capacity = {one.id: source.choice((10, 20, 30)) for one in routes if source.random() < 0.7}
    work = {name: source.choice((0, 5, 15)) for name in names if source.random() < 0.8}
    closed = {name for name in names if source.random() < 0.2}
    full, pipeline = dict.fromkeys(("x", "y"), 1 << 40), route("x", "y")
    rest = (closed, source.choice(routes).id, source.choice((5, 20)), capacity | {pipeline.id: 0}, ("v",))
    long = choose([*routes, pipeline], work | full, *rest)
    assert choose(routes, work, *rest) == (None if long == pipeline else long)


@claim("Gateways that have seen nothing of each other's requests send them to different workers", of="serving")
@pytest.mark.parametrize("pipelines", [False, True])
def test_each_of_several_gateways_has_its_own_order_of_workers_with_equal_work(pipelines: bool):
    routes = [route(f"w{n}", f"v{n}") if pipelines else route(f"w{n}") for n in range(40)]
    first = [choose(routes, {}, seat=f"g{n}/gateway") for n in range(8)]
    assert len({one.home for one in first if one is not None}) >= 6
    assert first == [choose(routes[::-1], {}, seat=f"g{n}/gateway") for n in range(8)]
    assert choose(routes, {"w0": 1}, seat="g0/gateway") == choose(routes[1:], {}, seat="g0/gateway")


def test_all_workers_of_a_route_count():
    routes = [route("w0", "w1"), route("w2", "w3")]
    assert choose(routes, {"w1": 9, "w2": 4, "w3": 4}) == route("w2", "w3")


def test_the_longer_way_is_taken_while_the_short_one_has_no_room():
    routes, capacity = [route("w0", "w1"), route("w0")], {"m@w0": 100, "m@w0+w1": 180}
    assert choose(routes, {"w0": 60}, tokens=40, capacity=capacity) == route("w0")
    assert choose(routes, {"w0": 61}, tokens=40, capacity=capacity) == route("w0", "w1")
    assert choose(routes, {"w0": 61, "w1": 170}, tokens=40, capacity=capacity) == route("w0"), "or where less is in excess"


def test_a_pipeline_of_its_own_workers_takes_as_much_as_its_workers_would():
    """Two of four replicas have dropped parameters: their pipeline gets every other request, each replica every fourth."""
    routes = [route("w0", "w1"), route("w2"), route("w3")]
    work = dict.fromkeys(("w0", "w1", "w2", "w3"), 0)
    taken = []
    for _ in range(40):
        found = choose(routes, work, tokens=10, capacity={"m@w0+w1": 3000, "m@w2": 1000, "m@w3": 1000})
        assert found is not None
        taken.append(found.home)
        for worker in workers_of(found):
            work[worker] += 10
    assert {home: taken.count(home) for home in work} == {"w0": 20, "w1": 0, "w2": 10, "w3": 10}


def test_closed_workers_and_avoided_routes_are_not_taken():
    routes = [route("w0"), route("w1")]
    assert choose(routes, {}, closed={"w0"}) == route("w1")
    assert choose(routes, {}, avoid="m@w0") == route("w1")
    assert choose(routes, {}, closed={"w0", "w1"}) is None


def test_idle_means_no_request_on_any_worker():
    assert is_idle(route("w0", "w1"), {"w2": {"r"}, "w1": set()})
    assert not is_idle(route("w0", "w1"), {"w1": {"r"}})


def test_a_worker_with_two_hops_counts_once():
    twice = Route("m@w0", 1, "m", (Hop("w0", 0, 1), Hop("w0", 1, 2)))
    assert workers_of(twice) == ("w0",)


def two_workers(capacity: dict[str, int] | None = None) -> RoutingTable:
    table = RoutingTable(["m"])
    for worker in ("w0", "w1"):
        table.join(worker, 0.0)
    table.update(RoutesChanged(1, [], [], []), 0.0)
    table.routes["m"] = [route("w0"), route("w1")]
    table.capacity = capacity or {}
    return table


@claim("Requests go to the route with the least work, and a route that can hold the request goes first", of="serving")
def test_a_route_that_holds_the_request_goes_before_one_with_less_to_do():
    table, quarantine = two_workers({"m@w0": 10, "m@w1": 100}), Quarantine()
    table.place("other", ("w1",), 50)
    assert dispatch(RouteQuery("a", "m", 10), table, quarantine, True) == route("w0")
    assert dispatch(RouteQuery("a", "m", 11), table, quarantine, True) == route("w1")
    assert dispatch(RouteQuery("a", "m", 101), table, quarantine, True) == route("w0"), "the worker says why it cannot"
    assert dispatch(RouteQuery("a", "unknown", 1), table, quarantine, True) is None


def test_a_suspect_waits_for_a_route_of_its_own_that_takes_nobody_meanwhile():
    table, quarantine = two_workers(), Quarantine()
    table.place("a", ("w0",), 5)
    table.place("b", ("w1",), 9)
    suspect = RouteQuery("s", "m", 10, suspect=True)
    assert dispatch(suspect, table, quarantine, True) is None, "w0 is busy"
    assert quarantine.routes == {"s": route("w0")}
    assert dispatch(RouteQuery("c", "m", 10), table, quarantine, True) == route("w1"), "though w1 has more to do"
    assert dispatch(RouteQuery("t", "m", 10, suspect=True), table, quarantine, True) is None
    assert set(quarantine.routes) == {"s"}, "one route at a time, while others have work"
    table.remove("a", ("w0",), 5)
    assert dispatch(suspect, table, quarantine, True) == route("w0")
    table.place("s", ("w0",), 10)
    assert dispatch(RouteQuery("d", "m", 10, avoid="m@w1"), table, quarantine, True) is None
    assert dispatch(RouteQuery("t", "m", 10, suspect=True), table, quarantine, False) is None
    assert quarantine.routes["t"] == route("w1"), "with suspects only, each has a route of its own"
    quarantine.check()


def held(capacity: dict[str, int], alone: dict[str, int]) -> RoutingTable:
    """Routes of one application, by home, with what they hold now and at most."""
    table = RoutingTable(["m"])
    table.routes["m"] = [route(worker) for worker in capacity]
    table.capacity = {f"m@{worker}": tokens for worker, tokens in capacity.items()}
    table.capacity_alone = {f"m@{worker}": tokens for worker, tokens in alone.items()}
    return table


def test_a_request_waits_for_room_only_where_none_has_it_and_one_could():
    wanted = RouteQuery("r", "m", 100)
    assert lacking_room(wanted, held({"w0": 90, "w1": 100}, {"w0": 400, "w1": 400})) == 0
    assert lacking_room(wanted, held({"w0": 90, "w1": 80}, {"w0": 400, "w1": 99})) == 100
    assert lacking_room(wanted, held({"w0": 90}, {"w0": 99})) == 0, "a worker says why not"
    assert lacking_room(wanted, held({"w0": 90}, {})) == 0, "none is unloaded"
    refused = RouteQuery("r", "m", 100, refused={"m@w0"})
    assert lacking_room(refused, held({"w0": 90}, {"w0": 400})) == 0


def test_where_a_worker_found_less_than_was_known_more_must_be_free_but_no_more_than_ever_is():
    wanted = RouteQuery("r", "m", 100, room=121)
    assert fitting(wanted, held({"w0": 120}, {"w0": 400})) == []
    assert lacking_room(wanted, held({"w0": 120}, {"w0": 400})) == 121
    assert fitting(wanted, held({"w0": 121}, {"w0": 400})) == [route("w0")]
    assert fitting(wanted, held({"w0": 110}, {"w0": 110})) == [route("w0")], "nothing is left to unload"

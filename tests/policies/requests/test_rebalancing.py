"""Where requests that wait at workers go when another one begins to serve."""

from __future__ import annotations

from collections.abc import Iterable

from blockwright.policies.model.chain import Block, Chain, Component, Hop, Kind, Route
from blockwright.policies.requests.dispatch import RouteQuery
from blockwright.policies.requests.poison import Quarantine
from blockwright.policies.requests.rebalancing import QueuedRequest, rebalanced
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.requests.routing_table import RoutingTable
from blockwright.tests.claims import claim

CHAIN = Chain("m", (Block((Component(b"c" * 16, Kind.MLP, 1, 1, 1),) * 2),), 100)


def route(*workers: str) -> Route:
    return Route("m@" + "+".join(workers), 1, "m", tuple(Hop(worker, i, i + 1) for i, worker in enumerate(workers)))


OLD, NEW = route("w0"), route("w1")


def table(*routes: Route, capacity: dict[str, int] | None = None, **work: int) -> RoutingTable:
    """``work``: tokens outstanding at each worker, those of the requests that wait there among them."""
    made = RoutingTable(["m"])
    for worker in {hop.worker for one in routes for hop in one.hops}:
        made.join(worker, 0.0)
    made.update(RoutesChanged(1, [CHAIN], routes, [], capacity=capacity or {}), 0.0)
    made.work = work
    return made


def at(where: Route, requests: Iterable[str], tokens: int = 10, **more: str) -> list[QueuedRequest]:
    return [QueuedRequest(RouteQuery(request, "m", tokens, **more), where, tokens) for request in requests]  # type: ignore[arg-type]


def moved(waiting: list[QueuedRequest], known: RoutingTable, quarantine: Quarantine | None = None) -> dict[str, str]:
    return {request: to.id for request, to in rebalanced(waiting, known, quarantine or Quarantine()).items()}


@claim("Requests that wait at a survivor move to the replacement of a dead worker", of="faults")
def test_those_that_come_first_find_the_idle_worker_until_both_have_as_much() -> None:
    assert moved(at(OLD, "abcd"), table(OLD, NEW, w0=60)) == {"a": "m@w1", "b": "m@w1", "d": "m@w1"}, "20 begun, 40 wait"


def test_nobody_moves_for_nothing() -> None:
    assert moved(at(OLD, "a"), table(OLD, NEW, w0=10)) == {}, "nothing is before it where it is"
    assert moved(at(OLD, "ab"), table(OLD, NEW, w0=50, w1=40)) == {}, "as much is before it there"
    assert moved(at(OLD, "a"), table(OLD, w0=50)) == {}, "there is no other"


def test_nobody_moves_where_it_does_not_fit_or_is_not_wanted() -> None:
    known = table(OLD, NEW, capacity={"m@w0": 100, "m@w1": 5}, w0=60)
    assert moved(at(OLD, "a"), known) == {}
    known = table(OLD, NEW, w0=60)
    assert moved(at(OLD, "a", avoid="m@w1"), known) == {}
    kept = Quarantine()
    kept.keep("suspect", NEW)
    assert moved(at(OLD, "a"), known, kept) == {}


def test_a_route_through_the_same_worker_frees_nobody() -> None:
    assert moved(at(OLD, "ab"), table(OLD, route("w0", "w1"), w0=60)) == {}


def test_who_has_lost_his_route_meanwhile_is_weighed_all_the_same() -> None:
    assert moved(at(OLD, "a"), table(NEW, w0=60)) == {"a": "m@w1"}

"""Routes are compared by what their workers have left to do."""

from blockwright.policies.model.chain import Hop, Route
from blockwright.policies.requests.dispatch import choose, is_idle, outstanding, workers_of


def route(*workers: str) -> Route:
    return Route("m@" + "+".join(workers), 1, "m", tuple(Hop(w, i, i + 1) for i, w in enumerate(workers)))


def test_outstanding_counts_prefill_and_decode():
    assert outstanding(known=10, computed=0, total=15) == 15
    assert outstanding(known=10, computed=9, total=15) == 6
    assert outstanding(known=15, computed=15, total=15) == 0


def test_least_work_wins_and_names_break_ties():
    routes = [route("w1"), route("w0"), route("w2")]
    assert choose(routes, {}) == route("w0")
    assert choose(routes, {"w0": 5, "w1": 4, "w2": 4}) == route("w1")


def test_all_workers_of_a_route_count():
    routes = [route("w0", "w1"), route("w2", "w3")]
    assert choose(routes, {"w1": 9, "w2": 4, "w3": 4}) == route("w2", "w3")


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

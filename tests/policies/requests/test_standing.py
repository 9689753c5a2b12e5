"""Routes are compared by an estimate in seconds; memory, accuracy and KV go before it."""

from random import Random

import pytest

from blockwright.policies.model.chain import Hop, Route
from blockwright.policies.requests.dispatch import PLAIN, UNKNOWN, choose, workers_of
from blockwright.policies.requests.paces import Paces, WorkerLink
from blockwright.policies.requests.standing import (
    RouteView,
    Standing,
    compute_time,
    queue_time,
    transfer_time,
)
from blockwright.tests.claims import claim

TWICE = Paces({"w0": 1.0, "w1": 2.0}, 0.01)


def route(*workers: str, application: str = "m") -> Route:
    hops = tuple(Hop(w, i, i + 1) for i, w in enumerate(workers))
    return Route(f"{application}@{'+'.join(workers)}", 1, application, hops)


def test_each_term() -> None:
    assert queue_time(["w0"], {"w0": 30}) == 30
    assert queue_time(["w0", "w1"], {"w0": 30, "w1": 10}, TWICE) == (30 + 20) / 4
    assert compute_time(["w1"], 10, TWICE) == 20
    assert compute_time(["w0", "w1"], 10, TWICE) == 15
    assert transfer_time(3, 10, 8, WorkerLink(0.5, 640.0)) == 2 * (0.5 + 0.5)
    assert transfer_time(3, 10, 8, None) == 0
    assert transfer_time(1, 10, 8, WorkerLink(0.5, 640.0)) == 0


def test_the_estimate_is_in_seconds_where_paces_are_known() -> None:
    view = RouteView(known=8, left=4, paces=TWICE, cached={"m@w1": 6})
    found = view.estimate(route("w1"), ["w1"], {"w1": 50})
    assert (found.queue, found.compute, found.first, found.exact) == (1.0, pytest.approx(0.12), pytest.approx(0.04), True)
    assert found.start == pytest.approx(1.04)
    assert found.total == pytest.approx(1.12)
    unknown = RouteView(known=8, left=4).estimate(route("w1"), ["w1"], {"w1": 50})
    assert (unknown.total, unknown.exact) == (62, False)


def test_bytes_of_the_chain_count_where_only_speeds_are_known() -> None:
    view = RouteView(left=4, paces=Paces({}, 1e-3, per_byte=True), sizes={"m": (1000, 8)})
    assert view.estimate(route("w0"), ["w0"], {}).total == 4
    assert not view.estimate(route("w0", application="other"), ["w0"], {}).exact


@claim("A route whose worker has KV of most of the prompt and room goes first", of="adaptive")
def test_the_owner_of_kv_goes_first_if_it_has_room() -> None:
    view = RouteView(known=8, left=4, cached={"m@w1": 4})
    routes, work = [route("w0"), route("w1")], {"w1": 1000}
    assert choose(routes, work, view=view) == route("w1")
    assert choose(routes, work, tokens=12, capacity={"m@w1": 1011}, view=view) == route("w0")
    assert choose(routes, work, view=RouteView(known=9, left=4, cached={"m@w1": 4})) == route("w0"), "less than half"


@claim("A less accurate chain serves only while the more accurate ones lack memory or break the target", of="adaptive")
def test_a_less_accurate_chain_waits_for_memory_or_the_target() -> None:
    routes = [route("w0"), route("w1", application="m~1")]
    view = RouteView(known=8, left=4, paces=Paces({}, 0.01), ranks={"m~1": 1}, target=1.0)
    taken = {"variants": ("m~1",), "view": view}
    assert choose(routes, {"w0": 80}, **taken) == routes[0]
    assert choose(routes, {"w0": 100}, **taken) == routes[1], "1.08 s to the first token are too late"
    assert choose(routes, {"w0": 100, "w1": 200}, **taken) == routes[0], "both are: the least estimate"
    room = {"m@w0": 91}
    assert choose(routes, {"w0": 80}, tokens=12, capacity=room, **taken) == routes[1]
    unknown = RouteView(known=8, left=4, ranks={"m~1": 1}, target=1.0)
    assert choose(routes, {"w0": 100}, variants=("m~1",), view=unknown) == routes[0], (
        "nothing is late where paces are unknown"
    )


def test_ties_go_to_the_owner_the_same_worker_and_the_listed_chain() -> None:
    routes = [route("w0"), route("w1", application="m~1"), route("w2", application="m~1")]
    variants = ("m~1",)
    assert choose(routes[1:], {}, variants=variants, view=RouteView(known=8, near="w2")) == routes[2]
    assert choose(routes, {}, variants=variants, view=RouteView(known=8, near="w2")) == routes[2]
    assert choose(routes, {}, variants=variants, view=RouteView(known=8)) == routes[0]
    late = RouteView(known=8, paces=Paces({}, 1.0), cached={"m~1@w2": 8}, target=0.5)
    assert choose(routes, {"w0": 2, "w1": 2, "w2": 10}, variants=variants, view=late) == routes[2]


def test_a_slower_worker_gets_less() -> None:
    routes, taken = [route("w0"), route("w1")], []
    work = {"w0": 0, "w1": 0}
    for _ in range(30):
        found = choose(routes, work, view=RouteView(known=8, left=2, paces=TWICE))
        assert found is not None
        taken.append(found.home)
        work[found.home] += 10
    assert taken.count("w1") == 10


@claim("Requests without variants go to the least work ahead while all workers are equally fast", of="adaptive")
def test_a_view_that_knows_nothing_chooses_as_the_work_ahead_does() -> None:
    random = Random(5)
    for _ in range(300):
        names = [f"w{i}" for i in range(random.randint(1, 5))]
        routes = [route(*random.sample(names, random.randint(1, min(3, len(names))))) for _ in range(random.randint(1, 6))]
        work = {name: random.choice((0, 3, 3, 17, 40)) for name in names}
        capacity = {one.id: random.choice((20, 50, UNKNOWN)) for one in routes}
        closed, avoid = {*random.sample(names, random.randint(0, 1))}, random.choice(["", routes[0].id])
        tokens, known = random.randint(0, 20), random.randint(0, 20)
        found = choose(routes, work, closed, avoid, tokens, capacity)
        assert found == _least_work(routes, work, closed, avoid, tokens, capacity)
        assert found == choose(routes, work, closed, avoid, tokens, capacity, view=RouteView(known=known, left=7))
    assert RouteView() == PLAIN


def _least_work(routes, work, closed, avoid, tokens, capacity):  # type: ignore[no-untyped-def]
    """Choose by excess, detour and work ahead, as gateways did before there were estimates."""

    def key(one: Route) -> tuple[object, ...]:
        workers = workers_of(one)
        excess = max(max(work[w] for w in workers) + tokens - capacity[one.id], 0)
        fewest = min(len(workers_of(r)) for r in routes if not {*workers}.isdisjoint(workers_of(r)))
        passing = [min(len(workers_of(r)) for r in routes if w in workers_of(r)) for w in workers]
        assert fewest == min(passing)
        return excess, len(workers) - fewest, sum(work[w] for w in workers) / len(workers) ** 2, workers, one.id

    return min((r for r in routes if r.id != avoid and closed.isdisjoint(workers_of(r))), key=key, default=None)


def test_keys_are_ordered_by_memory_target_accuracy_detour_kv_and_load() -> None:
    ordered = [
        Standing(owns=True).key((9.0,)), Standing().key((1.0,)), Standing(near=True).key((2.0,)), Standing().key((2.0,)),
        Standing(stands_in=True).key((2.0,)), Standing(detour=1).key((0.0,)), Standing(rank=1, owns=True).key((0.0,)),
        Standing(late=True, rank=3).key((0.0,)), Standing(late=True).key((1.0,)), Standing(short=1).key((0.0,)),
    ]  # fmt: skip
    assert ordered == sorted(ordered)

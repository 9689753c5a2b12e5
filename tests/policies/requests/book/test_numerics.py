"""A sequence stays on the numerics that made its tokens while a worker of them is left; then it is computed again."""

from __future__ import annotations

import pytest

from blockwright.policies.requests.book.messages import HeartbeatReceived, Vacate
from blockwright.policies.requests.dispatch import RouteQuery, staying
from blockwright.policies.requests.routing_table import RoutingTable
from blockwright.tests.claims import claim
from blockwright.tests.policies.requests.book.gateway_bench import Bench, emitted, route, submits

SAID = {"w0": "a", "w1": "b", "w2": "a"}


def bench(said: dict[str, str] = SAID) -> Bench:
    made = Bench(*said)
    for worker, numerics in said.items():
        made(HeartbeatReceived(worker, 1, 0, numerics=numerics))
    return made


def story(made: Bench) -> list[dict[str, object]]:
    events = made.state.describe("r").events  # type: ignore[union-attr]
    return [{k: v for k, v in one.items() if k not in ("at", "event")} for one in events if one["event"] == "numerics"]


@claim(
    "A sequence stays on its numerics while a worker of these is left, then it is computed again, as `explain` says",
    of="numerics",
)
def test_who_has_tokens_stays_on_its_numerics_while_it_can() -> None:
    made = bench()
    assert submits(made.generate("r", prompt=5)) == [("w0", "r", 1)]
    made.generate("busy", prompt=5)
    made.generate("there", prompt=400)  # at w2, which has more to do than w1 from now on
    made.report("w0", emitted("r", 1, 5, [10]))
    assert submits(made.die("w0", back=False)) == [("w2", "r", 2)]
    assert story(made) == []
    made.report("w2", emitted("r", 2, 6, [11]))
    made.publish([route("w1")])
    assert ("w1", "r", 3) in submits(made(Vacate("w2")))
    assert story(made) == [{"source": "a", "target": "b", "tokens": 7}]
    made.report("w1", emitted("r", 3, 7, [12]))
    assert story(made) == [{"source": "a", "target": "b", "tokens": 7}], "from now on it is theirs"


def test_who_has_no_tokens_goes_anywhere() -> None:
    made = bench({"w0": "a", "w1": "b"})
    made.generate("r", prompt=5)
    assert submits(made.die("w0", back=False)) == [("w1", "r", 2)]
    assert story(made) == []


def test_what_workers_have_not_said_changes_nothing() -> None:
    made = Bench("w0", "w1")
    made.generate("r", prompt=5)
    made.report("w0", emitted("r", 1, 5, [10]))
    made(HeartbeatReceived("w1", 1, 0, numerics="b"))
    assert submits(made.die("w0", back=False)) == [("w1", "r", 2)]
    assert story(made) == []


@pytest.mark.parametrize(("left", "to"), [(["w1", "w2"], "w2"), (["w1"], "w1")])
def test_a_worker_that_is_drained_sends_its_sequences_to_their_numerics_first(left: list[str], to: str) -> None:
    made = bench()
    made.generate("r", prompt=5)
    made.report("w0", emitted("r", 1, 5, [10]))
    made.publish([route(worker) for worker in left])
    assert submits(made(Vacate("w0"))) == [(to, "r", 2)]
    assert bool(story(made)) is (to == "w1")


def test_a_person_may_name_any_worker() -> None:
    made = bench()
    made.generate("r", prompt=5)
    made.report("w0", emitted("r", 1, 5, [10]))
    assert made.state.plan_move("r", "w1", "", 0.0).route == route("w1")
    assert made.state.plan_move("r", "", "", 0.0).route == route("w2")


def test_a_worker_that_comes_again_says_anew() -> None:
    made = bench({"w0": "a", "w1": "b"})
    made.die("w1")
    assert made.state.parts.table.numerics == {"w0": "a"}
    made(HeartbeatReceived("w1", 1, 0, numerics="b"))
    assert made.state.parts.table.numerics == {"w0": "a"}, "a late heartbeat of its last life"
    made(HeartbeatReceived("w1", 2, 0, numerics="c"))
    assert made.state.parts.table.numerics == {"w0": "a", "w1": "c"}


def table(numerics: dict[str, str]) -> RoutingTable:
    made = RoutingTable(["m"])
    made.numerics = numerics
    return made


@pytest.mark.parametrize(
    ("numerics", "wanted", "found"),
    [
        ({"w0": "a", "w1": "b"}, "a", ["w0"]),
        ({"w0": "a", "w1": "b"}, "b", ["w1", "w1+w1"]),
        ({"w0": "a", "w1": "b"}, "a+b", ["w0+w1"]),
        ({"w0": "a", "w1": "b"}, "c", ["w0", "w1", "w0+w1", "w1+w1"]),
        ({"w0": "a", "w1": "b"}, "", ["w0", "w1", "w0+w1", "w1+w1"]),
        ({"w0": "a"}, "a", ["w0"]),
        ({}, "a", ["w0", "w1", "w0+w1", "w1+w1"]),
    ],
)
def test_the_numerics_of_a_route_are_those_of_all_its_workers(
    numerics: dict[str, str], wanted: str, found: list[str]
) -> None:
    routes = [route("w0"), route("w1"), route("w0", "w1"), route("w1", "w1")]
    kept = staying(routes, RouteQuery("r", "m", 10, numerics=wanted), table(numerics))
    assert ["+".join(hop.worker for hop in one.hops) for one in kept] == found

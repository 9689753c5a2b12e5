"""A request that is longer than what loaded applications leave waits until some are unloaded; refused is what never fits."""

from __future__ import annotations

from blockwright.policies.requests.admission import CROWDED, REFUSED
from blockwright.policies.requests.book.messages import (
    Effect,
    End,
    Fail,
    GatewayTick,
    WantRoutes,
    WorkerEnded,
    WorkerJoined,
)
from blockwright.policies.requests.dispatch import UNKNOWN
from blockwright.policies.requests.load_failure import LoadFailure
from blockwright.policies.requests.refusal import Refusal
from blockwright.tests.fake_cluster import generation
from blockwright.tests.policies.requests.book.gateway_bench import Bench, given_back, route, submits

WAIT = 30.0
NOW, MOST = 64, 200  # tokens that fit beside others, and alone


def bench(now: int = NOW, alone: int = MOST, workers: tuple[str, ...] = ("w0",)) -> Bench:
    made = Bench(*workers, worker_wait=WAIT)
    publish(made, now, alone, workers)
    return made


def publish(made: Bench, now: int, alone: int, workers: tuple[str, ...] = ("w0",), at: float = 0.0) -> list[Effect]:
    """``alone`` is 0 where none is ever unloaded."""
    capacity = {f"m@{worker}": now for worker in workers}
    routes = [route(worker) for worker in workers]
    capacity_alone = {id: alone for id in capacity if alone}
    effects: list[Effect] = made.publish(routes, capacity=capacity, capacity_alone=capacity_alone, now=at)
    return effects


def wants(effects: list[Effect]) -> list[dict[str, int]]:
    return [effect.applications for effect in effects if isinstance(effect, WantRoutes)]


def failed(effects: list[Effect]) -> list[Refusal]:
    return [effect.refused.why for effect in effects if isinstance(effect, Fail)]


def uses(made: Bench) -> int:
    """The waiting requests that are reported to the controller."""
    return made.state.parts.usage.report(["m"], 0.0, made.wants()[0])["m"].waits


def test_it_asks_for_room_and_starts_when_that_comes() -> None:
    made = bench()
    effects = made.generate("long", prompt=60, max_tokens=40)
    assert (wants(effects), submits(effects)) == ([{"m": 100}], [])
    assert uses(made) == 100
    assert submits(made.generate("short", prompt=8, max_tokens=8)) == [("w0", "short", 1)], "others go on"
    assert wants(made(GatewayTick(), 0.1)) == [{"m": 100}], "what was said may have been lost"
    effects = publish(made, 100, MOST)
    assert (wants(effects), submits(effects)) == ([], [("w0", "long", 1)])
    assert uses(made) == 0


def test_the_longest_of_several_is_reported() -> None:
    made = bench()
    assert wants(made.generate("a", prompt=60, max_tokens=40)) == [{"m": 100}]
    assert wants(made.generate("b", prompt=60, max_tokens=60)) == [{"m": 120}]
    assert wants(made(GatewayTick(), 0.1)) == [{"m": 120}]
    made(End("b"))
    assert uses(made) == 100, "its client is gone"
    made(End("a"))
    assert (uses(made), wants(made(GatewayTick(), 0.2))) == (0, [])


def test_the_longest_is_reported_whatever_came_after_it() -> None:
    made = bench()
    made.generate("a", prompt=60, max_tokens=60)
    made.generate("b", prompt=60, max_tokens=40)
    assert uses(made) == 120
    assert wants(made(GatewayTick(), 0.1)) == [{"m": 120}]
    made = bench(now=200)
    for name, tokens in (("a", 60), ("b", 40)):
        made.generate(name, prompt=60, max_tokens=tokens)
    made(WorkerEnded("w0", 1, "killed"), 0.5)
    made(WorkerJoined("w0", 2), 1.0)
    assert wants(publish(made, NOW, MOST, at=1.0)) == [{"m": 120}], "both of them find no room at once"


def test_of_two_that_come_back_at_once_the_longest_is_reported() -> None:
    made = bench(now=150, alone=UNKNOWN)
    made.generate("a", prompt=60, max_tokens=60)
    made.generate("b", prompt=60, max_tokens=40)
    back = [given_back(name, 1, CROWDED + "it has memory for 64") for name in "ab"]
    assert wants(made.report("w0", *back)) == [{"m": 120}]


def test_what_only_offline_requests_wait_for_is_reported_apart() -> None:
    made = bench()
    made.generate("later", prompt=60, max_tokens=40, offline=True)
    assert (uses(made), made.wants()[1]) == (100, {"m"})
    made.generate("now", prompt=60, max_tokens=40)
    assert made.wants()[1] == set()
    made(End("now"))
    assert made.wants()[1] == {"m"}
    made(End("later"))
    assert made.wants()[1] == set()


def test_only_what_never_fits_is_refused_with_the_limit_of_an_empty_worker() -> None:
    made = bench()
    (effect,) = made.generate("long", prompt=MOST, max_tokens=1)
    assert effect.refused.why is Refusal.TOO_LONG
    assert f"{MOST + 1} tokens and a worker has memory for {MOST};" in effect.refused.message
    made = bench(alone=0)  # the setting on_demand is off
    (effect,) = made.generate("long", prompt=NOW, max_tokens=1)
    assert f"a worker has memory for {NOW};" in effect.refused.message


def test_it_waits_no_longer_than_for_a_worker() -> None:
    made = bench()
    made.generate("long", prompt=60, max_tokens=40, now=1.0)
    assert failed(made(GatewayTick(), 0.9 + WAIT)) == []
    publish(made, NOW + 1, MOST, at=2.0)
    (effect,) = [effect for effect in made(GatewayTick(), 1.0 + WAIT) if isinstance(effect, Fail)]
    assert effect.refused.why is Refusal.UNAVAILABLE
    assert "for 30 seconds" in effect.refused.message


def test_a_worker_where_something_was_loaded_meanwhile_gives_it_back_and_it_waits() -> None:
    made = bench(now=100)
    assert submits(made.generate("long", prompt=60, max_tokens=40)) == [("w0", "long", 1)]
    effects = made.report("w0", given_back("long", 1, CROWDED + "it has memory for 64"))
    assert (wants(effects), failed(effects), submits(effects)) == ([{"m": 101}], [], []), "more than is said to be there"
    assert wants(publish(made, NOW, MOST)) == [{"m": 101}]
    assert submits(publish(made, MOST, MOST)) == [("w0", "long", 2)]
    effects = made.report("w0", given_back("long", 2, CROWDED + "it has memory for 64"))
    assert (submits(effects), failed(effects)) == ([], []), "though nothing is left to unload: what it knew was old"
    assert submits(made(GatewayTick(), 0.1)) == []
    assert submits(made(GatewayTick(), 0.3)) == [("w0", "long", 3)]
    effects = made.report("w0", given_back("long", 3, REFUSED + "it has memory for 96"))
    assert failed(effects) == [Refusal.TOO_LONG]


def test_what_was_given_back_before_the_room_was_known_needs_no_more_than_itself() -> None:
    made = bench(now=150, alone=UNKNOWN)
    assert submits(made.generate("long", prompt=60, max_tokens=40)) == [("w0", "long", 1)]
    effects = made.report("w0", given_back("long", 1, CROWDED + "it has memory for 64"))
    assert (wants(effects), submits(effects)) == ([{"m": 100}], [])
    assert submits(made(GatewayTick(), 1.0)) == [], "the report is as old as it was"
    assert wants(publish(made, NOW, MOST)) == [{"m": 100}]
    assert submits(publish(made, 100, MOST)) == [("w0", "long", 2)]


def test_where_none_is_unloaded_a_crowded_worker_refuses() -> None:
    made = bench(now=100, alone=0)
    made.generate("long", prompt=60, max_tokens=40)
    (effect,) = made.report("w0", given_back("long", 1, CROWDED + "it has memory for 64"))
    assert (effect.refused.why, effect.refused.message) == (Refusal.TOO_LONG, "it has memory for 64")


def test_a_route_with_room_is_taken_and_none_is_asked_for() -> None:
    made = Bench("w0", "w1")
    made.publish(
        [route("w0"), route("w1")], capacity={"m@w0": NOW, "m@w1": 100}, capacity_alone={"m@w0": MOST, "m@w1": MOST}
    )
    effects = made.generate("long", prompt=60, max_tokens=40)
    assert (wants(effects), submits(effects)) == ([], [("w1", "long", 1)])


def test_the_death_of_the_worker_loses_nothing_that_waits_for_its_room() -> None:
    made = bench()
    made.generate("long", prompt=60, max_tokens=40)
    made(WorkerEnded("w0", 1, "killed"), 0.5)
    assert made.state.parts.active["long"].state == "waiting"
    made(WorkerJoined("w0", 2), 1.0)
    assert wants(publish(made, NOW, MOST, at=1.0)) == [{"m": 100}]
    assert submits(publish(made, 100, MOST, at=1.1)) == [("w0", "long", 1)]


def test_one_that_waits_for_its_model_says_how_much_it_needs() -> None:
    made = bench()
    made.publish([], on_demand=["m"])
    assert wants(made.generate("long", prompt=60, max_tokens=40)) == [{"m": 100}]
    assert uses(made) == 100
    assert wants(made(generation("longer", prompt=80, max_tokens=40))) == [{"m": 120}]
    assert submits(publish(made, 100, MOST)) == [("w0", "long", 1)]
    assert uses(made) == 120


def test_a_request_that_waits_for_a_model_that_cannot_be_loaded_gets_the_reason() -> None:
    made = Bench("w0", worker_wait=WAIT, routes=[])
    made.publish([], on_demand=["m"])
    assert failed(made.generate("first", now=1.0)) == []
    effects = made.publish([], on_demand=["m"], failed=[LoadFailure("m", 1, "a tensor is damaged")], now=1.1)
    assert wants(effects) == [], "that would be tried again for a request that has ended"
    assert [effect.refused.message for effect in effects if isinstance(effect, Fail)] == [
        "model 'm' cannot be loaded: a tensor is damaged"
    ]
    assert failed(made.generate("next", now=1.3)) == [Refusal.UNAVAILABLE], "not tried for each request"
    assert made.state.parts.catalogue.ready(False).applications == {"m": "failed"}
    later = made.generate("later", now=9.0)
    assert (wants(later), failed(later)) == ([{"m": 9}], [])
    assert submits(made.publish([route("w0")], now=9.5)) == [("w0", "later", 1)], "it was repaired"

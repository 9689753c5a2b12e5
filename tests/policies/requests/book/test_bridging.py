"""Requests that begin on a variant while their own model is loaded on demand: when, what is asked for, and the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.requests.book.messages import GatewayTick, HeartbeatReceived, Submit, WantRoutes, WorkerEnded
from blockwright.tests.claims import claim
from blockwright.tests.policies.requests.book.gateway_bench import Bench, chain, emitted, route

OWN, STANDS_IN = route("w0"), route("w1", application="m~1")
CHAINS = [chain("m"), replace(chain("m~1"), variant_of="m")]
PROMPT, MOST = 3, 40
TOKEN = 0.001  # seconds of a token, where costs are known


def bench(rank: int = 0, load: float = 0.0, *, costs: bool = False, switches: int = 2, **options: Any) -> Bench:
    """A gateway whose model is on demand and not there. load: the seconds that loading takes; 0: unknown."""
    made = Bench("w0", "w1", routes=[], chains=CHAINS, switches=switches, **options)
    for worker in ("w0", "w1") if costs else ():
        made(HeartbeatReceived(worker, 1, 0, costs=Coefficients(token=TOKEN)))
    publish(made, STANDS_IN, rank=rank, load=load)
    return made


def publish(made: Bench, *routes: Any, rank: int = 0, load: float = 0.0, now: float = 0.0) -> list[Any]:
    more = {"m": load} if load else {}
    chains = [CHAINS[0], replace(CHAINS[1], rank=rank)]
    effects: list[Any] = made.publish([*routes], chains, now=now, on_demand=["m"], load_seconds=more)
    return effects


def sent(effects: list[Any]) -> list[tuple[str, int, list[int]]]:
    """Return the route, the attempt and the tokens of what is sent."""
    found = [effect.submission for effect in effects if isinstance(effect, Submit)]
    return [(one.route, one.attempt, one.tokens) for one in found]


def wants(effects: list[Any]) -> list[dict[str, int]]:
    return [effect.applications for effect in effects if isinstance(effect, WantRoutes)]


def why(made: Bench, name: str = "a") -> str:
    """Return why a request is on the chain where it is."""
    return str([event["why"] for event in made.state.describe(name).events if event["event"] == "chain"][-1])


@claim(
    "A request begins on a variant while its own model is loaded on demand, and the model is loaded for it", of="adaptive"
)
def test_it_begins_on_a_variant_and_counts_as_one_that_waits_for_its_model() -> None:
    made = bench()
    effects = made.generate("a", PROMPT, MOST)
    assert sent(effects) == [(STANDS_IN.id, 1, [1, 2, 3])]
    assert wants(effects) == [{"m": PROMPT + MOST}]
    assert why(made) == "its model is being loaded on demand: an estimate of 43 tokens here"
    assert wants(made(GatewayTick(), 0.1)) == [{"m": PROMPT + MOST}], "what was said may have been lost"
    uses = {name: (use.active, use.waits) for name, use in made.state.usage(0.2).items()}
    assert uses == {"m": (1, PROMPT + MOST), "m~1": (1, 0)}
    assert made.wants()[1] == set(), "a client waits for it"
    made.report("w1", emitted("a", 1, PROMPT, [9], finish="stop"))
    assert wants(made(GatewayTick(), 0.3)) == []


@claim("A request that has begun on a variant goes over to its own model once that is loaded", of="adaptive")
def test_it_goes_over_once_its_model_is_loaded() -> None:
    made = bench()
    made.generate("a", PROMPT, MOST)
    made.report("w1", emitted("a", 1, PROMPT, [9]))
    publish(made, OWN, STANDS_IN, now=0.5)
    assert sent(made(GatewayTick(), 0.6)) == [(OWN.id, 2, [1, 2, 3, 9])], "it does not wait until it has gained for a second"
    assert why(made) == "its model has been loaded: an estimate of 43 tokens against 40 tokens"
    (switch,) = made.state.describe("a").switches
    assert (switch["source"], switch["target"], switch["position"]) == ("m~1", "m", 1)
    assert wants(made(GatewayTick(), 0.7)) == []
    assert {name: use.active for name, use in made.state.usage(0.7).items()} == {"m": 1, "m~1": 0}
    assert not made.state.parts.capacity_waits.bridging


def test_it_stays_where_it_will_have_ended_before_its_model_could_go_on() -> None:
    made = bench()
    made.generate("a", 30, 8)
    made.report("w1", emitted("a", 1, 30, [9]))
    publish(made, OWN, STANDS_IN)
    assert sent(made(GatewayTick(), 0.1)) == []
    assert not made.state.parts.capacity_waits.bridging, "for good"


def test_it_stays_while_its_model_has_no_room_and_if_it_may_not_switch() -> None:
    made = bench()
    made.generate("a", PROMPT, MOST)
    made.report("w1", emitted("a", 1, PROMPT, [9]))
    made.publish([OWN, STANDS_IN], CHAINS, {OWN.id: 50, STANDS_IN.id: 400}, on_demand=["m"])
    made.generate("b", PROMPT, 20)
    assert made.state.describe("b").variant == ""
    assert sent(made(GatewayTick(), 0.1)) == []
    made.report("w0", emitted("b", 1, PROMPT, [9], finish="stop"))
    assert sent(made(GatewayTick(), 0.2)) == [(OWN.id, 2, [1, 2, 3, 9])]
    fixed = bench(switches=0)
    fixed.generate("a", PROMPT, MOST)
    publish(fixed, OWN, STANDS_IN)
    assert sent(fixed(GatewayTick(), 0.1)) == []


def test_it_has_as_many_switches_as_others() -> None:
    made = bench(switches=1)
    made.generate("a", PROMPT, MOST)
    made.report("w1", emitted("a", 1, PROMPT, [9]))
    publish(made, OWN, STANDS_IN)
    assert len(sent(made(GatewayTick(), 0.1))) == 1
    made.report("w0", emitted("a", 2, PROMPT + 1, [8]))
    publish(made, STANDS_IN)
    made(WorkerEnded("w0", 1, "killed"), 0.2)
    assert made.state.describe("a").variant == "m~1", "its route has ended"
    assert [*made.state.parts.capacity_waits.bridging] == ["a"]
    publish(made, route("w1"), STANDS_IN)
    assert sent(made(GatewayTick(), 0.3)) == []
    assert not made.state.parts.capacity_waits.bridging


def test_when_the_variant_goes_for_the_load_it_waits_for_its_model() -> None:
    made = bench()
    made.generate("a", PROMPT, MOST)
    made.report("w1", emitted("a", 1, PROMPT, [9]))
    publish(made)
    effects = made(WorkerEnded("w1", 1, "killed"), 0.1)
    assert sent(effects) == []
    assert wants(effects) == [{"m": PROMPT + MOST}]
    assert made.state.describe("a").state == "waiting"
    assert not made.state.parts.capacity_waits.bridging
    assert sent(publish(made, OWN, now=0.2)) == [(OWN.id, 2, [1, 2, 3, 9])]


def test_adaptive_false_and_offline_requests_wait_for_their_model() -> None:
    made = bench()
    effects = made.generate("a", PROMPT, MOST, adaptive=False)
    assert (sent(effects), wants(effects)) == ([], [{"m": PROMPT + MOST}])
    assert sent(made.generate("b", PROMPT, MOST, offline=True)) == []


@claim("A request waits for its model if that is loaded before a variant could answer", of="adaptive")
def test_it_waits_for_a_load_that_takes_less_than_the_work_ahead_of_a_variant() -> None:
    made = bench(load=0.1, costs=True)
    assert sent(made.generate("a", PROMPT, 90)) == [(STANDS_IN.id, 1, [1, 2, 3])], "nothing is ahead of it"
    assert why(made) == "its model is being loaded on demand for about 0.1 s: an estimate of 0.093 s against 0.193 s"
    assert sent(made.generate("b", PROMPT, 9)) == [(STANDS_IN.id, 1, [1, 2, 3])], "0.093 s of work"
    assert sent(made.generate("c", PROMPT, 9)) == [], "0.105 s of work"
    assert sent(made(GatewayTick(), 0.05)) == [], "half of the load is over"
    made.report("w1", emitted("a", 1, PROMPT, [9], finish="stop"), now=0.06)
    assert sent(made(GatewayTick(), 0.07)) == [(STANDS_IN.id, 1, [1, 2, 3])], "less is ahead of it now"


def test_a_load_that_takes_longer_than_estimated_is_not_waited_for() -> None:
    made = bench(load=0.1, costs=True)
    made.generate("a", PROMPT, 900)
    assert sent(made.generate("b", PROMPT, 9)) == []
    assert sent(made(GatewayTick(), 0.09)) == []
    assert sent(made(GatewayTick(), 0.11)) == [(STANDS_IN.id, 1, [1, 2, 3])]


@pytest.mark.parametrize(
    ("target", "load", "begins"), [(0.0, 5.0, False), (1.0, 5.0, True), (9.0, 5.0, False), (0.0, 0.0, True)]
)
def test_a_less_accurate_chain_bridges_a_load_that_breaks_the_target_or_of_unknown_length(
    target: float, load: float, *, begins: bool
) -> None:
    made = bench(1, load, costs=True, target=target)
    assert bool(sent(made.generate("a", PROMPT, MOST))) is begins


def test_a_load_is_not_compared_while_the_speed_of_workers_is_unknown() -> None:
    made = bench(load=0.001)
    assert sent(made.generate("a", PROMPT, MOST)) == [(STANDS_IN.id, 1, [1, 2, 3])]

"""Requests that a variant serves: when they go there, that they stay, and that they go back when its routes are gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blockwright.policies.requests.book.messages import Fail, Submit, WorkerEnded
from blockwright.policies.requests.refusal import Refusal
from blockwright.tests.claims import claim
from blockwright.tests.policies.requests.book.gateway_bench import Bench, chain, emitted, route

OWN, STANDS_IN = route("w0"), route("w1", application="m~1")
CHAINS = [chain("m"), replace(chain("m~1"), variant_of="m")]


def bench(*routes: Any, workers: tuple[str, ...] = ("w0", "w1")) -> Bench:
    return Bench(*workers, routes=list(routes or (OWN, STANDS_IN)), chains=CHAINS)


def sent(effects: list[Any]) -> list[str]:
    return [effect.submission.route for effect in effects if isinstance(effect, Submit)]


def test_it_goes_to_the_listed_chain_first_and_to_the_variant_when_less_work_is_ahead_there() -> None:
    made = bench()
    assert sent(made.generate("a")) == [OWN.id]
    assert sent(made.generate("b")) == [STANDS_IN.id]
    assert made.state.describe("b").variant == "m~1"
    assert [event["event"] for event in made.state.describe("b").events][:3] == ["arrived", "chain", "dispatched"]
    assert made.state.describe("a").variant == ""
    assert sent(made.generate("c")) == [OWN.id]


@claim("A request with adaptive false is served by its model's own chain", of="adaptive")
def test_a_request_may_refuse_variants() -> None:
    made = bench()
    for name in ("a", "b"):
        assert sent(made.generate(name, adaptive=False)) == [OWN.id]


def test_offline_requests_and_vectors_are_served_by_their_own_chain() -> None:
    assert not sent(bench(STANDS_IN).generate("a", offline=True))


def test_a_variant_begins_while_the_listed_chain_has_no_route() -> None:
    made = bench(STANDS_IN)
    assert sent(made.generate("a")) == [STANDS_IN.id]


def test_no_client_can_name_a_variant_and_no_list_shows_it() -> None:
    made = bench()
    (refused,) = [effect.refused for effect in made.generate("a", application="m~1") if isinstance(effect, Fail)]
    assert refused.why is Refusal.UNKNOWN_MODEL
    assert [info.id for info in made.state.parts.catalogue.models()] == ["m"]


@claim(
    "A request that a variant serves stays on its chain after the death of a worker, if the chain has a route",
    of="adaptive",
)
def test_after_a_death_it_goes_on_with_the_same_chain() -> None:
    other = route("w2", application="m~1")
    made = bench(OWN, STANDS_IN, other, workers=("w0", "w1", "w2"))
    made.generate("a")
    made.generate("b")
    made.report("w1", emitted("b", 1, 5, [9]))
    assert sent(made.die("w1", back=False)) == [other.id]


def test_it_goes_back_to_the_listed_chain_when_the_variant_has_no_route() -> None:
    made = bench()
    made.generate("a")
    made.generate("b")
    made.report("w1", emitted("b", 1, 5, [9]))
    assert sent(made(WorkerEnded("w1", 1, "killed"))) == [OWN.id]
    view = made.state.describe("b")
    assert (view.variant, view.attempt) == ("m~1", 2), "it gave the first token"
    assert [event["used"] for event in view.events if event["event"] == "chain"] == ["m~1", "m"]


def test_one_that_waits_for_a_forgotten_variant_goes_back() -> None:
    made = bench(STANDS_IN)
    made.generate("a")
    made(WorkerEnded("w1", 1, "killed"))
    assert made.state.describe("a").state == "waiting"
    assert sent(made.publish([OWN], chains=CHAINS[:1])) == [OWN.id]


def test_the_model_is_in_use_while_a_variant_serves() -> None:
    made = bench(STANDS_IN)
    made.generate("a")
    uses = made.state.usage(0.0)
    assert {name: use.active for name, use in uses.items() if use.active} == {"m": 1, "m~1": 1}

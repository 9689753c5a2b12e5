"""Requests that a variant serves: when they go there, that they stay, and that they go back when its routes are gone."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.requests.book.dispatch_messages import Ask
from blockwright.policies.requests.book.messages import Fail, HeartbeatReceived, Submit, WorkerEnded
from blockwright.policies.requests.refusal import Refusal
from blockwright.policies.requests.standing import Standing
from blockwright.tests.claims import claim
from blockwright.tests.policies.requests.book.gateway_bench import Bench, chain, emitted, progressed, route

OWN, STANDS_IN = route("w0"), route("w1", application="m~1")
SHORT = 3  # tokens of a prompt without a full page
CHAINS = [chain("m"), replace(chain("m~1"), variant_of="m")]


def bench(*routes: Any, workers: tuple[str, ...] = ("w0", "w1")) -> Bench:
    return Bench(*workers, routes=list(routes or (OWN, STANDS_IN)), chains=CHAINS)


def sent(effects: list[Any]) -> list[str]:
    return [effect.submission.route for effect in effects if isinstance(effect, Submit)]


def sent_to(effects: list[Any]) -> str:
    (effect,) = [effect for effect in effects if isinstance(effect, Submit)]
    return effect.worker


def test_it_goes_to_the_listed_chain_first_and_to_the_variant_when_less_work_is_ahead_there() -> None:
    made = bench()
    assert sent(made.generate("a", SHORT)) == [OWN.id]
    assert sent(made.generate("b", SHORT)) == [STANDS_IN.id]
    assert made.state.describe("b").variant == "m~1"
    assert [event["event"] for event in made.state.describe("b").events][:3] == ["arrived", "chain", "dispatched"]
    assert made.state.describe("a").variant == ""
    assert sent(made.generate("c", SHORT)) == [OWN.id]


@claim("A request with adaptive false is served by its model's own chain", of="adaptive")
def test_a_request_may_refuse_variants() -> None:
    made = bench()
    for name in ("a", "b"):
        assert sent(made.generate(name, adaptive=False)) == [OWN.id]


def test_a_prompt_returns_to_the_chain_and_worker_that_have_its_kv_while_there_is_room() -> None:
    made = bench()
    made.generate("a", 9)
    assert sent(made.generate("b", SHORT)) == [STANDS_IN.id]
    assert sent(made.generate("c", 9)) == [OWN.id], "two of its pages are there, and more to do"
    assert sent(made.generate("d", 9, salt=b"other")) == [STANDS_IN.id]
    assert sent(made.generate("e", 40)) == [OWN.id]
    made.report("w1", emitted("d", 1, 9, [9, 9, 9, 9], finish="length"))
    room = {route.id: 26 for route in (OWN, STANDS_IN)}
    made.publish([OWN, STANDS_IN], CHAINS, room)
    assert sent(made.generate("f", 9)) == [STANDS_IN.id], "the owner lacks room"
    made.die("w1", back=False)
    assert sent(made.generate("g", 9)) == [OWN.id]


def test_the_answer_counts_as_kv_of_the_next_prompt() -> None:
    made = bench()
    made.generate("a", SHORT)
    made.generate("b", SHORT, max_tokens=9)
    made.report("w1", emitted("b", 1, SHORT, [4, 5, 6, 7, 8, 9, 10, 11, 12], finish="length"))
    assert sent(made.generate("c", 12)) == [STANDS_IN.id]
    view = made.state.describe("c")
    assert view.events[1]["why"] == "its worker has KV of 8 of 12 tokens"


def test_why_a_variant_serves_is_said() -> None:
    made = bench()
    made.generate("a", SHORT)
    made.generate("b", SHORT)
    assert made.state.describe("b").events[1] == {
        "at": 0.0, "event": "chain", "used": "m~1", "listed": "m", "why": "an estimate of 7 tokens against 14 tokens"
    }  # fmt: skip
    short = bench()
    short.publish([OWN, STANDS_IN], CHAINS, {OWN.id: 8, STANDS_IN.id: 90})
    short.generate("b", SHORT)
    short.generate("c", SHORT)
    assert short.state.describe("c").events[1]["why"] == "its model lacks memory for 6 tokens"


def test_a_less_accurate_variant_serves_when_the_model_breaks_its_target_by_the_speed_of_its_worker() -> None:
    chains = [CHAINS[0], replace(CHAINS[1], rank=1)]
    made = Bench("w0", "w1", routes=[OWN, STANDS_IN], chains=chains, target=3.0)
    for worker in ("w0", "w1"):
        made(HeartbeatReceived(worker, 1, 0, speed=800.0))  # half a second for a token of a chain of 400 bytes
    assert sent(made.generate("a", SHORT)) == [OWN.id]
    assert sent(made.generate("b", SHORT)) == [STANDS_IN.id]
    assert made.state.describe("b").events[1]["why"] == "its model would give the first token after 5.00 s, later than 3 s"
    for worker in ("w0", "w1"):
        made(HeartbeatReceived(worker, 1, 0, costs=Coefficients(token=0.001)))
    assert sent(made.generate("c", SHORT)) == [OWN.id], "measured costs say that it does not"
    hopeless = Bench("w0", "w1", routes=[OWN, STANDS_IN], chains=chains, target=0.1)
    for worker in ("w0", "w1"):
        hopeless(HeartbeatReceived(worker, 1, 0, speed=800.0))
    assert sent(hopeless.generate("a", SHORT) + hopeless.generate("b", SHORT)) == [OWN.id, STANDS_IN.id]
    why = hopeless.state.describe("b").events[1]["why"]
    assert why.startswith("no chain gives the first token within 0.1 s, so a less accurate one may serve: an estimate of ")


@claim("Requests without variants get the same effects as on a server without any", of="adaptive")
@pytest.mark.parametrize("asks", [False, True])
def test_with_adaptive_false_everything_is_as_without_variants(asks: bool) -> None:
    own = [OWN, route("w2")]
    with_variants = Bench("w0", "w1", "w2", routes=[*own, STANDS_IN], chains=CHAINS, asks=asks)
    without = Bench("w0", "w1", "w2", routes=own, chains=CHAINS[:1], asks=asks)
    random = Random(3)
    for number in range(40):
        prompt, most = random.randint(1, 20), random.randint(1, 9)
        pair = [made.generate(f"r{number}", prompt, most, adaptive=made is without) for made in (with_variants, without)]
        assert pair[0] == pair[1]
        if number % 3 == 0 and not asks:
            home = sent_to(pair[0])
            done = emitted(f"r{number}", 1, prompt, [9] * most, finish="length")
            assert with_variants.report(home, done) == without.report(home, done)
    views = [made.state.describe("r39") for made in (with_variants, without)]
    assert views[0] == views[1]


def test_dispatchers_hear_the_standing_of_routes() -> None:
    made = Bench("w0", "w1", routes=[OWN, STANDS_IN], chains=CHAINS, asks=True)
    (ask,) = [effect for effect in made.generate("a", SHORT) if isinstance(effect, Ask)]
    assert ask.standings == {OWN.id: Standing(), STANDS_IN.id: Standing(stands_in=True)}
    (ask,) = [effect for effect in made.generate("b", SHORT, adaptive=False) if isinstance(effect, Ask)] or [None]
    assert ask is None, "it has one route"


def test_offline_requests_and_vectors_are_served_by_their_own_chain() -> None:
    assert not sent(bench(STANDS_IN).generate("a", offline=True))


def test_a_variant_begins_while_the_listed_chain_has_no_route() -> None:
    made = bench(STANDS_IN)
    assert sent(made.generate("a", SHORT)) == [STANDS_IN.id]


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
    made.generate("a", SHORT)
    made.generate("b", SHORT)
    made.report("w1", emitted("b", 1, SHORT, [9]))
    assert sent(made.die("w1", back=False)) == [other.id]


def test_it_goes_back_to_the_listed_chain_when_the_variant_has_no_route() -> None:
    made = bench()
    made.generate("a", SHORT)
    made.generate("b", SHORT)
    made.report("w1", emitted("b", 1, SHORT, [9]))
    assert sent(made(WorkerEnded("w1", 1, "killed"))) == [OWN.id]
    view = made.state.describe("b")
    assert (view.variant, view.attempt) == ("m~1", 2), "it gave the first token"
    assert [event["used"] for event in view.events if event["event"] == "chain"] == ["m~1", "m"]
    made.report("w0", progressed("b", 2, 3, 2), emitted("b", 2, SHORT + 1, [8]), now=0.5)
    (switch,) = made.state.describe("b").switches
    assert (switch["stay"], switch["go"]) == (None, None), "its route has ended"
    assert switch["outcome"] == {"cached": 2, "recomputed": 2, "paused": 0.5}


def test_one_that_waits_for_a_forgotten_variant_goes_back() -> None:
    made = bench(STANDS_IN)
    made.generate("a", SHORT)
    made(WorkerEnded("w1", 1, "killed"))
    assert made.state.describe("a").state == "waiting"
    assert sent(made.publish([OWN], chains=CHAINS[:1])) == [OWN.id]


def test_sequences_are_counted_by_the_chain_that_serves_them_and_each_says_why() -> None:
    made = bench()
    for name in ("a", "a/1", "a/2"):
        made.generate(name, SHORT)
    assert made.state.parts.choices.figures.variants == {("m", ""): 2, ("m", "m~1"): 1}
    chains = [one for name in ("a", "a/1", "a/2") for one in made.state.describe(name).chains]
    assert [(one["choice"], one["used"]) for one in chains] == [(0, "m"), (1, "m~1"), (2, "m")]
    assert [one["why"].partition(" ")[0] for one in chains] == ["", "an", ""]
    made(WorkerEnded("w0", 1, "killed"))
    assert made.state.parts.choices.figures.variants == {("m", ""): 2, ("m", "m~1"): 3}, "none had given a token"
    assert made.state.describe("a").chains[0]["why"] == "its model has no route now"


def test_the_model_is_in_use_while_a_variant_serves() -> None:
    made = bench(STANDS_IN)
    made.generate("a", SHORT)
    uses = made.state.usage(0.0)
    assert {name: use.active for name, use in uses.items() if use.active} == {"m": 1, "m~1": 1}

"""Requests go over to another chain while they run: when, how often, and what is known of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.requests.book.messages import CancelAt, Effect, GatewayTick, Submit, WorkerEnded
from blockwright.policies.requests.refusal import RequestRefused
from blockwright.tests.claims import claim
from blockwright.tests.policies.requests.book.gateway_bench import Bench, chain, emitted, progressed, route

OWN, STANDS_IN = route("w0"), route("w1", application="m~1")
CHAINS = [chain("m"), replace(chain("m~1"), variant_of="m")]
PROMPT = 3


def bench(*routes: Any, rank: int = 0, switches: int = 2, workers: tuple[str, ...] = ("w0", "w1"), **options: Any) -> Bench:
    chains = [CHAINS[0], *[replace(one, rank=rank) for one in CHAINS[1:]]]
    return Bench(*workers, routes=[*(routes or (OWN, STANDS_IN))], chains=chains, switches=switches, **options)


def loaded(made: Bench, count: int = 4, **more: Any) -> list[str]:
    """Send requests to the own chain alone; each has its first token at once."""
    names = [f"r{n}" for n in range(count)]
    made.publish([OWN], CHAINS[:1])
    for name in names:
        made.generate(name, PROMPT, 40, **more)
        made.report("w0", emitted(name, 1, PROMPT, [9]))
    made.publish([OWN, STANDS_IN], CHAINS)
    return names


def held(made: Bench, since: float = 0.0, until: float = 1.0) -> list[Effect]:
    """Let time pass from one moment to another, in ticks; return all effects."""
    effects = []
    ticks = round(10 * (until - since))
    for n in range(ticks + 1):
        effects += made(GatewayTick(), since + n / 10)
    return effects


def sent(effects: list[Any]) -> dict[str, tuple[str, int, list[int]]]:
    """Return what is sent: the route, the attempt and the tokens of each request."""
    return {
        e.submission.request: (e.submission.route, e.submission.attempt, e.submission.tokens)
        for e in effects
        if isinstance(e, Submit)
    }


@claim("A running request goes over to another chain only if that gains a third of its time for a second", of="adaptive")
def test_requests_leave_a_chain_that_is_worse_for_a_second_as_a_move_does() -> None:
    made = bench()
    loaded(made, 6)
    assert held(made, 0.0, 0.9) == []
    effects = made(GatewayTick(), 1.0)
    assert sent(effects) == dict.fromkeys(("r5", "r4"), (STANDS_IN.id, 2, [1, 2, 3, 9]))
    cancelled = [effect for effect in effects if isinstance(effect, CancelAt)]
    assert cancelled == [CancelAt("w0", ("r5",)), CancelAt("w0", ("r4",))]
    assert held(made, 1.1, 3.0) == [], "a third one would gain too little"
    assert made.state.parts.choices.figures.switches == {("m", "gain"): 2}
    assert made.state.parts.claims.figures.outcomes == {"copied": 0, "recomputed": 0, "abandoned": 0}, "no move"


def test_a_switch_is_shown_with_its_estimates_and_its_outcome() -> None:
    made = bench()
    loaded(made)
    held(made)
    made.report("w1", progressed("r3", 2, 2, 2), emitted("r3", 2, 4, [8]), now=1.5)
    made.report("w1", emitted("r3", 2, 5, [7], finish="stop"), now=2.0)
    view = made.state.describe("r3")
    (switch,) = view.switches
    assert switch == {
        "at": 1.0, "source": "m", "target": "m~1", "position": 1, "why": "an estimate of 43 tokens against 160 tokens",
        "stay": 160.0, "go": 43.0, "outcome": {"cached": 2, "recomputed": 2, "paused": 0.5}, "took": 1.0,
    }  # fmt: skip
    assert [event["event"] for event in view.events][-5:] == ["dispatched", "resumed", "prefill", "switched", "finished"]
    assert view.variant == "m~1"
    assert view.state == "finished"


def test_late_tokens_of_the_chain_that_it_left_are_ignored() -> None:
    made = bench()
    loaded(made)
    held(made)
    assert not [e for e in made.report("w0", emitted("r3", 1, 4, [5])) if not isinstance(e, CancelAt)]
    assert made.state.describe("r3").emitted_tokens == 1


class Burdened:
    """One request of the model, and another model's requests that make one of the two workers slow."""

    def __init__(self, switches: int = 2, rank: int = 0, tokens: int = 1) -> None:
        self.made = Bench("w0", "w1", routes=[OWN], chains=CHAINS[:1], applications=("m", "n"), switches=switches)
        self.chains = [CHAINS[0], replace(CHAINS[1], rank=rank), chain("n")]
        self.now, self.number = 0.0, 0
        self.made.generate("r", PROMPT, 400)
        if tokens:
            self.made.report("w0", emitted("r", 1, PROMPT, [9] * tokens))

    @property
    def place(self) -> tuple[str, int]:
        """The worker of the request, and its attempt."""
        view = self.made.state.describe("r")
        return str(view.home), view.attempt

    def burden(self, worker: str) -> tuple[str, int]:
        """Give one worker 2,000 tokens for two seconds; return the request's place then. It gets a token meanwhile."""
        self.made.publish([OWN, STANDS_IN, route(worker, application="n")], self.chains, now=self.now)
        name = f"n{self.number}"
        self.number += 1
        self.made.generate(name, PROMPT, 2000, application="n", now=self.now)
        held(self.made, self.now, self.now + 2)
        self.now += 3
        home, attempt = self.place
        record = self.made.state.parts.active["r"]
        self.made.report(home, emitted("r", attempt, len(record.progress.tokens), [9]), now=self.now)
        self.made.report(worker, emitted(name, 1, PROMPT, [9], finish="stop"), now=self.now)
        return self.place


@claim("A request goes over at most as often as the setting switches says", of="adaptive")
@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_the_number_of_switches_is_limited(limit: int) -> None:
    world = Burdened(limit)
    places = [world.burden(worker) for worker in ("w0", "w1", "w0", "w1")]
    wanted = [("w1", 2), ("w0", 3), ("w1", 4)]
    assert places == [*wanted[:limit], *([wanted[limit - 1] if limit else ("w0", 1)] * (4 - limit))]
    assert [switch["position"] for switch in world.made.state.describe("r").switches] == [1, 2, 3][:limit]


def test_within_an_answer_it_goes_to_no_less_accurate_chain() -> None:
    assert Burdened(rank=1).burden("w0") == ("w0", 1)
    assert Burdened(rank=1, tokens=0).burden("w0")[0] == "w0", "nor before it"
    assert Burdened(rank=0).burden("w0") == ("w1", 2)


def test_it_comes_back_from_a_less_accurate_chain() -> None:
    chains = [CHAINS[0], replace(CHAINS[1], rank=1)]
    made = Bench("w0", "w1", routes=[], switches=2, applications=("m", "n"))
    other = route("w1", application="n")
    made.publish([OWN, STANDS_IN, other], [*chains, chain("n")], {OWN.id: 60, STANDS_IN.id: 400})
    made.generate("a", PROMPT, 40)
    made.generate("b", PROMPT, 40)
    assert made.state.describe("b").variant == "m~1"
    made.report("w1", emitted("b", 1, PROMPT, [9]))
    made.report("w0", emitted("a", 1, PROMPT, [9], finish="stop"))
    made.generate("n", PROMPT, 90, application="n")
    assert sent(held(made)) == {"b": (OWN.id, 2, [1, 2, 3, 9])}


def test_no_room_no_leave_and_no_partial_prompt_scores() -> None:
    small = bench()
    loaded(small)
    small.publish([OWN, STANDS_IN], CHAINS, {OWN.id: 400, STANDS_IN.id: 42})
    assert held(small) == [], "the other chain has no room for it"
    strict = bench()
    loaded(strict, adaptive=False)
    assert held(strict) == []
    scored = bench()
    scored.publish([OWN], CHAINS[:1])
    for n in range(4):
        scored.generate(f"r{n}", PROMPT, 40, sampling=SamplingParams(prompt_logprobs=1))
    scored.publish([OWN, STANDS_IN], CHAINS)
    assert held(scored) == []


@claim("A request whose chain has no route any more goes on with another chain of its model", of="adaptive")
def test_the_end_of_a_route_leads_to_another_chain_even_a_less_accurate_one() -> None:
    made = bench(rank=1)
    loaded(made, 1)
    made.publish([OWN, STANDS_IN], [CHAINS[0], replace(CHAINS[1], rank=1)])
    effects = made(WorkerEnded("w0", 1, "killed"))
    assert sent(effects) == {"r0": (STANDS_IN.id, 2, [1, 2, 3, 9])}
    (switch,) = made.state.describe("r0").switches
    assert (switch["why"], switch["go"], switch["position"]) == ("its model has no route now", None, 1)
    assert made.state.parts.choices.figures.switches == {("m", "route"): 1}
    without = bench(switches=0)
    loaded(without, 1)
    assert sent(without(WorkerEnded("w0", 1, "killed"))) == {}, "it waits for its own chain"


def test_a_request_that_moves_does_not_go_over_and_a_death_ends_a_switch() -> None:
    made = bench()
    loaded(made)
    held(made)
    assert [*made.state.parts.claims.open] == ["r3"]
    with pytest.raises(RequestRefused, match="is moving to worker w1 already"):
        made.state.plan_move("r3", "", "", 1.2)
    assert sent(made(WorkerEnded("w1", 1, "killed"), 1.5)) == {"r3": (OWN.id, 3, [1, 2, 3, 9])}
    assert made.state.parts.claims.figures.outcomes["abandoned"] == 0
    assert [one["target"] for one in made.state.describe("r3").switches] == ["m~1", "m"]

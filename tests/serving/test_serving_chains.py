"""Requests that go over to other chains while they run, at any position, while messages are lost, late and doubled and
processes die: the properties of ``game.py``, with each token judged by the chain that gave it, served alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from blockwright.actors.gateway.actor import Gateway
from blockwright.actors.gateway.port import StreamNews
from blockwright.policies.control.events import Application
from blockwright.policies.requests.book.chain_switching import may_switch, switch
from blockwright.runtime.testing import seeds
from blockwright.tests.claims import claim
from blockwright.tests.parts import spans
from blockwright.tests.serving.device import answer
from blockwright.tests.serving.game import LONGEST, REQUESTS, Game, Request, Violation
from blockwright.tests.serving.house import HEAD, Plan

PARTS, PART = 10, 100
DAILY = 60
SWITCHES, LIMIT = 30, 4  # tries of each seed; switches of a request
SPAN = 0.15  # virtual seconds in which they come


class Switched(Game):
    """Requests that switch at random, besides those that gain by it. ``chains``: that gateways knew, by name."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.chains: dict[str, Any] = {}

    def _plan(self) -> Plan:
        plan = super()._plan()
        a, b = (plan.components(name) for name in "ab")
        mixed = (*a[:4], b[4], a[5])
        chains = {"a~1": mixed, "a~2": b, "b~1": a}
        variants = [Application(name, "", parts, LONGEST, variant_of=name[0]) for name, parts in chains.items()]
        return replace(plan, variants=tuple(variants), switches=LIMIT)

    async def _scenario(self, sim: Any) -> None:
        self.work.append(asyncio.create_task(self._switch(Random(f"{self.seed}/switches"))))
        await super()._scenario(sim)

    async def _switch(self, random: Random) -> None:
        while not self.opened:  # noqa: ASYNC110 - the server comes up
            await asyncio.sleep(0.02)
        for _ in range(SWITCHES):
            await asyncio.sleep(random.uniform(0.0, 2 * SPAN / SWITCHES))
            gateway = random.choice([*self.house.gateways.values()])
            parts, now = gateway.book.parts, gateway.node.clock.now()
            if gateway.node.name != HEAD and gateway.node.id not in self.sim._launcher.list():
                continue
            if not (running := [record for record in parts.active.values() if may_switch(parts, record)]):
                continue
            record = random.choice(running)
            own = record.generation.application
            names = [name for name in (own, *parts.table.variants.get(own, ())) if name != record.application]
            if routes := [route for name in names for route in parts.table.routes.get(name, ())]:
                switch(parts, record, random.choice(routes), 2.0, 1.0, now)
                gateway._perform(gateway.book._effects(now))

    def _take(self, gateway: Gateway, request: Request, news: StreamNews) -> None:
        """Add what came as any game does, but judge each token by the chain that gave it."""
        for token in news.tokens:
            self._judge(gateway, request, token)
            request.got.append(token)
        if bool(news.finish) != (request.got[-1] in request.stop or len(request.got) == request.most):
            raise Violation("tokens", f"{request} got {news}")

    def _judge(self, gateway: Gateway, request: Request, token: int) -> None:
        """Compare the next token with the one of its chain alone, after the same tokens."""
        view = gateway.describe(request.id)
        assert view is not None, "it has just given a token"
        used = [event["used"] for event in view.events if event["event"] == "chain"]
        chain = view.switches[0]["source"] if view.switches else used[-1] if used else request.application
        for one in view.switches:
            if one["position"] <= len(request.got):
                chain = one["target"]
        plan = self.house.plan
        self.chains |= {name: known.components for name, known in gateway.book.parts.table.chains.items()}
        if chain in {one.name for one in (*plan.applications, *plan.variants)}:  # a new version has the same components
            parts = plan.components(chain)
        else:  # a variant that was made anew, under another name
            parts = self.chains.get(chain, plan.components(request.application))
        if answer(parts, [*request.prompt, *request.got], 1, []) != [token]:
            raise Violation("tokens", f"{request} got the wrong token {token} of {chain}")

    def _count(self) -> None:
        super()._count()
        for gateway in self.house.gateways.values():
            for (_, cause), count in gateway.tiers().switches.items():
                self.counters[f"switched: {cause}"] += count
            for request in self.requests:
                if (view := gateway.describe(request.id)) is not None:
                    self.counters["cached"] += sum(one["outcome"].get("cached", 0) > 0 for one in view.switches)
                    self.counters["within"] += sum(one["position"] > 0 for one in view.switches)


@claim(
    "A request that goes over to another chain has that chain's tokens after the same tokens, under random faults",
    of="adaptive",
)
@pytest.mark.parametrize("span", spans(PARTS, PART, DAILY), ids=str)
def test_every_token_is_the_one_of_its_chain_alone(span: range) -> None:
    counters: Counter[str] = Counter()
    for seed in seeds(len(span), first=9000 + span.start):
        game = Switched(seed).play()
        assert sum(game.outcomes.values()) == REQUESTS, seed
        counters += game.counters
    assert all(counters[name] > 0 for name in ("switched: gain", "cached", "within")), counters

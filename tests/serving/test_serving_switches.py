"""Routes end under requests, and come back, while messages are lost, late and doubled and processes die: the properties of
``game.py``, over seeds. Nothing is dropped here: gateways get the message that some of the routes in force have ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from random import Random
from typing import Any

import pytest

from blockwright.actors.gateway.actor import Gateway
from blockwright.policies.control.route_switch import SwitchFigures, SwitchRoutes
from blockwright.runtime import RuntimeFault
from blockwright.runtime.testing import seeds
from blockwright.tests.claims import claim
from blockwright.tests.parts import spans
from blockwright.tests.serving.game import REQUESTS, STRIKES, Game, Violation
from blockwright.tests.serving.late import OF_HOLDS
from blockwright.tests.serving.strikes import ACTIONS, HELD, Strike
from blockwright.tests.serving.test_serving_predictors import Followed

PARTS = 2
PART = 30
DAILY = 12
SWITCHES = 16  # of each seed
SPAN = 0.1  # virtual seconds in which they come, as most requests do
SWITCHED = 60.0  # until a gateway must have said that all have left, and that nobody waits


class Switches(Game):
    """Of an application's routes in force one ends at a time, and its requests go on on the others."""

    def _draw(self) -> list[Strike]:
        random = Random(f"{self.seed}/draw switches")
        cells = [(random.choice(HELD), random.choice(ACTIONS), random.randint(1, 5)) for _ in range(STRIKES)]
        return [*super()._draw(), *cells]

    async def _scenario(self, sim: Any) -> None:
        self.work.append(asyncio.create_task(self._switch(Random(f"{self.seed}/switches"))))
        self.reported = list[SwitchFigures]()
        await super()._scenario(sim)

    def _leaks(self) -> str:
        lives = self.sim._launcher.list()
        for worker in [worker for worker in self.house.workers.values() if worker.node.id in lives]:
            if len(worker.state.parts.page_pins):
                return f"worker {worker.node.id} holds pages: {worker.state.parts.page_pins.snapshot()}"
        return super()._leaks()

    async def _switch(self, random: Random) -> None:
        while not self.opened:  # noqa: ASYNC110 - the server comes up
            await asyncio.sleep(0.02)
        for number in range(1, SWITCHES + 1):
            await asyncio.sleep(random.uniform(0.0, 2 * SPAN / SWITCHES))
            application = random.choice("abc")
            routes = [route.id for route in self.house.state.routes.values() if route.application == application]
            if len(routes) > 1:
                ended = random.choice(routes)
                to = [route for route in routes if route != ended]
                order = SwitchRoutes(number, [ended], to, random.random() < 0.7)
                gateways = self.house.gateways.values()
                self.work += [asyncio.create_task(self._order(gateway, order)) for gateway in gateways]

    async def _order(self, gateway: Gateway, order: SwitchRoutes) -> None:
        ref = self.sim.head.ref(f"{gateway.node.name}/gateway", Gateway)
        with contextlib.suppress(RuntimeFault):
            try:
                figures = await ref.switched(await self._off(ref, order), timeout=SWITCHED, returns=SwitchFigures)
            except TimeoutError as late:
                raise Violation("ended", f"{order} is not over") from late
            self.reported.append(figures)

    async def _off(self, ref: Any, order: SwitchRoutes) -> int:
        """Its requests have left, though new ones may come: the routes have not really ended."""
        with contextlib.suppress(RuntimeFault):
            await ref.switch(order, timeout=0.2, returns=int)
        return order.number

    def _count(self) -> None:
        super()._count()
        for figures in self.reported:
            self.counters.update(stale=figures.stale, copied=figures.copied, recomputed=figures.recomputed)


@claim("Sequences that pause keep their pages and go on with them", of="parameter-dropping")
@pytest.mark.parametrize("span", spans(PARTS, PART, DAILY), ids=str)
def test_every_request_ends_with_the_right_tokens_however_often_its_route_ends(span: range) -> None:
    counters: Counter[str] = Counter()
    hits: Counter[tuple[str, str]] = Counter()
    planted = set[str]()
    for seed in seeds(len(span), first=9000 + span.start):
        game = Switches(seed).play()
        assert sum(game.outcomes.values()) == REQUESTS, seed
        counters += game.counters
        hits.update((hit.kind, hit.action) for hit in game.strikes.hits if hit.kind in HELD)
        planted |= game.house.late.keys()
    assert planted >= OF_HOLDS, OF_HOLDS - planted
    assert all(counters[name] > 0 for name in ("stale", "copied", "recomputed", "imported_pages")), counters
    assert len(hits) > len(HELD) * len(ACTIONS) // 3, hits


@pytest.mark.parametrize("span", spans(1, 8, 3), ids=str)
def test_without_faults_who_pauses_goes_on_with_its_pages(span: range) -> None:
    counters: Counter[str] = Counter()
    for seed in span:
        game = Switches(seed, faults=False).play()
        assert set(game.outcomes) <= {"done", "cancelled"}, seed
        counters += game.counters
    assert counters["copied"] > counters["stale"] // 4 > 0, counters


class FollowedSwitches(Switches, Followed):
    """With predictors."""


@pytest.mark.parametrize("span", spans(1, 5, 4), ids=str)
def test_replicas_of_workers_know_what_is_held(span: range) -> None:
    stale = 0
    for seed in span:
        game = FollowedSwitches(seed, dispatch="llumnix-minus-code")
        game.play()
        assert game.figures["disagreements"] == 0, seed
        stale += game.counters["stale"]
    assert stale > 0

"""Requests that move between workers, and workers that are drained, while messages are lost, late and doubled and processes
die: the properties of ``game.py``, over seeds."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from blockwright.actors.controller.actor import Controller
from blockwright.policies.requests.refusal import RequestRefused
from blockwright.runtime import RuntimeFault
from blockwright.runtime.testing import seeds
from blockwright.tests.claims import claim
from blockwright.tests.parts import spans
from blockwright.tests.serving.game import REQUESTS, STRIKES, Game
from blockwright.tests.serving.house import HEAD, Plan
from blockwright.tests.serving.late import OF_ATTEMPTS, OF_LIVES
from blockwright.tests.serving.strikes import ACTIONS, MOVED, Strike
from blockwright.tests.serving.test_serving_predictors import Followed

PARTS = 3
PART = 40
DAILY = 12
MOVES, DRAINS = 20, 0.1  # of each seed; part of them that are drains
SPAN = 0.1  # virtual seconds in which they come, as most requests do


class Unrest(Game):
    """Requests move, and workers are drained and used again."""

    def _draw(self) -> list[Strike]:
        random = Random(f"{self.seed}/draw moves")
        cells = [(random.choice(MOVED), random.choice(ACTIONS), random.randint(1, 5)) for _ in range(STRIKES)]
        return [*super()._draw(), *cells]

    async def _scenario(self, sim: Any) -> None:
        self.work.append(asyncio.create_task(self._move(Random(f"{self.seed}/moves"))))
        await super()._scenario(sim)

    def _leaks(self) -> str:
        lives = self.sim._launcher.list()
        for worker in [worker for worker in self.house.workers.values() if worker.node.id in lives]:
            book = worker.state.parts.page_transfers
            if book.exports or book.receiving:
                return f"worker {worker.node.id} has pages on their way: {book.snapshot()}"
        return super()._leaks()

    async def _move(self, random: Random) -> None:
        while not self.opened:  # noqa: ASYNC110 - the server comes up
            await asyncio.sleep(0.02)
        workers, lives = self.house.plan.workers, self.sim._launcher
        controller = self.sim.head.ref(f"{HEAD}/controller", Controller)
        for _ in range(MOVES):
            await asyncio.sleep(random.uniform(0.0, 2 * SPAN / MOVES))
            gateway = random.choice([*self.house.gateways.values()])
            running = [id for id, record in gateway.book.parts.active.items() if record.placement.workers]
            if random.random() < DRAINS:
                with contextlib.suppress(RuntimeFault):
                    await controller.drain_worker(random.choice(workers), True)
            elif running and (gateway.node.name == HEAD or gateway.node.id in lives.list()):
                with contextlib.suppress(RequestRefused):
                    gateway.move(random.choice(running), random.choice(["", "", *workers]), "")
        for worker in workers:
            await controller.drain_worker(worker, False)

    def _count(self) -> None:
        super()._count()
        for gateway in self.house.gateways.values():
            self.counters.update(gateway.moves().outcomes)


@claim("Late answers of earlier attempts, leases and lives change nothing, under random faults", of="faults")
@claim("Requests that move keep their tokens under random faults and kill -9 of source or target", of="faults")
@pytest.mark.parametrize("span", spans(PARTS, PART, DAILY), ids=str)
def test_every_request_ends_with_the_right_tokens_however_often_it_moves(span: range) -> None:
    counters: Counter[str] = Counter()
    hits: Counter[tuple[str, str]] = Counter()
    planted = set[str]()
    for seed in seeds(len(span), first=5000 + span.start):
        game = Unrest(seed).play()
        assert sum(game.outcomes.values()) == REQUESTS, seed
        counters += game.counters
        hits.update((hit.kind, hit.action) for hit in game.strikes.hits if hit.kind in MOVED)
        planted |= game.house.late.keys()
    assert planted >= OF_ATTEMPTS | OF_LIVES, (OF_ATTEMPTS | OF_LIVES) - planted
    assert all(counters[name] > 0 for name in ("copied", "recomputed", "abandoned", "imported_pages")), counters
    assert len(hits) >= len(MOVED) * len(ACTIONS) // 3, hits


class MarkedUnrest(Unrest, Followed):
    """With marks on cached pages that several workers have, and predictors, which hear of them."""

    def _plan(self) -> Plan:
        return replace(super()._plan(), redundant=0.1)

    def _count(self) -> None:
        super()._count()
        lives = self.sim._launcher.list()
        workers = [worker for worker in self.house.workers.values() if worker.node.id in lives]
        self.counters["marked"] += sum(len(worker.state.parts.memory.pages.redundant) for worker in workers)


@pytest.mark.parametrize("span", spans(1, 20, 3), ids=str)
def test_every_request_ends_with_the_right_tokens_while_redundant_pages_are_marked(span: range) -> None:
    counters: Counter[str] = Counter()
    for seed in span:
        game = MarkedUnrest(7 + seed, dispatch="llumnix-minus-code")
        game.play()
        assert game.figures["disagreements"] == 0, seed
        assert sum(game.outcomes.values()) == REQUESTS, seed
        counters += game.counters
    assert counters["marked"] > 0, counters


class FollowedUnrest(Unrest, Followed):
    """With predictors."""


@pytest.mark.parametrize("span", spans(1, 6, 2), ids=str)
def test_replicas_of_workers_follow_what_moves(span: range) -> None:
    imported = 0
    for seed in span:
        game = FollowedUnrest(seed, dispatch="llumnix-minus-code")
        game.play()
        assert game.figures["disagreements"] == 0, seed
        imported += game.counters["imported_pages"]
    assert imported > 0


@pytest.mark.nightly
def test_without_faults_pages_come_with_whoever_moves() -> None:
    counters: Counter[str] = Counter()
    for seed in range(10):
        game = Unrest(seed, faults=False).play()
        assert set(game.outcomes) <= {"done", "cancelled"}, seed
        counters += game.counters
    assert counters["copied"] > 0, counters
    assert counters["imported_pages"] > 20, counters

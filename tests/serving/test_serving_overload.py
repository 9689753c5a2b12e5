"""Replicas drop parameters and load them again while requests run, messages are lost, late and doubled, and processes die:
the properties of ``game.py``, over seeds."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from blockwright.actors.controller.actor import Controller
from blockwright.policies.control.drop_events import (
    DropParameters,
    MemoryOrder,
    RestoreParameters,
)
from blockwright.policies.control.drop_groups import refusal
from blockwright.policies.control.dropped_group import name_of, together
from blockwright.policies.control.events import Application
from blockwright.policies.model.chain import Hop
from blockwright.runtime import RuntimeFault
from blockwright.runtime.testing import Kill, Pause, seeds
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import stay
from blockwright.tests.parts import some, spans
from blockwright.tests.serving.device import CHUNK
from blockwright.tests.serving.game import LONGEST, REQUESTS, WITHIN, Game, Request
from blockwright.tests.serving.house import HEAD, Plan, chain
from blockwright.tests.serving.strikes import ACTIONS, Strike

PARTS = 5
PART = 40
DAILY = 4
MORE = 10  # requests
SWITCHED = ("switch", "answer to switch", "switched", "answer to switched", "export", "unload", "load")
LAYERS = 4
CUTS = [2 * n for n in range(1, LAYERS)]  # before an attention component but the first: each stage has KV


class Dropping(Game):
    """One model on all workers. Orders come at random, whatever the load is."""

    served: tuple[tuple[str, int], ...] = (("a", 0),)  # applications, and from which depth on components are theirs alone

    def __init__(self, seed: int, *, faults: bool = True) -> None:
        super().__init__(seed, faults=faults)
        self.requests += [self._request(REQUESTS + number) for number in range(MORE)]
        self.stages: Counter[str] = Counter()  # in which a worker died or stood still
        self.orders: Counter[str] = Counter()

    def _plan(self) -> Plan:
        random = self.random
        workers = tuple(f"w{i}" for i in range(random.choice((2, 2, 3, 4))))
        gateways = ("g1",) if random.random() < 0.5 else ()
        every = tuple(Application(name, "", chain(name, LAYERS, own), LONGEST, 1) for name, own in self.served)
        parameters = len({c.id for one in every for c in one.components})
        room = random.choice((26, 30, 60))  # chunks for KV; the longest sequence takes 24
        return Plan(workers, gateways, every, (parameters + 1 + room) * CHUNK, random.choice((6, 16)), 16)

    def _draw(self) -> list[Strike]:
        random = Random(f"{self.seed}/draw drops")
        cells = [(random.choice(SWITCHED), random.choice(ACTIONS), random.randint(1, 3)) for _ in range(2)]
        return [*super()._draw()[:2], *cells]

    def _request(self, number: int, gateway: str = "", application: str = "") -> Request:
        return super()._request(number, gateway, self.served[number % len(self.served)][0])

    async def _withdraw(self, application: str, after: float) -> None:
        await super()._withdraw(self.served[self.seed // PARTS % len(self.served)][0], after)

    def _inject(self, fault: Any) -> None:
        groups = self.house.state.overload.groups.values()
        for group in [one for one in groups if isinstance(fault, Kill | Pause) and fault.node in one.workers]:
            self.stages[f"{type(fault).__name__} {group.stage}"] += 1
        super()._inject(fault)

    async def _scenario(self, sim: Any) -> None:
        self.work.append(asyncio.create_task(self._change(Random(f"{self.seed}/orders"))))
        await super()._scenario(sim)

    async def _change(self, random: Random) -> None:
        while not self.opened:  # noqa: ASYNC110 - the server comes up
            await asyncio.sleep(0.02)
        state = self.house.state
        while self.sim.time < self.opened + 2 * WITHIN:
            await asyncio.sleep(random.uniform(0.0, 0.1))
            await self._order(self._drawn(random))
        while state.overload.groups:
            await asyncio.sleep(0.1)
            for name in [*state.overload.groups]:
                await self._order(RestoreParameters(name, {}))

    def _drawn(self, random: Random) -> MemoryOrder:
        groups, workers = self.house.state.overload.groups, self.house.plan.workers
        if groups and random.random() < 0.7:
            name = random.choice([*groups])
            return random.choice([RestoreParameters(name, {}), stay(self.house.state, name)])
        if groups and len(workers) > 2:  # one more member of a group
            group = random.choice([*groups.values()])
            other = random.choice([name for name in workers if name not in group.workers] or [workers[0]])
            hops = list(group.hops)
            at = random.randrange(len(hops))
            hop, inside = hops[at], [cut for cut in CUTS if hops[at].first < cut < hops[at].last]
            if inside:
                cut = random.choice(inside)
                hops[at : at + 1] = [Hop(hop.worker, hop.first, cut), Hop(other, cut, hop.last)]
            return DropParameters(", ".join(group.applications), tuple(hops))
        one, other = random.sample(workers, 2)
        cut = random.choice(CUTS)
        end = 2 * LAYERS + 2
        state = self.house.state
        return DropParameters(
            name_of(together(state.served, state.residency[one])), (Hop(one, 0, cut), Hop(other, cut, end))
        )

    async def _order(self, order: MemoryOrder) -> None:
        if refusal(self.house.state, order):
            return
        controller = self.sim.head.ref(f"{HEAD}/controller", Controller)
        kind, drops = type(order).__name__, self.house.state.overload
        if isinstance(order, DropParameters) and (group := drops.group_with(order.hops)) is not None:
            kind = group.stage.value
        with contextlib.suppress(RuntimeFault):
            if not await controller.change_parameters(order):
                self.orders[kind] += 1


class Together(Dropping):
    """A foundation and two fine-tunes on all workers, which share the first layers."""

    served = (("a", 99), ("b", 5), ("c", 7))

    def __init__(self, seed: int, *, faults: bool = True) -> None:
        super().__init__(seed, faults=faults)
        self.groups: set[int] = set()  # how many applications have been dropped together

    async def _order(self, order: MemoryOrder) -> None:
        await super()._order(order)
        self.groups |= {len(group.applications) for group in self.house.state.overload.groups.values()}


class Swapping(Dropping):
    """Models that do not all fit: those that are loaded are dropped together, and the others come in their place."""

    served = (("a", 99), ("b", 0), ("c", 5), ("d", 0))

    def __init__(self, seed: int, *, faults: bool = True) -> None:
        super().__init__(seed, faults=faults)
        self.groups: set[str] = set()  # applications that have been dropped together

    def _plan(self) -> Plan:
        return replace(super()._plan(), memory=self.random.choice((37, 37, 42, 48)) * CHUNK, kv_reserve=0.1)

    async def _order(self, order: MemoryOrder) -> None:
        await super()._order(order)
        self.groups |= {", ".join(group.applications) for group in self.house.state.overload.groups.values()}


@claim("No token is lost over drops and restores under random faults", of="parameter-dropping")
@pytest.mark.parametrize("span", spans(PARTS, PART, DAILY), ids=str)
@pytest.mark.parametrize("kind", some((Dropping, Together, Swapping), Swapping))
def test_every_request_ends_with_the_right_tokens_through_drops_and_restores(kind: type[Dropping], span: range) -> None:
    orders: Counter[str] = Counter()
    stages: Counter[str] = Counter()
    for seed in seeds(len(span), first=7000 + span.start):
        game = kind(seed).play()
        assert sum(game.outcomes.values()) >= REQUESTS + MORE, seed
        orders, stages = orders + game.orders, stages + game.stages
    assert orders["DropParameters"] > len(span), orders
    assert all(orders[kind] for kind in ("RestoreParameters", "loading", "pipeline")), "restored, broken off, trimmed"
    assert len(stages) > min(2, len(span) // DAILY), stages


@pytest.mark.nightly
def test_without_faults_nobody_fails_and_replicas_are_whole_in_the_end() -> None:
    orders: Counter[str] = Counter()
    for seed in range(5):
        game = Dropping(seed, faults=False).play()
        assert set(game.outcomes) <= {"done", "cancelled"}, (seed, game.outcomes)
        assert not game.house.state.overload.groups
        orders += game.orders
    assert orders["DropParameters"] > 10, orders


@pytest.mark.parametrize("span", spans(1, 5, 1), ids=str)
def test_what_is_together_is_dropped_together_and_nobody_fails(span: range) -> None:
    groups: set[int] = set()
    for seed in span:
        game = Together(seed, faults=False).play()
        assert set(game.outcomes) <= {"done", "cancelled"}, (seed, game.outcomes)
        assert not game.house.state.overload.groups
        groups |= game.groups
    assert 3 in groups


@pytest.mark.nightly
def test_models_that_take_turns_are_dropped_whichever_is_loaded_and_nobody_fails() -> None:
    """Only what could never have room is refused."""
    groups: set[str] = set()
    for seed in range(5, 12):
        game = Swapping(seed, faults=False).play()
        assert set(game.outcomes) <= {"done", "cancelled", "too long"}, (seed, game.outcomes)
        assert not game.house.state.overload.groups
        groups |= game.groups
    assert len(groups) > 4

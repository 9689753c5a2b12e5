"""Relocations: routes follow the traffic, by claims; the old ones serve until requests have left; whatever fails, they stay.

Two workers have room for one and a half models: one model is spread. With traffic it comes together, and the other spreads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blockwright.policies.cluster.traffic import UNMEASURED, LinkCost
from blockwright.policies.control import events
from blockwright.policies.control.claims import Claimant, ClaimKind
from blockwright.policies.control.drop_events import RoutesLeft
from blockwright.policies.control.events import BorderTraffic, DrainWorker, Event, Serve, TrafficCounted, Undeploy, Vary
from blockwright.policies.control.relocations import RelocationStage
from blockwright.policies.control.route_switch import SwitchRoutes
from blockwright.policies.control.state import ControllerState
from blockwright.policies.model.chain import KvLayout
from blockwright.tests.fake_cluster import SIZE, FakeCluster, application, kinds
from blockwright.tests.policies.control.test_world_walks import at_rest
from blockwright.tests.policies.control.world import ControlWorld

WINDOW = 60.0
LAYOUT = KvLayout(1, 1, "float32", 4)
LENGTH = 16  # tokens of a sequence: four pages, three of which a route may take while the old one is there
ROOM = 1900  # bytes of a worker: 10 components and such a sequence; not all 18 and a page
IDS = {"a": "ABCDEF", "b": "GHIJKL", "c": "MNOPQR"}
A, B, C = (replace(application(name, ids, kv=LAYOUT), max_length=LENGTH) for name, ids in IDS.items())
MANY = 10**9


class Crossed(FakeCluster):
    """Three models of 6 components on two workers that hold 10 each: one is spread."""

    def __init__(self, window: float = WINDOW, served: tuple[Any, ...] = (A, B, C), *, link: LinkCost = UNMEASURED) -> None:
        memory = dict.fromkeys(("w0", "w1"), ROOM)
        super().__init__("w0", "w1", memory=memory, traffic_window=window, link=link, on_demand=False)
        self.counts: dict[str, dict[str, tuple[int, int]]] = {"w0": {}, "w1": {}}
        self.serve(*served)

    def capacity(self, worker: str) -> events.KvCapacity:
        life, held = self.workers[worker].incarnation, self.workers[worker].held
        return events.KvCapacity(worker, life, ROOM - SIZE * len(held), {}, {})

    def hops(self) -> dict[str, list[int]]:
        """The number of hops of each route in force, by application."""
        found: dict[str, list[int]] = {}
        for route in self.state.routes.values():
            found.setdefault(route.application, []).append(len(route.hops))
        return found

    def spread(self) -> str:
        """The application that crosses."""
        return next(name for name, hops in self.hops().items() if min(hops) > 1)

    def pass_through(self, name: str, positions: int = MANY, worker: str = "w0") -> list[Any]:
        """Say that positions passed since the last time, when the next window is over."""
        life = self.state.workers[worker].incarnation
        self(TrafficCounted(worker, life, dict(self.counts[worker]), ()), self.now)
        sweeps, before = self.counts[worker].get(name, (0, 0))
        self.counts[worker][name] = sweeps + 1, before + positions
        done = self(TrafficCounted(worker, life, dict(self.counts[worker]), ()), self.now + WINDOW)
        while not self.manual and (orders := self.pending(SwitchRoutes)):
            done += self.reply(orders[0])
        return done


def test_the_model_with_traffic_comes_together_and_another_spreads() -> None:
    world = Crossed()
    name = world.spread()
    assert not kinds(world.pass_through(name, 0), SwitchRoutes)
    done = world.pass_through(name)
    assert world.hops()[name] == [1]
    assert sorted(map(min, world.hops().values())) == [1, 1, 2]
    assert world.state.relocations.counts["done"] == len(kinds(done, SwitchRoutes)) > 0
    assert not world.state.table.paused
    by = {who for id in world.state.holdings.plan for who in world.state.holdings.claims.on(ClaimKind.PLANNED, id)}
    assert by == {Claimant.SERVING}
    held = {worker: len(one.held) for worker, one in world.workers.items()}
    assert sum(held.values()) == 18, "what no route needs is unloaded"


def test_measured_speeds_of_loads_and_links_decide_what_a_relocation_costs_and_saves() -> None:
    costs, saved = list[float](), list[float]()
    for seconds, link in (
        (0.0, UNMEASURED),
        (1.0, UNMEASURED),
        (1.0, LinkCost(2 * UNMEASURED.latency, UNMEASURED.rate / 2)),
    ):
        world = Crossed(link=link)
        for worker in ("w0", "w1"):
            world.state.workers[worker].loaded(SIZE, seconds)
        name = world.spread()
        world.pass_through(name, 0)
        world.pass_through(name)
        assert world.state.relocations.last is not None
        costs.append(world.state.relocations.last.cost)
        saved.append(world.state.relocations.last.saved)
    assert costs[1] - costs[0] == pytest.approx(round(costs[1] - costs[0]), abs=0.01), "a second for each component"
    assert costs[1] >= 1.0 > costs[0]
    assert saved == [saved[0], saved[0], pytest.approx(2 * saved[0])]


def test_old_routes_serve_until_the_new_one_is_whole_and_requests_have_left() -> None:
    world = Crossed()
    name = world.spread()
    world.manual = True
    world.pass_through(name)
    step = world.state.relocations.step
    assert step is not None
    old = {*step.ended}
    while step.stage is RelocationStage.LOADING:
        assert old <= world.state.routes.keys()
        assert not world.state.table.paused
        world.reply(world.pending(events.Load, events.AskCapacity)[0])
        step = world.state.relocations.step
        assert step is not None
    assert {*step.begun, *old} <= world.state.routes.keys(), "running requests go on"
    assert world.state.table.paused == old
    (order,) = world.pending(SwitchRoutes)
    assert order == SwitchRoutes(step.number, [*step.ended], order.to, dropped=False)
    assert {*order.to} >= {*step.begun}
    world.reply(order)
    assert not old & world.state.routes.keys()


def test_the_same_order_is_looked_at_once() -> None:
    """Unless much more crosses; and nothing happens without a window."""
    world = Crossed()
    name = world.spread()
    world.pass_through(name, 1)
    relocations = world.state.relocations
    assert relocations._order == ((name,),)
    enough = relocations._enough
    world.pass_through(name, 1)
    assert relocations._enough == enough
    assert relocations.counts["planned"] == 0, "one position is not worth it"
    world.pass_through(name)
    assert relocations.counts["planned"] == 1
    off = Crossed(0.0)
    off.pass_through(off.spread())
    assert off.state.relocations.counts["planned"] == 0


def test_what_was_counted_before_is_not_counted_again() -> None:
    world = Crossed()
    name = world.spread()
    world.pass_through(name)
    world.down("w0")
    world.up("w0")
    world.counts["w0"].clear()
    world.pass_through(name, 7)
    assert world.state.relocations.traffic.passages() == {}
    sent = (BorderTraffic(name, 3, "w1", 2, 20, 640),)
    for life in (1, 1, 9):
        world(TrafficCounted("w1", life, {}, sent))
    world(TrafficCounted("w1", world.state.workers["w1"].incarnation, {}, sent))
    assert [one for _, one in world.state.relocations.traffic.sent()] == [*sent]


@pytest.mark.parametrize("stage", [RelocationStage.LOADING, RelocationStage.LEAVING])
@pytest.mark.parametrize("what", ["down", "drained", "undeployed", "broken"])
def test_whatever_fails_the_old_routes_serve(what: str, stage: RelocationStage) -> None:
    world = Crossed()
    name, before = world.spread(), {*world.state.routes}
    world.manual = True
    world.pass_through(name)
    while (step := world.state.relocations.step) is not None and step.stage is not stage:
        world.reply(world.pending(events.Load, events.AskCapacity)[0])
    assert step is not None
    worker = world.state.holdings.plan[step.begun[0]].route.home
    if stage is RelocationStage.LOADING:
        worker = world.pending(events.Load)[0].worker
    if what == "broken" and stage is RelocationStage.LEAVING:
        return  # all is loaded
    world.manual = False
    if what == "broken":
        world.broken[f"{step.application}@{worker}"] = "broken"
        world.reply(world.pending(events.Load)[0])
        world.broken.clear()
    happens: dict[str, Event] = {"drained": DrainWorker(worker, True), "undeployed": Undeploy(step.application)}
    if what == "down":
        world.down(worker)
        world.up(worker)
    elif what in happens:
        world(happens[what])
    for effect in world.pending():
        world.reply(effect)
    assert world.state.relocations.step is None
    assert world.state.relocations.counts["given_up"] == 1
    assert not world.state.holdings.claims.of(ClaimKind.PLANNED, Claimant.RELOCATIONS)
    if what == "undeployed":
        assert step.application not in world.hops()
    else:
        assert before == {*world.state.routes}
    if what == "broken":
        for _ in range(2):
            world.pass_through(name)
        assert world.state.relocations.counts["planned"] == 1, "not at once"
        world.pass_through(name)
        assert world.state.relocations.counts["planned"] == 2
        assert not any(worker.refused for worker in world.state.residency.values())
    world(RoutesLeft(-1, 0))  # the answer to an order that is void


def test_what_was_planned_as_a_pipeline_stays() -> None:
    spread = replace(A, span=2)
    world = Crossed(served=(spread, B))
    world.pass_through("a")
    assert world.hops()["a"] == [2]
    assert world.state.relocations.counts["planned"] == 0


def test_traffic_of_a_variant_keeps_the_model_whose_blocks_it_uses() -> None:
    """The model itself is asked for little; its blocks answer for another one."""
    world = Crossed()
    spread = world.spread()
    wholes = [name for name in "abc" if name != spread]
    world(Vary((application("a~1", IDS[wholes[0]], kv=LAYOUT, variant_of=wholes[1]),)))
    (variant,) = [name for name, one in world.state.served.items() if one.variant]
    world.counts["w0"] = {variant: (1, 4 * MANY), wholes[1]: (1, 2)}
    world.pass_through(spread)
    assert world.hops()[spread] == [1]
    assert world.hops()[wholes[0]] == [1]
    assert min(world.hops()[wholes[1]]) == 2


def test_nothing_is_relocated_while_something_loads() -> None:
    world = Crossed()
    name = world.spread()
    world.manual = True
    world.down("w1")
    world.up("w1")
    world.pass_through(name)
    assert world.state.relocations.counts["planned"] == 0


def test_a_state_in_the_middle_goes_on_from_a_snapshot() -> None:
    world = Crossed()
    world.manual = True
    world.pass_through(world.spread())
    copy = ControllerState.restore(world.state.snapshot())
    assert copy.digest() == world.state.digest()
    load = world.pending(events.Load)[0]
    event = events.Loaded(load.worker, load.incarnation, load.load)
    assert copy.handle(event, 1.0) == world.state.fork().handle(event, 1.0)


class MovingWorld(ControlWorld):
    """A world with traffic, in which models are spread over workers and come together."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rooms = {name: self.random.choice([10, 10, 11]) for name in self.rooms}
        memory = {name: ROOM + SIZE * (room - 10) for name, room in rooms.items()}
        self.options |= {"traffic_window": 5.0, "on_demand": self.random.random() < 0.2, "memory": memory}
        FakeCluster.__init__(self, *self.state.workers, **self.options)  # type: ignore[arg-type]
        self.rooms.update({name: nbytes // SIZE - 4 for name, nbytes in memory.items()})
        self.spare, self.manual = 4 * SIZE, True
        self.counts: dict[tuple[str, int], dict[str, tuple[int, int]]] = {}

    def made(self, name: str, ids: str, **more: Any) -> events.Application:
        return replace(application(name, ids, kv=LAYOUT, **more), max_length=LENGTH)

    def start(self) -> None:
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghij"
        names = [f"m{n}" for n in range(len(self.state.workers) * 3 // 2)]
        self(Serve(tuple(self.made(name, letters[6 * n : 6 * n + 6], model=name) for n, name in enumerate(names))))
        self.revive()
        for _ in range(60):
            self.answer()

    def step(self) -> None:
        """Let things happen seldom, so that there are windows in which all serve."""
        if self.random.random() < 0.1:
            super().step()
        else:
            self.now += 0.3
            self.answer()
            self._traffic()

    def _traffic(self) -> None:
        """A worker reports traffic; of one model most, for a while."""
        worker = self._worker()
        life = self.state.workers[worker].incarnation
        counts = self.counts.setdefault((worker, life), {})
        hot = [*self.state.served][int(self.now) // 12 % max(len(self.state.served), 1)] if self.state.served else "z"
        for name in (hot, self._name()):
            sweeps, positions = counts.get(name, (0, 0))
            counts[name] = sweeps + 1, positions + (MANY if name == hot else 3)
        sent = (BorderTraffic(hot, 3, self._worker(), *counts[hot], 9),)
        self(TrafficCounted(worker, life, dict(counts), sent))


@pytest.mark.parametrize("part", range(0, 60, 20))
def test_worlds_with_traffic_come_to_rest(part: int) -> None:
    """With all parties at once: whatever else happens to models and workers, nothing is left over and all is held."""
    done = 0
    for seed in range(part, part + 20):
        world = MovingWorld(seed)
        world.start()
        for _ in range(300):
            world.step()
        done += world.state.relocations.counts["done"]
        world.settle()
        at_rest(world)
        assert world.state.relocations.step is None
    assert done > 5

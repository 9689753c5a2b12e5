"""The controller works per change, not over everything.

It decides what a computation from scratch decides, and a beat costs the same in any cluster.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from blockwright.policies.cluster.provisioning import MODES, ProvisioningRules
from blockwright.policies.control.events import (
    Application,
    AskCapacity,
    Deploy,
    DrainWorker,
    Event,
    KillWorker,
    KvCapacity,
    Load,
    Loaded,
    LoadFailed,
    Publish,
    Serve,
    Undeploy,
    WorkerCannotStart,
    WorkerDown,
    WorkerHeartbeat,
    WorkerStarting,
    WorkerUp,
)
from blockwright.policies.control.loads import LoadBlock, ModelFiles
from blockwright.policies.control.scaling import ScalingPlan
from blockwright.policies.control.state import ControllerState
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import application
from blockwright.tests.policies.control.controller_reference import Reference

SEEDS = 12  # of walks of 800 events each
CAUSES = ("killed", "exited 70", "exited -9", "hung", "stalled")


def listed(update: RoutesChanged) -> RoutesChanged:
    """In an order of its own: that of routes in force has no meaning."""
    return replace(update, routes=sorted(update.routes, key=lambda route: route.id))


class World:
    """Random news for a controller, and the same for the one that computes from scratch."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        names = [f"w{n}" for n in range(self.random.choice([2, 4, 6]))]
        self.state, self.reference = ControllerState(names, stall_timeout=10.0), Reference(names, 10.0)
        self.unserved = [self.draw(n) for n in range(5)]
        self.now = 0.0
        self.numbers = dict.fromkeys(names, 0)  # the last incarnation that began
        self.asked: list[Load | AskCapacity] = []  # not answered yet; also of lives that are over
        self.seen: set[str] = set()  # kinds of effects

    def draw(self, number: int) -> Application:
        own = self.random.sample(range(8), k=2)
        ids = ["eAmBnCoh"[at] if at not in own else chr((80 if at in (1, 3, 5) else 112) + number) for at in range(8)]
        return application(f"a{number}", "".join(ids), self.random.choice([1, 1, 2]))

    def events(self) -> dict[str, Callable[[], Event | None]]:
        """What may happen next, and how; None where it cannot."""
        name = self.random.choice(list(self.state.workers))
        worker, served = self.state.workers[name], sorted(self.state.served)
        current = worker.incarnation if self.random.random() < 0.9 else self.random.randint(0, self.numbers[name])
        age = self.random.choice([0.0, 1.0, 10.0, 10.0, 10.5])
        known = self.random.choice(served) if served else ""
        return {
            "starting": lambda: self.begin(name) if worker.state == "down" else None,
            "up": lambda: WorkerUp(name, self.numbers[name]) if worker.state == "starting" else None,
            "down": lambda: WorkerDown(name, current, self.random.choice(CAUSES)) if worker.alive else None,
            "still-born": lambda: WorkerDown(name, self.numbers[name], "exited 1") if worker.state == "starting" else None,
            "failed": lambda: WorkerDown(name, self.skip(name), "not started: no fork") if worker.state == "down" else None,
            "unfit": lambda: WorkerCannotStart(name, self.numbers[name], "no kernels"),
            "beat": lambda: WorkerHeartbeat(name, current, age, self.random.randint(0, 9), self.random.randint(0, 9)),
            "serve": lambda: Serve(tuple(self.unserved.pop() for _ in range(min(2, len(self.unserved))))),
            "deploy": lambda: Deploy(known) if known else None,
            "undeploy": lambda: Undeploy(known) if known in self.state.holdings.blocks else None,
            "stray": lambda: Loaded(name, current, LoadBlock(ModelFiles(b"", ""), 0, 3, [b"x"], known)) if known else None,
            "answer": self.answer,
        }

    def skip(self, name: str) -> int:
        self.numbers[name] += 1
        return self.numbers[name]

    def begin(self, name: str) -> WorkerStarting:
        return WorkerStarting(name, self.skip(name), self.random.randint(1, 9))

    def answer(self) -> Event | None:
        if not self.asked:
            return None
        asked = self.asked.pop(self.random.randrange(len(self.asked)))
        if isinstance(asked, AskCapacity):
            room = self.random.choice([1000, 4096, 65536])
            return KvCapacity(
                asked.worker, asked.incarnation, room, {name: 2 * room + len(name) for name in self.reference.applications}
            )
        if self.random.random() < 0.05:
            return LoadFailed(asked.worker, asked.incarnation, asked.load, "no room")
        return Loaded(asked.worker, asked.incarnation, asked.load)

    def step(self) -> None:
        self.now += self.random.choice([0.0, 0.05, 0.3, 1.0, 15.0])
        kinds, weights = zip(*WEIGHTS.items(), strict=True)
        kind = self.random.choices(kinds, weights)[0]
        event = self.events()[kind]()
        if event is not None:
            self.apply(event)

    def apply(self, event: Event) -> None:
        effects = self.state.handle(event, self.now)
        assert [ordered(e) for e in effects] == [ordered(e) for e in self.reference.handle(event, self.now)], event
        self.asked += [e for e in effects if isinstance(e, Load | AskCapacity)]
        self.seen |= {type(e).__name__ for e in effects}
        state, reference = self.state, self.reference
        state.check()
        assert listed(state.publication()) == listed(reference.published)
        assert state.workers == reference.workers
        assert {n: r.refused for n, r in state.residency.items()} == {n: h.refused for n, h in reference.held.items()}
        assert state.whole == (bool(reference.planned()) and len(reference.routes) == len(reference.planned()))
        assert state.all_up == all(worker.alive for worker in reference.workers.values())
        for name in state.served:
            assert state.ready(name) == any(route.application == name for route in reference.routes.values())


WEIGHTS = {"starting": 20, "up": 20, "down": 4, "still-born": 1, "failed": 1, "unfit": 1, "beat": 10, "serve": 2,
           "deploy": 2, "undeploy": 2, "stray": 1, "answer": 60}  # fmt: skip


def ordered(effect: Any) -> Any:
    return replace(effect, first=tuple(sorted(effect.first))) if isinstance(effect, Publish) else effect


@claim("The controller decides by changes what a computation from scratch decides", of="faults")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_it_decides_what_a_computation_from_scratch_decides(seed: int) -> None:
    world = World(seed)
    for _ in range(800):
        world.step()
    assert world.seen >= {"Load", "AskCapacity", "Publish", "Unload", "KillWorker"}, "the walk went everywhere"
    assert world.state.version > 10


def operations(state: ControllerState, event: Event, now: float = 0.0) -> int:
    """Bytecode instructions that the interpreter executes to handle an event. Another state handles it first: from Python
    3.12 on all instructions are reported only for functions that were traced before."""
    count = 0
    before = sys.gettrace()
    another = at_rest(1, 1)

    def trace(frame: FrameType, what: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += what == "opcode"
        return trace

    sys.settrace(trace)
    try:
        another.handle(event, now)
        count = 0
        state.handle(event, now)
    finally:
        sys.settrace(before)
    return count


def at_rest(workers: int, applications: int, mode: str = "off") -> ControllerState:
    """All of them up and loaded; as served: the controller knows of every worker that there can be (``ScalingPlan``)."""
    names = [f"w{n}" for n in range(workers)]
    scaling = ScalingPlan(ProvisioningRules(mode=mode, limit=1.0, least=1, window=60.0), names)
    state = ControllerState(names, stall_timeout=10.0, scaling=scaling)
    effects = [effect for name in state.workers for effect in state.handle(WorkerUp(name, 1), 0.0)]
    effects += state.handle(Serve(tuple(application(f"a{n}", f"eA{chr(192 + n)}Bh") for n in range(applications))), 0.0)
    for effect in effects:
        match effect:
            case Load(worker, incarnation, load):
                effects += state.handle(Loaded(worker, incarnation, load), 0.0)
            case AskCapacity(worker, incarnation):
                effects += state.handle(KvCapacity(worker, incarnation, 65536), 0.0)
            case Publish() | KillWorker():
                pass
    assert state.whole
    return state


@pytest.mark.parametrize(
    "event",
    [
        WorkerHeartbeat("w0", 1, 0.0, 3, 4),
        WorkerHeartbeat("w0", 1, 9.0, 0, 0),
        WorkerDown("w0", 0, "late"),
        WorkerCannotStart("w0", 1, "late"),
    ],
    ids=["beat", "long-sweep", "late-death", "late-word"],
)
def test_what_changes_nothing_costs_the_same_in_any_cluster(event: Event) -> None:
    small, large = at_rest(1, 1), at_rest(40, 20)
    assert operations(small, event) == operations(large, event) < 400
    assert not large.changed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drained", [(), ("w1",)], ids=["", "drained"])
def test_nor_does_autoscaling_or_a_worker_that_is_drained_make_a_beat_dear(mode: str, drained: tuple[str, ...]) -> None:
    costs = []
    for workers, applications in ((2, 1), (40, 20)):
        state = at_rest(workers, applications, mode)
        for name in drained:
            state.handle(DrainWorker(name, True), 0.0)
            assert state.table.paused
        state.handle(WorkerHeartbeat("w0", 1, 0.0, 0, 0), 30.0)
        costs.append(operations(state, WorkerHeartbeat("w0", 1, 0.0, 0, 0), 30.5))
    assert costs[0] == costs[1] < 600


def test_a_death_costs_work_for_the_routes_of_that_worker() -> None:
    costs = {
        (workers, applications): operations(at_rest(workers, applications), WorkerDown("w0", 1, "killed"), 20.0)
        for workers, applications in ((2, 10), (40, 10), (2, 20))
    }
    assert costs[2, 10] == costs[40, 10], "however many others there are"
    assert costs[2, 20] < 2.1 * costs[2, 10]


def test_a_load_costs_work_for_its_application() -> None:
    def loaded(workers: int, applications: int) -> int:
        state = at_rest(workers, applications)
        state.handle(WorkerDown("w0", 1, "killed"), 20.0)
        (load,) = [e for e in state.handle(WorkerUp("w0", 2), 20.0) if isinstance(e, Load)]
        return operations(state, Loaded("w0", 2, load.load), 20.0)

    assert loaded(1, 2) == loaded(20, 20)


def test_a_beat_of_a_worker_that_waits_for_its_turn_costs_no_more() -> None:
    """Not only at rest: while others load, die and come, a beat without news is as cheap."""
    state = at_rest(10, 5)
    state.handle(WorkerDown("w1", 1, "killed"), 20.0)
    state.handle(WorkerUp("w1", 2), 20.0)
    beat = WorkerHeartbeat("w0", 1, 0.0, 0, 0)
    assert operations(state, beat) == operations(at_rest(1, 1), beat)


def test_an_application_that_is_known_with_another_chain_is_refused_and_nothing_changes() -> None:
    state = at_rest(2, 2)
    before = state.publication()
    with pytest.raises(ValueError, match="application 'a0' is known with another chain; give it another name"):
        state.handle(Serve((application("new", "eAmBh"), application("a0", "eAmBh"))), 0.0)
    state.check()
    assert (state.publication(), "new" in state.served) == (before, False)


def test_a_load_that_was_refused_half_way_does_not_keep_the_others_from_service() -> None:
    state = at_rest(1, 1)
    effects = state.handle(Serve((application("b", "eAnBh"), application("c", "eAoBh"))), 0.0)
    refused = False
    for effect in effects:
        if isinstance(effect, Load):
            load = effect.load
            refuse = load.holder == "b" and load.first > 0
            refused |= refuse
            news = LoadFailed("w0", 1, load, "no room") if refuse else Loaded("w0", 1, load)
            effects += state.handle(news, 0.0)
        elif isinstance(effect, AskCapacity):
            effects += state.handle(KvCapacity("w0", 1, 65536), 0.0)
    assert refused
    assert (state.ready("a0"), state.ready("b"), state.ready("c")) == (True, False, True)

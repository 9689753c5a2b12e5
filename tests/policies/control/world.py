"""A cluster for the controller's state machine, with all parties at once: what workers, gateways, operators and the memory
actor do is drawn, and answers come late and in any order.

Workers hold components by id and refuse what does not fit. Checked after every event: the state's own invariants, that
nothing is unloaded that somebody else holds, and that a worker holds what the controller believes. ``settle`` ends all
troubles and answers everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise, permutations
from random import Random

from blockwright.policies.cluster.demand import Use
from blockwright.policies.cluster.provisioning import ProvisioningRules
from blockwright.policies.cluster.scaling import PressedBlock
from blockwright.policies.control import drop_events, events
from blockwright.policies.control.drop_groups import refusal, serving_groups
from blockwright.policies.control.loads import LoadBlock, NoCapacity
from blockwright.policies.control.route_switch import SwitchFigures
from blockwright.policies.control.scaling import ScalingPlan
from blockwright.policies.control.state import ControllerState
from blockwright.policies.model.chain import Component, Hop, Kind, KvLayout, Route

KV = KvLayout(1, 8, "float32", 16)  # 1,024 bytes a page
SIZE = 100  # bytes of a component
SPARE = 8 * 1024  # bytes beside the components that have room, for KV
PLENTY = 100  # components: room for all
SETTLED = 400  # rounds in which a world without troubles comes to rest
LATE, CALM = events.Observed(20.0, 0.0), events.Observed(0.1, 0.0)


def application(name: str, ids: str, **more: object) -> events.Application:
    """Capital letters are components with KV; equal letters are shared."""
    kinds = [(c, Kind.ATTENTION if c.isupper() else Kind.MLP) for c in ids]
    parts = [Component(c.encode() * 16, kind, SIZE, 8, 8, KV if c.isupper() else None) for c, kind in kinds]
    return replace(events.Application(name, f"/models/{name}", tuple(parts), 4096), **more)  # type: ignore[arg-type]


class WorkerMemory:
    """The components on one worker, with the applications that hold each."""

    def __init__(self, room: int) -> None:
        self.room = room  # components
        self.held: dict[bytes, set[str]] = {}

    def load(self, load: LoadBlock) -> NoCapacity | None:
        """Take a block, or say why there is no room."""
        ids = {*load.ids, *filter(None, load.deltas)}
        lacking = len(self.held.keys() | ids) - self.room
        if lacking > 0:
            return NoCapacity("no room", lacking * SIZE, len(ids) > self.room, self.owned())
        for id in ids:
            self.held.setdefault(id, set()).add(load.holder)
        return None

    def unload(self, holder: str, ids: Iterable[bytes]) -> None:
        for id in ids:
            holders = self.held.get(id, set())
            assert holder in holders, f"{holder} gives up what it does not hold"
            holders.remove(holder)
            if not holders:
                del self.held[id]

    def of(self, holder: str) -> set[bytes]:
        return {id for id, holders in self.held.items() if holder in holders}

    def names(self) -> set[str]:
        return {name for holders in self.held.values() for name in holders}

    def owned(self) -> dict[str, int]:
        return {name: SIZE * sum(one == {name} for one in self.held.values()) for name in sorted(self.names())}

    def capacity(self, worker: str, incarnation: int) -> events.KvCapacity:
        alone = {name: SPARE + SIZE * (self.room - len(self.of(name))) for name in sorted(self.names())}
        left = SPARE + SIZE * (self.room - len(self.held))
        return events.KvCapacity(worker, incarnation, left, alone, self.owned())


class ControlWorld:
    """See the module. ``observe`` is called with every event, its time, and the effects or the error."""

    def __init__(self, seed: int, observe: Callable[[events.Event, float, object], None] | None = None) -> None:
        self.random = draw = Random(seed)
        self.observe = observe
        self.now = 0.0
        first = tuple(f"w{n}" for n in range(draw.choice([2, 2, 3, 3, 4])))
        every = (*first, *(f"w{len(first) + n}" for n in range(2)))
        room = draw.choice([8, 9, 12, 16])
        self.rooms = {name: room if draw.random() < 0.7 else draw.choice([7, 10, 20]) for name in every}
        known = draw.random() < 0.5
        rules = ProvisioningRules(mode=draw.choice(["off", "relief"]), limit=10.0, least=len(first), cool_down=5.0)
        self.options = {
            "memory": {name: SPARE + SIZE * self.rooms[name] for name in every} if known else {},
            "block_idle": draw.choice([0.0, 60.0]),
            "on_demand": draw.random() < 0.8,
            "scaling": ScalingPlan(rules, every, 7.0),
        }
        self.workers = first
        self.state = ControllerState(first, 10.0, **self.options)  # type: ignore[arg-type]
        self.memory: dict[str, WorkerMemory] = {}
        self.numbers: dict[str, int] = dict.fromkeys(every, 0)  # the last incarnation that began
        self.asked: list[events.Effect] = []  # not answered yet; also of lives that are over
        self.active: dict[str, int] = {}  # application -> its requests
        self.last: dict[str, float] = {}  # application -> when one ended last
        self.added: dict[str, str] = {}  # answers to ``Add``
        self.asked_to_add: set[str] = set()
        self.seen: set[str] = set()  # kinds of effects
        self.count = 0  # events
        self.troubled = True  # loads fail, sweeps stall, workers die

    # the machine

    def apply(self, event: events.Event) -> list[events.Effect]:
        """Hand an event to the state and take its effects."""
        self.count += 1
        before = [*self.state.routes.values()]
        try:
            effects = self.state.handle(event, self.now)
        except (ValueError, KeyError) as error:
            if self.observe is not None:
                self.observe(event, self.now, error)
            self.state.check()
            return []
        if self.observe is not None:
            self.observe(event, self.now, effects)
        self.state.check()
        for effect in effects:
            self.seen.add(type(effect).__name__)
            if isinstance(effect, events.Publish):
                before = []
            if isinstance(effect, events.Unload):
                self.out_of_use(effect, before)
            self.take(effect)
        self.compare()
        return effects

    def out_of_use(self, unload: events.Unload, routes: Iterable[Route]) -> None:
        """Check that no route of gateways needs what is unloaded: they hear that it ends before the components go."""
        if (served := self.state.served.get(unload.holder)) is None:
            return
        parts = served.application.components
        for route in (one for one in routes if one.application == unload.holder):
            hops = [hop for hop in route.hops if hop.worker == unload.worker]
            needed = {one.shared for hop in hops for one in parts[hop.first : hop.last]}
            assert not needed & {*unload.ids}, f"{unload.holder} leaves {unload.worker} while {route.id} is in force"

    def take(self, effect: events.Effect) -> None:
        match effect:
            case events.Unload(worker, incarnation, holder, ids) if self.lives(worker, incarnation):
                self.memory[worker].unload(holder, ids)
            case events.Added(name, why):
                assert name not in self.added, f"{name} is answered twice"
                self.added[name] = why
            case events.StopWorker(worker):
                self.memory.pop(worker, None)
                self.asked.append(effect)
            case events.KillWorker(worker):
                self.asked.append(effect)
            case events.Publish() | events.Unload() | events.Fatal() | events.ResumeWorker() | drop_events.OverloadNote():
                pass
            case _:
                self.asked.append(effect)

    def lives(self, worker: str, incarnation: int) -> bool:
        return worker in self.memory and self.numbers[worker] == incarnation

    def compare(self) -> None:
        """Check that workers hold what the state believes: loads in progress may have arrived already."""
        for name, memory in self.memory.items():
            residency = self.state.residency[name]
            arriving = residency.loading.holder if residency.loading is not None else ""
            for holder in {*memory.names(), *residency.resident} - {arriving}:
                if (served := self.state.served.get(holder)) is not None:
                    parts = [served.application.components[depth] for depth in residency.resident.get(holder, ())]
                    assert memory.of(holder) == {id for one in parts for id in (one.shared, one.delta) if id}, (name, holder)

    # answers

    def answer(self) -> None:
        """Answer one of the questions, whichever came first or last."""
        if self.asked:
            self.reply(self.asked.pop(self.random.randrange(len(self.asked))))

    def reply(self, effect: events.Effect) -> None:
        match effect:
            case events.Load(worker, incarnation, load) if self.lives(worker, incarnation):
                if self.troubled and self.random.random() < 0.02:
                    final = self.random.random() < 0.3
                    self.apply(events.LoadFailed(worker, incarnation, load, "a file is broken", final))
                elif (why := self.memory[worker].load(load)) is not None:
                    self.apply(events.LoadRefused(worker, incarnation, load, why))
                else:
                    self.apply(events.Loaded(worker, incarnation, load))
            case events.AskCapacity(worker, incarnation) if self.lives(worker, incarnation):
                self.apply(self.memory[worker].capacity(worker, incarnation))
            case events.AskUsage():
                served = self.state.served
                idle = {name: Use(0, self.now - at) for name, at in self.last.items() if name in served}
                ready = {route.application for route in self.state.table.news().routes}
                active = {n: Use(c, 0.0, 0 if n in ready else 9) for n, c in self.active.items() if c and n in served}
                self.apply(events.UsageAnswer({**idle, **active}))
            case events.AwaitQuiet(name):
                self.active[name], self.last[name] = 0, self.now
                self.apply(events.Quiet(name))
            case events.RecheckLater(seconds):
                self.now += seconds
                self.apply(events.Recheck())
            case events.FinishRequests(name):
                self.active.pop(name, None)
                self.apply(events.Remove(name))
            case events.StartWorker(worker):
                self.begin(worker)
            case events.VacateWorker(worker):
                self.apply(events.Vacated(worker))
            case events.StopWorker(worker):
                self.apply(events.WorkerStopped(worker))
            case events.KillWorker(worker):
                self.kill(worker)
            case drop_events.SwitchGateways(number):
                self.apply(drop_events.RoutesLeft(number, 1))
            case drop_events.AwaitSwitched(number):
                self.apply(drop_events.RequestsSwitched(number, (SwitchFigures(number, 1, 1, 2, 200, 3, 0.1, 0.1),)))
            case drop_events.LoadLater(worker, name, seconds):
                self.now += seconds
                self.apply(drop_events.LoadAgain(worker, name))

    # the life of workers

    def begin(self, worker: str) -> None:
        """Start a worker's process, which then joins."""
        if worker in self.state.workers and worker not in self.memory:
            self.numbers[worker] += 1
            self.apply(events.WorkerStarting(worker, self.numbers[worker], 7))

    def join(self, worker: str) -> None:
        if worker in self.state.workers and self.state.workers[worker].state == "starting":
            self.memory[worker] = WorkerMemory(self.rooms[worker])
            self.apply(events.WorkerUp(worker, self.numbers[worker]))

    def kill(self, worker: str, cause: str = "killed") -> None:
        if self.memory.pop(worker, None) is not None:
            self.apply(events.WorkerDown(worker, self.numbers[worker], cause))

    def revive(self) -> None:
        for worker in [*self.state.workers]:
            self.begin(worker)
            self.join(worker)

    # what is drawn

    def start(self) -> None:
        """Serve some models on workers that come up."""
        draw = self.random
        base = "eAmBnh"
        tunes = [
            application(f"t{n}", base[:3] + chr(80 + n) + base[4:], model=f"t{n}") for n in range(draw.choice([0, 1, 2]))
        ]
        other = [application("o", "uVwXyz", model="o", span=draw.choice([1, 1, 2]))] if draw.random() < 0.5 else []
        lazy = [application("l", "iJkLqr", model="l", on_demand=True)] if draw.random() < 0.4 else []
        self.apply(events.Serve((application("a", base, model="a"), *tunes, *other, *lazy)))
        self.revive()
        for _ in range(draw.choice([0, 40])):
            self.answer()

    def step(self) -> None:
        """Do one thing that is drawn."""
        draw = self.random
        self.now += draw.choice([0.0, 0.03, 0.3, 3.0])
        kinds, weights = zip(*WEIGHTS.items(), strict=True)
        getattr(self, f"_{draw.choices(kinds, weights)[0]}")()

    def _answer(self) -> None:
        self.answer()

    def _name(self) -> str:
        return self.random.choice([*self.state.served] or ["a"])

    def _worker(self) -> str:
        return self.random.choice([*self.state.workers])

    def _deploy(self) -> None:
        name = self._name()
        if name in self.state.served and name not in self.state.additions:
            withdraw = self.state.served[name].deployed and self.random.random() < 0.5
            self.apply(events.Undeploy(name) if withdraw else events.Deploy(name))

    def _add(self) -> None:
        draw, count = self.random, len(self.asked_to_add)
        replaced = draw.choice([*(n for n, s in self.state.served.items() if s.deployed and not s.draining), ""])
        if replaced in self.state.additions or replaced in self.state.additions.replaces.values() or draw.random() < 0.6:
            replaced = ""
        name = f"n{count}"
        model = self.state.served[replaced].application.served_as if replaced else name
        ids = draw.choice(["eAmB", "uVwX"]) + draw.choice("SHZ") + draw.choice("hz")
        new = application(name, ids, model=model, on_demand=draw.random() < 0.2, span=draw.choice([1, 1, 1, 2]))
        before = self.count
        if self.apply(events.Add(new, replaced)) or (self.count > before and name in self.state.served):
            self.asked_to_add.add(name)

    def _remove(self) -> None:
        name = self._name()
        served = self.state.served.get(name)
        if served is None or len([s for s in self.state.served.values() if s.deployed]) < 2:
            return
        if name in self.state.additions or not served.deployed:
            self.added.setdefault(name, "removed")  # who waits for it is told so
            self.apply(events.Remove(name))
        elif not served.draining and name not in self.state.additions.replaces.values():
            self.apply(events.Retire(name))

    def _want(self) -> None:
        name = self._name()
        self.active[name] = self.active.get(name, 0) + 1
        self.apply(events.ApplicationsWanted({name: self.random.choice([9, 9, 40, 100])}))

    def _end(self) -> None:
        name = self._name()
        if self.active.get(name):
            self.active[name] -= 1
            self.last[name] = self.now

    def _order(self) -> None:
        draw, found = self.random, serving_groups(self.state)
        pairs = [(one, other) for one, other in permutations(found, 2) if one.application == other.application]
        name = draw.choice([*self.state.overload.groups] or [""])
        if not pairs or draw.random() < 0.4:
            restore: drop_events.MemoryOrder = drop_events.RestoreParameters(name, {})
            order = draw.choice([restore, restore, drop_events.BreakOffRestore(name), drop_events.TrimParameters(name)])
        else:
            one, other = draw.choice(pairs)
            members = [member.worker for member in (*one.members, *other.members)]
            depth = one.members[-1].last
            borders = sorted({0, depth, *draw.sample(range(1, depth), min(depth - 1, len(members) - 1))})
            hops = tuple(Hop(w, a, b) for w, (a, b) in zip(members, pairwise(borders), strict=False))
            order = drop_events.DropParameters(one.application, hops, "a burst")
        if not refusal(self.state, order):
            self.apply(order)

    def _lacks(self) -> None:
        self.apply(drop_events.MemoryLacks(1000, "KV lacks memory"))

    def _press(self) -> None:
        worker, name = self._worker(), self._name()
        if name in self.state.served and self.state.workers[worker].alive:
            depth = len(self.state.served[name].application.components)
            first = self.random.randrange(depth)
            block = PressedBlock(0.9, {name: (first, self.random.randint(first + 1, depth))})
            self.apply(events.Pressed(worker, self.state.workers[worker].incarnation, (block,)))

    def _idle(self) -> None:
        for id in self.state.holdings.copies(lambda _: True)[:1]:
            route = self.state.holdings.plan[id].route
            worker = route.hops[-1].worker
            names = (route.application,)
            self.apply(events.Idle(worker, self.state.workers[worker].incarnation, names))

    def _drain(self) -> None:
        worker = self._worker()
        drained = worker in self.state.scaling.drained
        if drained or not self.state.scaling.undrainable(worker, self.state.holdings):
            self.apply(events.DrainWorker(worker, not drained))

    def _load(self) -> None:
        self.apply(self.random.choice([LATE, CALM]))

    def _kill(self) -> None:
        self.kill(self._worker(), self.random.choice(["killed", "exited 70"]))

    def _revive(self) -> None:
        worker = self._worker()
        self.random.choice([self.begin, self.join])(worker)

    def _beat(self) -> None:
        worker = self._worker()
        age = 11.0 if self.random.random() < 0.05 else 0.5
        life = self.state.workers[worker].incarnation
        running, waiting = self.random.randint(0, 5), self.random.randint(0, 2)
        self.apply(events.WorkerHeartbeat(worker, life, age, waiting, running, self.state.version))

    # the end

    def settle(self) -> None:
        """End all troubles: everybody lives, nothing is drained or dropped, there is room, until nothing changes."""
        self.troubled = False
        self.rooms = dict.fromkeys(self.rooms, PLENTY)
        for memory in self.memory.values():
            memory.room = PLENTY
        self.active = {}
        quiet = 0
        for _ in range(SETTLED):
            before = self.count
            self.revive()
            for name in sorted(self.state.scaling.drained):
                self.apply(events.DrainWorker(name, False))
            for name in [*self.state.overload.groups]:
                if not refusal(self.state, order := drop_events.RestoreParameters(name, {})):
                    self.apply(order)
            late, self.asked = self.asked, []
            for effect in late:
                self.reply(effect)
            self.now += 1.0
            quiet = quiet + 1 if self.count == before else 0
            if quiet == 2:
                return
        raise AssertionError(f"the world does not come to rest: {self.asked}")


WEIGHTS = {"answer": 60, "deploy": 1, "add": 2, "remove": 1, "want": 8, "end": 6, "order": 12, "lacks": 1, "press": 2,
           "idle": 1, "drain": 1, "load": 3, "kill": 1, "revive": 6, "beat": 4}  # fmt: skip

"""A cluster for the controller's state machine, with all parties at once: what workers, gateways, operators and the memory
actor do is drawn, and answers come late and in any order.

Workers hold components by id and refuse what does not fit. Checked after every event: the state's own invariants, that
nothing is unloaded that somebody else holds, and that a worker holds what the controller believes. ``settle`` ends all
troubles and answers everything.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, permutations
from random import Random
from typing import Any

from blockwright.policies.cluster.demand import Use
from blockwright.policies.cluster.provisioning import ProvisioningRules
from blockwright.policies.cluster.scaling import PressedBlock
from blockwright.policies.control import drop_events, events
from blockwright.policies.control.drop_groups import refusal, serving_groups
from blockwright.policies.control.scaling import ScalingPlan
from blockwright.policies.model.chain import Hop
from blockwright.tests.fake_cluster import SIZE, FakeCluster, application, stay

SPARE = 8 * 1024  # bytes beside the components that have room, for KV
PLENTY = 100  # components: room for all
JOINING = ("j0", "j1")
SETTLED = 400  # rounds in which a world without troubles comes to rest
LATE, CALM = events.Observed(20.0, 0.0), events.Observed(0.1, 0.0)


class ControlWorld(FakeCluster):
    """See the module. ``observe`` is called with every event, its time, and the effects or the error."""

    def __init__(self, seed: int, observe: Callable[[events.Event, float, object], None] | None = None) -> None:
        self.random = draw = Random(seed)
        self.observe = observe
        first = tuple(f"w{n}" for n in range(draw.choice([2, 2, 3, 3, 4])))
        every = (*first, *(f"w{len(first) + n}" for n in range(2)))
        room = draw.choice([8, 9, 12, 16])
        rooms = {name: room if draw.random() < 0.7 else draw.choice([7, 10, 20]) for name in every}
        known = draw.random() < 0.5
        rules = ProvisioningRules(mode=draw.choice(["off", "relief"]), limit=10.0, least=len(first), cool_down=5.0)
        self.options = {
            "memory": {name: SPARE + SIZE * rooms[name] for name in every} if known else {},
            "block_idle": draw.choice([0.0, 60.0]),
            "on_demand": draw.random() < 0.8,
            "scaling": ScalingPlan(rules, every, 7.0),
        }
        super().__init__(*first, **self.options)
        self.rooms.update(rooms)
        self.spare, self.manual = SPARE, True
        self.added: dict[str, str] = {}  # answers to ``Add``
        self.asked_to_add: set[str] = set()
        self.seen: set[str] = set()  # kinds of effects
        self.count = 0  # events
        self.troubled = True  # loads fail, sweeps stall, workers die

    def made(self, name: str, ids: str, **more: Any) -> events.Application:
        """Return a model of this world."""
        return application(name, ids, **more)

    # the machine

    def __call__(self, event: events.Event, now: float | None = None) -> list[Any]:
        done = super().__call__(event, now)
        self.compare()
        return done

    def handle(self, event: events.Event) -> list[events.Effect]:
        """Hand an event to the state, which may refuse it."""
        self.count += 1
        self.before = [*self.state.routes.values()]
        seen: object
        try:
            seen = effects = super().handle(event)
        except (ValueError, KeyError) as error:
            seen, effects = error, []
            self.state.check()
        if self.observe is not None:
            self.observe(event, self.now, seen)
        return effects

    def shown(self, effect: events.Effect) -> Any:
        return effect  # a publication would be read by nothing

    def out_of_use(self, unload: events.Unload) -> None:
        """Check that no route of gateways needs what is unloaded: they hear that it ends before the components go."""
        if (served := self.state.served.get(unload.holder)) is None:
            return
        parts = served.application.components
        for route in (one for one in self.before if one.application == unload.holder):
            hops = [hop for hop in route.hops if hop.worker == unload.worker]
            needed = {one.shared for hop in hops for one in parts[hop.first : hop.last]}
            assert not needed & {*unload.ids}, f"{unload.holder} leaves {unload.worker} while {route.id} is in force"

    def take(self, effect: events.Effect) -> list[events.Event]:
        self.seen.add(type(effect).__name__)
        match effect:
            case events.Publish():
                self.before = []
            case events.Unload():
                self.out_of_use(effect)
            case events.Added(name, why):
                assert name not in self.added, f"{name} is answered twice"
                self.added[name] = why
            case events.StopWorker(worker):
                self.workers.pop(worker, None)
        return super().take(effect)

    def compare(self) -> None:
        """Check that workers hold what the state believes: loads in progress may have arrived already."""
        for name, memory in self.workers.items():
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
            self.reply(self.asked[self.random.randrange(len(self.asked))])

    def answers(self, effect: events.Effect) -> list[events.Event]:
        match effect:
            case events.Load(worker, life, load) if self.troubled and self.lives(worker, life):
                if self.random.random() < 0.02:
                    final = self.random.random() < 0.3
                    return [events.LoadFailed(worker, life, load, "a file is broken", final)]
            case events.AwaitQuiet(name):
                self.active[name], self.last[name] = 0, self.now
            case events.FinishRequests(name):
                self.active.pop(name, None)
            case events.StartWorker(worker):
                self.begin(worker)
            case events.KillWorker(worker):
                self.kill(worker)
            case events.RecheckLater(seconds, worker) if worker:
                self.now += seconds
        return super().answers(effect)

    def uses(self) -> dict[str, Use]:
        served = self.state.served
        ready = {route.application for route in self.state.table.news().routes}
        idle = {name: Use(0, self.now - at) for name, at in self.last.items() if name in served}
        return idle | {n: Use(c, 0.0, 0 if n in ready else 9) for n, c in self.active.items() if c and n in served}

    # the life of workers

    def begin(self, worker: str) -> None:
        """Start a worker's process, which then joins."""
        if worker in self.state.workers and worker not in self.workers and worker not in JOINING:
            self.starting(worker)

    def join(self, worker: str) -> None:
        if worker in self.state.workers and self.state.workers[worker].state == "starting":
            self(events.WorkerUp(worker, self.state.workers[worker].last))

    def kill(self, worker: str, cause: str = "killed") -> None:
        if worker in self.workers:
            self.down(worker, cause=cause)

    def revive(self) -> None:
        for worker in [*self.state.workers]:
            self.begin(worker)
            self.join(worker)

    # what is drawn

    def start(self) -> None:
        """Serve some models on workers that come up."""
        draw = self.random
        base = "eAmBnh"
        tunes = [self.made(f"t{n}", base[:3] + chr(80 + n) + base[4:], model=f"t{n}") for n in range(draw.choice([0, 1, 2]))]
        other = [self.made("o", "uVwXyz", model="o", span=draw.choice([1, 1, 2]))] if draw.random() < 0.5 else []
        lazy = [self.made("l", "iJkLqr", model="l", on_demand=True)] if draw.random() < 0.4 else []
        self(events.Serve((self.made("a", base, model="a"), *tunes, *other, *lazy)))
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
            self(events.Undeploy(name) if withdraw else events.Deploy(name))

    def _add(self) -> None:
        draw, count = self.random, len(self.asked_to_add)
        served = [n for n, s in self.state.served.items() if s.deployed and not (s.draining or s.variant)]
        replaced = draw.choice([*served, ""])
        if replaced in self.state.additions or replaced in self.state.additions.replaces.values() or draw.random() < 0.6:
            replaced = ""
        name = f"n{count}"
        model = self.state.served[replaced].application.served_as if replaced else name
        ids = draw.choice(["eAmB", "uVwX"]) + draw.choice("SHZ") + draw.choice("hz")
        new = self.made(name, ids, model=model, on_demand=draw.random() < 0.2, span=draw.choice([1, 1, 1, 2]))
        before = self.count
        if self(events.Add(new, replaced)) or (self.count > before and name in self.state.served):
            self.asked_to_add.add(name)

    def _remove(self) -> None:
        name = self._name()
        served = self.state.served.get(name)
        if served is None or len([s for s in self.state.served.values() if s.deployed]) < 2:
            return
        if name in self.state.additions or not served.deployed:
            self.added.setdefault(name, "removed")  # who waits for it is told so
            self(events.Remove(name))
        elif not served.draining and name not in self.state.additions.replaces.values():
            self(events.Retire(name))

    def _want(self) -> None:
        name = self._name()
        self.active[name] = self.active.get(name, 0) + 1
        self(events.ApplicationsWanted({name: self.random.choice([9, 9, 40, 100])}))

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
            order = draw.choice([restore, restore, stay(self.state, name), stay(self.state, name)])
        else:
            one, other = draw.choice(pairs)
            members = [member.worker for member in (*one.members, *other.members)]
            depth = one.members[-1].last
            borders = sorted({0, depth, *draw.sample(range(1, depth), min(depth - 1, len(members) - 1))})
            hops = tuple(Hop(w, a, b) for w, (a, b) in zip(members, pairwise(borders), strict=False))
            order = drop_events.DropParameters(one.application, hops, "a burst")
        if not refusal(self.state, order):
            self(order)

    def _lacks(self) -> None:
        self(drop_events.MemoryLacks(1000, "KV lacks memory"))

    def _press(self) -> None:
        worker, name = self._worker(), self._name()
        if name in self.state.served and self.state.workers[worker].alive:
            depth = len(self.state.served[name].application.components)
            first = self.random.randrange(depth)
            block = PressedBlock(0.9, {name: (first, self.random.randint(first + 1, depth))})
            self(events.Pressed(worker, self.state.workers[worker].incarnation, (block,)))

    def _idle(self) -> None:
        for id in self.state.holdings.copies(lambda _: True)[:1]:
            route = self.state.holdings.plan[id].route
            worker = route.hops[-1].worker
            names = (route.application,)
            self(events.Idle(worker, self.state.workers[worker].incarnation, names))

    def _drain(self) -> None:
        worker = self._worker()
        drained = worker in self.state.scaling.drained
        if drained or not self.state.scaling.undrainable(worker, self.state.holdings):
            self(events.DrainWorker(worker, not drained))

    def _enter(self) -> None:
        name = self.random.choice(JOINING)
        self.rooms.setdefault(name, self.random.choice([7, 10, 20]))
        if name not in self.state.workers:
            self(events.WorkerEnters(name, {"zone": "a"}))
            self.starting(name)

    def _leave(self) -> None:
        self(events.WorkerLeaves(self._worker(), "SIGTERM was received"))

    def _load(self) -> None:
        self(self.random.choice([LATE, CALM]))

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
        self(events.WorkerHeartbeat(worker, life, age, waiting, running, self.state.version))

    # the end

    def settle(self) -> None:
        """End all troubles: everybody lives, nothing is drained or dropped, there is room, until nothing changes."""
        self.troubled = False
        self.room = PLENTY
        self.active = {}
        quiet = 0
        for _ in range(SETTLED):
            before = self.count
            self.revive()
            for name in sorted(self.state.scaling.drained):
                self(events.DrainWorker(name, False))
            for name in [*self.state.overload.groups]:
                if not refusal(self.state, order := drop_events.RestoreParameters(name, {})):
                    self(order)
            for effect in self.asked:
                self.reply(effect)
            self.now += 1.0
            quiet = quiet + 1 if self.count == before else 0
            if quiet == 2:
                return
        raise AssertionError(f"the world does not come to rest: {self.asked}")


WEIGHTS = {"answer": 60, "deploy": 1, "add": 2, "remove": 1, "want": 8, "end": 6, "order": 12, "lacks": 1, "press": 2,
           "idle": 1, "drain": 1, "enter": 1, "leave": 1, "load": 3, "kill": 1, "revive": 6, "beat": 4}  # fmt: skip

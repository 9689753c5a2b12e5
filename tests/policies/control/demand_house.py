"""A controller whose applications do not all fit, with workers and gateways that answer at once."""

from __future__ import annotations

from typing import Any

from blockwright.actors.controller.view import cluster_view
from blockwright.policies.cluster.demand import Use
from blockwright.policies.control.events import (
    Application,
    ApplicationsWanted,
    AskCapacity,
    AskUsage,
    AwaitQuiet,
    Effect,
    Event,
    KvCapacity,
    Load,
    Loaded,
    LoadFailed,
    LoadRefused,
    Recheck,
    RecheckLater,
    Serve,
    Unload,
    UsageAnswer,
    WorkerUp,
)
from blockwright.policies.control.loads import NoCapacity
from blockwright.policies.control.state import ControllerState
from blockwright.policies.model.chain import Component, Kind, KvLayout

KV = KvLayout(1, 8, "float32", 16)
SIZE = 100  # bytes of a component


def application(name: str, ids: str, kv: KvLayout = KV) -> Application:
    parts = [Component(c.encode() * 16, Kind.ATTENTION, SIZE, 8, 8, kv) for c in ids]
    return Application(name, "/models/" + name, tuple(parts), 4096, model=name)


class House:
    """A controller whose workers have room for so many components and answer at once, as gateways do."""

    def __init__(self, room: int, workers: tuple[str, ...] = ("w0",), **options: Any) -> None:
        self.state = ControllerState(workers, stall_timeout=10.0, **options)
        self.room, self.now = room, 0.0
        self.ending = 0  # components that were unloaded, and that plans which run still name
        self.spare = 1 << 20  # bytes beside those components, for KV
        self.held: dict[str, dict[bytes, set[str]]] = {name: {} for name in workers}
        self.active: dict[str, int] = {}
        self.waits: dict[str, int] = {}  # application -> tokens of the longest that waits for it
        self.offline: set[str] = set()  # applications that batches alone ask for
        self.last: dict[str, float] = {}
        self.awaited: list[str] = []  # to become quiet
        self.looks = 0
        self.log: list[Effect] = []
        self.broken: dict[str, str] = {}  # application, or application@worker -> why it cannot be loaded

    def __call__(self, event: Event) -> list[Effect]:
        effects = self.state.handle(event, self.now)
        self.state.check()
        self.log += effects
        for effect in effects:
            for answer in self.answers(effect):
                self(answer)
        return effects

    def answers(self, effect: Effect) -> list[Event]:
        match effect:
            case Load(worker, incarnation, load) if why := self.broken.get(
                load.holder, self.broken.get(f"{load.holder}@{worker}")
            ):
                return [LoadFailed(worker, incarnation, load, why)]
            case Load(worker, incarnation, load):
                held = self.held[worker]
                lacking = len(held.keys() | set(load.ids)) + self.ending - self.room
                if lacking > 0:
                    why = NoCapacity("no room", lacking * SIZE, len(set(load.ids)) > self.room, self.owned(worker))
                    return [LoadRefused(worker, incarnation, load, why)]
                for id in load.ids:
                    held.setdefault(id, set()).add(load.holder)
                return [Loaded(worker, incarnation, load)]
            case Unload(worker, _, holder, ids):
                for id in ids:
                    self.held[worker][id].remove(holder)
                    if not self.held[worker][id]:
                        del self.held[worker][id]
            case AskCapacity(worker, incarnation):
                left = self.spare + SIZE * (self.room - len(self.held[worker]))
                return [KvCapacity(worker, incarnation, left, self.left_alone(worker), self.owned(worker))]
            case AskUsage():
                idle = {name: Use(0, self.now - at) for name, at in self.last.items()}
                active = {
                    name: Use(n, 0.0, self.waits.get(name, 0), name in self.offline) for name, n in self.active.items() if n
                }
                return [UsageAnswer({**idle, **active})]
            case AwaitQuiet(name):
                self.awaited.append(name)
            case RecheckLater():
                self.looks += 1
        return []

    def names(self, worker: str) -> set[str]:
        return {name for holders in self.held[worker].values() for name in holders}

    def owned(self, worker: str) -> dict[str, int]:
        held = self.held[worker].values()
        return {name: SIZE * sum(holders == {name} for holders in held) for name in self.names(worker)}

    def left_alone(self, worker: str) -> dict[str, int]:
        held = self.held[worker].values()
        return {n: self.spare + SIZE * (self.room - sum(n in holders for holders in held)) for n in self.names(worker)}

    def start(self, *applications: Application) -> House:
        self(Serve(applications))
        for name in self.state.workers:
            self(WorkerUp(name, 1))
        return self

    def want(self, name: str, tokens: int = 9) -> None:
        self.active[name] = self.active.get(name, 0) + 1
        self(ApplicationsWanted({name: tokens}))

    def end(self, name: str) -> None:
        self.active[name] -= 1
        self.last[name] = self.now

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self(Recheck())

    def published(self) -> list[str]:
        """Applications that gateways can start requests of."""
        return sorted(route.application for route in self.state.table.news().routes)

    def failed(self) -> list[tuple[str, str, bool]]:
        """The failures of applications that fit nowhere, as published to gateways."""
        return [(one.application, one.why, one.final) for one in self.state.publication().failed]

    def states(self) -> dict[str, str]:
        return {name: one["state"] for name, one in cluster_view(self.state, {}, {}, [], [])["applications"].items()}


def house(**options: Any) -> House:
    """A base of four components, and tunes of it with two of their own, of which two have room."""
    tunes = [application(f"t{i}", "abcd" + own) for i, own in enumerate(("pP", "qQ", "rR", "sS"))]
    return House(8, **options).start(application("base", "abcd"), *tunes)

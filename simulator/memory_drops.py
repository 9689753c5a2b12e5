"""Parameter drops of a simulated cluster: readings of memory every ``PERIOD`` seconds, and orders to the controller.

The decisions are those of the live memory actor (``policies/control/memory_decisions.py``), and the live controller has the
last word and carries them out. Here are the readings, the instances of groups (``switches.py``), and what is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..policies.cluster.chunk_order import Traffic
from ..policies.control.drop_events import (
    AwaitSwitched,
    DropParameters,
    MemoryLacks,
    MemoryOrder,
    RequestsSwitched,
    RestoreParameters,
    RoutesLeft,
)
from ..policies.control.drop_groups import memory_groups, refusal
from ..policies.control.dropped_group import GroupStage
from ..policies.control.events import Application
from ..policies.control.memory_decisions import MemoryDecisions
from ..policies.control.route_switch import SwitchRoutes
from ..policies.control.state import ControllerState
from ..policies.model.chain import Hop, Route
from ..policies.overload.coordinator import OverloadRules
from ..policies.overload.demand import PERIOD
from ..policies.overload.drop_plan import nbytes
from ..policies.prediction.instance import Instance
from ..policies.sweep.events import Submission
from .description import Scenario
from .devices import states, take_out
from .instances import layered, sized
from .moving import KvMoves
from .simulated_worker import SimulatedWorker
from .simulation import ClusterSimulation
from .switches import Hops, SimulatedSwitches

SHOWN = 240  # most readings in a report
DROPPED = (GroupStage.EXCHANGING, GroupStage.PIPELINE, GroupStage.LOADING)  # stages in which parameters are not loaded


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """A reading of all instances at one time, in bytes of KV.

    ``demand`` counts what runs and what waits at the head of a queue, ``capacity`` everything that fits. dropped: some
    parameters are not loaded.
    """

    at: float
    demand: int
    capacity: int
    dropped: bool


def layered_application(scenario: Scenario) -> Application:
    """Return the only model as the controller knows it, with layers between which it can be cut."""
    (model,) = scenario.models
    components = layered(model, scenario.overload.layers, scenario.instances[0].page_size)
    return Application(model.name, model.name, components, model.context, model=model.name)


class MemoryDrops:
    """The parameter drops of one cluster (see the module).

    answer: tells the controller, whose ``state`` is only read here, that requests have left their routes, or have their
    pages. There is one model, and the workers have ``memory`` bytes and prefix caches.
    """

    def __init__(
        self,
        cluster: ClusterSimulation,
        state: ControllerState,
        workers: Mapping[str, SimulatedWorker],
        answer: Callable[[RoutesLeft | RequestsSwitched], None],
    ) -> None:
        scenario, spec = cluster.scenario, cluster.scenario.overload
        self._cluster, self.state = cluster, state
        self._workers = workers
        self._components = layered_application(scenario).components
        self.moves = KvMoves(cluster, scenario.links.bandwidth, priorities=spec.priorities)
        self.switches = SimulatedSwitches(self.moves, self._components, self._begin, answer)
        rules = OverloadRules(throttled=spec.throttled, quiet=spec.quiet, horizon=spec.horizon, restore=spec.restore)
        costs = sized(cluster.maker.plans[0].costs, scenario.models[0])
        self._decisions = MemoryDecisions(rules, costs, spec.most)
        self.readings: list[MemoryReading] = []

    def orders(self) -> list[MemoryOrder]:
        """Read the memory of all workers that do not change now; return the orders that follow."""
        now = self._cluster.now
        reported = memory_groups(self.state, self._decisions.version)
        names = self._decisions.workers(reported)
        names = [name for name in names if self._workers[name].up and not self.switches.changes(name)]
        orders = self._decisions.read(now, reported, {name: self._workers[name].reading() for name in names})
        found, page = self._decisions.of_groups.values(), self.moves.page_bytes
        demand, capacity = sum(one.demand for one in found), sum(one.total for one in found)
        dropped = any(group.stage in DROPPED for group in self.state.overload.groups.values())
        self.readings.append(MemoryReading(now, demand * page, capacity * page, dropped))
        return orders

    def refused(self, order: MemoryOrder) -> bool:
        """Return whether the controller cannot carry out an order now; otherwise record it."""
        if refusal(self.state, order):
            self._decisions.refused()
            return True
        match order:
            case DropParameters(_, hops):
                known = self.state.overload.group_with(hops)
                if known is not None and known.stage is GroupStage.LOADING:
                    self.moves.record("resume", known.name)
                else:
                    self.moves.record("drop", "+".join(hop.worker for hop in hops), bytes=self._surplus(hops))
            case RestoreParameters(group, sources):
                depths = [depth for own in sources.values() for depth in own]
                self.moves.record("restore", group, bytes=sum(self._components[depth].nbytes for depth in depths))
            case MemoryLacks(lacking, why):
                self.moves.record("lacking", "", bytes=lacking, why=why)
        return False

    def _surplus(self, hops: Hops) -> int:
        """Return the bytes that the workers hold beyond their stages."""
        held = {one.worker: one.held for group in self._decisions.groups for one in group.members}
        whole = nbytes(self._components, range(len(self._components)))
        return sum(nbytes(self._components, frozenset(held[hop.worker])) for hop in hops) - whole

    def switch(self, effect: SwitchRoutes | AwaitSwitched) -> None:
        """Carry out an effect of the controller on gateways."""
        if isinstance(effect, AwaitSwitched):
            self.switches.wait(effect)
            return
        hops = {one.route.id: one.route.hops for served in self.state.served.values() for one in served.planned}
        self.switches.start(effect, [hops[id] for id in effect.ended], [hops[id] for id in effect.to])

    def send(self, source: str, worker: str, size: int, done: Callable[[], None]) -> None:
        """Send parameters over a link."""
        self.moves.links.send((source, worker), Traffic.PARAMETERS, size, self._cluster.now, done)

    def broken(self, worker: str) -> list[Submission]:
        """Begin an instance on each worker that was in one with a worker that has died; return what was left there.

        The controller has the others serve as replicas again, or as the pipelines that they were.
        """
        ended = self.switches.broken(worker)
        workers = {worker, *ended.workers}
        left = [*ended.held_back, *(taken.submission for _, taken in ended.taken)]
        for place in sorted({self.moves.at[self.moves.places[one]] for one in workers}):
            workers.update(states(self._cluster.instances[place]))
            if place not in ended.stopped:
                left += self._taken(place)
        for one in sorted(workers):
            self._begin((Hop(one, 0, len(self._components)),))
        return left

    def join(self, routes: Iterable[Route]) -> list[Submission]:
        """Begin the pipelines in force that are not there, since a worker of theirs had died; return what was left."""
        left = []
        for route in routes:
            workers = [hop.worker for hop in route.hops]
            places = {self.moves.at[self.moves.places[one]] for one in workers}
            if len(places) > 1 and not self.switches.begins(workers):
                for place in sorted(places):
                    left += self._taken(place)
                self._begin(route.hops)
        return left

    def _taken(self, place: int) -> list[Submission]:
        """Return all that an instance has, which stops."""
        instance = self._cluster.instances[place]
        self.moves.retired.append(instance)
        if isinstance(instance, Instance):
            instance.catch_up(self._cluster.now)
        return [taken.submission for taken in take_out(instance, self._cluster.now)]

    def _begin(self, hops: Hops) -> None:
        """Begin the instance of some workers, with all that they hold."""
        places = [(self.moves.places[hop.worker], hop) for hop in hops]
        place, lookahead = places[0][0], self._cluster.scenario.overload.lookahead
        made = self._cluster.maker.pipeline(places, self._components, self.moves.times, lookahead=lookahead)
        self._cluster.replace(place, *made)
        for hop in hops:
            self._workers[hop.worker].move(place)
            self.moves.at[self.moves.places[hop.worker]] = place

    def report(self) -> dict[str, object]:
        """Return the figures, as in ``docs/schemas/simulate.json``."""
        dropped = sum(reading.dropped for reading in self.readings)
        return {
            **self.moves.report(),
            "dropped_s": round(PERIOD * dropped, 6),
            "readings": [
                {"at": round(one.at, 6), "demand": one.demand, "capacity": one.capacity}
                for one in self.readings[:: 1 + len(self.readings) // SHOWN]
            ],
        }

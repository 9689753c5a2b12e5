"""Simulated cluster whose replicas drop parameters when KV memory runs out, and restore them after the burst.

``policies/overload/coordinator.py`` decides, from readings every ``PERIOD`` seconds; here the actions take their time.
Instances finish the current sweep and stop (``groups.py`` removes their sequences), a pipeline over their devices begins,
new requests run at once, and stale ones once their KV has moved over the links (``exchange.py``). In a restore, pages of the
devices are held for the parameters that come back; then the pipeline stops and replicas begin, in the same way. The devices
do not change again until all sequences have moved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ..policies.cluster.chunk_order import Traffic
from ..policies.overload.coordinator import (
    BeginDrop,
    BeginRestore,
    CapacityShortage,
    Decision,
    GroupState,
    MemoryCoordinator,
    OverloadRules,
    ResumePipeline,
)
from ..policies.overload.demand import PERIOD, DemandReading
from ..policies.overload.drop_plan import DropPlanner, ParameterGroup, nbytes, replica
from ..policies.overload.restore import ParameterLoad, loads
from ..policies.overload.stages import component_seconds
from ..policies.plan.coefficients import Coefficients
from ..policies.prediction.instance import IDLE, Instance
from ..policies.prediction.pipeline_instance import PipelineInstance
from ..policies.requests.moving import homes
from ..policies.sweep.events import Submission
from .description import Scenario
from .exchange import Exchange, Paused
from .groups import GroupDevice, RemovedSequence, SimulatedGroups, devices, layered, take_out
from .moving import KvMoves
from .simulation import ClusterSimulation, Note, sized
from .workload import WorkloadRequest

SHOWN = 240  # most readings in a report


def simulation_of(
    scenario: Scenario, coefficients: Sequence[Coefficients], demands: Sequence[WorkloadRequest], *, note: Note | None = None
) -> ClusterSimulation:
    """Return the simulation that a description asks for."""
    if scenario.overload.mode == "off":
        return ClusterSimulation(scenario, coefficients, demands, note=note)
    policy = partial(ParameterDropPolicy, costs=coefficients[0])
    return ClusterSimulation(scenario, coefficients, demands, note=note, policy=policy)


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """A reading of all instances at one time, in bytes of KV.

    ``demand`` counts what runs and what waits at the head of a queue, ``capacity`` everything that fits.
    """

    at: float
    demand: int
    capacity: int


@dataclass(slots=True)
class GroupChange:
    """A change in which the instances ``before`` stop and others begin: a pipeline, or a pipeline's members as replicas."""

    what: str  # "drop" or "restore"
    group: ParameterGroup  # the pipeline that comes or goes
    before: Sequence[ParameterGroup]
    began: float
    running: int  # instances that have not stopped
    taken: list[tuple[ParameterGroup, RemovedSequence]] = field(
        default_factory=list
    )  # sequences, with the groups that they were in
    held_back: list[Submission] = field(default_factory=list)  # submissions that came meanwhile


class ParameterDropPolicy:
    """Policy that drops parameters and restores them (see the module), for ``scenario.overload``.

    ``costs`` are of the first entry of instances; there is one model, and replicas have ``memory`` bytes and prefix caches.
    """

    def __init__(self, cluster: ClusterSimulation, costs: Coefficients) -> None:
        scenario = cluster.scenario
        self._cluster = cluster
        self._spec = scenario.overload
        self.moves = KvMoves(cluster, scenario.links.bandwidth, priorities=self._spec.priorities)
        (model,) = scenario.models
        page_size = scenario.instances[0].page_size
        self._components = components = layered(model, self._spec.layers, page_size)
        costs = sized(costs, model)
        budgets = [spec.memory for spec in scenario.instances for _ in range(spec.count)]
        workers = [instance.name for instance in self._cluster.instances]
        configs = {instance.name: instance.state.config for instance in self._cluster.instances}
        if not self._spec.lookahead:
            configs = {name: replace(config, lookahead=0) for name, config in configs.items()}
        self._maker = SimulatedGroups(model, components, configs, costs, self.moves.times)
        replicas = [replica(model.name, w, components, b) for w, b in zip(workers, budgets, strict=True)]
        planner = DropPlanner(
            {model.name: components}, {model.name: component_seconds(components, costs)}, max_members=self._spec.most
        )
        rules = OverloadRules(
            throttled=self._spec.throttled, quiet=self._spec.quiet, horizon=self._spec.horizon, restore=self._spec.restore
        )
        self.coordinator = MemoryCoordinator(rules, planner, components, replicas, page_size)
        self._changing: dict[int, GroupChange] = {}  # by place
        self._exchanges: dict[str, Exchange] = {}  # by the name of the group that came or went
        self._claims: dict[str, list[int]] = {}  # a worker's pages that are held for parameters that come back
        self._loading: dict[str, set[ParameterLoad]] = {}  # by group: loads that have not arrived yet
        self._paused: dict[str, float] = {}  # stale sequences, since when
        self.readings: list[MemoryReading] = []
        self.retired: list[Instance | PipelineInstance] = []  # instances that have stopped
        self._cluster.call(0.0, self._read)

    def _place(self, group: ParameterGroup) -> int:
        return self.moves.places[group.members[0].worker]

    # readings and decisions ------------------------------------------------------------------------------------------

    def _read(self) -> None:
        readings = {}
        demand = 0
        capacity = 0
        for name, group in self.coordinator.groups.items():
            if (place := self._place(group)) not in self._changing:
                readings[name] = reading = self._reading(place)
                demand, capacity = demand + reading.demand, capacity + reading.total
        self.readings.append(
            MemoryReading(self._cluster.now, demand * self.moves.page_bytes, capacity * self.moves.page_bytes)
        )
        for decision in self.coordinator.read(self._cluster.now, readings) if readings else []:
            self._carry_out(decision)
        for name, state in self.coordinator.state.items():
            if state is GroupState.RESTORING and name not in self._loading:
                self._load(self.coordinator.groups[name])
        for name in list(self._exchanges):
            self._move(name)
        if not self._cluster.ended:
            self._cluster.call(self._cluster.now + PERIOD, self._read)

    def _reading(self, place: int) -> DemandReading:
        """Return a reading. In a pipeline the fullest device counts."""
        instance, state = self._cluster.instances[place], self._cluster.instances[place].state
        candidate, used = instance.candidate(self._cluster.now), 0
        if isinstance(instance, PipelineInstance):
            shares = [device.used / max(device.total, 1) for device in devices(instance).values()]
            used = math.ceil(max(shares) * candidate.total_blocks)
        head = -(-state.parts.rows.length[state.parts.queue.first()] // state.config.page_size) if state.waiting else 0
        return DemandReading(
            used=max(used, candidate.used_blocks), total=candidate.total_blocks, head=head, waiting=candidate.waiting_blocks
        )

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case BeginDrop(drop):
                self.moves.record("drop", drop.group.name, bytes=sum(drop.freed.values()))
                if len(drop.of) == 1:  # only the parameters that an aborted restore has loaded
                    self._claim(drop.group)
                    self.coordinator.dropped(drop.group.name, self._cluster.now)
                else:
                    self._stop(GroupChange("drop", drop.group, drop.of, self._cluster.now, len(drop.of)))
            case BeginRestore(group, loads):
                self.moves.record("restore", group.name, bytes=sum(self._components[load.depth].nbytes for load in loads))
            case ResumePipeline(group):
                self.moves.record("resume", group.name)
                self._loading.pop(group.name, None)
                self._claim(group)
            case CapacityShortage(lacking, why):
                self.moves.record("lacking", "", bytes=lacking, why=why)

    # parameters come back --------------------------------------------------------------------------------------------

    def _claim(self, group: ParameterGroup) -> bool:
        """Hold the memory of members' surplus parameters, and in a restore of their missing ones.

        Return whether there was space for all of it.
        """
        restoring, whole = self.coordinator.state[group.name] is GroupState.RESTORING, True
        every = range(len(self._components))
        for worker, device in devices(self._cluster.instances[self._place(group)]).items():
            member = next(m for m in group.members if m.worker == worker)
            more = frozenset(every) - frozenset(range(member.first, member.last)) if restoring else member.surplus
            count, held = -(-nbytes(self._components, more) // device.page_bytes), self._claims.setdefault(worker, [])
            if len(held) > count:
                device.release(held[count:])
                del held[count:]
            held += device.hold(count - len(held))
            whole = whole and len(held) == count
        return whole

    def _load(self, group: ParameterGroup) -> None:
        """Send the missing parameters over the links once there is space. The pipeline serves meanwhile."""
        if not self._claim(group):
            return
        missing = loads(group, self._components)
        self._loading[group.name] = set(missing)
        for load in missing:
            assert load.source, "a group has all parameters"
            size = self._components[load.depth].nbytes
            self.moves.links.send(
                (load.source, load.worker),
                Traffic.PARAMETERS,
                size,
                self._cluster.now,
                partial(self._loaded, group.name, load),
            )

    def _loaded(self, name: str, load: ParameterLoad) -> None:
        left = self._loading.get(name)
        if left is None or load not in left:
            return  # the restore was aborted
        left.remove(load)
        self.coordinator.loaded(name, load)
        if not left:
            group = self.coordinator.groups[name]
            self._stop(GroupChange("restore", group, [group], self._cluster.now, 1))

    # instances stop, and others begin --------------------------------------------------------------------------------

    def _stop(self, change: GroupChange) -> None:
        """Let each instance of a change finish the current sweep. A pipeline's sweeps under way are done again."""
        workers = {member.worker for group in change.before for member in group.members}
        if any(not workers.isdisjoint(exchange.devices) for exchange in self._exchanges.values()):
            self._cluster.call(self._cluster.now + PERIOD, lambda: self._stop(change))
            return
        for group in change.before:
            place = self._place(group)
            instance = self._cluster.instances[place]
            self._changing[place] = change
            if isinstance(instance, Instance):
                instance.catch_up(self._cluster.now)
                self._cluster.schedule(place)
                if instance.due < IDLE:
                    self._cluster.call(instance.due, partial(self._stopped, change, group, place))
                    continue
            self._stopped(change, group, place)

    def _stopped(self, change: GroupChange, group: ParameterGroup, place: int) -> None:
        instance = self._cluster.instances[place]
        if isinstance(instance, Instance):
            instance.catch_up(self._cluster.now)
        self._cluster.due[place] = IDLE
        change.taken += [(group, taken) for taken in take_out(instance, self._cluster.now)]
        self.retired.append(instance)
        change.running -= 1
        if not change.running:
            self._cluster.call(self._cluster.now + self._spec.prepare, lambda: self._switch(change))

    def _switch(self, change: GroupChange) -> None:
        """Begin the new instances."""
        after = [change.group] if change.what == "drop" else self.coordinator.restored(change.group.name, self._cluster.now)
        self._loading.pop(change.group.name, None)
        found: dict[str, GroupDevice] = {}
        for group in after:
            place = self._place(group)
            self._cluster.instances[place], route = self._maker.make(group)
            self._cluster.routes[place], self._cluster.due[place] = {route.application: route}, IDLE
            found |= devices(self._cluster.instances[place])
            self._cluster.gateway.devices[place] = len(group.members)
            for member in group.members:
                self.moves.at[self.moves.places[member.worker]] = place
                self._claims.pop(member.worker, None)
        for group in change.before:
            self._changing.pop(self._place(group), None)
        self._cluster.gateway.changed(self.moves.current)
        exchange = Exchange(self.moves.links, found, self._components, self.moves.touch, self._resume)
        self._exchanges[change.group.name] = exchange
        self._submit(change, after, exchange)

    def _submit(self, change: GroupChange, after: Sequence[ParameterGroup], exchange: Exchange) -> None:
        """Pause the sequences that have KV to move, and submit all others."""
        tokens = {taken.submission.request: len(taken.submission.tokens) for _, taken in change.taken}
        tokens |= {submission.request: len(submission.tokens) for submission in change.held_back}
        names = {group.members[0].worker: group for group in after}
        home = homes(tokens, [*names])
        fresh = list(change.held_back)
        for before, taken in change.taken:
            request = taken.submission.request
            if taken.pages and self._spec.exchange:
                exchange.add(taken, before, names[home[request]], after)
                self._paused[request] = self._cluster.now
            else:
                fresh.append(taken.submission)
        what = "dropped" if change.what == "drop" else "restored"
        seconds = self._cluster.now - change.began
        self.moves.record(what, change.group.name, seconds=seconds, stale=exchange.left)
        # first, or else waiting sequences would take all pages that it needs for its first round
        self._move(change.group.name)
        for submission in sorted(fresh, key=lambda submission: submission.arrival):
            self._cluster.deliver(self.moves.places[home[submission.request]], submission)

    def _resume(self, exchange: Exchange, paused: Paused) -> None:
        submission = paused.taken.submission
        self.moves.kept[submission.request] = exchange.devices, paused.held
        self.moves.stalls.append(self._cluster.now - self._paused.pop(submission.request))
        for name in list(self._exchanges):  # the freed pages are for the next round
            self._move(name)
        self._cluster.deliver(self._place(paused.target), submission)

    def _move(self, name: str) -> None:
        exchange = self._exchanges[name]
        if exchange.left:
            exchange.begin(self._cluster.now, self._running(exchange))
        if not exchange.left and self._exchanges.pop(name, None) is not None:
            self.moves.moved += exchange.moved
            self.moves.record("exchanged", name, bytes=exchange.moved)
            if self.coordinator.state.get(name) is GroupState.DROPPING:
                self.coordinator.dropped(name, self._cluster.now)

    def _running(self, exchange: Exchange) -> int:
        places = {self.moves.at[self.moves.places[worker]] for worker in exchange.devices}
        return sum(self._cluster.instances[place].candidate(self._cluster.now).running for place in places)

    # the cluster asks -------------------------------------------------------------------------------------------------

    @property
    def places(self) -> list[int]:
        """The places of the current instances."""
        return self.moves.current

    def redirect(self, place: int, submission: Submission) -> tuple[int, Submission] | None:
        """Return the instance that a device is in now; hold the submission back while that instance changes."""
        place = self.moves.at[place]
        if (change := self._changing.get(place)) is not None:
            change.held_back.append(submission)
            return None
        return place, self.moves.routed(place, submission)

    def before_news(self, place: int, news: Sequence[tuple[str, str]]) -> None:
        """Release the pages of sequences that have started after a move."""
        self.moves.release_started(news)

    def after_news(self, place: int, news: Sequence[tuple[str, str]]) -> None:
        """Decide nothing: readings decide, every ``PERIOD`` seconds."""

    def report(self) -> dict[str, object]:
        """Return the figures, as in ``docs/schemas/simulate.json``."""
        dropped = sum(reading.capacity > self.readings[0].capacity for reading in self.readings)
        return {
            **self.moves.report(),
            "dropped_s": round(PERIOD * dropped, 6),
            "readings": [
                {"at": round(one.at, 6), "demand": one.demand, "capacity": one.capacity}
                for one in self.readings[:: 1 + len(self.readings) // SHOWN]
            ],
        }

"""Switches of running requests between chains in a simulated cluster, by the rules of a live gateway.

``policies/requests/chain_switch.py`` decides when a route is worse for long enough, and what gains enough; the estimates are
the ones of dispatch. A request goes over as it does live (``policies/requests/book/chain_switching.py``): with all of its
tokens, of which the other chain computes again what is not cached there. With ``free_switches`` it computes nothing again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..policies.model.chain import Route
from ..policies.model.lineage import page_hashes
from ..policies.prediction.instance import Instance
from ..policies.requests.chain_switch import ChainSwitches, gains
from ..policies.requests.dispatch import choose, outstanding, workers_of
from ..policies.requests.standing import queue_time
from ..policies.sweep.columns import Status
from .devices import DevicePages, RemovedSequence, take_one
from .simulated_gateway import DispatchDecision
from .simulation import ClusterPolicy, ClusterSimulation, SimulatedRequest

TICK = 0.1  # seconds between looks at the routes, as in a live gateway

Way = tuple[int, Route]  # a place, and a route there


@dataclass(frozen=True, slots=True)
class SimulatedSwitch:
    """A switch to a route of another chain, and the estimates here and there."""

    place: int
    route: Route
    stay: float
    go: float


class ChainSwitching(ClusterPolicy):
    """The switches of one cluster (see the module)."""

    def __init__(self, cluster: ClusterSimulation) -> None:
        self.cluster = cluster
        self.places = [*range(len(cluster.instances))]
        self._equivalents = cluster.gateway.variants.equivalents
        self._paces = cluster.maker.paces()
        self._free = cluster.scenario.dispatch.free_switches
        self._kept: dict[str, tuple[int, DevicePages, list[int]]] = {}  # by request that has not started: place, pages of it
        self._chains = ChainSwitches(cluster.scenario.dispatch.switches)
        self._on: list[dict[int, SimulatedRequest]] = [{} for _ in cluster.instances]  # by place: requests sent there
        cluster.call(TICK, self._tick)

    def placed(self, request: SimulatedRequest, placing: DispatchDecision) -> DispatchDecision:
        self._on[placing.place][request.demand.number] = request
        return placing

    def after_news(self, place: int, news: Sequence[tuple[str, str]]) -> None:
        for id, what in news:
            number = int(id[1:])
            if what != "preempted" and id in self._kept:
                at, device, held = self._kept.pop(id)
                self.cluster.one_stage(at)
                device.release(held)
            if self.cluster.requests[number].ended >= 0:
                self._on[place].pop(number, None)

    def _tick(self) -> None:
        now = self.cluster.now
        for model, others in self._equivalents.items():
            ways = self._ways(model) if others else []
            work = self._work(ways)
            times = {route.id: queue_time(workers_of(route), work, self._paces) for _, route in ways}
            queues = {}
            for _, route in ways:
                rest = [times[other.id] for _, other in ways if other.application != route.application]
                if rest and times[route.id]:
                    queues[route.id] = times[route.id], min(rest)
            due = self._chains.worse(model, queues, now)
            for place, route in [(place, route) for place, route in ways if route.id in due]:
                self._relieve(model, place, route)
        if not self.cluster.ended:
            self.cluster.call(now + TICK, self._tick)

    def _ways(self, model: str) -> list[Way]:
        """Return the routes of a model and of its equivalents."""
        cluster, names = self.cluster, (model, *self._equivalents[model])
        return [(place, cluster.routes[place][name]) for name in names for place in cluster.gateway.active[name]]

    def _work(self, ways: Sequence[Way]) -> dict[str, int]:
        """Return the tokens outstanding on each worker."""
        gateway, now = self.cluster.gateway, self.cluster.now
        homes = {route.home: place for place, route in ways}
        return {home: gateway.outstanding(place, 0, now) for home, place in homes.items()}

    def _relieve(self, model: str, place: int, route: Route) -> None:
        """Switch a model's requests on a route that gain by it, the latest first: the first are nearly done."""
        instance = self.cluster.one_stage(place)
        for request in [self._on[place][number] for number in sorted(self._on[place], reverse=True)]:
            serves = request.serves or request.demand.model
            if request.demand.model == model and serves == route.application and request.switches < self._chains.limit:
                found = self._better(request, instance, route)
                if found is not None:
                    self._switch(request, instance, place, found)

    def _better(self, request: SimulatedRequest, instance: Instance, route: Route) -> SimulatedSwitch | None:
        """Return the switch to the best route of another chain; None: there is none, or it gains too little."""
        demand, gateway = request.demand, self.cluster.gateway
        rows = instance.state.parts.rows
        s = rows.find(f"r{demand.number}")
        if s is None or rows.status[s] == Status.LEAVING:  # it is on its way, or ends
            return None
        every = self._ways(demand.model)
        ways, work = [way for way in every if way[1].application != route.application], self._work(every)
        view = gateway.variants.view(rows.tokens_of(s), demand.salt, demand.total, ways)
        others, variants = [other for _, other in ways], {other.application for _, other in ways}
        cached = dict.fromkeys((other.id for other in others), rows.computed[s]) if self._free else view.cached
        view = replace(view, near=route.home, cached=cached)
        best = choose(others, work, tokens=demand.total, capacity=gateway.capacity, variants=variants, view=view)
        if best is None or work[best.home] + demand.total > gateway.capacity[best.id]:
            return None
        counted = outstanding(rows.length[s], rows.computed[s], demand.total)
        left = {route.home: work[route.home] - counted}
        stay = replace(view, cached={route.id: rows.computed[s]}).estimate(route, workers_of(route), left).total
        go = view.estimate(best, workers_of(best), work).total
        place = next(place for place, other in ways if other is best)
        return SimulatedSwitch(place, best, stay, go) if gains(stay, go) else None

    def _switch(self, request: SimulatedRequest, instance: Instance, place: int, switch: SimulatedSwitch) -> None:
        """Take a request from its instance, and send it to the other route."""
        del self._on[place][request.demand.number]
        go_over(self.cluster, request, instance, place, switch, self._keep if self._free else None)

    def _keep(self, taken: RemovedSequence, switch: SimulatedSwitch) -> None:
        """Have the KV of a request on the route that it goes to, as far as there are pages."""
        state = self.cluster.one_stage(switch.place).state
        local = state.parts.routes.home(switch.route.id)
        assert local is not None, "a request goes to a route that is not there"
        device, size = DevicePages(state, local.spans[0]), state.config.page_size
        hashes = page_hashes(taken.submission.tokens, size, taken.submission.salt)[: taken.pages * taken.page_size // size]
        self._kept[taken.submission.request] = switch.place, device, device.publish(device.hold(len(hashes)), hashes)


def go_over(
    cluster: ClusterSimulation,
    request: SimulatedRequest,
    instance: Instance,
    place: int,
    switch: SimulatedSwitch,
    taken_out: Callable[[RemovedSequence, SimulatedSwitch], None] | None = None,
) -> None:
    """Take a request from its instance, and send it to the other route. taken_out: is called between the two."""
    demand = request.demand
    taken, news = take_one(instance, f"r{demand.number}", cluster.now)
    cluster.news(place, news)
    request.switches += 1
    estimates = {"stay": switch.stay, "go": switch.go}
    cluster.record({"at": cluster.now, "what": "switched", "request": demand.number, "from": instance.name, **estimates})
    model = switch.route.application
    placing = DispatchDecision(switch.place, [switch.place], [switch.go], serves="" if model == demand.model else model)
    if taken_out is not None:
        taken_out(taken, switch)
    assert cluster.policy is not None, "a policy decides on switches"
    cluster.send(request, cluster.policy.placed(request, placing), taken.submission)

"""Requests of a simulated cluster that begin on an equivalent model while their own is loaded on demand, as on a live one.

The live controller's code says where an equivalent may serve (``policies/control/variants.py``), and how long loads take.
The functions of a live gateway decide whether a request begins there, and whether it goes back once its model is loaded.
Where an equivalent may serve no more, its requests go on elsewhere or wait, as they do when a live route ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..policies.control.events import Application, Vary
from ..policies.requests.chain_switch import stays
from ..policies.requests.dispatch import ComparedRoute, choose, loads_first, outstanding, workers_of
from ..policies.requests.routes_changed import RoutesChanged
from ..policies.sweep.columns import Status
from ..policies.sweep.events import Submission
from .chain_switching import TICK, SimulatedSwitch, Way, go_over
from .devices import take_one
from .simulation import ClusterSimulation, SimulatedRequest


class Bridges:
    """The bridged loads of one cluster (see the module).

    again: sends a submission again. retry: tries to send the requests of a model that wait for an instance.
    """

    def __init__(
        self, cluster: ClusterSimulation, again: Callable[[Submission], None], retry: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._again, self._retry = again, retry
        self._equivalents = cluster.gateway.variants.equivalents
        self._limit = cluster.scenario.dispatch.switches
        self._load_seconds: dict[str, float] = {}  # by model that is not loaded, where it is known
        self._on: dict[int, tuple[SimulatedRequest, int]] = {}  # requests on equivalents, and their places, by number
        self._settled: set[int] = set()  # of these, the ones that stay for good
        cluster.call(TICK, self._tick)

    def vary(self, applications: Sequence[Application]) -> Vary:
        """Return the event that tells the controller of all equivalents. applications: the models as it knows them."""
        known = {one.name: one for one in applications}
        made = [
            replace(known[other], name=other, model="", variant_of=model)
            for model, others in self._equivalents.items()
            for other in others
        ]
        return Vary(tuple(made))

    def learn(self, published: RoutesChanged, place_of: Callable[[str], int]) -> None:
        """Learn where equivalents may serve; requests leave the other places. place_of: returns the place of a worker."""
        gateway, models = self._cluster.gateway, {chain.application: chain for chain in published.chains}
        own = {chain.components: chain.application for chain in published.chains if not chain.variant_of}
        lent = {(model, other): list[int]() for model, others in self._equivalents.items() for other in others}
        for route in published.routes:
            if (chain := models[route.application]).variant_of:
                lent[chain.variant_of, own[chain.components]].append(place_of(route.home))
        gateway.lent = {those: sorted(places) for those, places in lent.items()}
        self._load_seconds = dict(published.load_seconds)
        for number, (request, place) in list(self._on.items()):
            if not self.serves(request, place):
                self._leave(number, place)

    def begins(self, request: SimulatedRequest) -> bool:
        """Return whether a request whose model is not loaded begins on an equivalent now."""
        demand, cluster = request.demand, self._cluster
        ways = [way for way in self._ways(demand.model) if demand.total <= cluster.gateway.capacity[way[1].id]]
        if not ways:
            return False
        left = self._load_seconds.get(demand.model, 0.0) - (cluster.now - demand.at)
        work = self._work(ways)
        view = cluster.gateway.variants.view(demand.prompt_tokens(), demand.salt, demand.total, ways)
        own = view.once_loaded(demand.model, left) if left > 0 else None
        routes = [route for _, route in ways]
        best = choose(routes, work, tokens=demand.total, variants={route.application for route in routes}, view=view)
        assert best is not None, "no route of some is the best"
        estimate = view.estimate(best, workers_of(best), work)
        other = ComparedRoute(best, view.standing(best, 0, 0, estimate, True), estimate)
        return own is None or not loads_first(own, other, 0.0)

    def waits(self, model: str) -> list[int]:
        """Return the tokens of the requests that count as waiting for a model: they run elsewhere until it is loaded."""
        here = (request.demand for number, (request, _) in self._on.items() if number not in self._settled)
        return [] if self._cluster.gateway.active[model] else [demand.total for demand in here if demand.model == model]

    def put(self, request: SimulatedRequest, place: int, serves: str) -> bool:
        """Note where a request goes; return whether it bridges the load of its model.

        serves: the equivalent that serves it; empty: its own model.
        """
        number, model = request.demand.number, request.demand.model
        self.gone(number)
        if serves:
            self._on[number] = request, place
            if self._cluster.gateway.active[model]:
                self._settled.add(number)
        return number in self._on and number not in self._settled

    def serves(self, request: SimulatedRequest, place: int) -> bool:
        """Return whether the chain that a request is on may serve it at a place."""
        return not request.serves or place in self._cluster.gateway.lent[request.demand.model, request.serves]

    def gone(self, number: int) -> None:
        """Note that a request has ended or goes elsewhere."""
        self._on.pop(number, None)
        self._settled.discard(number)

    def _ways(self, model: str) -> list[Way]:
        """Return the routes of equivalents that may serve a model's requests."""
        cluster = self._cluster
        return [
            (place, cluster.routes[place][other])
            for other in self._equivalents[model]
            for place in cluster.gateway.lent[model, other]
        ]

    def _work(self, ways: Sequence[Way]) -> dict[str, int]:
        """Return the tokens outstanding on each worker."""
        gateway, now = self._cluster.gateway, self._cluster.now
        return {home: gateway.outstanding(place, 0, now) for home, place in {way[1].home: way[0] for way in ways}.items()}

    def _leave(self, number: int, place: int) -> None:
        """Take a request from an equivalent that may not serve it any more."""
        instance = self._cluster.one_stage(place)
        if instance.state.parts.rows.find(f"r{number}") is None:
            return  # it is on its way, and is sent on when it arrives
        taken, news = take_one(instance, f"r{number}", self._cluster.now)
        self._cluster.news(place, news)
        self._again(taken.submission)

    def _tick(self) -> None:
        cluster = self._cluster
        for number, (request, place) in list(self._on.items()):
            if number not in self._settled and cluster.gateway.places(request.demand):
                self._go_back(request, place)
        for model in self._equivalents:
            self._retry(model)
        if not cluster.ended:
            cluster.call(cluster.now + TICK, self._tick)

    def _go_back(self, request: SimulatedRequest, place: int) -> None:
        """Switch a request to its own model, which is loaded, unless it stays for good or has no room there."""
        cluster, demand = self._cluster, request.demand
        if request.switches >= self._limit:
            self._settled.add(demand.number)
            return
        instance = cluster.one_stage(place)
        rows = instance.state.parts.rows
        s = rows.find(f"r{demand.number}")
        if s is None or rows.status[s] == Status.LEAVING:  # it is on its way, or ends
            return
        here = cluster.routes[place][request.serves]
        ways = [(other, cluster.routes[other][demand.model]) for other in cluster.gateway.places(demand)]
        work = self._work([*ways, (place, here)])
        work[here.home] -= outstanding(rows.length[s], rows.computed[s], demand.total)
        view = cluster.gateway.variants.view(rows.tokens_of(s), demand.salt, demand.total, ways)
        best = choose([route for _, route in ways], work, tokens=demand.total, view=view)
        if best is None or work[best.home] + demand.total > cluster.gateway.capacity[best.id]:
            return
        stay = replace(view, cached={here.id: rows.computed[s]}).estimate(here, workers_of(here), work).total
        go = view.estimate(best, workers_of(best), work)
        if stays(stay, go.start):
            self._settled.add(demand.number)
            return
        self.gone(demand.number)
        target = next(other for other, route in ways if route is best)
        go_over(cluster, request, instance, place, SimulatedSwitch(target, best, stay, go.total))

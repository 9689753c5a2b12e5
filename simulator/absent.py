"""Conversations that are away in a simulated cluster: the decisions of live gateways (``policies/requests/absent.py``) in
virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..policies.memory.cache_news import MarkPages
from ..policies.model.chain import Route
from ..policies.model.lineage import page_hashes
from ..policies.model.runs import LocalRoute
from ..policies.prediction.instance import Instance
from ..policies.requests.absent import AbsentConversation, AbsentConversations, AbsentOrder, AbsentStep, HomeLoad, page_keys
from ..policies.sweep.state import SweepState
from .kv import KvCopies
from .simulated_gateway import SimulatedGateway
from .workload import WorkloadRequest


class SimulatedAbsences:
    """The conversations away from a cluster of one model (see the module).

    routes: of all places. changed: called with a place whose instance was changed. copies, dropped: steps taken.
    """

    def __init__(
        self,
        conversations: AbsentConversations,
        gateway: SimulatedGateway,
        kv: KvCopies,
        routes: Sequence[Mapping[str, Route]],
        changed: Callable[[int], None],
    ) -> None:
        self._away = conversations
        self._gateway, self._kv = gateway, kv
        self._routes, self._changed = routes, changed
        self._held: dict[int, int] = {}  # by place: tokens of its requests
        self._demands: dict[str, WorkloadRequest] = {}  # of the last requests of conversations
        self.copies = self.dropped = 0

    def begin(self, demand: WorkloadRequest, place: int, size: int) -> None:
        """Note that a request goes to a place. ``size``: tokens of a page."""
        self._held[place] = self._held.get(place, 0) + demand.total
        self._away.come(demand.model, _hashes(demand, size))

    def end(self, demand: WorkloadRequest, place: int, size: int, now: float) -> None:
        """Note that a request has ended there: its conversation is away."""
        self._held[place] -= demand.total
        if hashes := _hashes(demand, size):
            route = self._routes[place][demand.model]
            name = f"r{demand.number}"
            self._demands[name] = demand
            self._away.leave(AbsentConversation(name, demand.model, route, hashes, demand.prompt, now))

    def look(self, instances: Sequence[Instance], now: float) -> None:
        """Decide, and carry it out."""
        homes, places = dict[str, HomeLoad](), dict[str, int]()
        for place in range(len(instances)):
            (route,) = self._routes[place].values()
            token, room = self._gateway.token_seconds, self._gateway.capacity[route.id]
            queue = token * self._gateway.outstanding(place, 0, now)
            held = self._held.get(place, 0)
            homes[route.home] = HomeLoad(route.home, self._routes[place], queue, token, held, room)
            places[route.home] = place
        copy = dict.fromkeys(self._routes[0], self._gateway.copy_seconds)
        for order in self._away.decide(homes, copy, now):
            home = order.conversation.route.home
            if order.target is None:
                self._drop(order, instances[places[home]], places[home], now)
            else:
                self._copy(order, instances[places[home]], instances[places[order.target.home]], places[home], now)

    def _copy(self, order: AbsentOrder, source: Instance, target: Instance, place: int, now: float) -> None:
        demand, home = self._demands[order.conversation.request], order.conversation.route.home

        def arrived(at: float) -> None:
            if self._away.arrived(home, whole=True) is None or order.target is None:
                return
            self.copies += 1
            size = target.state.config.page_size
            self._gateway.note_copied(demand, order.target, size)
            if order.step is AbsentStep.MOVE:
                self._drop(order, source, place, at)

        if not self._kv.send(source, target, demand, now, arrived):
            self._away.arrived(home, whole=False)

    def _drop(self, order: AbsentOrder, instance: Instance, place: int, now: float) -> None:
        instance.catch_up(now)
        instance.state.apply(MarkPages(page_keys(_local(instance.state), order.conversation.hashes)), now)
        self.dropped += order.step is AbsentStep.DROP
        self._changed(place)


def _hashes(demand: WorkloadRequest, size: int) -> tuple[bytes, ...]:
    return tuple(page_hashes(demand.tokens[: demand.prompt - 1], size, demand.salt))


def _local(state: SweepState) -> LocalRoute:
    (local,) = state.parts.routes.all_in_force()
    return local

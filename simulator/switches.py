"""Switches of a simulated cluster from routes to others: replicas become a pipeline, or a pipeline's members replicas.

The controller orders a switch (``SwitchRoutes``). The instances of the routes that end finish their sweep and stop, others
begin on the same devices, and requests go there: those without KV at once, stale ones once their KV has moved over the
links, page by page, in the order of the live gateways (``policies/overload/exchange_order.py``). Until then their pages are
held where they are; then they are published on all devices of the new route, where a sequence finds them as a cached prefix.
The devices do not change again until all sequences have moved. Unlike live requests, those of a pipeline that ends pause,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..policies.cluster.chunk_order import Traffic
from ..policies.control.drop_events import AwaitSwitched, RequestsSwitched, RoutesLeft
from ..policies.control.route_switch import SwitchFigures, SwitchRoutes
from ..policies.model.chain import Component, Hop
from ..policies.overload.demand import PERIOD
from ..policies.overload.drop_plan import kv_bytes
from ..policies.overload.exchange_order import ExchangeOrder, StaleSequence
from ..policies.prediction.instance import IDLE, Instance
from ..policies.requests.moving import homes
from ..policies.sweep.events import Submission
from .devices import DevicePages, RemovedSequence, devices, take_out
from .moving import KvMoves

Hops = tuple[Hop, ...]


@dataclass(slots=True)
class PausedSequence:
    """A stale sequence, and the home of the route on which it continues.

    held: pages by worker, held so that they stay free for it until it lists them itself. left: transfers under way.
    """

    taken: RemovedSequence
    home: str
    targets: list[str]
    held: dict[str, list[int]]
    since: float
    left: int = 0


@dataclass(slots=True)
class RouteSwitch:
    """One switch. running: instances that have not stopped. taken: sequences, with the hops that they were on."""

    order: SwitchRoutes
    before: list[Hops]
    after: list[Hops]
    began: float
    running: int
    taken: list[tuple[Hops, RemovedSequence]] = field(default_factory=list)
    held_back: list[Submission] = field(default_factory=list)  # submissions that came meanwhile
    stopped: set[int] = field(default_factory=set)  # places of instances whose sequences have been taken
    void: bool = False  # a worker has died before the new instances began
    devices: dict[str, DevicePages] = field(default_factory=dict)  # of the new instances, by worker
    paused: dict[str, PausedSequence] = field(default_factory=dict)
    turns: ExchangeOrder = field(default_factory=lambda: ExchangeOrder(lambda sender, receiver: 1.0))
    awaited: bool = False
    moved: int = 0  # bytes
    stalls: list[float] = field(default_factory=list)

    @property
    def workers(self) -> set[str]:
        return {hop.worker for hops in self.before for hop in hops}

    @property
    def group(self) -> str:
        """The name of the pipeline that comes or goes."""
        return "+".join(hop.worker for hop in (self.after if self.order.dropped else self.before)[0])

    @property
    def what(self) -> str:
        return "dropped" if self.order.dropped else "restored"


class SimulatedSwitches:
    """The switches of one cluster (see the module).

    moves: its KV. begin: makes the instance of some hops, at the place of their first worker. answer: tells the controller.
    """

    def __init__(
        self,
        moves: KvMoves,
        components: Sequence[Component],
        begin: Callable[[Hops], object],
        answer: Callable[[RoutesLeft | RequestsSwitched], None],
    ) -> None:
        self._moves, self._components = moves, components
        self._begin, self._answer = begin, answer
        self._cluster, self._spec = moves.cluster, moves.cluster.scenario.overload
        self._changing: dict[int, RouteSwitch] = {}  # by place of an instance that stops
        self._waiting: list[RouteSwitch] = []  # those whose new instances have not begun
        self._moving: dict[int, RouteSwitch] = {}  # by number of the order: begun, and not answered

    def changes(self, worker: str) -> bool:
        """Return whether the instance that a worker is in stops now."""
        return self._moves.at[self._moves.places[worker]] in self._changing

    def start(self, order: SwitchRoutes, before: Sequence[Hops], after: Sequence[Hops]) -> None:
        """Begin a switch."""
        self._waiting.append(RouteSwitch(order, [*before], [*after], self._cluster.now, len(before)))
        self._stop(self._waiting[-1])

    def wait(self, order: AwaitSwitched) -> None:
        """Answer an order once no request waits for its pages any more."""
        self._moving[order.number].awaited = True

    def redirect(self, place: int, submission: Submission) -> tuple[int, Submission] | None:
        """Return the instance that a device is in now; hold the submission back while that instance changes."""
        place = self._moves.at[place]
        if (switch := self._changing.get(place)) is not None:
            switch.held_back.append(submission)
            return None
        return place, self._moves.routed(place, submission)

    def begins(self, workers: Iterable[str]) -> bool:
        """Return whether another instance is to begin on one of these workers."""
        return any(not switch.workers.isdisjoint(workers) for switch in self._waiting)

    def broken(self, worker: str) -> RouteSwitch:
        """End what cannot go on as a worker has died: switches whose new instances have not begun, and pauses for its KV.

        Return one switch with all sequences and submissions that were held for them, and its ``stopped`` instances.
        """
        found = RouteSwitch(SwitchRoutes(0, [], [], False), [], [], self._cluster.now, 0, void=True)
        for switch in [switch for switch in self._waiting if worker in switch.workers]:
            switch.void = True
            found.before += switch.before
            found.taken += switch.taken
            found.held_back += switch.held_back
            found.stopped |= switch.stopped
            self._close(switch)
        for switch in self._moving.values():
            for request, paused in [(name, one) for name, one in switch.paused.items() if worker in one.held]:
                for other, handles in paused.held.items():
                    if other != worker:
                        self._moves.touch(other)
                        switch.devices[other].release(handles)
                switch.turns.done(request)
                del switch.paused[request]
                found.held_back.append(paused.taken.submission)
        return found

    def _close(self, switch: RouteSwitch) -> None:
        self._waiting.remove(switch)
        self._changing = {place: other for place, other in self._changing.items() if other is not switch}

    # instances stop, and others begin --------------------------------------------------------------------------------

    def _stop(self, switch: RouteSwitch) -> None:
        """Let each instance of a switch finish the current sweep. A pipeline's sweeps under way are done again."""
        if switch.void:
            return
        places = {self._moves.at[self._moves.places[hops[0].worker]] for hops in switch.before}
        busy = any(not switch.workers.isdisjoint(other.devices) and other.paused for other in self._moving.values())
        if busy or places & self._cluster.frozen:
            self._cluster.call(self._cluster.now + PERIOD, partial(self._stop, switch))
            return
        for hops in switch.before:
            place = self._moves.at[self._moves.places[hops[0].worker]]
            instance = self._cluster.instances[place]
            self._changing[place] = switch
            if isinstance(instance, Instance):
                instance.catch_up(self._cluster.now)
                self._cluster.schedule(place)
                if instance.due < IDLE:
                    self._cluster.call(instance.due, partial(self._stopped, switch, hops, place))
                    continue
            self._stopped(switch, hops, place)

    def _stopped(self, switch: RouteSwitch, hops: Hops, place: int) -> None:
        if switch.void:
            return
        if place in self._cluster.frozen:
            self._cluster.call(self._cluster.now + PERIOD, partial(self._stopped, switch, hops, place))
            return
        instance = self._cluster.instances[place]
        if isinstance(instance, Instance):
            instance.catch_up(self._cluster.now)
        self._cluster.due[place] = IDLE
        switch.taken += [(hops, taken) for taken in take_out(instance, self._cluster.now)]
        switch.stopped.add(place)
        self._moves.retired.append(instance)
        switch.running -= 1
        if not switch.running:
            self._cluster.call(self._cluster.now + self._spec.prepare, partial(self._change, switch))

    def _change(self, switch: RouteSwitch) -> None:
        """Begin the new instances, and tell the controller that the old routes are empty."""
        if switch.void:
            return
        for hops in switch.after:
            self._begin(hops)
        self._close(switch)
        self._moving[switch.order.number] = switch
        self._answer(RoutesLeft(switch.order.number, len(switch.taken)))
        for hops in switch.after:
            switch.devices |= devices(self._cluster.instances[self._moves.at[self._moves.places[hops[0].worker]]])
        self._submit(switch)

    def _submit(self, switch: RouteSwitch) -> None:
        """Pause the sequences that have KV to move, and submit all others."""
        tokens = {taken.submission.request: len(taken.submission.tokens) for _, taken in switch.taken}
        tokens |= {submission.request: len(submission.tokens) for submission in switch.held_back}
        targets = {hops[0].worker: hops for hops in switch.after}
        home = homes(tokens, [*targets])
        fresh = list(switch.held_back)
        for before, taken in switch.taken:
            if taken.pages and self._spec.exchange:
                self._pause(switch, taken, before, targets[home[taken.submission.request]])
            else:
                fresh.append(taken.submission)
        seconds = self._cluster.now - switch.began
        self._moves.record(switch.what, switch.group, seconds=seconds, stale=len(switch.paused))
        # first, or else waiting sequences would take all pages that it needs for its first round
        self.advance()
        for submission in sorted(fresh, key=lambda submission: submission.arrival):
            self._cluster.deliver(self._moves.places[home[submission.request]], submission)

    # KV moves --------------------------------------------------------------------------------------------------------

    def _pause(self, switch: RouteSwitch, taken: RemovedSequence, before: Hops, target: Hops) -> None:
        """Hold the pages of a sequence where they are, and give it its turn."""
        chain, request = self._components, taken.submission.request
        count = taken.pages
        now = {hop.worker: hop for hops in switch.after for hop in hops}
        held = dict[str, list[int]]()
        transfers = dict[tuple[str, str], int]()
        for old in before:
            new, there = now[old.worker], kv_bytes(chain, old.first, old.last)
            pages = -(-count * there // kv_bytes(chain, new.first, new.last))
            held[old.worker] = switch.devices[old.worker].hold(pages)
            for hop in target:
                shared = kv_bytes(chain, max(old.first, hop.first), min(old.last, hop.last))
                if hop.worker != old.worker and shared > 0:
                    transfers[old.worker, hop.worker] = count * shared * taken.page_size
        targets = [hop.worker for hop in target]
        more = {worker: lacking for worker in targets if (lacking := count - len(held.setdefault(worker, []))) > 0}
        switch.paused[request] = PausedSequence(taken, target[0].worker, targets, held, self._cluster.now)
        switch.turns.add(StaleSequence(request, transfers, more))

    def advance(self) -> None:
        """Start the transfers of the sequences that are next in turn, and answer the orders without any left."""
        for number, switch in list(self._moving.items()):
            if switch.paused:
                self._next(switch)
            if not switch.paused and switch.awaited and self._moving.pop(number, None) is not None:
                self._moves.moved += switch.moved
                self._moves.record("exchanged", switch.group, bytes=switch.moved)
                stall = sum(switch.stalls), max(switch.stalls, default=0.0)
                figures = SwitchFigures(number, len(switch.stalls), len(switch.stalls), 0, switch.moved, 0, *stall)
                self._answer(RequestsSwitched(number, (figures,)))

    def _next(self, switch: RouteSwitch) -> None:
        free = {worker: device.total - device.used for worker, device in switch.devices.items()}
        for sequence in switch.turns.next(free):
            paused = switch.paused[sequence.request]
            for worker, count in sequence.pages.items():
                self._moves.touch(worker)
                paused.held[worker] += switch.devices[worker].hold(count)
            paused.left = len(sequence.transfers)
            for link, size in sequence.transfers.items():
                switch.moved += size
                self._moves.links.send(link, Traffic.KV, size, self._cluster.now, partial(self._arrived, switch, paused))
            if not sequence.transfers:
                self._resume(switch, paused, moved=True)
        if not self._running(switch.devices) and (stuck := switch.turns.stuck()) is not None:
            self._resume(switch, switch.paused[stuck.request], moved=False)

    def _running(self, found: Mapping[str, DevicePages]) -> int:
        places = {self._moves.at[self._moves.places[worker]] for worker in found}
        return sum(self._cluster.instances[place].candidate(self._cluster.now).running for place in places)

    def _arrived(self, switch: RouteSwitch, paused: PausedSequence) -> None:
        paused.left -= 1
        if not paused.left and switch.paused.get(paused.taken.submission.request) is paused:
            self._resume(switch, paused, moved=True)

    def _resume(self, switch: RouteSwitch, paused: PausedSequence, *, moved: bool) -> None:
        """Continue a sequence, with its KV or without."""
        submission = paused.taken.submission
        switch.turns.done(submission.request)
        del switch.paused[submission.request]
        for worker, handles in paused.held.items():
            self._moves.touch(worker)
            found = moved and worker in paused.targets
            hashes = submission.page_hashes[: paused.taken.pages] if found else []
            paused.held[worker] = switch.devices[worker].publish(handles, hashes)
        self._moves.kept[submission.request] = switch.devices, paused.held
        switch.stalls.append(self._cluster.now - paused.since)
        self._moves.stalls.append(switch.stalls[-1])
        self.advance()  # the freed pages are for the next round
        self._cluster.deliver(self._moves.places[paused.home], submission)

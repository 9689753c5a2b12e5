"""Sweep machines that run together in virtual time: a home and the hosts of its routes, with the messages between them.

The machines are those of live workers; only their devices and links are replaced. A plan takes the cost model's seconds.
Hidden states leave when it ends, one flight after the other on each link: activations are the most urgent class of a link
and never cut (``cluster/chunk_order.py``), so that they wait for one another only. All other messages between workers are
small, and take the link's latency. As on a live worker, messages are handled on arrival, and plans are made while another
runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from ..plan.coefficients import Coefficients
from ..plan.cost import cost
from ..plan.sweep_plan import SweepPlan, SweepResult
from ..sweep.config import OPEN_PLANS
from ..sweep.events import Effects, Event, Flight, GatewayNews
from ..sweep.state import SweepState
from .timeline import InFlightMessages, TimelineEntry

_FOREIGN = 1 << 40  # first number of flights: larger than any of a live worker
_SAME = 1e-9  # seconds: tolerance for times that differ by the order of their summation
NEVER = float("inf")


class BulkTimes:
    """The less urgent transfers in flight on a link.

    ``chunk``: longest seconds that an activation waits for them; 0: until all of it is sent, and ``behind`` seconds more.
    """

    def __init__(self, chunk: float) -> None:
        self.chunk = chunk
        self.began = self.ends = self.behind = 0.0
        self.waits: list[float] = []  # waits of activations sent meanwhile

    def hold_up(self, now: float, seconds: float) -> float:
        """Return when an activation that takes ``seconds`` can begin; it delays the rest by as many."""
        if now >= self.ends:
            return now
        wait = self.ends - now + self.behind
        if self.chunk:
            wait = min(self.chunk - (now - self.began) % self.chunk, self.ends - now)
            self.ends += seconds
        self.waits.append(wait)
        return now + wait


class LinkTimes:
    """The transfer times between workers.

    latency: seconds. bandwidth: bytes per second of hidden states; 0: unlimited. number: bytes of one number of a hidden
    state. ``bulk``: other transfers on a link, which forecasts do not know.
    """

    def __init__(self, latency: float = 0.0, bandwidth: float = 0.0, number: int = 1) -> None:
        self.latency = latency
        self._bandwidth = bandwidth
        self._number = number
        self._free: dict[tuple[str, str], float] = {}  # when the last flight has left
        self.bulk: dict[tuple[str, str], BulkTimes] = {}

    def fly(self, sender: str, receiver: str, numbers: int, now: float) -> float:
        """Return the arrival time of ``numbers`` numbers that are sent now."""
        if self._bandwidth:
            link, seconds = (sender, receiver), numbers * self._number / self._bandwidth
            now = max(now, self._free.get(link, now))
            if link in self.bulk:
                now = self.bulk[link].hold_up(now, seconds)
            now += seconds
            self._free[link] = now
        return now + self.latency

    def fork(self) -> LinkTimes:
        copy = LinkTimes(self.latency, self._bandwidth, self._number)
        copy._free = self._free.copy()
        return copy


class PlayedMachine:
    """A simulated worker. ``open``: plans, the end of each, and the seconds that the cost model gives it."""

    def __init__(
        self, state: SweepState, coefficients: Coefficients, open: deque[tuple[SweepPlan, float, float]], depth: int
    ) -> None:
        self.name = state.config.worker
        self.state = state
        self.coefficients = coefficients
        self.open = open
        self.flights = _FOREIGN
        self.dry = False  # there was nothing to plan, and nothing has happened since
        self._depth = depth  # plans that may be open

    def fill(self, now: float) -> None:
        """Make plans to keep the device busy."""
        while len(self.open) < self._depth and (not self.dry or now >= self.state.next_deadline):
            plan = self.state.plan(now)
            if plan is None:
                self.dry = True
                return
            seconds = cost(plan, self.coefficients)
            self.open.append((plan, (self.open[-1][1] if self.open else now) + seconds, seconds))


class Machines:
    """The machines (see the module). The first of ``presents`` is the home.

    A subclass provides the results of devices (``draw``) and handles effects (``handle_effect``).
    ``under_way``: messages in flight.
    """

    def __init__(
        self,
        presents: Sequence[TimelineEntry],
        now: float,
        links: LinkTimes,
        under_way: Sequence[InFlightMessages] = (),
        depth: int = OPEN_PLANS,
    ) -> None:
        self.now = now
        self.machines: dict[str, PlayedMachine] = {}
        for present in presents:
            open = deque((plan, now + left, cost(plan, present.coefficients)) for plan, left in present.open)
            self.machines[present.state.config.worker] = PlayedMachine(present.state, present.coefficients, open, depth)
        self.home = next(iter(self.machines.values())).state
        self.links = links
        self._posts: list[tuple[float, int, str, list[Event]]] = []  # (arrival, order, receiver, messages)
        self._posted = 0
        for one in under_way:
            self._post(now + one.after, one.worker, one.messages)

    # for subclasses

    def draw(self, machine: PlayedMachine, plan: SweepPlan) -> SweepResult:
        """Return the result of a plan: the tokens of its sampled rows."""
        raise NotImplementedError

    def handle_effect(self, news: GatewayNews) -> None:
        """Handle what any machine reports to a gateway."""
        raise NotImplementedError

    # what happens ----------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """The time of the next event; infinite: nothing is left to do."""
        ends = [machine.open[0][1] for machine in self.machines.values() if machine.open]
        return min(min(ends, default=NEVER), self._posts[0][0] if self._posts else NEVER)

    def run_next(self) -> PlayedMachine | None:
        """Process the next event: messages arrive, or a plan ends (first, at equal times), whose machine is returned.

        No machine plans in between. As with live workers, simultaneous messages arrive before any planning: a host that
        ends a plan reports on its rows, and on the lease for which they made room. But hidden states come by the link, and
        are planned with before messages that were sent together with them have passed the mailbox.
        """
        busy = [machine for machine in self.machines.values() if machine.open]
        machine = min(busy, key=lambda machine: machine.open[0][1]) if busy else None
        if self._posts and (machine is None or self._posts[0][0] + _SAME < machine.open[0][1]):
            at, _, _, first = self._posts[0]
            self.now = max(self.now, at)
            while self._posts and self._posts[0][0] <= at + _SAME and _flies(self._posts[0][3]) == _flies(first):
                _, _, worker, messages = heappop(self._posts)
                self._take(self.machines[worker], messages)
            return None
        assert machine is not None, "nothing happens any more"
        plan, self.now, _ = machine.open.popleft()
        machine.state.commit(plan, self.draw(machine, plan), self.now)
        machine.dry = False
        for departure in plan.departures:
            if departure.worker in self.machines:
                numbers = departure.width * sum([row.count for row in departure.rows])
                at = self.links.fly(machine.name, departure.worker, numbers, self.now)
                self._post(at, departure.worker, [Flight(departure.home, 0, departure.width, departure.rows)])
        return machine

    def mark_changed(self) -> None:
        """Note that a subclass has changed machines itself."""
        for machine in self.machines.values():
            machine.dry = False

    def plan_all(self) -> None:
        """Let every worker plan that could plan something new, and send messages."""
        for machine in self.machines.values():
            machine.fill(self.now)
        self.exchange()

    def exchange(self) -> None:
        """Handle all effects and send the messages among them."""
        for machine in self.machines.values():
            self.send_effects(machine)

    def send_effects(self, machine: PlayedMachine) -> Effects:
        """Handle the effects of a machine, send its messages, and return them all, for its own device."""
        effects = machine.state.take_effects()
        for news in effects.news:
            self.handle_effect(news)
        for worker, messages in effects.messages.items():
            if worker in self.machines:
                self._post(self.now + self.links.latency, worker, [*messages])
        return effects

    def under_way(self, now: float) -> list[InFlightMessages]:
        """Return the messages that are in flight at ``now``."""
        return [InFlightMessages(at - now, worker, messages) for at, _, worker, messages in sorted(self._posts, key=_order)]

    def _post(self, at: float, worker: str, messages: list[Event]) -> None:
        self._posted += 1
        heappush(self._posts, (at, self._posted, worker, messages))

    def _take(self, machine: PlayedMachine, messages: list[Event]) -> None:
        machine.dry = False
        for message in messages:
            if isinstance(message, Flight):
                machine.flights += 1
                message = Flight(message.home, machine.flights, message.width, message.rows)
            machine.state.apply(message, self.now)


def _flies(messages: list[Event]) -> bool:
    return isinstance(messages[0], Flight)


def _order(post: tuple[float, int, str, list[Event]]) -> tuple[float, int]:
    return post[:2]

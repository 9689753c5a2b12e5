"""A simulated instance that is a pipeline: its routes cross several devices, the first of which is the home.

It has the interface of ``Instance``. Every sweep of every device is simulated, and every message between them
(``machines.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..memory.packed_tensor import Shortage
from ..plan.coefficients import Coefficients
from ..plan.cost import cost
from ..plan.sweep_plan import SweepPlan, SweepResult
from ..requests.routes_changed import RoutesChanged
from ..sweep.config import OPEN_PLANS, SweepConfig
from ..sweep.events import (
    ComponentsRefused,
    ComponentsReleased,
    ComponentsWanted,
    CostsLearned,
    GatewayNews,
    Submission,
)
from ..sweep.state import SweepState
from .candidate import Candidate
from .forecast import Forecaster
from .instance_load import Accept, InstanceLoad, News
from .lengths import MORE
from .load import used_blocks
from .machines import LinkTimes, Machines, PlayedMachine
from .timeline import TimelineEntry


class PipelineInstance(Machines):
    """A simulated pipeline (see the module).

    due: when the next sweep of a device ends, or the next message between two arrives; infinite: nothing is left. busy:
    seconds of all devices. bubbles: seconds in which a device had nothing to do while sequences ran at the home. configs:
    of its devices, in the order of its routes. accept: as in ``Instance``.
    """

    def __init__(
        self,
        name: str,
        configs: Sequence[SweepConfig],
        routes: RoutesChanged,
        coefficients: Coefficients,
        links: LinkTimes,
        *,
        ahead: bool = True,
        accept: Accept | None = None,
    ) -> None:
        presents = [TimelineEntry(SweepState(config), coefficients) for config in configs]
        super().__init__(presents, 0.0, links, depth=OPEN_PLANS if ahead else 1)
        for present in presents:
            present.state.without_device(drafts=accept is not None)
            present.state.apply(routes, 0.0)
            if present.state.config.costs is None:
                present.state.apply(CostsLearned(coefficients), 0.0)
        self.name, self.state = name, self.home
        self.sweeps = 0
        self.busy = 0.0
        self.bubbles = 0.0
        self._ended: dict[str, float] = {}  # end of each device's last sweep; before it the home was idle
        self._load = InstanceLoad(self.home, accept)
        self._reported: list[GatewayNews] = []
        self._route = routes.routes[0].id
        self.total_blocks = self._room()
        home = self.home.parts.routes.home(routes.routes[0].id)
        assert home is not None, "the first device is not the home"
        self._block_bytes = self.home.parts.memory.page_bytes(home.spans)

    def submit(self, submission: Submission, now: float, ends: int = 0) -> list[News]:
        """Add a request that arrives, not after ``due``. ``ends``: as in ``Instance``."""
        self.now = now
        if not self.home.running:
            self._ended = dict.fromkeys(self.machines, now)
        self._load.enter(submission, ends)
        self.home.apply(submission, now)
        self.mark_changed()
        return self._proceed()

    def finish(self) -> list[News]:
        """Process what is due."""
        machine = self.run_next()
        if machine is not None:
            self.sweeps += 1
        self.exchange()
        return self._proceed()

    def change_parameters(self, worker: str, event: ComponentsWanted | ComponentsReleased, now: float) -> Shortage | None:
        """Load or release parameters of a device; return why a load has no room. News follow with the next event."""
        self.now = now
        machine = self.machines[worker]
        machine.state.apply(event, now)
        orders = self.send_effects(machine).orders
        self.mark_changed()
        self.plan_all()
        self.total_blocks = self._room()
        return next((order.shortage for order in orders if isinstance(order, ComponentsRefused)), None)

    def _room(self) -> int:
        """Return the pages of the device with the fewest."""
        rooms = []
        for state in (machine.state for machine in self.machines.values()):
            local = state.parts.routes.passing(self._route)
            assert local is not None, "a device is not on the route"
            rooms.append(state.parts.memory.pages_of(local.kv, ""))
        return min(rooms)

    def _proceed(self) -> list[News]:
        self.plan_all()
        effects, self._reported = self._reported, []
        return self._load.record(effects)

    def draw(self, machine: PlayedMachine, plan: SweepPlan) -> SweepResult:
        seconds = cost(plan, machine.coefficients)
        self.busy += seconds
        self.bubbles += max(0.0, self.now - seconds - self._ended.get(machine.name, self.now))  # memory may be mapped first
        self._ended[machine.name] = self.now
        return self._load.result(machine.state, plan)

    def handle_effect(self, news: GatewayNews) -> None:
        self._reported.append(news)

    # what is seen ----------------------------------------------------------------------------------------------------

    def candidate(self, now: float) -> Candidate:
        """Return the load as its home reports it; a block is a page of KV on the layers of the home."""
        load, used = self._load, used_blocks(self.home.parts.memory, self._block_bytes)
        waiting = len(load.needs)
        return Candidate(
            route=self.name, home=self.name, running=len(load.totals) - waiting, waiting=waiting,
            free_blocks=self.total_blocks - used, total_blocks=self.total_blocks, waiting_blocks=load.waiting_blocks,
        )  # fmt: skip

    def forecaster(self, now: float, more: int = MORE, *, spread: bool = True) -> Forecaster:
        """Return a forecaster as in ``Instance``, on all its devices, with the messages in flight between them."""
        presents, wrong = [], self._load.spread.value if spread else 0.0
        for machine in self.machines.values():
            open = [(plan, end - now) for plan, end, _ in machine.open]
            presents.append(TimelineEntry(machine.state, machine.coefficients, open, more, wrong))
        return Forecaster(presents, now, links=self.links, under_way=self.under_way(now))

    def outstanding(self, now: float) -> int:
        """Return the tokens to prefill and to decode, as the gateway counts them."""
        return self._load.outstanding

    @property
    def preemptions(self) -> int:
        """The number of preemptions since the start, on all devices."""
        return sum([machine.state.counters["preemptions"] for machine in self.machines.values()])

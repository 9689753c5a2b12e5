"""A worker in virtual time: the live worker's sweep machine, with a clock that advances by the cost of plans.

Sweeps with equal rows form a *stretch*, of which only the first plan is made: its end is known beforehand, and then all of
it is taken at once (``SweepState.repeat`` and ``jump``). A request that arrives meanwhile cuts it short. So decoding costs
its page borders, not its tokens; the figures for a dispatcher (``candidate``) are computed from the stretch without taking
it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from ..memory.packed_tensor import Shortage
from ..plan.coefficients import Coefficients
from ..plan.cost import PlanCost, cost
from ..plan.sweep_plan import SweepPlan
from ..requests.routes_changed import RoutesChanged
from ..sweep.config import SweepConfig
from ..sweep.events import (
    Cancelled,
    ComponentsRefused,
    ComponentsReleased,
    ComponentsWanted,
    CostsLearned,
    GatewayNews,
    Submission,
)
from ..sweep.page_events import PagesArrived
from ..sweep.state import SweepState
from .candidate import Candidate
from .forecast import Forecaster
from .instance_load import Accept, InstanceLoad, News
from .lengths import MORE
from .load import used_blocks
from .timeline import TimelineEntry

IDLE: Final = float("inf")


class Instance:
    """A simulated worker (see the module). ``due``: when the current stretch ends; infinite: nothing runs.

    ``ahead``: as on a live worker, a plan is made while the one before it runs, and arrivals enter the machine at once.
    Otherwise requests are taken, and plans made, between sweeps. Without ``jumps`` every stretch is one sweep, with the
    same outcome. ``accept``: requests have drafts, and it tells which stand. While such a request is here, every stretch is
    one sweep, as its drafts and the answers to them are known only one round after the other.
    """

    def __init__(
        self,
        config: SweepConfig,
        routes: RoutesChanged,
        coefficients: Coefficients,
        *,
        ahead: bool = True,
        jumps: bool = True,
        accept: Accept | None = None,
    ) -> None:
        self.name, self.state = config.worker, SweepState(config)
        self.state.without_device(drafts=accept is not None)
        self.state.apply(routes, 0.0)
        if accept is not None:
            self.state.apply(CostsLearned(coefficients), 0.0)
        self.due = IDLE
        self.sweeps = 0
        self.busy = 0.0
        self._coefficients = coefficients
        self._ahead = ahead
        self._jumps = jumps
        self._open: list[tuple[SweepPlan, int]] = []  # running plan, perhaps the next; with the ``_changes`` each knew
        self._changes = 0  # counts changes of the next to start: a request came, or ended
        self._began, self._ends = 0.0, [0.0]  # start of the stretch, and the end of each of its sweeps
        self._last = 0  # the sweep after which the stretch is over
        self._lazy = False  # plans that a live worker would have made by now are not made
        self._used: int | None = None  # used blocks after the last plan; None: not counted since
        self._pending: list[Submission] = []  # not in the machine yet
        self._load = InstanceLoad(self.state, accept)
        self._reported: list[GatewayNews] = []  # not handled yet
        memory, self._spans = self.state.parts.memory, self.state.parts.routes.all_in_force()[0].spans
        self.total_blocks = memory.pages_of(self._spans, "")
        self._block_bytes = memory.page_bytes(self._spans)

    # what comes and what ends ----------------------------------------------------------------------------------------

    def submit(self, submission: Submission, now: float, ends: int = 0) -> list[News]:
        """Add a request that arrives, not after ``due``.

        ``ends``: tokens at which it draws ``STOP``; 0: its limit ends it.
        """
        self._load.enter(submission, ends)
        if self._open and not self._ahead:
            self._pending.append(submission)
            self._last = min(self._last, bisect_left(self._ends, now))
            self.due = self._ends[self._last]
            return []
        self.catch_up(now)
        self._apply(submission, now)
        if not self._open:
            self._start(now)
        elif len(self._open) < 2:
            self._make_plan(now)
        return self._news()

    def finish(self) -> list[News]:
        """End the stretch, at ``due``, and begin the next."""
        now, sweeps = self.due, self._last + 1
        self._take(sweeps, now)
        self.busy += now - self._began
        news = self._news()
        for submission in self._pending:
            self._apply(submission, now)
        self._pending = []
        self._start(now)
        return news + self._news()

    def withdraw(self, request: str, now: float) -> tuple[int, list[News]]:
        """Remove a request that goes on elsewhere; return the positions it had computed when it last ran, and the news."""
        self.catch_up(now)
        news = self._news()
        computed = self._load.withdraw(request)
        self.state.apply(Cancelled(request), now)
        self._changes += 1
        return computed, news

    def change_parameters(self, worker: str, event: ComponentsWanted | ComponentsReleased, now: float) -> Shortage | None:
        """Load or release parameters of the worker, which is this one; return why a load has no room.

        Sequences that have waited for the memory start. News follow with the next event.
        """
        self.catch_up(now)
        self._reported += self.state.take_effects().news
        self.state.apply(event, now)
        effects = self.state.take_effects()
        self._reported += effects.news
        self._changes += 1
        self.total_blocks = self.state.parts.memory.pages_of(self._spans, "")
        if not self._open:
            self._start(now)
        return next((order.shortage for order in effects.orders if isinstance(order, ComponentsRefused)), None)

    def receive(self, pages: PagesArrived, now: float) -> None:
        """Take in KV pages from another instance. News follow with the next event."""
        self.catch_up(now)
        self._reported += self.state.take_effects().news
        self.state.apply(pages, now)
        self._reported += self.state.take_effects().news
        self._changes += 1
        if not self._open:
            self._start(now)

    def catch_up(self, now: float) -> None:
        """Bring the machine to the state of a live worker at ``now``; after that its memory may be changed."""
        self._used = None
        if not self._lazy:
            return
        done = bisect_left(self._ends, now)
        began = self._ends[done - 1] if done else self._began
        if done:
            self._take(done, began)
            self.busy += began - self._began
            self._make_plan(began)
        self._began = began
        self._ends = [self._ends[done]]
        self._last = 0
        self._lazy = False
        self.due = self._ends[0]
        if self._ahead:
            self._make_plan(began)

    def _apply(self, submission: Submission, now: float) -> None:
        self.state.apply(submission, now)
        self._changes += 1

    def _take(self, sweeps: int, now: float) -> None:
        plan, _ = self._open.pop(0)
        if sweeps == 1:
            result = self._load.result(self.state, plan)
            self._load.outstanding -= self.state.commit_emitting(plan, result, now, self._load.beginning())
        else:
            self.state.jump(plan, sweeps, now, emit=False)
            self._reported = self.state.take_effects().news  # of sequences that end
            self._load.outstanding -= sweeps * (len(plan.row) - len(self._reported))
        self.sweeps += sweeps
        self._used = None

    def _make_plan(self, now: float) -> None:
        parts = self.state.parts
        plan = self.state.plan(now)
        # The end of the open plan may let one start: a page is published, an account charged, memory comes back.
        unsure = bool(self._open) and (parts.config.prefix_cache or parts.queue.accounts > 1 or parts.rows.leaving > 0)
        if plan is not None:
            self._open.append((plan, -1 if unsure else self._changes))
        self._used = None

    def _start(self, now: float) -> None:
        """Start the next plan, which is made now unless it was made before."""
        if not self._open:
            self._make_plan(now)
        if not self._open:
            self.due, self._lazy = IDLE, False
            return
        plan, made = self._open[0]
        sweeps, deadline = 0, self.state.next_deadline
        settled = len(self._open) == 1 and (made == self._changes or not self.state.waiting)
        settled = settled and not plan.imports  # pages that have come are published once the plan has written them
        if self._jumps and settled and not self._load.starting and not len(self.state.parts.drafts):
            sweeps = self.state.repeat(plan) - self._ahead
            if self._load.stops and plan.row:
                sweeps = min(sweeps, self._load.without_stop(plan))
        self._began, self._ends = now, self._times(plan, max(sweeps, 1), now)
        if deadline <= self._ends[-1]:  # the plan at which a sequence expires is made in its turn
            sweeps = min(sweeps, bisect_left(self._ends, deadline) + (not self._ahead))
            del self._ends[max(sweeps, 1) :]
        self._last, self._lazy = len(self._ends) - 1, sweeps > 0
        self.due = self._ends[-1]
        if self._ahead and not self._lazy and len(self._open) < 2:
            self._make_plan(now)

    def _times(self, plan: SweepPlan, sweeps: int, now: float) -> list[float]:
        """Return the end of each of ``sweeps`` equal sweeps."""
        if not plan.row:  # memory is mapped or given back
            return [now]
        later = PlanCost(plan, self._coefficients).later
        first = later(0)
        if sweeps == 1:
            return [now + first]
        more = later(1) - first  # increase per sweep, since contexts grow by one
        ends = list[float]()
        for n in range(sweeps):
            now += first + more * n
            ends.append(now)
        return ends

    # what is seen ----------------------------------------------------------------------------------------------------

    def candidate(self, now: float) -> Candidate:
        """Return the load that a live worker would report at ``now``, not after ``due``."""
        load, total = self._load, self.total_blocks
        waiting = len(load.needs)
        return Candidate(
            route=self.name, home=self.name, running=len(load.totals) - waiting, waiting=waiting,
            free_blocks=total - self._used_blocks(now), total_blocks=total, waiting_blocks=load.waiting_blocks,
        )  # fmt: skip

    def forecaster(self, now: float, more: int = MORE, *, spread: bool = True) -> Forecaster:
        """Return a forecaster for requests that arrive now: this instance simulated from here on.

        more: see ``TimelineEntry``. spread: whether to use the error of length estimates learned from ended requests.
        """
        self.catch_up(now)
        self._news()
        opened, ends = [], self.due
        for plan, _ in self._open:
            opened.append((plan, ends - now))
            ends += cost(plan, self._coefficients)
        present = TimelineEntry(self.state, self._coefficients, opened, more, self._load.spread.value if spread else 0.0)
        return Forecaster([present], now, in_flight=[*self._pending])

    @property
    def preemptions(self) -> int:
        """The number of preemptions since the start."""
        return self.state.counters["preemptions"]

    def outstanding(self, now: float) -> int:
        """Return the tokens to prefill and to decode, as the gateway counts them."""
        if not self._lazy:
            return self._load.outstanding
        return self._load.outstanding - bisect_left(self._ends, now) * len(self._open[0][0].row)

    def _used_blocks(self, now: float) -> int:
        if self._used is None:
            self._used = used_blocks(self.state.parts.memory, self._block_bytes)
        if not self._lazy:
            return self._used
        return self._used + self.state.growth(self._open[0][0], bisect_left(self._ends, now) + self._ahead)

    def _news(self) -> list[News]:
        """Return the news in the machine's effects."""
        here = len(self._load.totals)
        effects, self._reported = self._reported + self.state.take_effects().news, []
        news = self._load.record(effects)
        self._changes += len(self._load.totals) < here
        return news

"""Machine replay: sweep machines simulated in virtual time, as their workers would run if no more requests came.

The machine that plans is the live worker's own; only the device is replaced. Its seconds are the cost model's. Its tokens
are unknown, except for the one that ends a sequence at its estimated length. As in the live worker, a plan is made while
the one before it runs, so that an end shows two sweeps later. Many equal sweeps are taken at once if the machine reports
that they are equal (``SweepState.repeat``) and no sequence ends in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..plan.cost import cost
from ..plan.sweep_plan import SweepPlan, SweepResult
from ..sweep.events import Cancelled, GatewayNews, GivenBack, Submission, TokensEmitted
from .machines import NEVER, LinkTimes, Machines, PlayedMachine
from .timeline import InFlightMessages, Timeline, TimelineEntry

UNKNOWN = 0  # stands for an unknown token


class MachineReplay(Machines):
    """Workers simulated together. The first is the home of ``submissions``, which arrive now; the others host its routes.

    links: between them. under_way: messages in flight now. Without links messages take no time. A request without an
    estimate of its answer (``Submission.expected``) ends at its limit. now: by the clock of the machines.
    """

    def __init__(
        self,
        presents: Sequence[TimelineEntry],
        submissions: Iterable[Submission],
        now: float,
        links: LinkTimes | None = None,
        under_way: Sequence[InFlightMessages] = (),
    ) -> None:
        forks = [one.without_offline(now).fork() for one in presents]
        for one in forks:
            one.state.without_device()
        super().__init__(forks, now, LinkTimes() if links is None else links.fork(), under_way)
        self._began = now
        self._first = now  # when first tokens began to come
        self.timeline, self._present = Timeline(), presents[0]
        self._before = self.home.number - self.home.open_plans
        self._preempted = self.home.counters["preemptions"]
        self._totals: dict[str, int] = {}  # by request: tokens at which it ends, if before its limit
        self._cut: list[str] = []  # requests with all tokens but no stop token: their gateways end them
        for machine in self.machines.values():
            rows = machine.state.parts.rows
            for s in rows.live():
                self._estimate(rows.submission[s], rows.length[s])
        self._left = 0  # tokens that each row of the last plan still draws before one of them ends
        self._last = SweepPlan(0)  # the plan that ended last
        self._until = ""  # the request whose end ends the replay
        self._complete = 0  # plans from this one on were made after the last request had come
        self._proceed()
        for submission in submissions:  # one by one, as they come
            self.home.apply(submission, now)
            self._estimate(submission, len(submission.tokens))
            self._complete = self.home.number
            self._proceed()

    def _estimate(self, of: Submission, length: int) -> None:
        if (total := self._present.total(of, length)) < of.limit:
            self._totals[of.request] = total

    def play(self, request: str, horizon: int) -> None:
        """Simulate until the last token of a request, or its return, or for ``horizon`` sweeps."""
        timeline, self._until = self.timeline, request
        while request not in timeline.ends and request not in timeline.returned and timeline.sweeps[-1] < horizon:
            if not self._step():
                return

    @property
    def preemptions(self) -> int:
        """The number of preemptions at the home so far."""
        return self.home.counters["preemptions"] - self._preempted

    @property
    def present(self) -> int:
        """The number of sequences still at the home."""
        return self.home.running + self.home.waiting

    # one step --------------------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Process a message, or the end of a plan and perhaps many equal ones after it; return False if nothing is left."""
        if self.due == NEVER:
            return False
        machine = self.run_next()
        self._first = self.now
        self.exchange()
        for request in self._cut:
            self.home.apply(Cancelled(request), self.now)
        self._cut = []
        if machine is not None and len(self.machines) == 1 and self._until not in self.timeline.ends:
            self._jump(machine)
        self._proceed()
        return True

    def _proceed(self) -> None:
        """Let every worker plan, and extend the timeline."""
        self.mark_changed()
        self.plan_all()
        timeline, ended = self.timeline, self.home.number - self.home.open_plans - self._before
        if ended > timeline.sweeps[-1]:
            timeline.sweeps.append(ended)
            timeline.times.append(self.now - self._began)

    def handle_effect(self, news: GatewayNews) -> None:
        timeline = self.timeline
        if type(news) is TokensEmitted:
            if news.request not in timeline.first_tokens:
                timeline.first_tokens[news.request] = self._first - self._began
            if news.finish:
                timeline.ends[news.request] = self.now - self._began
            elif news.position + len(news.tokens) == self._totals.get(news.request, 0):
                timeline.ends[news.request] = self.now - self._began
                self._cut.append(news.request)
        elif isinstance(news, GivenBack):
            timeline.returned.add(news.request)

    # tokens ----------------------------------------------------------------------------------------------------------

    def draw(self, machine: PlayedMachine, plan: SweepPlan) -> SweepResult:
        """Draw tokens: a sequence that reaches its estimated length ends by its stop token, if it has one.

        Of drafts in a plan that was open when the replay began, none stands.
        """
        tokens = [UNKNOWN] * len(plan.sample)
        same = plan.row == self._last.row and len(plan.sample) == len(self._last.sample)
        self._last = plan
        if same and self._left > 1 and len(self.machines) == 1:
            self._left -= 1
            return SweepResult(plan.number, tokens)
        self._left = 1 << 60
        state = machine.state
        submission, batch = state.parts.rows.submission, state.batch(plan.number)
        for place, i in enumerate(plan.sample):
            of = submission[batch[i]]
            computed = 1 if i in plan.verify else plan.count[i]
            more = self._totals.get(of.request, 1 << 60) - (plan.start[i] + computed + 1)
            if more == 0 and of.stop_tokens:
                tokens[place] = of.stop_tokens[0]
            elif more > 0:
                self._left = min(self._left, more)
        return SweepResult(plan.number, tokens)

    def _jump(self, machine: PlayedMachine) -> None:
        """Take the sweeps in which nothing changes, except the last: while that one runs, the next plan is made already.

        The open plan was made before the last one ended. If that one differed in anything, a waiting sequence may start
        now.
        """
        if len(machine.open) != 1:
            return
        plan, end, seconds = machine.open[0]
        state, last = machine.state, self._last
        equal = plan.row == last.row and plan.start == [start + 1 for start in last.start]
        if state.waiting and (not equal or plan.number < self._complete):
            return
        sweeps = state.repeat(plan) - 1
        if sweeps < 2:
            return
        submission, batch = state.parts.rows.submission, state.batch(plan.number)
        totals, far = self._totals, 1 << 60
        left = min([totals.get(submission[s].request, far) - start - 1 for s, start in zip(batch, plan.start, strict=True)])
        sweeps = min(sweeps, left - 1)
        seconds = end - seconds - self.now  # seconds beyond the cost model's: the plan may have begun before
        if sweeps < 2 or end + cost(plan, machine.coefficients, sweeps) >= state.next_deadline:
            return
        machine.open.clear()
        number = state.number
        state.jump(plan, sweeps, end)
        sweeps = state.number - number + 1
        self.now += seconds + cost(plan, machine.coefficients, sweeps)
        self._last, self._left = plan, left - sweeps
        self._first = end
        self.exchange()

"""MachineReplay: sweep machines played forward under virtual time, as their workers would run them if nobody else came.

The machine that plans is the live worker's own; only the device is replaced. Its seconds are the cost model's, its tokens
are unknown, but for the one that ends a sequence at its estimated length. As in the live worker a plan is made while the one
before it runs, so that an end shows two sweeps later. Many equal sweeps are taken at once where the machine says that they
are equal (``SweepState.repeat``) and nobody ends in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.cost import cost
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.prediction.course import Course, Present
from blockwright.policies.prediction.lengths import corrected
from blockwright.policies.sweep.config import OPEN_PLANS
from blockwright.policies.sweep.events import Cancelled, Flight, GivenBack, Send, Submission, TokensEmitted
from blockwright.policies.sweep.state import SweepState

UNKNOWN = 0  # stands for a token that is not known
_FOREIGN = 1 << 40  # flights of a replay are numbered from here on: beyond those that live workers have numbered


class _Machine:
    """A worker in a replay. ``open``: plans, when each ends, and the seconds that the cost model gives it."""

    def __init__(self, state: SweepState, coefficients: Coefficients, open: deque[tuple[SweepPlan, float, float]]) -> None:
        self.state, self.coefficients, self.open = state, coefficients, open
        self.flights = _FOREIGN

    def fill(self, now: float) -> None:
        """Keep the device busy."""
        while len(self.open) < OPEN_PLANS:
            plan = self.state.plan(now)
            if plan is None:
                return
            seconds = cost(plan, self.coefficients)
            self.open.append((plan, (self.open[-1][1] if self.open else now) + seconds, seconds))


class MachineReplay:
    """Workers that are played forward together. The first is the home of ``submissions``, which arrive now; the others are
    the hosts of its routes, where there are any: a message between them takes no time.

    Whoever has no estimate of its answer (``Submission.expected``) ends at its limit. now: by the clock that the machines
    were told the time by.
    """

    def __init__(self, presents: Sequence[Present], submissions: Iterable[Submission], now: float) -> None:
        self._began = self._now = now
        self.course, self._more = Course(), presents[0].more
        self._machines: dict[str, _Machine] = {}
        for present in presents:
            open = deque((plan, now + left, cost(plan, present.coefficients)) for plan, left in present.open)
            self._machines[present.state.config.worker] = _Machine(present.state.fork(), present.coefficients, open)
        self._home = next(iter(self._machines.values())).state
        self._before = self._home.number - self._home.open_plans
        self._preempted = self._home.counters["preemptions"]
        self._totals: dict[str, int] = {}  # by request: tokens at which it ends, where that is before its limit
        for machine in self._machines.values():
            rows = machine.state.parts.rows
            for s in rows.live():
                self._estimate(rows.submission[s], rows.length[s])
        self._left = 0  # each row of the last plan draws so many tokens more before one of them ends
        self._last = SweepPlan(0)  # the plan that ended last
        self._until = ""  # the request whose end ends the replay
        self._complete = 0  # from this plan on all plans were made after the last request had come
        self._go_on()
        for submission in submissions:  # one by one, as they come
            self._home.apply(submission, now)
            self._estimate(submission, len(submission.tokens))
            self._complete = self._home.number
            self._go_on()

    def _estimate(self, of: Submission, length: int) -> None:
        total = of.prompt_length + corrected(of.expected, of.prompt_length, length, self._more)
        if of.expected and total < of.max_length:
            self._totals[of.request] = total

    def play(self, request: str, horizon: int) -> None:
        """Until the last token of a request, or its return, or for so many sweeps."""
        course, self._until = self.course, request
        while request not in course.ends and request not in course.returned and course.sweeps[-1] < horizon:
            if not self._step():
                return

    @property
    def preemptions(self) -> int:
        """At the home, so far."""
        return self._home.counters["preemptions"] - self._preempted

    @property
    def present(self) -> int:
        """Sequences that are still at the home."""
        return self._home.running + self._home.waiting

    # one step --------------------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """A plan ends, and perhaps many equal ones after it. False: nothing is left to do."""
        busy = [machine for machine in self._machines.values() if machine.open]
        if not busy:
            return False
        machine = min(busy, key=lambda machine: machine.open[0][1])
        plan, self._now, _ = machine.open.popleft()
        cut: list[str] = []
        machine.state.commit(plan, SweepResult(plan.number, self._draw(machine.state, plan, cut)), self._now)
        for departure in plan.departures:
            if (host := self._machines.get(departure.worker)) is not None:
                host.flights += 1
                host.state.apply(Flight(departure.home, host.flights, departure.width, departure.rows), self._now)
        self._hear(machine.state, self._now)
        for request in cut:
            self.course.ends[request] = self._now - self._began
            self._home.apply(Cancelled(request), self._now)
        if len(self._machines) == 1 and self._until not in self.course.ends:
            self._jump(machine)
        self._go_on()
        return True

    def _go_on(self) -> None:
        """Messages pass, and every worker plans."""
        machines = self._machines.values()
        heard = True
        while heard:
            for machine in machines:
                machine.fill(self._now)
            heard = max([self._hear(machine.state, self._now) for machine in machines])
        course, ended = self.course, self._home.number - self._home.open_plans - self._before
        if ended > course.sweeps[-1]:
            course.sweeps.append(ended)
            course.times.append(self._now - self._began)

    def _hear(self, state: SweepState, first: float) -> bool:
        """Take note of effects, and pass messages on: whether there were any. ``first``: when tokens of those that had none
        began to come."""
        course, passed = self.course, False
        for effect in state.take_effects():
            if type(effect) is TokensEmitted:
                if effect.request not in course.first_tokens:
                    course.first_tokens[effect.request] = first - self._began
                if effect.finish:
                    course.ends[effect.request] = self._now - self._began
            elif isinstance(effect, GivenBack):
                course.returned.add(effect.request)
            elif isinstance(effect, Send) and (to := self._machines.get(effect.worker)) is not None:
                to.state.apply(effect.message, self._now)
                passed = True
        return passed

    # tokens ----------------------------------------------------------------------------------------------------------

    def _draw(self, state: SweepState, plan: SweepPlan, cut: list[str]) -> list[int]:
        """Tokens for the plan's sampled rows. A sequence that ends before its limit though it has no stop token is added to
        ``cut``: its gateway will end it."""
        tokens = [UNKNOWN] * len(plan.sample)
        same = plan.row == self._last.row and len(plan.sample) == len(self._last.sample)
        self._last = plan
        if same and self._left > 1 and len(self._machines) == 1:
            self._left -= 1
            return tokens
        self._left = 1 << 60
        submission, batch = state.parts.rows.submission, state.batch(plan.number)
        for place, i in enumerate(plan.sample):
            of = submission[batch[i]]
            more = self._totals.get(of.request, 1 << 60) - (plan.start[i] + plan.count[i] + 1)
            if more == 0 and of.stop_tokens:
                tokens[place] = of.stop_tokens[0]
            elif more == 0:
                cut.append(of.request)
            elif more > 0:
                self._left = min(self._left, more)
        return tokens

    def _jump(self, machine: _Machine) -> None:
        """Take the sweeps in which nothing changes, but for the last: while that one runs, the next plan is made already.

        The open plan was made before the last one ended: if anything was different in that one, who waits may start now.
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
        seconds = end - seconds - self._now  # that the plan has more than the cost model says: it may have begun before
        if sweeps < 2 or end + cost(plan, machine.coefficients, sweeps) >= state.next_deadline:
            return
        machine.open.clear()
        number = state.number
        state.jump(plan, sweeps, end)
        sweeps = state.number - number + 1
        self._now += seconds + cost(plan, machine.coefficients, sweeps)
        self._last, self._left = plan, left - sweeps
        self._hear(state, end)

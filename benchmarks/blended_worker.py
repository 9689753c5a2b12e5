"""Simulation of one worker that serves online requests and an endless queue of offline ones, under virtual time.

The machine is the live worker's; the cost model says how long its sweeps take. Offline requests come by credit, as a gateway
sends them: after each sweep as many as the worker accepts. Requests that it gives back wait until there is capacity again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.sweep_plan import SweepResult
from blockwright.policies.prediction.machines import PlayedMachine
from blockwright.policies.requests.account import offline_account
from blockwright.policies.requests.admission import YIELDED
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.requests.urgency import offline_urgency
from blockwright.policies.sweep.config import OPEN_PLANS, SweepConfig
from blockwright.policies.sweep.events import GivenBack, Submission, TokensEmitted
from blockwright.policies.sweep.state import SweepState
from blockwright.simulator.workload import WorkloadRequest

OFFLINE = 1 << 24  # offline requests are numbered from here


@dataclass(slots=True)
class TimedRequest:
    """The times of a request as its client sees them, in seconds from the beginning; -1: not yet."""

    at: float
    tokens: int  # tokens of its answer
    first: float = -1.0
    last: float = -1.0

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.first - self.at

    @property
    def pace(self) -> float:
        """Seconds per further token."""
        return (self.last - self.first) / max(self.tokens - 1, 1)


class BlendedWorker:
    """Simulated worker with online and offline requests (see the module).

    ``routes`` has the route of the one model. ``offline`` yields lengths of prompts and answers, alternating between the
    left and the right side; None means no offline requests.
    """

    def __init__(
        self,
        config: SweepConfig,
        routes: RoutesChanged,
        costs: Coefficients,
        offline: Iterator[tuple[int, int]] | None = None,
    ) -> None:
        self.state = SweepState(replace(config, costs=costs))
        self.state.without_device()
        self.state.apply(routes, 0.0)
        self.machine = PlayedMachine(self.state, costs, deque(), OPEN_PLANS)
        self.route = routes.routes[0].id
        self.now = self.busy = 0.0
        self.online: dict[str, TimedRequest] = {}
        self._offline, self._sent = offline, 0
        self._attempts: dict[str, Submission] = {}  # offline requests that have not ended
        self._answers: dict[str, int] = {}  # number of tokens that they have generated
        self._held: deque[str] = deque()  # given back by the worker

    def run(self, demands: Sequence[WorkloadRequest], until: float) -> None:
        """Run until the time is over and all of ``demands`` have ended."""
        left = deque(demands)
        self._feed()
        self.machine.fill(self.now)
        while self.now < until or left or any(one.last < 0 for one in self.online.values()):
            due = self.machine.open[0][1] if self.machine.open else float("inf")
            if left and left[0].at <= due:
                self._come(left.popleft())
            elif due < float("inf"):
                self._end()
            else:
                break
            self.machine.dry = False
            self.machine.fill(self.now)
            self._hear()
            self._feed()

    def _come(self, demand: WorkloadRequest) -> None:
        self.now = demand.at
        submission = demand.submission(self.route, self.state.config.page_size, hashed=True, timeout=0.0)
        self.online[submission.request] = TimedRequest(demand.at, demand.output)
        self.state.apply(submission, self.now)

    def _end(self) -> None:
        plan, self.now, seconds = self.machine.open.popleft()
        self.busy += seconds
        self.state.commit(plan, SweepResult(plan.number, [0] * len(plan.sample)), self.now)
        self._hear()

    def _hear(self) -> None:
        for effect in self.state.take_effects().news:
            if isinstance(effect, TokensEmitted):
                self._emitted(effect)
            elif isinstance(effect, GivenBack) and effect.reason == YIELDED:
                self._held.append(effect.request)

    def _emitted(self, news: TokensEmitted) -> None:
        if (mine := self.online.get(news.request)) is not None:
            mine.first = self.now if mine.first < 0 else mine.first
            mine.last = self.now if news.finish else -1.0
            return
        self._answers[news.request] += len(news.tokens)
        if news.finish:
            del self._attempts[news.request], self._answers[news.request]

    # offline requests ------------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Send as many requests as the worker accepts, first the ones that it has given back."""
        if self._offline is None:
            return
        room = self.state.offline_capacities()[0]
        rows, positions = room.rows - self.state.parts.queue.offline_waiting, room.positions
        while rows > 0:
            if self._held:
                request = self._held[0]
                before, known = self._attempts[request], self._answers[request]
                tokens = [*before.tokens[: before.prompt_length], *[0] * known]
                if positions < len(tokens) + 1:
                    return
                self._held.popleft()
                submission = replace(before, attempt=before.attempt + 1, tokens=tokens)
            elif (submission := self._next()).prompt_length >= positions:
                self._held.append(submission.request)
                return
            self._attempts[submission.request] = submission
            positions -= len(submission.tokens) + 1
            rows -= 1
            self.state.apply(submission, self.now)
        self.machine.dry = False

    def _next(self) -> Submission:
        assert self._offline is not None, "nobody asked for offline requests"
        prompt, output = next(self._offline)
        side, number = ("left", "right")[self._sent % 2], OFFLINE + self._sent
        self._sent += 1
        demand = WorkloadRequest(
            number, self.now, "", prompt, output, (), (), priority=offline_urgency(), tenant=offline_account(side)
        )
        made = demand.submission(self.route, self.state.config.page_size, hashed=True, timeout=0.0)
        self._attempts[made.request], self._answers[made.request] = made, 0
        return made


def poisson(rate: float, seconds: float, lengths: Iterator[tuple[int, int]], source: random.Random) -> list[WorkloadRequest]:
    """Return requests that arrive independently, ``rate`` a second. ``lengths`` yields lengths of prompts and answers."""
    found: list[WorkloadRequest] = []
    at = source.expovariate(rate)
    while at < seconds:
        prompt, output = next(lengths)
        found.append(WorkloadRequest(len(found), at, "", prompt, output, (), ()))
        at += source.expovariate(rate)
    return found

"""A sweep machine whose calls are kept in memory, and somebody who makes enough of them."""

from __future__ import annotations

from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.config import SweepConfig
from blockwright.policies.sweep.event_log import Applied, Began, Committed, Ended, Entry, Planned
from blockwright.policies.sweep.events import Cancelled, Event, Started
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.policies.sweep_world import chain, replica, submission


def make_state(**more: int) -> SweepState:
    """Room for a few sequences: some are preempted."""
    numbers = {"budget": 24 * 64 * 1024, "slot_unit": 32 * 1024, "page_size": 4, "chunk_size": 8, "sweep_tokens": 64}
    return SweepState(SweepConfig(worker="w0", numerics="fake", **{**numbers, "max_rows": 4, **more}))  # type: ignore[arg-type]


class Tape:
    """Passes calls on and keeps them, as ``EventRecorder`` does."""

    def __init__(self, state: SweepState) -> None:
        self.state = state
        self.began = Began(state.snapshot())
        self.entries: list[Entry] = []

    def apply(self, event: Event, now: float) -> None:
        self.entries.append(Applied(event, now))
        self.state.apply(event, now)

    def plan(self, now: float) -> SweepPlan | None:
        plan = self.state.plan(now)
        self.entries.append(Planned(now, plan, made=True))
        return plan

    def commit(self, plan: SweepPlan, result: SweepResult, now: float) -> None:
        self.entries.append(Committed(result, now))
        self.state.commit(plan, result, now)

    def end(self) -> None:
        self.entries.append(Ended(self.state.digest()))


class Driver:
    """Feeds a machine with requests and results, two plans open at a time."""

    def __init__(self, machine: Tape, state: SweepState) -> None:
        self.machine = machine
        self.state = state
        self.now = 1.0
        self.open: list[SweepPlan] = []
        target = chain("base")
        self.route = replica("w0", target)
        machine.apply(Started(1), self.now)
        machine.apply(RoutesChanged(1, [target], [self.route], [self.route]), self.now)

    def submit(self, requests: int) -> None:
        for number in range(requests):
            prompt = [(7 * number + place) % 40 if number % 3 else place for place in range(5 + number)]
            more = {"arrival": float(number), "priority": number % 2}
            self.machine.apply(submission(f"r{number}", prompt, len(prompt) + 20, self.route.id, **more), self.now)
        self.machine.apply(Cancelled(f"r{requests // 2}"), self.now)

    def turn(self) -> bool:
        """A plan is made or ended; False where there is nothing to do."""
        self.now += 0.25
        plan = self.machine.plan(self.now) if len(self.open) < 2 else None
        if plan is not None:
            self.open.append(plan)
        elif self.open:
            ended = self.open.pop(0)
            tokens = [(ended.number + place) % 50 for place in range(len(ended.sample))]
            self.machine.commit(ended, SweepResult(ended.number, tokens, seconds=0.1), self.now)
        self.state.take_effects()
        return bool(plan or self.open)


def drive(machine: Tape, state: SweepState, requests: int = 9, turns: int = 10_000) -> Driver:
    driver = Driver(machine, state)
    driver.submit(requests)
    while driver.turn() and (turns := turns - 1):
        continue
    return driver

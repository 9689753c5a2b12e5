"""Forecasts of requests with drafts: their remaining tokens take as many steps as the pace of such requests says."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest

from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.cost import cost
from blockwright.policies.prediction.forecast import Forecaster
from blockwright.policies.prediction.lazy_replay import LazyReplay
from blockwright.policies.prediction.replay import MachineReplay
from blockwright.policies.prediction.timeline import TimelineEntry
from blockwright.policies.sweep.events import Submission
from blockwright.tests.claims import claim
from blockwright.tests.policies.sweep_world import World, chain, generate, replica, submission

BASE = chain("base")
COSTS = Coefficients(base=1e-2, step=1e-4, token=1e-3, beyond=1e-4, row=1e-4, context=1e-6, prefill=2e-6)


class Clocked:
    """A world of one worker whose plans take the cost model's seconds."""

    def __init__(self) -> None:
        self.world = World(["w0"], [BASE], [replica("w0", BASE)], costs=COSTS, chunk_size=16)
        self.worker, self.ends = self.world.workers["w0"], deque[float]()

    def submit(self, name: str, arrival: float, wrong: int, drafts: bool = True) -> Submission:
        """Ask for an answer of 40 tokens, with a prediction of which one token in ``wrong`` is another."""
        chance = random.Random(name)
        prompt = [chance.randrange(50) for _ in range(9)]
        answer = generate("base", prompt, 49, [])
        text = [token if chance.randrange(wrong) else token + 50 for token in answer]
        options = DraftOptions(tokens=4, prediction=text) if drafts else None
        return submission(name, prompt, 49, "base@w0", arrival=arrival, drafts=options, expected=40)

    def step(self) -> None:
        world, worker = self.world, self.worker
        while len(worker.open) < 2:
            before = len(worker.open)
            if not world.start_plan(worker) or len(worker.open) == before:
                break
            self.ends.append((self.ends[-1] if self.ends else world.now) + cost(worker.open[-1][0], COSTS))
        if self.ends:
            world.now = self.ends.popleft()
            world.end_plan(worker)

    def until(self, request: str, tokens: int = 40) -> None:
        while len(self.world.emitted[request]) < tokens:
            self.step()

    @property
    def present(self) -> TimelineEntry:
        open = [(plan, end - self.world.now) for (plan, _), end in zip(self.worker.open, self.ends, strict=True)]
        return TimelineEntry(self.worker.state, COSTS, open)


@claim("Forecasts of requests with drafts count the tokens that such requests gain in a step", of="prediction")
@pytest.mark.parametrize("wrong", [1 << 30, 8, 3])
def test_a_forecast_counts_the_tokens_of_a_round(wrong: int) -> None:
    errors: dict[bool, list[float]] = {False: [], True: []}
    made = Clocked()
    for number in range(8):
        target, began = made.submit(f"r{number}", float(number), wrong), made.world.now
        forecasts = {
            known: Forecaster([made.present], began).forecast(target if known else replace(target, drafts=None)).last_token
            for known in errors
        }
        made.world.submit(target)
        made.until(f"r{number}")
        for known, found in forecasts.items():
            errors[known].append(found / (made.world.now - began) - 1)
    assert errors[False][0] == errors[True][0], "nothing is known yet"
    known, unknown = ([abs(error) for error in errors[which][1:]] for which in (True, False))
    assert max(known) < 0.3
    assert sum(known) < sum(unknown) / 4


def test_a_prediction_that_is_always_wrong_makes_a_forecast_longer() -> None:
    """A round that gains one token costs more than a step."""
    made = Clocked()
    first = made.submit("r0", 0.0, 1)
    made.world.submit(first)
    made.until("r0")
    target = made.submit("r1", 1.0, 1)
    forecaster = Forecaster([made.present], made.world.now)
    assert forecaster.forecast(target).last_token >= forecaster.forecast(replace(target, drafts=None)).last_token


@pytest.mark.parametrize("tokens", [1, 7, 20])
def test_both_ways_count_alike_in_the_middle_of_answers(tokens: int) -> None:
    made = Clocked()
    for number in range(3):
        made.world.submit(made.submit(f"r{number}", float(number), 8, drafts=number < 2))
    made.until("r2", tokens)
    made.world.submit(made.submit("more", 4.0, 8))
    target = made.submit("target", 5.0, 8)
    lazy = LazyReplay(made.present, [target], made.world.now)
    lazy.play("target", 10_000)
    machine = MachineReplay([made.present], [target], made.world.now)
    machine.play("target", 10_000)
    assert lazy.timeline.ends == pytest.approx(machine.timeline.ends, rel=1e-9)
    for request in ("more", "target"):
        assert lazy.timeline.first_tokens[request] == pytest.approx(machine.timeline.first_tokens[request], rel=1e-9)
    assert {"more", "target"} <= lazy.timeline.ends.keys()

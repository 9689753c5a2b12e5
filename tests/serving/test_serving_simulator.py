"""A simulated pipeline beside the live actors in virtual time: the same tokens in the same order, at the same times."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.worker.messages import SweepReport
from blockwright.policies.model.chain import Block, Chain
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.prediction.machines import LinkTimes
from blockwright.policies.prediction.pipeline_instance import PipelineInstance
from blockwright.policies.sweep.events import Effect, RoutesChanged, Submission, TokensEmitted
from blockwright.runtime.actor.endpoint import endpoint
from blockwright.tests.serving import device
from blockwright.tests.serving.game import LONGEST
from blockwright.tests.serving.house import chain
from blockwright.tests.serving.test_serving_predictors import COSTS, Listener, QuietCluster

LATENCY = 0.0005  # virtual seconds of each message
Token = tuple[str, int]  # request and position


class TokenListener(Listener):
    """Keeps every token's time."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[tuple[float, Token]] = []

    @endpoint
    async def tokens(self, report: SweepReport) -> None:
        now = self.node.clock.now()
        self.came += [(now, (news.request, news.position)) for news in report.news if isinstance(news, TokensEmitted)]


class LoggedPipeline(PipelineInstance):
    """The same, simulated."""

    came: list[tuple[float, Token]]

    def heed(self, effect: Effect) -> None:
        super().heed(effect)
        if isinstance(effect, TokensEmitted):
            self.came.append((self.now, (effect.request, effect.position)))


def simulated(quiet: QuietCluster, arrivals: list[tuple[float, Submission]]) -> list[tuple[float, Token]]:
    """From the memory and the limits of the live workers."""
    workers = [quiet.house.workers[hop.worker].state for hop in quiet.route.hops]
    configs = [replace(w.config, budget=w.config.budget - w.parts.memory.parameter_bytes) for w in workers]
    target = Chain("a", (Block(chain("a", 2, 99)),), LONGEST)
    event = RoutesChanged(1, [target], [quiet.route], [quiet.route])
    pipeline = LoggedPipeline("p", configs, event, Coefficients(**COSTS), LinkTimes(LATENCY))
    pipeline.came = []
    for at, submission in arrivals:
        while pipeline.due <= at + LATENCY:
            pipeline.finish()
        pipeline.submit(submission, at + LATENCY)
    while pipeline.due < float("inf"):
        pipeline.finish()
    return pipeline.came


@pytest.mark.parametrize("rows", [3, 6])
def test_a_pipeline_of_two_stages_yields_the_tokens_of_the_live_one_in_their_order(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where more than these rows are wanted some wait."""
    monkeypatch.setattr(device, "OPERATION", 0.0)  # no part of the cost model
    quiet = QuietCluster(2, rows, 100, tmp_path / "profile.json")
    quiet.house.sim.network._latency = (LATENCY, LATENCY)
    quiet.listener = listener = TokenListener()
    arrivals: list[tuple[float, Submission]] = []

    async def scenario(sim: Any) -> None:
        await quiet.open(sim)
        await quiet.submit(quiet.request(99, 2))  # with it the workers connect
        while len(listener.came) < 2:  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.05)
        listener.came.clear()
        began = sim.time
        for number in range(8):
            arrivals.append((sim.time, quiet.request(number, 8 + 3 * number)))
            await quiet.submit(arrivals[-1][1])
            await asyncio.sleep(0.0371 * (number % 3))
        while len(listener.came) < sum(8 + 3 * number for number in range(8)):  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.05)
        assert sim.time > began + 1

    quiet.house.sim.run(scenario)
    found = simulated(quiet, arrivals)
    assert [token for _, token in found] == [token for _, token in listener.came]
    assert [at + LATENCY for at, _ in found] == pytest.approx([at for at, _ in listener.came], abs=LATENCY / 10)

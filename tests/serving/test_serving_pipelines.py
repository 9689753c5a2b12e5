"""A pipeline of live workers in virtual time, and the same one simulated: every token at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.prediction.instance import IDLE
from blockwright.policies.prediction.machines import LinkTimes
from blockwright.policies.prediction.pipeline_instance import PipelineInstance
from blockwright.policies.requests.book.sweep_report import SweepReport
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.config import SweepConfig
from blockwright.policies.sweep.events import Submission, TokensEmitted
from blockwright.runtime import endpoint
from blockwright.tests.claims import claim
from blockwright.tests.serving import device
from blockwright.tests.serving.test_serving_predictors import COSTS, Listener, QuietCluster

LATENCY = 0.0007131  # seconds: a plan's end and a message's arrival never fall together
REQUESTS = 14
Token = tuple[float, str]  # when the home had it, and of which request


class TokenListener(Listener):
    """Notes every token."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Token] = []

    @endpoint
    async def tokens(self, report: SweepReport) -> None:
        await super().tokens(report)
        now = self.node.clock.now() - LATENCY
        self.heard += [(now, news.request) for news in report.news if isinstance(news, TokensEmitted)]


class LivePipeline:
    """What a live one does. ``arrivals``: when each request came to its home; the first one alone, which opens the links."""

    def __init__(self, folder: Path) -> None:
        self.quiet = QuietCluster(2, 3, 100, folder / "profile.json")
        self.quiet.house.sim.network._latency = (LATENCY, LATENCY)  # whatever links the predictors were given
        self.quiet.listener = self.listener = TokenListener()
        self.arrivals: list[tuple[float, Submission]] = []
        self.configs: list[SweepConfig] = []
        self.quiet.house.sim.run(self._scenario)

    async def _scenario(self, sim: Any) -> None:
        await self.quiet.open(sim)
        for hop in self.quiet.route.hops:
            state = self.quiet.house.workers[hop.worker].state
            self.configs.append(replace(state.config, budget=state.config.budget - state.parts.memory.parameter_bytes))
        self.routes: RoutesChanged = self.quiet.house.workers[self.quiet.route.home]._published
        for number in range(REQUESTS):
            request = self.quiet.request(number, 10 + 4 * (number % 5))
            self.arrivals.append((sim.time + LATENCY, request))
            await self.quiet.submit(request)
            await asyncio.sleep(0.03 if number else 3.0)
        while len(self.listener.ends) < REQUESTS:  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.05)


def simulated(live: LivePipeline) -> list[Token]:
    instance = PipelineInstance("p", live.configs, live.routes, Coefficients(**COSTS), LinkTimes(LATENCY))
    arrivals = [*live.arrivals]
    rows = instance.home.parts.rows
    known = dict[str, int]()
    seen = list[Token]()
    while arrivals or instance.due < IDLE:
        if arrivals and arrivals[0][0] <= instance.due:
            now, request = arrivals.pop(0)
            known[request.request] = request.prompt_length
            news = instance.submit(request, now)
        else:
            now = instance.due
            news = instance.finish()
        lengths = {rows.submission[s].request: rows.length[s] for s in rows.live()}
        seen += [(now, request) for request, length in lengths.items() if length > known[request]]
        seen += [(now, request) for request, what in news if what == "finished"]
        known.update(lengths)
    return seen


@claim("A simulated pipeline draws every token when the live one does", of="simulator")
def test_a_simulated_pipeline_draws_every_token_when_the_live_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through leases that wait for memory and for rows, and memory that is mapped and given back in plans without rows."""
    monkeypatch.setattr(device, "OPERATION", 0.0)  # to put hidden states where the device finds them takes no time
    live = LivePipeline(tmp_path)
    began = live.arrivals[1][0]
    expected = sorted((round(at, 6), request) for at, request in live.listener.heard if at > began)
    found = sorted((round(at, 6), request) for at, request in simulated(live) if at > began)
    assert [request for _, request in found] == [request for _, request in expected]
    assert [at for at, _ in found] == pytest.approx([at for at, _ in expected], abs=2e-6)
    assert len(found) > 200
    assert found[-1][0] - began > 4.0, "a few seconds with many at a time"

"""The simulated worker with online requests beside offline ones: what becomes of both on a roofline, and without one."""

from __future__ import annotations

import random
from collections.abc import Iterator

from blended_worker import BlendedWorker, poisson

from blockwright.policies.model.chain import Route
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.config import SweepConfig
from blockwright.simulator.description import InstanceSpec
from blockwright.simulator.instances import chain_of, hops_of
from blockwright.simulator.model_spec import ModelSpec

ROOFLINE = Coefficients(read=0.02, beyond=0.0025)
LINEAR = Coefficients(base=0.01, token=0.0025)
SECONDS = 40.0


def lengths(seed: int) -> Iterator[tuple[int, int]]:
    source = random.Random(seed)
    while True:
        yield source.randint(4, 60), source.randint(2, 60)


def worker(costs: Coefficients, *, offline: bool, pages: int = 4096) -> BlendedWorker:
    chain = chain_of(ModelSpec(name="m", kv_bytes=1024), InstanceSpec(profile=""))
    routes = [Route("m@w0", 1, "m", hops_of(["w0"]))]
    config = SweepConfig(worker="w0", numerics="simulated", budget=pages << 14, slot_unit=1, granule=1, memory_chunk=1 << 14,
                         page_size=16, chunk_size=32, sweep_tokens=64, max_rows=32)  # fmt: skip
    return BlendedWorker(config, RoutesChanged(1, [chain], routes, routes), costs, lengths(1) if offline else None)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def play(costs: Coefficients, pages: int = 4096) -> tuple[float, float, float, BlendedWorker]:
    """Ratios of the TTFT and of the seconds of a token, tokens a second of offline requests, and the worker."""
    demands = poisson(3.0, SECONDS, lengths(2), random.Random(3))
    alone, beside = worker(costs, offline=False), worker(costs, offline=True, pages=pages)
    for one in (alone, beside):
        one.run(demands, SECONDS)
        assert len(one.online) == len(demands)
        assert all(request.last >= request.first > request.at for request in one.online.values())
    ratios = [
        mean([getattr(r, what) for r in beside.online.values()]) / mean([getattr(r, what) for r in alone.online.values()])
        for what in ("ttft", "pace")
    ]
    return ratios[0], ratios[1], beside.state.counters["offline_tokens"] / beside.now, beside


def test_on_a_roofline_offline_requests_fill_it_and_hardly_anybody_notices() -> None:
    ttft, pace, offline, beside = play(ROOFLINE)
    assert max(ttft, pace) < 1.07
    online = beside.state.counters["computed_tokens"] / beside.now - offline
    assert offline > 0.8 * (400 - online) > 80  # eight tokens in 20 ms
    beside.state.check()


def test_where_every_token_takes_its_time_they_get_what_is_idle() -> None:
    ttft, pace, offline, _ = play(LINEAR)
    assert pace < 1.05
    assert ttft < 1.15
    assert 0 < offline < 100


def test_what_is_given_back_for_want_of_memory_comes_again() -> None:
    ttft, pace, offline, beside = play(ROOFLINE, pages=20)
    assert beside.state.counters["offline_yielded"] > 0
    assert offline > 100
    assert max(ttft, pace) < 1.25
    beside.state.check()

"""Offline requests beside online ones: the delay of the online requests, and the share of the rest that offline ones get.

    python benchmarks/offline_online.py [--quick] [--json PATH]

``online/loadN``: one simulated worker (the sweep machine of the live one under virtual time). ``live/loadN``: two workers
whose sweeps are held to the same pace. Online requests arrive one by one (Poisson) and compute N % of ``capacity``: the
tokens per second of requests that always outnumber the rows (live: online requests; simulated: offline ones in sweeps
without a length limit). They run first without offline requests, then the same requests run at the same times with an
offline queue that never ends; live in turns, over all rounds together. ``*_ratio``: mean and P99 of the time to the first
token (TTFT) and of the seconds of each further token (``token``), with offline requests divided by without.
``filled_share``: tokens per second computed for offline requests, divided by capacity minus online.

The pace is a roofline: a sweep reads the parameters, in which time it computes eight tokens (``cost.py``: its knee), and
each further token takes an eighth of that. ``linear/loadN`` is the same on a device on which every token takes its time:
there online requests lose no more, and offline ones get less than ``possible_share``, the share that the idle time and 5 %
allow. Lengths: an eighth of ShareGPT's, up to ``LONGEST`` tokens.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import harness
import scheduling_runs as runs
from harness import OURS, Bar, Options, Report
from models import make_model

SIZE = "tiny"
WORKERS = 2
SHORTER = 8
LONGEST = 1024
ROWS = 32
READ, KNEE = 0.02, 8  # seconds of a sweep, and the tokens that it computes meanwhile
ROOFLINE = {"read": READ, "beyond": READ / KNEE, "context": 1e-6, "prefill": 1e-7}
LINEAR = {"base": 0.01, "token": READ / KNEE}
NUMBERS = {"page_size": 16, "chunk_size": 32, "sweep_tokens": 64, "max_rows": ROWS}
KV = 64 << 20  # bytes
WITHOUT, SETTLED = "without", 4.0  # seconds until all rows are taken, or free again
SLOWER = 0.05  # bar: by which part online requests may be slower


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured, in seconds: virtual ones of a simulated load, of the clock of a live one."""

    loads: tuple[int, ...] = (30, 60, 90)
    simulated: float = 1200.0
    requests: float = 18.0  # of a live load and round: seconds in which as many arrive at a load of 60 %
    rounds: int = 3
    flood: float = 15.0

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(loads=(60,), simulated=200.0, requests=8.0, rounds=1, flood=4.0) if quick else cls()

    def live(self, load: int) -> float:
        """Seconds of one round: at a lower load requests come more slowly."""
        return self.requests * math.sqrt(60 / load)

    def bars(self) -> list[Bar]:
        ratios = ("ttft_mean_ratio", "ttft_p99_ratio", "token_mean_ratio", "token_p99_ratio")
        found = []
        for case in [f"{where}/load{load}" for where in ("online", "live", "linear") for load in self.loads]:
            found += [Bar(case, ratio, at_most=1 + SLOWER) for ratio in ratios]
            found.append(Bar(case, "filled_share", at_least=0.8))
        return found


@cache
def shapes() -> list[tuple[int, int]]:
    """Tokens of prompts and answers."""
    from blockwright.simulator.traces import read_trace

    found = [one for one in read_trace(runs.lengths()) if max(one.prompt, one.output) <= LONGEST]
    return [(max(2, one.prompt // SHORTER), max(2, one.output // SHORTER)) for one in found]


def lengths(seed: str) -> Iterator[tuple[int, int]]:
    source = random.Random(seed)
    while True:
        yield source.choice(shapes())


@cache
def mean_tokens() -> float:
    """That a request computes."""
    return statistics.fmean(prompt + output - 1 for prompt, output in shapes())


@dataclass(slots=True)
class Times:
    """Of online requests."""

    ttft: list[float] = field(default_factory=list)
    token: list[float] = field(default_factory=list)

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, values in (("ttft", self.ttft), ("token", self.token)):
            found |= {f"{name}_mean_s": statistics.fmean(values), f"{name}_p99_s": runs.percentile(values, 0.99)}
        return found


def add_results(report: Report, case: str, capacity: float, online: float, offline: float, both: Sequence[Times]) -> None:
    """``both``: without offline requests, and with them. The others are tokens a second."""
    alone, beside = (times.metrics() for times in both)
    report.add(case, WITHOUT, alone)
    ratios = {f"{name.removesuffix('_s')}_ratio": beside[name] / alone[name] for name in alone}
    shares = {"capacity_tok_per_s": capacity, "online_tok_per_s": online, "offline_tok_per_s": offline}
    report.add(case, OURS, {**beside, **ratios, **shares, "filled_share": offline / (capacity - online)})


# simulated -----------------------------------------------------------------------------------------------------------


def worker(costs: dict[str, float], offline: bool, **more: float) -> Any:
    """A simulated worker of one model."""
    from blended_worker import BlendedWorker

    from blockwright.policies.model.chain import Route
    from blockwright.policies.plan.coefficients import Coefficients
    from blockwright.policies.requests.routes_changed import RoutesChanged
    from blockwright.policies.sweep.config import SweepConfig
    from blockwright.simulator.description import InstanceSpec
    from blockwright.simulator.instances import chain_of, hops_of
    from blockwright.simulator.model_spec import ModelSpec

    chain = chain_of(ModelSpec(name="m", kv_bytes=1024), InstanceSpec(profile=""))
    routes = [Route("m@w0", 1, "m", hops_of(["w0"]))]
    numbers: dict[str, Any] = {**NUMBERS, "budget": KV, "memory_chunk": 1 << 16, "slot_unit": 1, "granule": 1, **more}
    config = SweepConfig(worker="w0", numerics="simulated", **numbers)
    queue = lengths("offline") if offline else None
    return BlendedWorker(config, RoutesChanged(1, [chain], routes, routes), Coefficients(**costs), queue)


def rate_of(one: Any, counter: str) -> float:
    return float(one.state.counters[counter] / one.now)


def simulate(report: Report, case: str, costs: dict[str, float], load: int, seconds: float) -> None:
    from blended_worker import poisson

    alone = worker(costs, offline=True, offline_sweep=1e9)
    alone.run([], seconds / 4)
    capacity = rate_of(alone, "computed_tokens")
    demands = poisson(load / 100 * capacity / mean_tokens(), seconds, lengths("online"), random.Random("arrivals"))
    both = []
    for offline in (False, True):
        one = worker(costs, offline)
        one.run(demands, seconds)
        ended = one.online.values()
        both.append(Times([r.ttft for r in ended], [r.pace for r in ended if r.tokens > 1]))
        online = rate_of(one, "computed_tokens") - rate_of(one, "offline_tokens")
        filled = rate_of(one, "offline_tokens")
        if not offline and (token := costs.get("token")):
            share = possible(capacity, online, token, 1 - one.busy / one.now)
            report.add(case, OURS, {"possible_share": share})
    add_results(report, case, capacity, online, filled, both)


def possible(capacity: float, online: float, token: float, idle: float) -> float:
    """What offline requests may get of what is left, where every token takes its time: all of the idle time, and beside
    online rows what makes these ``SLOWER`` by a part. Sweeps of b fixed seconds take b / (1 - token * rate), so that f
    tokens a second more make them 1 / (1 - token * f / (1 - token * online)) times as long.

    capacity, online: tokens a second; token: seconds; idle: part of the time without online rows.
    """
    between = 1 - token * online - idle  # of the time: what sweeps take beside their tokens
    return (idle * capacity + SLOWER / (1 + SLOWER) * between / token) / (capacity - online)


# live ----------------------------------------------------------------------------------------------------------------


class Live:
    """Requests to a running cluster, through its gateway, in this process."""

    def __init__(self, port: Any) -> None:
        self.port, self.numbers = port, itertools.count()
        self.tasks: set[asyncio.Task[None]] = set()

    def generation(self, prompt: int, tokens: int, **more: Any) -> Any:
        from blockwright.actors.gateway.port import Generation
        from blockwright.policies.plan.sampling import SamplingParams

        number = next(self.numbers)
        ids = [3 + number % 500, *[3 + (number // 500 + n) % 500 for n in range(prompt - 1)]]
        sampling = SamplingParams(temperature=0.0)
        return Generation(id=f"r{number}", application="m", prompt=ids, max_tokens=tokens, stop_tokens=[],
                          sampling=sampling, **more)  # fmt: skip

    def start(self, what: Any) -> None:
        task = asyncio.create_task(what)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def one(self, prompt: int, tokens: int, due: float, times: Times) -> None:
        first = 0.0
        async for _ in self.port.generate(self.generation(prompt, tokens)):
            first = first or time.monotonic()
        times.ttft.append(first - due)
        times.token.append((time.monotonic() - first) / max(tokens - 1, 1))

    async def flood(self, shapes: Iterator[tuple[int, int]]) -> None:
        """One online request after the other, for ever."""
        for prompt, tokens in shapes:
            await self._drain(self.port.generate(self.generation(prompt, tokens)))

    async def online(self, rate: float, seconds: float, seed: str, times: Times) -> None:
        """Poisson arrivals for so long; returns when the last has ended."""
        source, shapes = random.Random(f"arrivals {seed}"), lengths(f"online {seed}")
        began = time.monotonic()
        at = source.expovariate(rate)
        while at < seconds:
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            self.start(self.one(*next(shapes), began + at, times))
            at += source.expovariate(rate)
        await asyncio.gather(*self.tasks)

    async def fill(self) -> None:
        """Offline requests until it is cancelled, as far as workers take them."""
        shapes, asked = lengths("offline"), set[asyncio.Task[None]]()
        following = next(shapes)
        try:
            while True:
                for credit in self.port.credits("m"):
                    positions = credit.positions
                    for n in range(credit.rows):
                        if following[0] >= positions:
                            break
                        positions -= following[0]
                        more = {"offline": True, "home": credit.worker, "side": ("left", "right")[n % 2]}
                        stream = self.port.generate(self.generation(*following, **more))
                        task = asyncio.create_task(self._drain(stream))
                        asked.add(task)
                        task.add_done_callback(asked.discard)
                        following = next(shapes)
                await self.port.credit_grown()
        finally:
            for task in asked:
                task.cancel()

    async def _drain(self, stream: Any) -> None:
        async for _ in stream:
            pass

    async def counted(self) -> tuple[float, float]:
        """Positions computed since the start, and those of offline requests."""
        workers = (await self.port.cluster())["workers"]
        counters = [one["counters"] for one in workers]
        return sum(c["computed_tokens"] for c in counters), sum(c["offline_tokens"] for c in counters)

    async def rates(self, what: Any) -> tuple[Any, float, float]:
        """What something comes to, and tokens a second meanwhile: online, offline."""
        before, began = await self.counted(), time.monotonic()
        found = await what
        after, seconds = await self.counted(), time.monotonic() - began
        offline = (after[1] - before[1]) / seconds
        return found, (after[0] - before[0]) / seconds - offline, offline


async def capacity(one: Live, seconds: float) -> float:
    """Tokens a second of online requests that are always more than the rows of all workers."""
    asked = [asyncio.create_task(one.flood(shapes)) for shapes in map(lengths, map(str, range(2 * ROWS)))]
    await asyncio.sleep(SETTLED)
    _, found, _ = await one.rates(asyncio.sleep(seconds))
    await ended(asked)
    return found


async def ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(SETTLED)


async def live(report: Report, plan: Plan, folder: Path) -> None:
    from blockwright.actors.topology import start
    from blockwright.api.settings.options import make_settings

    pace = folder / "pace.json"
    pace.write_text(json.dumps(ROOFLINE))
    model = make_model(SIZE, "f32", folder / SIZE)
    flags = {
        **NUMBERS,
        "workers": WORKERS,
        "threads": 1,
        "memory": KV,
        "pace": str(pace),
        "profile": str(pace),
        "prefix_cache": False,
    }
    running = await start(make_settings(None, apps=[f"m={model}"], flags=flags))
    try:
        await running.ready(whole=True)
        one = Live(running.port)
        capacity_per_s = await capacity(one, plan.flood)
        found = {load: Beside() for load in plan.loads}
        for number in range(plan.rounds):
            for load, beside in found.items():
                await compare(one, beside, load / 100 * capacity_per_s / mean_tokens(), plan.live(load), f"{load}/{number}")
        for load, beside in found.items():
            add_results(report, f"live/load{load}", capacity_per_s, *beside.rates(), [beside.alone, beside.filled])
    finally:
        await running.stop()


@dataclass(slots=True)
class Beside:
    """A load without offline requests and beside them, over all rounds."""

    alone: Times = field(default_factory=Times)
    filled: Times = field(default_factory=Times)
    online: list[float] = field(default_factory=list)  # tokens a second beside offline requests, round by round
    offline: list[float] = field(default_factory=list)

    def rates(self) -> tuple[float, float]:
        return statistics.fmean(self.online), statistics.fmean(self.offline)


async def compare(one: Live, beside: Beside, rate: float, seconds: float, seed: str) -> None:
    """A round: the same requests at the same times, without offline requests and beside them."""
    await one.online(rate, seconds, seed, beside.alone)
    filling = asyncio.create_task(one.fill())
    await asyncio.sleep(SETTLED)
    _, online, offline = await one.rates(one.online(rate, seconds, seed, beside.filled))
    beside.online.append(online)
    beside.offline.append(offline)
    await ended([filling])


@harness.claim(
    "Online latency rises by at most 5 % beside offline load, which fills 80 % of what a roofline leaves", of="offline"
)
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    settings = {"lengths": runs.lengths().name, "shorter": SHORTER, "roofline": ROOFLINE, "linear": LINEAR, **NUMBERS}
    report = Report(
        "offline_online", {**settings, "workers": WORKERS, "rounds": plan.rounds, "virtual_seconds": plan.simulated}
    )
    for load in plan.loads:
        simulate(report, f"online/load{load}", ROOFLINE, load, plan.simulated)
        simulate(report, f"linear/load{load}", LINEAR, load, plan.simulated / 2)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live(report, plan, Path(folder)))
    harness.finish(report, options, plan.bars())


if __name__ == "__main__":
    main(harness.parse(__doc__))

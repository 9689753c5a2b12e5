"""Twenty applications of two base models in the memory of six models: all shared, beside two ways without sharing.

    python benchmarks/tenants.py [--quick] [--dtype f32|bf16] [--json PATH]

Models are bfloat16 if tile registers (AMX) make arithmetic cheap, so that reading weights dominates a sweep, as on
accelerators; else float32. Subjects are our own engine with one worker, all cores and the same bytes; only the sharing
differs. ``per-model``: every application is a whole model of its own, loaded on demand and evicted by use. ``merged``: an
engine for each base model with its LoRA and BitFit tenants, and one for each full fine-tune. Baselines use their best value
in ``KNOBS``.

``20apps/WORKLOAD/closed``: 32 clients with a request each, the throughput of a subject. ``loadNN``: arrivals at that
percentage of the better baseline's requests per second. ``20apps/weights``: parameters in memory, and the sum of the
distinct tensors. ``tenants/same-load``: eight LoRA tenants, and one with all of their requests. ``hot/add``: sweeps by which
an addition delays running streams (the longest pause minus the median one), and the same for a period without one.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import harness
from harness import OURS, Bar, Options, Report
from models import DTYPES
from server import Served, ServerError, served
from tenants_load import Asked, closed, opened, requests
from tenants_models import ALONE, MERGED, Fleet

from blockwright.gpu.errors import BackendError
from blockwright.gpu.select import open_backend

DISTINCT = "distinct-tensors"
ONE = "1-tenant"
QUIET = "no-addition"
SUBJECTS = (OURS, MERGED, ALONE)
HELD = 6.5  # whole models that the budget holds: six, and room for their KV
# How many sequences run at a time; what is left to KV: with the second value five models are held.
KNOBS: dict[str, tuple[str, tuple[float, ...]]] = {MERGED: ("max_rows", (8, 32, 256)), ALONE: ("kv_reserve", (0.05, 0.25))}
CLIENTS = 32
STREAMS, STREAMED = 16, 160  # streams beside an addition, tokens of each
SETTLING = 0.6  # seconds, more than between two reports of a worker
LONGEST = 1024  # tokens of prompt and answer


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring."""

    size: str = "W"
    dtype: str = "f32"
    requests: int = 400
    tuning: int = 60
    loads: dict[str, tuple[float, ...]] = field(default_factory=lambda: {"poisson": (0.5, 0.9, 1.2), "azure": (0.9,)})
    rounds: int = 5

    @classmethod
    def chosen(cls, quick: bool, dtype: str = "") -> Plan:
        less: dict[str, Any] = {"requests": 60, "tuning": 20, "loads": {"poisson": (0.9,)}, "rounds": 2} if quick else {}
        return cls(dtype=dtype or natural_dtype(), **less)


def natural_dtype() -> str:
    """Of this machine's kernels, see the module."""
    try:
        return "bf16" if open_backend("native", "bfloat16", 1).numerics == "native-amx-bfloat16" else "f32"
    except BackendError:
        return "f32"


def bars(plan: Plan) -> list[Bar]:
    """Throughput of what each can do: below that, answers come as fast as requests do. P95 at 0.9 of the better baseline."""
    found = [
        Bar("20apps/weights", "weight_bytes", DISTINCT, at_most=1.02),
        Bar("20apps/weights", "lora_share", at_most=0.01),
        Bar("tenants/same-load", "out_tok_per_s", ONE, at_least=0.85),
        Bar("hot/add", "delay_sweeps", at_most=2.0),
    ]
    for workload in plan.loads:
        case = f"20apps/{workload}"
        for peer, times, part in ((ALONE, 1.9, 0.6), (MERGED, 1.5, 0.75)):
            found.append(Bar(f"{case}/closed", "out_tok_per_s", peer, at_least=times))
            found.append(Bar(f"{case}/load90", "p95_s", peer, at_most=part))
    return found


@asynccontextmanager
async def start(fleet: Fleet, subject: str, knob: dict[str, float]) -> AsyncIterator[Served]:
    """With all applications there but those that are on demand: a server says that it is ready when the first of them is."""
    folder, *words = fleet.command(subject)
    given = {"workers": 1, "memory": int(HELD * fleet.model_bytes), "max_model_len": LONGEST, "kv_reserve": 0.05}
    given |= {"worker_wait": 600, "max_waiting": 100_000, **knob}
    words += [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    async with served(Path(folder), *words) as server:
        await held(server)
        yield server


async def held(server: Served) -> None:
    """Return when nothing is being loaded any more."""
    while True:
        states = (await server.get("/health/ready"))["applications"]
        if not {"loading", "waiting"} & set(states.values()):
            return
        await asyncio.sleep(SETTLING)


class Mix:
    """Requests for the fleet, never the same twice: no cache helps. Every subject gets those of one seed."""

    def __init__(self, plan: Plan, fleet: Fleet) -> None:
        self._plan, self._names = plan, [app.name for app in fleet.apps]
        self._seed = 0

    def next(self, workload: str, count: int = 0) -> list[Asked]:
        self._seed += 1
        return requests(workload, self._names, count or self._plan.requests, self._plan.size, self._seed)


async def tuned(plan: Plan, fleet: Fleet, mix: Mix) -> dict[str, dict[str, float]]:
    """The best value of each baseline's knob."""
    best: dict[str, dict[str, float]] = {}
    batch = mix.next("poisson", plan.tuning)
    for subject, (name, values) in KNOBS.items():
        speeds = {}
        for value in values:
            async with start(fleet, subject, {name: value}) as server:
                speeds[value] = (await closed(server, batch, CLIENTS)).metrics["out_tok_per_s"]
        best[subject] = {name: max(speeds, key=speeds.__getitem__)}
        print(f"{subject}: {best[subject]}; tokens/s { ({k: round(v) for k, v in speeds.items()}) }", flush=True)
    return best


async def compare(report: Report, plan: Plan, mix: Mix, servers: dict[str, Served]) -> None:
    """What each can do, then arrivals at parts of what the better baseline can; subjects take turns."""
    for workload, loads in plan.loads.items():
        batch, best = mix.next(workload), 0.0
        for subject, server in servers.items():
            seen = await closed(server, batch, CLIENTS)
            report.add(f"20apps/{workload}/closed", subject, seen.metrics)
            best = max(best, (subject != OURS) * len(batch) / seen.seconds)
        for load in loads:
            batch = mix.next(workload)
            for subject, server in servers.items():
                seen = await opened(server, batch, load * best)
                report.add(f"20apps/{workload}/load{100 * load:.0f}", subject, seen.metrics)


async def parameters(server: Served) -> int:
    """Bytes that they take at the worker."""
    (worker,) = (await server.get("/admin/cluster"))["workers"]
    return int(worker["memory"]["parameters"])


async def same_load(report: Report, plan: Plan, fleet: Fleet, mix: Mix, server: Served) -> None:
    """Eight tenants and one, in turns; the second gets the prompts backwards, which no cache knows."""
    tenants = [app.name for app in fleet.apps if (app.kind, app.foundation) == ("lora", "f0")]
    subjects = [(OURS, len(tenants)), (ONE, 1)]
    for turn in range(plan.rounds):
        batch = mix.next("poisson", plan.tuning)
        for step, (subject, count) in zip((1, -1), subjects[:: (-1) ** turn], strict=True):
            mine = [Asked(a.at, tenants[n % count], a.prompt[::step], a.tokens) for n, a in enumerate(batch)]
            seen = await closed(server, mine, CLIENTS)
            report.add("tenants/same-load", subject, {"out_tok_per_s": seen.metrics["out_tok_per_s"]})


async def change(server: Served, method: str, where: str, **fields: Any) -> None:
    async with server.session.request(method, where, json=fields or None) as answer:
        if answer.status != 200:
            raise ServerError(f"{method} {where}: {answer.status} {(await answer.text())[:300]}")


class Stream:
    """One that runs beside an addition: when its chunks came."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.begun = asyncio.Event()

    async def follow(self, server: Served, asked: Asked) -> None:
        mine = Served(server.process, server.session, server.base, asked.model)
        async for at, _, _ in mine.stream(asked.prompt, STREAMED):
            self.times.append(at)
            self.begun.set()


async def hot(report: Report, plan: Plan, fleet: Fleet, mix: Mix, server: Served) -> None:
    """Add one more LoRA while streams run, and take it out again."""
    for _ in range(plan.rounds):
        streams = [Stream() for _ in range(STREAMS)]
        asked = mix.next("poisson", STREAMS)
        jobs = [asyncio.create_task(stream.follow(server, one)) for stream, one in zip(streams, asked, strict=True)]
        await asyncio.gather(*(stream.begun.wait() for stream in streams))
        await asyncio.sleep(SETTLING)
        before, began = await parameters(server), time.monotonic()
        await change(server, "POST", "/admin/apps", name="late", path=str(fleet.folder / "late"), base="f0")
        ready = time.monotonic()
        await asyncio.sleep(SETTLING)
        after, calm = await parameters(server), time.monotonic()
        await asyncio.sleep(ready - began)
        end = time.monotonic()
        await asyncio.gather(*jobs)
        sweep = statistics.median(b - a for stream in streams for a, b in pairwise(stream.times))
        found = {"delay_sweeps": delay(streams, began, ready, sweep), "sweep_ms": 1000 * sweep, "ready_s": ready - began}
        report.add("hot/add", OURS, found)
        report.add("hot/add", QUIET, {"delay_sweeps": delay(streams, calm, end, sweep)})
        report.add("20apps/weights", OURS, {"lora_share": (after - before) / fleet.model_bytes})
        await change(server, "DELETE", "/admin/apps/late")


def delay(streams: Sequence[Stream], since: float, until: float, sweep: float) -> float:
    """The longest pause of a stream that touches the span, less the usual one, in usual ones."""
    pauses = [b - a for stream in streams for a, b in pairwise(stream.times) if b > since and a < until]
    return (max(pauses, default=sweep) - sweep) / sweep


async def measure(report: Report, plan: Plan, folder: Path) -> None:
    fleet = Fleet(folder, plan.size, plan.dtype)
    await asyncio.to_thread(fleet.make)
    mix = Mix(plan, fleet)
    best = await tuned(plan, fleet, mix)
    report.settings |= {f"{subject}/{name}": value for subject, knob in best.items() for name, value in knob.items()}
    async with AsyncExitStack() as stack:
        servers = {s: await stack.enter_async_context(start(fleet, s, best.get(s, {}))) for s in SUBJECTS}
        await compare(report, plan, mix, servers)
        for subject, server in servers.items():
            report.add("20apps/weights", subject, {"weight_bytes": await parameters(server)})
        report.add("20apps/weights", DISTINCT, {"weight_bytes": await asyncio.to_thread(fleet.distinct_bytes)})
        await same_load(report, plan, fleet, mix, servers[OURS])
        await hot(report, plan, fleet, mix, servers[OURS])


@harness.claim("The memory of weights is within 2 % of the sum of distinct tensors", of="fine-tunes")
@harness.claim(
    "Twenty fine-tunes in one memory give several times the tokens of loading one model at a time", of="speed", headline=True
)
@harness.claim("A hot addition delays running requests by at most two sweeps", of="speed")
@harness.claim("Eight LoRA tenants at the same load keep 85 % of the tokens of one", of="speed")
def main(options: Options, plan: Plan) -> None:
    settings = {"model": f"{plan.size}/{plan.dtype}", "requests": plan.requests, "clients": CLIENTS, "models_held": HELD}
    report = Report("tenants", settings)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(report, plan, Path(folder)))
    harness.finish(report, options, bars(plan))


if __name__ == "__main__":
    parser = harness.parser(__doc__)
    parser.add_argument("--dtype", choices=DTYPES, default="", help="of the models (bf16 with AMX, else f32)")
    chosen = parser.parse_args()
    main(Options(chosen.quick, chosen.json), Plan.chosen(chosen.quick, chosen.dtype))

"""A burst on real workers: dropping parameters beside preempting, beside pipelines all the time, beside endless memory.

    python benchmarks/overload_live.py [--quick] [--workers N] [--json PATH]

Two and four worker processes whose parameters take ``SHARE`` of their memory (as Llama-3.1-405B's on sixteen H100s), held to
the pace of a slower device (setting ``pace``), so that there can be more of them than cores. The pace is that of
Qwen-2.5-14B on an H100 (``overload_runs.py``), ``SCALE`` times as slow, with prompts and answers shorter by the same factor.
This preserves the proportions of a sweep: most of it is reading the parameters. Lengths come from Azure's conversations with
answers four times as long, gaps between arrivals from the Azure trace. Requests arrive at the rate at which they use
``BASE`` of the KV memory, for ``burst`` seconds twice as often, then as before. Every system gets the same requests, greedy.
After ``after`` seconds requests continue only for the two systems whose time per token outside the burst is compared.

Times are measured at the client. Time to the first token (TTFT) counts from when a request was due, until ``after`` seconds
after the burst. ``tpot_burst``: time of each further token of requests whose first token came in the burst. ``tpot_quiet``:
of requests that ended before it. ``tpot_after``: of tokens since the burst was over for both systems, while requests
arrived. The burst is over for a system when its requests have ended (``ended``, seconds after the burst) and all groups are
restored (``restored``, the last). ``same``: share of the requests with the same tokens as in ``preempt``. For drops: seconds
from the order until a worker's KV takes more than the memory it had before (``first_page``, sampled ten times per second),
until stale requests have left and until the last of them runs again, their mean and longest pause, and the bytes copied per
second.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import fidelity
import harness
import overload_runs as runs
from harness import OURS, Bar, Options, Report
from models import SIZES, make_model, prompts
from server import Served, served

SIZE, SCALE = "stages", 8
LONGEST = 256  # tokens of a prompt, and of an answer
SHARE = 0.6  # of a worker's memory that parameters take
BASE, TIMES = 0.6, 2.0
KNEE = 8  # rows up to which reading parameters is what takes the time (``policies/plan/cost.py``)
COSTS = {name: SCALE * value for name, value in runs.COSTS.items()}  # of a sweep, of a token as many times as of eight
COSTS |= {"context": SCALE * COSTS["context"], "prefill": SCALE * SCALE * COSTS["prefill"]}
SETTINGS = {"threads": 1, "page_size": 4, "chunk_size": 128, "sweep_tokens": 256, "max_rows": 256, "max_model_len": 544}
PREEMPT = "preempt"
PIPELINES = "pipelines"
FLOOR = "endless-memory"
SYSTEMS: dict[str, dict[str, Any]] = {
    PREEMPT: {},
    PIPELINES: {"pipeline": 2},
    OURS: {"overload": "on", "overload_quiet": 0.85},
    FLOOR: {},
}
ENDLESS = 8  # times the KV memory
SAMPLING = 1.0  # seconds between looks at the cluster
COMPARED = (PREEMPT, OURS)  # outside the burst


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured; seconds. ``outside``: after ``after``, for those that are compared outside the burst."""

    workers: tuple[int, ...] = (2, 4)
    seeds: tuple[int, ...] = (1,)
    before: float = 25.0
    burst: float = 20.0
    after: float = 10.0
    outside: float = 100.0
    systems: tuple[str, ...] = tuple(SYSTEMS)

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(workers=(2,), before=12.0, burst=12.0, after=4.0, outside=0.0, systems=COMPARED) if quick else cls()

    @property
    def ends(self) -> float:
        """When the burst does."""
        return self.before + self.burst

    def of(self, workers: int) -> list[str]:
        """Systems; on two workers pipelines all the time are the very machine that a drop makes."""
        return [name for name in self.systems if workers > 2 or name != PIPELINES]

    def bars(self) -> list[Bar]:
        found = []
        for case in (f"real{n}" for n in self.workers):
            found += [Bar(case, "ttft_p99_s", PREEMPT, at_most=1 / 8), Bar(case, "tpot_burst_s", PREEMPT, at_most=1.25)]
            outside = ("quiet", "after") if self.outside else ("quiet",)
            found += [Bar(case, f"tpot_{when}_s", PREEMPT, at_most=1.03) for when in outside]
            found.append(Bar(case, "same", at_least=1.0))
        return found


@dataclass(frozen=True, slots=True)
class Asked:
    """A request; ``at``: seconds from the beginning."""

    at: float
    prompt: tuple[int, ...]
    tokens: int


@dataclass(slots=True)
class Answer:
    """``tokens``: with the time of each, from the beginning."""

    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def each(self) -> float:
        """Mean seconds of a token after the first."""
        return (self.times[-1] - self.times[0]) / max(len(self.times) - 1, 1)


@cache
def shapes() -> list[tuple[int, int]]:
    """Tokens of prompts and answers."""
    found = [(prompt // SCALE, answer // SCALE) for prompt, answer in runs.lengths(runs.SETS["azure"])]
    return [(max(2, prompt), max(2, answer)) for prompt, answer in found if max(prompt, answer) <= LONGEST]


def quiet_rate(tokens: float) -> float:
    """Requests a second at which they use ``BASE`` of so many tokens of KV."""
    prompt, answer = (statistics.fmean(shape[n] for shape in shapes()) for n in (0, 1))
    page = SETTINGS["page_size"]
    held = statistics.fmean(o * (p + o / 2 + page / 2) for p, o in shapes())  # tokens of KV, times sweeps that it is held
    sweep = COSTS["base"] + COSTS["read"]
    for _ in range(100):  # a sweep takes longer the more requests run, and they run longer by that
        rate = BASE * tokens / (held * sweep)
        rows = rate * answer * sweep
        beyond = COSTS["beyond"] * max(rows + rate * prompt * sweep - KNEE, 0.0)
        attended = COSTS["context"] * BASE * tokens + COSTS["prefill"] * rate * sweep * prompt**2 / 2
        sweep = (sweep + COSTS["base"] + COSTS["read"] + beyond + attended + COSTS["row"] * rows) / 2
    return BASE * tokens / (held * sweep)


def requests(seed: int, plan: Plan, quiet: float) -> list[Asked]:
    """``quiet`` a second, in the burst ``TIMES`` as many."""
    draw, gaps = random.Random(seed), json.loads(fidelity.TRACE.read_text())["gap_s"]
    mean = statistics.fmean(gaps)
    start = draw.randrange(len(gaps))
    now = 0.0
    found = list[Asked]()
    edges = [(plan.before, 1.0), (plan.ends, TIMES), (plan.ends + plan.after + plan.outside, 1.0)]
    for number in itertools.count():
        rest = gaps[(start + number) % len(gaps)] / mean / quiet  # at the quiet rate
        for edge, times in edges:
            step = min(rest, max(edge - now, 0.0) * times)
            now, rest = now + step / times, rest - step
        if rest > 0:
            return found
        prompt, tokens = draw.choice(shapes())
        (ids,) = prompts(SIZE, 1, prompt, seed=(seed << 16) + number)
        found.append(Asked(now, tuple(ids), tokens))
    raise AssertionError("the trace has no end")


# one server ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """``views``: of ``/admin/cluster``, by seconds from the beginning; the last after everything. ``epoch``: the beginning,
    in seconds since the epoch."""

    answers: list[Answer]
    views: dict[float, dict[str, Any]]
    epoch: float

    def restored(self) -> float:
        """Seconds from the beginning until the last restore was over; 0 without any, endless where a group is left."""
        last = self.views[max(self.views)].get("overload")
        if last is None:  # the setting is off
            return 0.0
        ends = [one["at"] + (one["seconds"] or 0.0) - self.epoch for one in last["changes"] if one["what"] == "restore"]
        return float("inf") if last["groups"] else max(ends, default=0.0)

    def ended(self, plan: Plan, asked: Sequence[Asked]) -> float:
        """Seconds from the beginning until the last request of the burst had its last token."""
        pairs = zip(asked, self.answers, strict=False)
        return max((a.times[-1] for r, a in pairs if plan.before <= r.at < plan.ends), default=0.0)


async def run(server: Served, asked: Sequence[Asked]) -> Outcome:
    began, views = time.monotonic() + fidelity.PAUSE, dict[float, dict[str, Any]]()
    epoch = time.time() - time.monotonic() + began

    async def one(request: Asked) -> Answer:
        await asyncio.sleep(began + request.at - time.monotonic())
        answer = Answer()
        async for at, tokens, _ in server.chunks(request.prompt, request.tokens):
            answer.tokens += tokens
            answer.times += [at - began] * len(tokens)
        return answer

    async def look() -> None:
        while True:
            await asyncio.sleep(SAMPLING)
            views[time.monotonic() - began] = await server.get("/admin/cluster")

    looks = asyncio.create_task(look())
    answers = await asyncio.gather(*map(one, asked))
    looks.cancel()
    await asyncio.gather(looks, return_exceptions=True)
    views[time.monotonic() - began] = await server.get("/admin/cluster")
    return Outcome(answers, views, epoch)


def figures(plan: Plan, asked: Sequence[Asked], outcome: Outcome, memory: int) -> dict[str, float]:
    """Of one run. ``memory``: bytes for KV of a worker that has all parameters."""
    answers = outcome.answers
    pairs = [
        (request, answer) for request, answer in zip(asked, answers, strict=True) if request.at < plan.ends + plan.after
    ]
    found = runs.percentiles("ttft", [answer.times[0] - request.at for request, answer in pairs])
    found |= {
        "tpot_quiet": _median([one.each for one in answers if one.times[-1] < plan.before and len(one.times) > 1]),
        "tpot_burst": _median(
            [one.each for one in answers if plan.before <= one.times[0] < plan.ends and len(one.times) > 1]
        ),
        "ended": outcome.ended(plan, asked) - plan.ends,
    }
    used = [
        (at, statistics.fmean(worker["memory"]["kv"] / memory for worker in view["workers"]))
        for at, view in outcome.views.items()
    ]
    found = {f"{name}_s": seconds for name, seconds in found.items()}
    last = [worker["counters"] for worker in outcome.views[max(outcome.views)]["workers"]]
    found["preemptions"] = sum(counters.get("preemptions", 0) for counters in last) / len(asked)
    found["kv_base"] = statistics.fmean([share for at, share in used if plan.before / 2 <= at < plan.before] or [0.0])
    found["kv_peak"] = max(share for _, share in used)
    return found


def _median(each: Sequence[float]) -> float:
    return statistics.median(each or [0.0])


def outside(plan: Plan, asked: Sequence[Asked], outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, float]]:
    """Of each system, of the same time: since the burst is over for all of them, while requests come. Nothing where it is
    not over by then."""
    since = max(max(one.ended(plan, asked), one.restored()) for one in outcomes.values())
    until = max(request.at for request in asked)
    found = {}
    for name, outcome in outcomes.items():
        seen = [[at for at in answer.times if since <= at <= until] for answer in outcome.answers]
        each = [(times[-1] - times[0]) / (len(times) - 1) for times in seen if len(times) > 1]
        found[name] = {"tpot_after_s": _median(each), "after_from_s": since - plan.ends} if each else {}
    return found


def moved(views: Sequence[dict[str, Any]], memory: int) -> dict[str, float]:
    """Of a run in which parameters were dropped."""
    overload = views[-1]["overload"]
    changes = [one for one in overload["changes"] if one["what"] == "drop" and one["seconds"] is not None]
    readings: dict[str, dict[float, float]] = {}
    for view in views:
        for worker, seen in view["overload"].get("readings", {}).items():
            readings.setdefault(worker, {}).update((one["at"], one["kv"] + one["cached"]) for one in seen)
    found: dict[str, float] = {what.replace(" ", "_"): count for what, count in overload["counts"].items()}
    if not changes:
        return found
    waited = []
    for change in changes:
        seen = [at for worker in change["group"].split("+") for at, kv in readings[worker].items() if kv > memory]
        waited += [min(at for at in seen if at > change["at"]) - change["at"]] if max(seen, default=0) > change["at"] else []
    stale, exchange = sum(one["requests"] for one in changes), [one for one in changes if one["copied_bytes"]]
    seconds = sum(one["seconds"] - one["seconds_until_left"] for one in exchange)
    found |= {
        "left_s": statistics.fmean(one["seconds_until_left"] for one in changes),
        "drop_s": statistics.fmean(one["seconds"] for one in changes),
        "stall_s": sum(one["stall"] for one in changes) / max(stale, 1),
        "stall_most_s": max(one["stall_worst"] for one in changes),
        "stale": stale,
        "recomputed": sum(one["recomputed"] for one in changes),
        "exchange_mb_per_s": sum(one["copied_bytes"] for one in exchange) / 1e6 / max(seconds, 1e-9),
    }
    return found | ({"first_page_s": statistics.fmean(waited)} if waited else {})


def restored(plan: Plan, outcome: Outcome) -> dict[str, float]:
    """Seconds after the burst until the last restore was over, where it was."""
    seconds = outcome.restored() - plan.ends
    return {"restored_s": seconds} if 0 < seconds < float("inf") else {}


# all of them -----------------------------------------------------------------------------------------------------------


def words(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


async def parameter_bytes(model: Path) -> int:
    """That a worker with the whole model holds."""
    async with served(model, *words(SETTINGS)) as server:
        (worker,) = (await server.get("/admin/cluster"))["workers"]
        return int(worker["memory"]["parameters"])


async def measure(report: Report, plan: Plan, folder: Path) -> None:
    model, pace = make_model(SIZE, "f32", folder / SIZE), folder / "pace.json"
    parameters, size = await parameter_bytes(model), SIZES[SIZE]
    token = 2 * 4 * 64 * size.layers * size.kv_heads  # bytes of KV
    pace.write_text(json.dumps({**COSTS, "parameters": parameters - 4 * size.vocabulary * size.hidden, "kv": token}))
    room = int(parameters * (1 - SHARE) / SHARE)
    rate = quiet_rate(room / token)
    report.settings |= {"parameter_bytes": parameters, "kv_tokens": room // token, "rate": rate}
    for workers in plan.workers:
        for seed in plan.seeds:
            every, outcomes = requests(seed, plan, rate * workers), dict[str, Outcome]()
            for name in plan.of(workers):
                asked = [one for one in every if name in COMPARED or one.at < plan.ends + plan.after]
                kv = room * (ENDLESS if name == FLOOR else 1)
                settings = {**SETTINGS, **SYSTEMS[name], "workers": workers, "memory": parameters + kv}
                async with served(model, *words(settings | {"pace": pace, "profile": pace})) as server:
                    outcome = await run(server, asked)
                outcomes[name] = outcome
                found = figures(plan, asked, outcome, kv)
                same = [a.tokens == b.tokens for a, b in zip(outcomes[PREEMPT].answers, outcome.answers, strict=False)]
                found |= {"same": statistics.fmean(same), "requests": len(asked)}
                if name == OURS:
                    found |= moved([*outcome.views.values()], kv) | restored(plan, outcome)
                report.add(f"real{workers}", name, found)
                print(f"{workers} workers, seed {seed}, {name}: first token P99 {found['ttft_p99_s']:.2f} s", flush=True)
            for name, found in outside(plan, every, {name: outcomes[name] for name in COMPARED}).items():
                report.add(f"real{workers}", name, found)


@harness.claim(
    "In a burst on real workers, P99 of first tokens is 8 times lower than with preemption", of="parameter-dropping"
)
def main(options: Options, workers: int) -> None:
    plan = Plan.chosen(options.quick)
    plan = replace(plan, workers=(workers,)) if workers else plan
    report = Report(
        "overload_live", {"scale": SCALE, "share": SHARE, "base": BASE, "times": TIMES, "costs": COSTS, **SETTINGS}
    )
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(report, plan, Path(folder)))
    harness.finish(report, options, plan.bars())


if __name__ == "__main__":
    parser = harness.parser(__doc__)
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="only so many; nothing is stored over both")
    chosen = parser.parse_args()
    main(Options(chosen.quick, chosen.json), chosen.workers)

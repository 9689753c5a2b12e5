"""An offline batch on a real cluster: our order beside depth-first and random ones, on two workers of one core each.

    python benchmarks/offline_live.py [--quick] [--json PATH]

2,000 requests of three sources modeled on BlendServe (section "Workloads"): *questions* with one of ``SUBJECTS`` long common
beginnings and short answers (as MMLU), *chat* with one system prompt and an eighth of ShareGPT's lengths, *stories* with
short prompts and long answers (in place of OpenVid). The length of an answer is unknown in advance: all state one limit.
Model, engine, memory, credit and estimates are the same for all; the order is the only difference. Orders alternate, and
each run has a new cluster. On a processor nothing overlaps, so an order can gain only by sharing and steadiness.

``sharing``: share of prompt tokens found in the prefix cache. ``load_cv``: standard deviation of a sweep's load divided by
its mean, by the cost of its rows (``policies/plan/cost.py``, coefficients as the workers measured them). ``equal``: answers
that equal the answers of the first order token by token. ``work_s``: the loads of all sweeps divided by the workers, the
time of the run without any disturbance or waiting. ``density``: compute time divided by memory time of the whole batch,
measured. vLLM answers the same prompts by ``LLM.generate`` if it is installed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import harness
import scheduling_runs as runs
from harness import OURS, Bar, Options, Report
from models import EOS, SIZES, make_model
from offline_orders import FixedFeed

if TYPE_CHECKING:
    from blockwright.actors.batches.port import Answered
    from blockwright.policies.offline.feed import OfflineFeed, OfflineRequest, PlacedRequest
    from blockwright.policies.plan.coefficients import Coefficients

SIZE = "S"
WORKERS = 2
CASE = "real"
SUBJECTS = 57
LONGEST = 192
SHORTER = 8
SHARES = {"questions": 0.4, "chat": 0.45, "stories": 0.15}  # of the requests
LIMIT = 256  # tokens that every request states as its most
ROOM = 3072  # positions of KV of a worker
SETTINGS = {"page_size": 8, "sweep_tokens": 128, "max_rows": 32, "max_model_len": 512, "dtype": "float32", "threads": 1}
ALONE = {"offline_sweep": 3600}  # nobody comes whom a long sweep would keep waiting
KV = 2 * 2 * 64 * 4 * 12  # bytes of a position of S in float32
DEPTH_FIRST = "depth-first"
RANDOM = "random"
VLLM = "vllm"


@dataclass(frozen=True, slots=True)
class Asked:
    """``output``: tokens that its answer has, which no order knows."""

    prompt: list[int]
    output: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring."""

    count: int = 2000
    rounds: int = 2

    @property
    def case(self) -> str:
        return f"{CASE}/{self.count}"

    def bars(self) -> list[Bar]:
        return [
            Bar(self.case, "tok_per_s", DEPTH_FIRST, at_least=1.0),
            Bar(self.case, "tok_per_s", RANDOM, at_least=1.15),
            Bar(self.case, "sharing", DEPTH_FIRST, at_least=0.97),
            Bar(self.case, "equal", at_least=1.0),
        ]


def requests(count: int, seed: int = 0) -> list[Asked]:
    """In the order in which a file would have them: mixed."""
    from blockwright.simulator.traces import read_trace

    draw = random.Random(seed)
    shapes = [one for one in read_trace(runs.lengths()) if max(one.prompt, one.output) <= SHORTER * LONGEST]

    def words(n: int) -> list[int]:
        return [draw.randrange(EOS + 1, SIZES[SIZE].vocabulary) for _ in range(n)]

    subjects = [words(160) for _ in range(SUBJECTS)]
    system = words(64)
    story = words(8)
    found = []
    for _ in range(round(count * SHARES["questions"])):
        found.append(Asked(draw.choice(subjects) + words(draw.randrange(8, 25)), 2))
    for shape in draw.choices(shapes, k=round(count * SHARES["chat"])):
        found.append(Asked(system + words(max(2, shape.prompt // SHORTER)), max(1, shape.output // SHORTER)))
    while len(found) < count:
        found.append(Asked(story + words(8), draw.randrange(96, 192)))
    draw.shuffle(found)
    return found


@dataclass(slots=True)
class Outcome:
    """What one order came to."""

    seconds: float = 0.0
    prompt_tokens: int = 0
    cached: int = 0
    output_tokens: int = 0
    density: float = 0.0
    given_back: int = 0
    answers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    costs: Coefficients | None = None


def feed_of(asked: Sequence[Asked], order: str) -> OfflineFeed | FixedFeed:
    from blockwright.policies.offline.density import Costs
    from blockwright.policies.offline.feed import OfflineFeed, OfflineRequest
    from blockwright.policies.offline.prefix_tree import packed

    draw = random.Random(1)
    numbers = [draw.random() for _ in asked]
    given: list[OfflineRequest] = [OfflineRequest(prompt=packed(one.prompt), limit=LIMIT) for one in asked]
    if order == OURS:
        return OfflineFeed(given, Costs(token=1e-3, attend=1e-6, read=1e-6), draws=numbers, memory=ROOM)
    return FixedFeed(given, order, numbers)


async def run(folder: Path, asked: Sequence[Asked], order: str, logs: Path) -> Outcome:
    """One order on a new cluster."""
    from blockwright.actors.batches.driver import FeedDriver
    from blockwright.actors.batches.port import Answered
    from blockwright.api.batches.lines import BatchLine, answer, prepare
    from blockwright.api.http.context import OfflinePlace
    from blockwright.api.openai.completions import COMPLETIONS
    from blockwright.api.program.embedded import Cluster
    from blockwright.policies.offline.feed import OfflineFeed
    from blockwright.policies.offline.load_tries import LoadTries
    from blockwright.runtime.base.clock import LoopClock

    found = Outcome()
    feed = await asyncio.to_thread(feed_of, asked, order)
    memory = parameters(folder) + ROOM * KV
    more: dict[str, Any] = {
        **SETTINGS,
        **ALONE,
        "workers": WORKERS,
        "memory": memory,
        "event_log": str(logs),
        "event_log_size": 1 << 30,
    }
    async with Cluster(folder, **more) as cluster:
        front = cluster.front
        caller = cluster.caller
        tries = LoadTries()

        async def answering(placed: PlacedRequest, sent: Callable[[], None]) -> Answered:
            one = asked[placed.request]
            line = BatchLine(str(placed.request), COMPLETIONS, body(one))
            prepared = await prepare(front, caller, line)
            sent()
            got = await answer(prepared, OfflinePlace(placed.worker, placed.side), tries)
            content = json.loads(got.body)
            assert got.status == 200, content
            found.answers[placed.request] = tuple(content["choices"][0]["token_ids"])
            found.cached += got.cached
            found.prompt_tokens += got.prompt_tokens
            found.output_tokens += got.output_tokens
            return Answered(got.output_tokens, got.cached)

        application = front.port.models()[0].id
        driver = FeedDriver(front.port, application, cast(OfflineFeed, feed), answering, LoopClock())
        began = time.monotonic()
        await driver.run()
        found.seconds = time.monotonic() - began
        found.costs = next((one.costs for one in front.port.credits(application) if one.costs is not None), None)
        if isinstance(feed, OfflineFeed):
            progress = feed.progress(found.seconds)
            found.density, found.given_back = progress.density, progress.given_back
    return found


def body(one: Asked) -> dict[str, Any]:
    more = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return {"prompt": one.prompt, "max_tokens": one.output, **more}


def parameters(folder: Path) -> int:
    """Bytes of the model as it lies on a worker."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def loads(logs: Path, costs: Coefficients) -> list[float]:
    """Seconds of each sweep by what its rows cost, of all workers."""
    from blockwright.actors.worker.event_log_file import EventLog
    from blockwright.policies.plan.cost import cost
    from blockwright.policies.plan.sweep_plan import SweepPlan
    from blockwright.policies.sweep.event_log import Planned

    found = []
    for path in sorted(logs.rglob("w*.events")):
        if path.is_file():
            for _, entry in EventLog(path):
                if isinstance(entry, Planned) and isinstance(entry.plan, SweepPlan) and entry.plan.row:
                    found.append(cost(entry.plan, costs))
    return found


def figures(outcome: Outcome, first: Outcome, logs: Path, costs: Coefficients) -> Mapping[str, float]:
    swept = loads(logs, costs)
    equal = sum(first.answers[number] == tokens for number, tokens in outcome.answers.items())
    made = {
        "tok_per_s": (outcome.prompt_tokens + outcome.output_tokens) / outcome.seconds,
        "seconds": outcome.seconds,
        "sharing": outcome.cached / outcome.prompt_tokens,
        "load_cv": statistics.pstdev(swept) / statistics.fmean(swept),
        "work_s": sum(swept) / WORKERS,
        "sweeps": len(swept),
        "equal": equal / len(first.answers),
    }
    return {**made, "density": outcome.density, "given_back": outcome.given_back} if outcome.density else made


def vllm(folder: Path, asked: Sequence[Asked]) -> Mapping[str, float]:
    """Its offline engine on the same prompts, all given at once."""
    from vllm import LLM, SamplingParams

    engine = LLM(str(folder), dtype="float32", enable_prefix_caching=True, max_num_seqs=SETTINGS["max_rows"])
    ways = [SamplingParams(temperature=0, max_tokens=one.output, ignore_eos=True) for one in asked]
    began = time.monotonic()
    engine.generate([{"prompt_token_ids": one.prompt} for one in asked], ways)
    seconds = time.monotonic() - began
    return {"tok_per_s": sum(len(one.prompt) + one.output for one in asked) / seconds, "seconds": seconds}


def measure(report: Report, plan: Plan, home: Path) -> None:
    from blockwright.policies.plan.fit import PLAIN

    folder, asked = make_model(SIZE, "f32", home / SIZE), requests(plan.count)
    first: Outcome | None = None
    for turn in range(plan.rounds):
        for order in (OURS, DEPTH_FIRST, RANDOM):
            logs = home / f"{order}-{turn}"
            logs.mkdir()
            outcome = asyncio.run(run(folder, asked, order, logs))
            first = first or outcome
            report.add(plan.case, order, figures(outcome, first, logs, first.costs or PLAIN))
    if importlib.util.find_spec(VLLM) is None:
        report.miss(plan.case, VLLM, "not installed")
    else:
        report.add(plan.case, VLLM, vllm(folder, asked))


@harness.claim("A batch on real workers is 1.15 times faster than in random order, with equal answers", of="offline")
def main(options: Options) -> None:
    plan = Plan(count=300, rounds=1) if options.quick else Plan()
    settings = {"lengths": runs.lengths().name, "shorter": SHORTER, "room": ROOM, "limit": LIMIT, **SETTINGS, **ALONE}
    report = Report("offline_live", {**settings, "requests": plan.count, "shares": SHARES, "workers": WORKERS})
    with tempfile.TemporaryDirectory() as home:
        measure(report, plan, Path(home))
    harness.finish(report, options, plan.bars())


if __name__ == "__main__":
    main(harness.parse(__doc__))

"""Benchmark of constrained answers: the cost of masks, new grammars and a kill, and the gain of forced tokens.

    python benchmarks/structured.py [--quick] [--json PATH]

``SIZE/own``: 32 requests, each with a schema of its own, in turn with the same requests without (``free``): tokens per
second. ``masks``: the greedy choice of a constrained row's token with 131,072 tokens, its mask included, row by row:
microseconds on average and in 999 of 1,000 cases; ``free`` is the choice of a row without a grammar, ``threads`` the masks
of all rows by the library's own pool of two threads instead of one call for each. ``new``: the tokens per second and the
99th percentile of the pauses of streams without constraints while 5 schemas of 400 fields a second are new, in turn with
none (``calm``). ``kill``: the longest pause of 32 constrained streams after kill -9 of a worker, in turn with free ones; a
stream with other tokens than without the kill ends the benchmark. ``forced``: tokens per second of 4 requests that are
mostly forced, with ``forced=on`` and ``off``, each on a server of its own, in turn; ``share`` of the tokens was forced.
``import``: milliseconds of processor time and MB that the modules of constraints add to a gateway's import.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from failover import recovered
from harness import OURS, Bar, Options, Report
from models import make_model, prompts
from server import Served, ServerError, served

from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.gpu.sampling.sampler import choose
from blockwright.gpu.tables import Tables
from blockwright.gpu.weights.token_bytes import byte_alphabet, token_bytes
from blockwright.policies.plan.grammar import JSON, Grammar, TokenVocabulary
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import SetSampling

FREE, CALM = "free", "calm"
OFF, THREADS = "off", "threads"
STREAMS = 32
VOCABULARY = 131072
END = 256  # the end token of the benchmark's tokenizers
BEFORE_KILL = 8  # tokens of each stream
MODULES = (  # of constraints, in a gateway
    *("blockwright.api.constraints", "blockwright.api.openai.grammar", "blockwright.policies.plan.grammar"),
    "blockwright.policies.sweep.compile_queue",
)
BARS = {"M/own": 0.93, "S/own": 0.82}


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring."""

    sizes: tuple[str, ...] = ("S", "M")
    rounds: int = 5
    tokens: int = 96
    masks: int = 4000
    seconds: float = 4.0  # of a turn with new grammars, and of one without
    kills: int = 4  # even: the first of two kills of a worker has longer pauses than the second, whatever runs

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(sizes=("S",), rounds=2, tokens=48, masks=500, seconds=2.0, kills=2) if quick else cls()


def bars(plan: Plan) -> list[Bar]:
    found = [Bar(f"{size}/own", "out_tok_per_s", FREE, at_least=BARS[f"{size}/own"]) for size in plan.sizes]
    return [
        *found,
        Bar("masks", "mean_us", at_most=60.0),
        Bar("masks", "p999_us", at_most=2000.0),
        Bar("new", "out_tok_per_s", CALM, at_least=0.8),
        Bar("new", "p99_gap_ms", CALM, at_most=2.2),
        Bar("kill", "pause_ms", FREE, at_most=1.1),
        Bar("forced", "out_tok_per_s", OFF, at_least=1.4),
        Bar("import", "ms", at_most=5.0),
        Bar("import", "mb", at_most=2.0),
    ]


def schema(number: int, letters: int = 2000) -> dict[str, Any]:
    """Return a schema that no other number gives, with parts of many kinds and a text that does not end by itself."""
    properties = {
        f"name_{number}": {"type": "string", "minLength": 5, "maxLength": 40},
        "age": {"type": "integer", "minimum": number, "maximum": 10_000 + number},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue", None]}, "minItems": 3, "maxItems": 8},
        "position": {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3},
        "text": {"type": "string", "minLength": letters},
    }
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def fixed(number: int) -> dict[str, Any]:
    """Return a schema whose texts are mostly fixed."""
    sentences = [f"the weather of day {number} is {kind}, and will remain so for a week" for kind in ("good", "bad")]
    properties = {f"report_of_the_station_number_{i}": {"enum": sentences} for i in range(12)}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def of_400_fields(number: int) -> dict[str, Any]:
    """Return a new schema of 400 fields."""
    kinds = ({"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"enum": ["a", "b", number]})
    properties = {f"field_{number}_{i}": kinds[i % 4] for i in range(400)}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


async def together(server: Served, asked: Sequence[dict[str, Any]]) -> float:
    """Return the tokens per second of these requests at once."""

    async def one(body: dict[str, Any]) -> int:
        async with server.session.post("/v1/completions", json=body) as answer:
            found = await answer.json()
            if answer.status != 200:
                raise ServerError(f"completion: {answer.status} {found}")
            return int(found["usage"]["completion_tokens"])

    began = time.monotonic()
    made = await asyncio.gather(*map(one, asked))
    return sum(made) / (time.monotonic() - began)


async def own_schemas(report: Report, plan: Plan, size: str, folder: Path) -> None:
    model = make_model(size, "f32", folder / size)
    async with served(model, "--workers", "1", "--set", f"threads={os.cpu_count()}") as server:
        for turn in range(plan.rounds + 1):
            batch = prompts(size, STREAMS, 16, turn)
            free = [server.body(prompt, plan.tokens) for prompt in batch]
            # the same schemas in every round but the first, which is not counted: compiling them has a case of its own
            bound = [body | {"structured_outputs": {"json": schema(n)}} for n, body in enumerate(free)]
            for subject, asked in [(FREE, free), (OURS, bound)][:: 1 if turn % 2 else -1]:
                speed = await together(server, asked)
                if turn:
                    report.add(f"{size}/own", subject, {"out_tok_per_s": speed})


def write_words(file: Path) -> None:
    """Write a tokenizer.json of ``VOCABULARY`` tokens: bytes, an end token, and parts of the words of Python's library."""
    counts: Counter[str] = Counter()
    for source in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))[:2500]:
        counts.update(re.findall(r" ?[A-Za-z_]+| ?\d{1,3}| ?[^\sA-Za-z\d_]+|\s+", source.read_text(errors="replace")))
    tokens = {bytes([byte]): byte for byte in range(256)} | {b"</s>": END}
    for word, _ in counts.most_common():
        spelt = word.encode()[:24]
        for part in [*(spelt[:end] for end in range(2, len(spelt) + 1)), *(spelt[-size:] for size in range(2, len(spelt)))]:
            if len(tokens) < VOCABULARY:
                tokens.setdefault(part, len(tokens))
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    spellings = {"".join(letters[byte] for byte in token): id for token, id in tokens.items()}
    end = {"id": END, "content": "</s>", "special": True}
    content = {"model": {"vocab": spellings}, "decoder": {"type": "ByteLevel"}, "added_tokens": [end]}
    file.write_text(json.dumps(content))


def masks(report: Report, plan: Plan, folder: Path) -> None:
    """Draw tokens of 32 rows in turn, each from random logits."""
    import llguidance

    file = folder / "tokenizer.json"
    write_words(file)
    vocabulary = TokenVocabulary(file=str(file), digest=token_bytes(file).digest, size=VOCABULARY, ends=[END])
    tables = Tables(2 * STREAMS, 4096, 1, 16)
    backend = NativeBackend("float32", 1)
    backend.reserve(tables, STREAMS, STREAMS)
    for row in range(2 * STREAMS):
        grammar = Grammar(form=JSON, text=json.dumps(schema(row)), vocabulary=vocabulary) if row < STREAMS else None
        if grammar is not None:
            tables.compiled.compile(grammar)
        tables.apply([SetSampling(row, 1, SamplingParams(temperature=0.0, grammar=grammar))])
    chance = np.random.default_rng(0)
    several = [torch.from_numpy(chance.standard_normal((1, VOCABULARY)).astype(np.float32)) for _ in range(8)]
    times: dict[str, list[float]] = {OURS: [], FREE: []}
    position = [1] * (2 * STREAMS)
    for n in range(plan.masks):
        for subject, row in ((OURS, n % STREAMS), (FREE, STREAMS + n % STREAMS)):
            logits = several[int(chance.integers(len(several)))]
            began = time.thread_time()
            (token,) = choose(logits, [row], [position[row]], tables, backend.argmax, backend.allowed)
            times[subject].append(1e6 * (time.thread_time() - began))
            tables.append(np.asarray([row]), np.asarray([position[row]]), np.asarray([max(token, 0)]))
            position[row] += 1
    for subject, found in times.items():
        p999 = float(np.percentile(found, 99.9))
        report.add("masks", subject, {"mean_us": float(np.mean(found)), "p50_us": float(np.median(found)), "p999_us": p999})
    pool, words = llguidance.LLExecutor(2), VOCABULARY // 32
    pairs: Any = [(tables.grammars[row]._matcher, row) for row in range(STREAMS)]  # type: ignore[union-attr]
    bits_MW = np.zeros((STREAMS, words), dtype=np.uint32)
    for _ in range(50):
        began = time.perf_counter()
        pool.unsafe_compute_mask_ptr(pairs, bits_MW.ctypes.data, 4 * words, STREAMS)
        shared = time.perf_counter()
        for matcher, row in pairs:
            matcher.unsafe_compute_mask_ptr(bits_MW[row].ctypes.data, 4 * words)
        ended = time.perf_counter()
        report.add("masks", THREADS, {"alone_us": 1e6 * (shared - began) / STREAMS})
        report.add("masks", OURS, {"alone_us": 1e6 * (ended - shared) / STREAMS})


async def new_grammars(report: Report, plan: Plan, folder: Path) -> None:
    number = 0
    async with served(folder / "S", "--workers", "1", "--set", f"threads={os.cpu_count()}") as server:
        for turn in range(plan.rounds):
            for subject in (CALM, OURS) if turn % 2 else (OURS, CALM):
                gaps: list[float] = []
                made = 0
                until = time.monotonic() + plan.seconds

                async def follow(prompt: list[int]) -> None:
                    nonlocal made
                    before = 0.0
                    async for at, tokens, _ in server.chunks(prompt, 1200):
                        if before:
                            gaps.append(1e3 * (at - before))  # noqa: B023
                        before = at
                        made += len(tokens)
                        if at > until and gaps:  # noqa: B023
                            return

                jobs = [asyncio.create_task(follow(p)) for p in prompts("S", STREAMS // 2, 16, turn)]
                began = time.monotonic()
                asked = []
                while subject == OURS and time.monotonic() < until:
                    number += 1
                    body = server.body([5, 6, 7], 2, structured_outputs={"json": of_400_fields(number)})
                    asked.append(asyncio.create_task(together(server, [body])))
                    await asyncio.sleep(0.2)
                await asyncio.gather(*jobs)
                speed = made / (time.monotonic() - began)
                await asyncio.gather(*asked)
                gap = float(np.percentile(gaps, 99))
                report.add("new", subject, {"out_tok_per_s": speed, "p99_gap_ms": gap})


async def follow_all(
    server: Served, bodies: Sequence[dict[str, Any]], turn: int, *, kill: bool
) -> tuple[list[list[int]], float]:
    """Return the tokens of these streams, and the longest pause in milliseconds, after the kill if there is one."""
    tokens: list[list[int]] = [[] for _ in bodies]
    times: list[list[float]] = [[] for _ in bodies]
    begun = asyncio.Event()

    async def one(n: int, body: dict[str, Any]) -> None:
        more = {"stream": True, "return_token_ids": True}
        async with server.session.post("/v1/completions", json=body | more) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise ServerError(f"stream: {event['error']}")
                    tokens[n] += event["choices"][0].get("token_ids") or []
                    times[n].append(time.monotonic())
                    if all(len(found) >= BEFORE_KILL for found in tokens):
                        begun.set()

    jobs = [asyncio.create_task(one(n, body)) for n, body in enumerate(bodies)]
    moment = time.monotonic()
    if kill:
        await begun.wait()
        victim = (await server.get("/admin/cluster"))["workers"][turn % 2]
        moment = time.monotonic()
        os.kill(victim["pid"], signal.SIGKILL)
    await asyncio.gather(*jobs)
    if kill:
        await recovered(server, victim["pid"])
    pauses = [b - a for found in times for a, b in pairwise(found) if b > moment]
    return tokens, 1e3 * max(pauses, default=0.0)


async def kills(report: Report, plan: Plan, folder: Path) -> None:
    async with served(folder / "S", "--workers", "2") as server:
        free = [server.body(prompt, plan.tokens) for prompt in prompts("S", STREAMS, 16, 0)]
        bound = [body | {"structured_outputs": {"json": schema(n)}} for n, body in enumerate(free)]
        both = [(FREE, free), (OURS, bound)]
        calm = {subject: (await follow_all(server, bodies, 0, kill=False))[0] for subject, bodies in both}
        for turn in range(plan.kills):
            for subject, bodies in both[:: 1 if turn % 2 else -1]:
                tokens, pause = await follow_all(server, bodies, turn, kill=True)
                if tokens != calm[subject]:
                    raise ServerError("a stream has other tokens after a kill than without")
                report.add("kill", subject, {"pause_ms": pause})


async def forced(report: Report, plan: Plan, folder: Path) -> None:
    arguments = ("--workers", "1", "--set", f"threads={os.cpu_count()}")
    async with (
        served(folder / "S", *arguments, "--set", "forced=on") as ours,
        served(folder / "S", *arguments) as plain,
    ):
        for turn in range(plan.rounds + 1):
            for subject, server in [(OFF, plain), (OURS, ours)][:: 1 if turn % 2 else -1]:
                bodies = [server.body(prompt, 400) for prompt in prompts("S", 4, 16, turn)]
                asked = [body | {"structured_outputs": {"json": fixed(n)}} for n, body in enumerate(bodies)]
                speed = await together(server, asked)
                if turn:
                    report.add("forced", subject, {"out_tok_per_s": speed})
        (worker,) = (await ours.get("/admin/cluster"))["workers"]
        counters = worker["counters"]
        report.add("forced", OURS, {"share": counters["forced_tokens"] / counters["generated_tokens"]})


def imports(report: Report, plan: Plan) -> None:
    """Import the modules of constraints once more, in a process that has the rest of a gateway."""
    script = (
        "import importlib, sys, time; from pathlib import Path; import blockwright.api.app.application\n"
        f"names = [name for name in sys.modules if name.startswith({MODULES!r})]\n"
        "for name in names: del sys.modules[name]\n"
        "size = lambda: int(Path('/proc/self/statm').read_text().split()[1]) * 4096 / 1e6\n"
        "before, began = size(), time.process_time()\n"
        "for name in names: importlib.import_module(name)\n"
        "print(1e3 * (time.process_time() - began), size() - before)"
    )
    for _ in range(plan.rounds):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        milliseconds, megabytes = map(float, done.stdout.split())
        report.add("import", OURS, {"ms": milliseconds, "mb": megabytes})


async def measure(report: Report, plan: Plan, folder: Path) -> None:
    for size in plan.sizes:
        await own_schemas(report, plan, size, folder)
    await new_grammars(report, plan, folder)
    await kills(report, plan, folder)
    await forced(report, plan, folder)


@harness.claim("A constraint of its own on each of 32 requests costs a small part of their speed", of="structured-output")
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    settings = {"streams": STREAMS, "tokens": plan.tokens, "vocabulary": VOCABULARY}
    report = Report("structured", settings, ("torch", "llguidance"))
    imports(report, plan)
    with tempfile.TemporaryDirectory() as folder:
        masks(report, plan, Path(folder))
        asyncio.run(measure(report, plan, Path(folder)))
    harness.finish(report, options, bars(plan))


if __name__ == "__main__":
    main(harness.parse(__doc__))

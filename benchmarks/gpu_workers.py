"""Part 9 of ``gpu.py``: two worker processes on one card, served over HTTP in bfloat16: a pipeline, and kill -9 of one.

The same checkpoint is served twice: in a pipeline of both workers, and whole on each of them. ``of_one`` is the pipeline's
tokens by second over those of a single worker. ``pause_ms`` is the longest time between two chunks of a stream of the killed
worker; ``back_s`` is the time until the new worker serves. ``differing`` counts streams whose tokens are not those of the
executor in this process, or that a kill has changed. ``exchange``: how long activations take from process to process while
KV moves through the card's slots, in times of a chunk.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from failover import recovered
from gpu_card import CARD, MIRROR
from gpu_equality import rig_of
from gpu_report import Part
from links import rig, under_load
from models import make_model, prompts
from server import Served, ServerError, served

from blockwright.policies.cluster.chunk_order import Traffic

SPLIT, WHOLE = "split", "whole"
MEMORY = {CARD: "16GiB", MIRROR: "64MiB"}
STREAMS = {CARD: 16, MIRROR: 2}
PROMPT = {CARD: 128, MIRROR: 9}
EXCHANGED = {CARD: 4 << 30, MIRROR: 64 << 20}  # bytes of KV
SLOTS = "device-slot"
MOST_P99_CHUNKS = 2.5
BEFORE_KILL = 4  # tokens
MOST_PAUSE_MS = 1000.0
MOST_BACK_S = 10.0
LEAST_OF_ONE = 0.70


def measure(part: Part) -> None:
    """Add the pipeline's rate and tokens, and what a kill costs."""
    with part.attempt("two"), tempfile.TemporaryDirectory(dir=_in_memory()) as folder:
        model = make_model(part.sizes.served, "bf16", Path(folder) / SPLIT)  # a folder's name is the model's id
        asyncio.run(_measure(part, model))
    with part.attempt("exchange"):
        asyncio.run(_exchange(part))
    part.bar("pipeline", "of_one", at_least=LEAST_OF_ONE)
    part.bar("pipeline", "differing", at_most=0.0)
    part.bar("exchange", "p99_chunks", at_most=MOST_P99_CHUNKS)
    part.bar("kill", "differing", at_most=0.0)
    part.bar("kill", "pause_ms", at_most=MOST_PAUSE_MS)
    part.bar("kill", "back_s", at_most=MOST_BACK_S)


def _in_memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _kind(part: Part) -> str:
    return MIRROR if part.card.mirrored else CARD


async def _measure(part: Part, model: Path) -> None:
    kind = _kind(part)
    common = ("--device", kind, "--set", f"memory={MEMORY[kind]}")
    one = 0.0
    if kind == CARD:  # the mirror's processor time is the test suite's
        async with served(model, *common, "--workers", "1") as server:
            one, _ = await _rate(part, server)
            part.add("one", {"tokens_per_s": one})
    two = ("--workers", "2", "--set", f"pipelines.{SPLIT}=2")
    async with served(model, "--app", f"{WHOLE}={model}", *common, *two) as server:
        await recovered(server, 0)
        server.model = SPLIT
        rate, tokens = await _rate(part, server)
        want = _alone(part, model)
        differing = float(sum(a != b for a, b in zip(tokens, want, strict=True)))
        part.add("pipeline", {"tokens_per_s": rate, "differing": differing, **({"of_one": rate / one} if one else {})})
        server.model = WHOLE
        for kill in range(part.sizes.kills):
            part.add("kill", await _kill(part, server, want, kill))


async def _exchange(part: Part) -> None:
    """Add the delay of activations while KV moves between two processes of the card, through slots of its memory."""
    kind = _kind(part)
    async with rig((SLOTS,), MIRROR if kind == MIRROR else f"{CARD}:0") as both:
        latencies, chunk, stalled = await under_load(both.links[SLOTS], both.sink, Traffic.ACTIVATION, EXCHANGED[kind], None)
    p99 = statistics.quantiles(latencies, n=100)[98] if len(latencies) > 1 else latencies[0]
    figures = {"p99_us": 1e6 * p99, "chunk_us": 1e6 * chunk, "p99_chunks": p99 / chunk, "stalled_us": 1e6 * stalled}
    part.add("exchange", figures)


def _asked(part: Part) -> list[list[int]]:
    kind = _kind(part)
    return prompts(part.sizes.served, STREAMS[kind], PROMPT[kind], 1)


def _alone(part: Part, model: Path) -> list[list[int]]:
    """Return the tokens of the executor in this process, each prompt alone and at once."""
    length = PROMPT[_kind(part)]
    rig = rig_of(part.card, model, "bfloat16", length=length + part.sizes.new_tokens)
    found = [rig.generate(0, prompt, part.sizes.new_tokens, length) for prompt in _asked(part)]
    part.card.release()
    return found


class _Stream:
    """One answer: its tokens, and when they came."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.tokens: list[int] = []
        self.request = ""
        self.begun = asyncio.Event()

    async def follow(self, server: Served, prompt: list[int], count: int) -> None:
        async for at, news, self.request in server.chunks(prompt, count):
            self.times.append(at)
            self.tokens += news
            if len(self.tokens) >= BEFORE_KILL:
                self.begun.set()

    def pause(self, moment: float) -> float:
        """Return the longest time between two chunks of which the second came after ``moment``."""
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False) if b > moment), default=0.0)


async def _rate(part: Part, server: Served) -> tuple[float, list[list[int]]]:
    """Return the tokens by second of all streams together, and each one's."""
    streams = [_Stream() for _ in _asked(part)]
    began = time.monotonic()
    count = part.sizes.new_tokens
    await asyncio.gather(*(s.follow(server, p, count) for s, p in zip(streams, _asked(part), strict=True)))
    return len(streams) * count / (time.monotonic() - began), [s.tokens for s in streams]


async def _kill(part: Part, server: Served, want: list[list[int]], number: int) -> dict[str, float]:
    """Kill a worker that serves a stream, and return what that cost."""
    streams = [_Stream() for _ in want]
    count = part.sizes.new_tokens
    jobs = [asyncio.create_task(s.follow(server, p, count)) for s, p in zip(streams, _asked(part), strict=True)]
    await asyncio.wait([asyncio.create_task(s.begun.wait()) for s in streams], return_when=asyncio.FIRST_COMPLETED)
    first = next(s for s in streams if s.begun.is_set())
    route = (await server.get(f"/v1/requests/{first.request}"))["route"]
    by_id = {worker["id"]: worker for worker in (await server.get("/admin/cluster"))["workers"]}
    if not (hit := [by_id[hop["worker"]] for hop in route]):
        raise ServerError(f"kill {number}: no stream had a route any more; ask for more tokens")
    moment = time.monotonic()
    os.kill(hit[0]["pid"], signal.SIGKILL)
    await asyncio.gather(*jobs)
    last = number + 1 == part.sizes.kills and part.card.mirrored
    found = {
        "pause_ms": 1000 * max(s.pause(moment) for s in streams),
        "differing": float(sum(s.tokens != expected for s, expected in zip(streams, want, strict=True))),
    }
    if not last:
        await recovered(server, hit[0]["pid"])
        found["back_s"] = time.monotonic() - moment
    return found

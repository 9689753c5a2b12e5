"""Requests of ``tenants.py`` and the clients' measurements, with open arrivals or a fixed number at a time (closed).

Rates of applications are uneven (1 : 2 : ... : 20). ``poisson``: exponential gaps, prompts and answers of 8 to 48 tokens
each. ``azure``: gaps and, divided by ``SHORTER``, lengths of 400 requests of a production trace. Times are seconds.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models import EOS, SIZES
from server import Served, ServerError

TRACE = Path(__file__).parent / "azure_conversation.json"
SHORTER = 16  # a production trace's lengths are for larger machines
LENGTHS = (8, 48)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request; ``at``: when it arrives, for a mean rate of one per second."""

    at: float
    model: str
    prompt: list[int]
    tokens: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What clients saw of a run."""

    seconds: float  # from the first arrival to the last answer
    latencies: list[float]
    tokens: int

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "out_tok_per_s": self.tokens / self.seconds,
            "p50_s": statistics.median(self.latencies),
            "p95_s": statistics.quantiles(self.latencies, n=20)[-1],
        }


def requests(workload: str, names: Sequence[str], count: int, size: str, seed: int) -> list[Asked]:
    """``count`` requests; what one seed gives does not depend on who serves them."""
    draw, rates = random.Random(f"{workload}/{seed}"), list(range(1, len(names) + 1))
    random.Random(12).shuffle(rates)
    trace = json.loads(TRACE.read_text()) if workload == "azure" else {}
    at, found = 0.0, []
    for place in range(count):
        if trace:
            here = place % len(trace["gap_s"])
            at += trace["gap_s"][here] / statistics.mean(trace["gap_s"])
            asked, answered = (max(2, trace[f"{way}_tokens"][here] // SHORTER) for way in ("input", "output"))
        else:
            at += draw.expovariate(1.0)
            asked, answered = draw.randint(*LENGTHS), draw.randint(*LENGTHS)
        (model,) = draw.choices(names, rates)
        prompt = [draw.randrange(EOS + 1, SIZES[size].vocabulary) for _ in range(asked)]
        found.append(Asked(at, model, prompt, answered))
    return found


async def ask(server: Served, asked: Asked) -> None:
    """One answer of exactly the tokens asked for."""
    body = {**server.body(asked.prompt, asked.tokens), "model": asked.model}
    async with server.session.post("/v1/completions", json=body) as answer:
        if answer.status != 200:
            raise ServerError(f"completion: {answer.status} {(await answer.text())[:300]}")
        made = (await answer.json())["usage"]["completion_tokens"]
    if made != asked.tokens:
        raise ServerError(f"asked for {asked.tokens} tokens, got {made}")


async def opened(server: Served, batch: Sequence[Asked], rate: float) -> Seen:
    """Each request at its time, ``rate`` per second on average; latencies count from there."""
    began = time.monotonic()

    async def one(asked: Asked) -> float:
        due = began + asked.at / rate
        await asyncio.sleep(due - time.monotonic())
        await ask(server, asked)
        return time.monotonic() - due

    latencies = await asyncio.gather(*map(one, batch))
    return Seen(time.monotonic() - began, list(latencies), sum(asked.tokens for asked in batch))


async def closed(server: Served, batch: Sequence[Asked], clients: int) -> Seen:
    """``clients`` of which each sends the next request when it has its answer."""
    left = iter(batch)
    latencies = list[float]()
    began = time.monotonic()

    async def client() -> None:
        for asked in left:
            sent = time.monotonic()
            await ask(server, asked)
            latencies.append(time.monotonic() - sent)

    await asyncio.gather(*(client() for _ in range(clients)))
    return Seen(time.monotonic() - began, latencies, sum(asked.tokens for asked in batch))

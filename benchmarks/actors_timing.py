"""Timing of calls, the same for every subject. Standard library only: peers run in environments of their own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

SMALL_CALLS, WARM = 3000, 300
LARGE_CALLS = {"64KiB": 300, "1MiB": 60, "64MiB": 8}
SIZES = {"64KiB": 64 << 10, "1MiB": 1 << 20, "64MiB": 64 << 20}
CALLERS = {8: 12_000, 256: 40_000}  # calls altogether


def percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"p50_us": 1e6 * ordered[len(ordered) // 2], "p99_us": 1e6 * ordered[int(len(ordered) * 0.99)]}


def bulk(seconds: list[float], size: int) -> dict[str, float]:
    """Of calls with a large argument."""
    ordered = sorted(seconds)
    middle = ordered[len(ordered) // 2]
    return {"p50_us": 1e6 * middle, "gib_per_s": size / middle / 2**30}


async def timed(call: Callable[[], Awaitable[Any]], count: int, warm: int) -> list[float]:
    """Seconds of each of ``count`` calls in a row."""
    for _ in range(warm):
        await call()
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - began)
    return seconds


def timed_blocking(call: Callable[[], Any], count: int, warm: int) -> list[float]:
    for _ in range(warm):
        call()
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return seconds


async def together(call: Callable[[], Awaitable[Any]], callers: int, total: int) -> dict[str, float]:
    """Calls per second with ``callers`` that each wait for their answer."""

    async def one(count: int) -> None:
        for _ in range(count):
            await call()

    await asyncio.gather(*[one(4) for _ in range(callers)])
    began = time.perf_counter()
    await asyncio.gather(*[one(total // callers) for _ in range(callers)])
    return {"per_s": total // callers * callers / (time.perf_counter() - began)}


def tell(case: str, metrics: dict[str, float]) -> None:
    """A line for the script that started this peer."""
    print(json.dumps({"case": case, "metrics": metrics}), flush=True)

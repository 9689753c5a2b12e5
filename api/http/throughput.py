"""A line of the log every ten seconds in which something was served: tokens per second, and what runs and waits.

With the setting ``log_level`` at info; each process that answers tells of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping

from aiohttp import web

from ...actors.gateway.port import Census
from .context import FRONT
from .metrics import TokenCounts

SECONDS = 10.0  # between two lines, as vLLM has it
log = logging.getLogger(__name__)


def line(before: TokenCounts, after: TokenCounts, seconds: float, census: Mapping[str, Census]) -> str:
    """Of the time between two counts; empty where nothing happened in it and nothing is there."""
    running = sum(now.running for now in census.values())
    waiting = sum(sum(now.waiting.values()) for now in census.values())
    if before == after and not running + waiting:
        return ""
    prompt, generated = ((getattr(after, n) - getattr(before, n)) / seconds for n in ("prompt", "generated"))
    told = f"{prompt:.1f} prompt and {generated:.1f} generated tokens/s, {running} running, {waiting} waiting"
    queries = after.queries - before.queries
    return f"{told}, {(after.hits - before.hits) / queries:.0%} prefix cache hits" if queries else told


async def tell(app: web.Application) -> AsyncIterator[None]:
    """For ``cleanup_ctx``."""
    task = asyncio.create_task(_tell(app)) if log.isEnabledFor(logging.INFO) else None
    yield
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _tell(app: web.Application) -> None:
    front = app[FRONT]
    before, since = front.metrics.counted(), time.monotonic()
    while True:
        await asyncio.sleep(SECONDS)
        after, now = front.metrics.counted(), time.monotonic()
        if said := line(before, after, now - since, front.port.census()):
            log.info("%s", said)
        before, since = after, now

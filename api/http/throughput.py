"""A log line every ten seconds with traffic: tokens per second, running and waiting requests.

Logged if the setting ``log_level`` is info; each process that answers logs its own.
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

SECONDS = 10.0  # seconds between two lines, as in vLLM
log = logging.getLogger(__name__)


def line(before: TokenCounts, after: TokenCounts, seconds: float, census: Mapping[str, Census]) -> str:
    """Return the line for the time between two counts, or an empty text if nothing happened and nothing is in progress."""
    running = sum(now.running for now in census.values())
    waiting = sum(sum(now.waiting.values()) for now in census.values())
    if before == after and not running + waiting:
        return ""
    prompt, generated = ((getattr(after, n) - getattr(before, n)) / seconds for n in ("prompt", "generated"))
    text = f"{prompt:.1f} prompt and {generated:.1f} generated tokens/s, {running} running, {waiting} waiting"
    queries = after.queries - before.queries
    return f"{text}, {(after.hits - before.hits) / queries:.0%} prefix cache hits" if queries else text


async def log_throughput(app: web.Application) -> AsyncIterator[None]:
    """Run the logger, for ``cleanup_ctx``."""
    task = asyncio.create_task(_log_throughput(app)) if log.isEnabledFor(logging.INFO) else None
    yield
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _log_throughput(app: web.Application) -> None:
    front = app[FRONT]
    before, since = front.metrics.counted(), time.monotonic()
    while True:
        await asyncio.sleep(SECONDS)
        after, now = front.metrics.counted(), time.monotonic()
        if said := line(before, after, now - since, front.port.census()):
            log.info("%s", said)
        before, since = after, now

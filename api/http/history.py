"""``/metrics/history``: the data of the page's charts, kept on the server so that a reload or another browser sees the past.

Samples are taken once a second, with or without readers. ``actors/load_history.py`` owns the rows and thins them out. Rows
of other processes are added when a request comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator
from time import time as wall_clock
from typing import Any

from aiohttp import web

from ...actors.load_history import RINGS, WINDOW, LoadRow, memory_of, quantile, step_of, windows
from ..answers import HistoryAnswer, HistoryRow
from ..checks import shown
from ..errors import bad_request
from .context import FRONT, PEER, Front
from .metrics import SECONDS

INTERVAL = 1.0  # seconds between two samples
MEMORY_EVERY = 10  # samples between two queries of the workers' memory; a request for /admin/cluster updates it, too
PATIENCE = 2.0  # timeout of that query, seconds
LONGEST = RINGS[-1][0] * RINGS[-1][1]
log = logging.getLogger(__name__)


async def history(request: web.Request) -> web.Response:
    """Return the rows of all processes that answer.

    ``seconds``: how far back. ``after``: return only rows that may be new since that time.
    """
    seconds, after = _number(request, "seconds", 120, 1, LONGEST), _number(request, "after", 0, 0, 1 << 53)
    step = step_of(seconds)
    front = request.app[FRONT]
    peers = request.app[PEER]
    since = max(after, int(wall_clock()) - seconds)
    window = WINDOW if step == 1 else 1
    asked = since - (window - 1) * step
    found = await peers[0].history_anywhere(step, asked) if peers else front.load_rows(step, asked)
    counts = windows(found, window)
    rows = [_row(row, first) for row, first in zip(found, counts, strict=True) if row.at >= since]
    return web.json_response(HistoryAnswer(step=step, rows=rows))


def _row(row: LoadRow, first: list[int]) -> HistoryRow:
    p50, p95 = (quantile(first, SECONDS, share) for share in (0.5, 0.95))
    memory: Any = None if row.memory is None else dataclasses.asdict(row.memory)
    return HistoryRow(
        at=row.at, running=row.running, waiting=row.waiting, tokens_per_second=row.rate, p50=p50, p95=p95, memory=memory
    )


def _number(request: web.Request, name: str, default: int, least: int, limit: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isdecimal() or not least <= int(text) <= limit:
        raise bad_request(f"{name} is {shown(text)}; give a whole number from {least} to {limit}", name)
    return int(text)


def look(front: Front, now: float) -> None:
    """Take one sample, at ``now`` seconds since 1970."""
    census = front.port.census().values()
    waiting = sum(sum(model.waiting.values()) for model in census)
    running = sum(model.running for model in census)
    front.history.record(now, running, waiting, front.metrics.counted().generated, front.metrics.first_tokens())


async def keep(app: web.Application) -> AsyncIterator[None]:
    """Run the sampler, for ``cleanup_ctx``."""
    task = asyncio.create_task(_keep(app[FRONT]))
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _keep(front: Front) -> None:
    looks, asked = 0, None
    # rows follow the monotonic clock, so that they do not jump when the wall clock is set
    began, at = time.monotonic(), wall_clock()
    while True:
        look(front, at + time.monotonic() - began)
        if looks % MEMORY_EVERY == 0 and (asked is None or asked.done()):
            asked = asyncio.create_task(_ask(front))
        looks += 1
        await asyncio.sleep(INTERVAL)


async def _ask(front: Front) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            front.history.memory = memory_of(await front.port.cluster())
    except Exception as error:  # the cluster is starting or the controller is away: the charts get a gap
        log.debug("no numbers of the workers: %s", error)
        front.history.memory = None

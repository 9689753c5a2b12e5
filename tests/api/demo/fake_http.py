"""Serves a test's fake handlers on a free port, to a session of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web


@asynccontextmanager
async def served(routes: Sequence[web.RouteDef]) -> AsyncIterator[aiohttp.ClientSession]:
    """A session whose paths are those of ``routes``."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
            yield session
    finally:
        await runner.cleanup()

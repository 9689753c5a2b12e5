"""A server of a test's fake handlers on a free port, with a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from blockwright.api.program.client import Client


@asynccontextmanager
async def served(routes: Sequence[web.RouteDef]) -> AsyncIterator[Client]:
    """Yield a client of a server with these routes."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Client(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            yield client
    finally:
        await runner.cleanup()

"""Reads a JSON body off the event loop when it is large enough to hold the loop up."""

from __future__ import annotations

import asyncio

from aiohttp import web

from blockwright.api.checks import Body
from blockwright.api.openai_schema import parse_json

_LARGE = 1 << 20  # bytes; parsing this takes about 10 ms


async def read_body(request: web.Request) -> Body:
    """The body as an object. Raises a 400, or aiohttp's 413."""
    raw = await request.read()
    if len(raw) < _LARGE:
        return parse_json(raw)
    return await asyncio.get_running_loop().run_in_executor(None, parse_json, raw)

"""Reads and checks a JSON body, off the event loop when it is large enough to hold the loop up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web

from blockwright.api.checks import Body
from blockwright.api.errors import bad_request
from blockwright.api.openai_schema import parse_json

_LARGE = 1 << 18  # bytes; to parse and check this takes about 10 ms
T = TypeVar("T")


async def read_body(request: web.Request, check: Callable[[Body], T]) -> T:
    """What ``check`` makes of the body, an object. Raises a 400, or aiohttp's 413."""
    try:
        raw = await request.read()
    except web.RequestPayloadError as error:
        why = " ".join(str(error).removeprefix("400, message:").split())
        request.content.feed_eof()  # else aiohttp waits for the rest, meets the same error and logs it as its own
        refusal = bad_request(f"the body cannot be read ({why}); send it as its headers say", code="invalid_json")
        refusal.headers["Connection"] = "close"  # what follows in this connection is unknown
        raise refusal from None
    if len(raw) < _LARGE:
        return check(parse_json(raw))
    return await asyncio.get_running_loop().run_in_executor(None, lambda: check(parse_json(raw)))

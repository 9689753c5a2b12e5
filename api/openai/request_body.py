"""Reads and checks a JSON body, off the event loop when it is large enough to hold the loop up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web

from blockwright.api.checks import Body
from blockwright.api.errors import ApiError, bad_request
from blockwright.api.http.context import FRONT
from blockwright.api.http.expect import begin_body
from blockwright.api.openai.bodies import parse_json

SLOWEST = 16 << 10  # bytes in a second, of a body for which the setting read_timeout is over
_LARGE = 1 << 18  # bytes; to parse and check this takes about 10 ms
T = TypeVar("T")


async def read_body(request: web.Request, check: Callable[[Body], T]) -> T:
    """What ``check`` makes of the body, an object. Raises a 400, a 408, or aiohttp's 413."""
    try:
        raw = await _read(request, request.app[FRONT].settings.read_timeout)
    except web.RequestPayloadError as error:
        why = " ".join(str(error).removeprefix("400, message:").split())
        request.content.feed_eof()  # else aiohttp waits for the rest, meets the same error and logs it as its own
        refusal = bad_request(f"the body cannot be read ({why}); send it as its headers say", code="invalid_json")
        refusal.headers["Connection"] = "close"  # what follows in this connection is unknown
        raise refusal from None
    except TimeoutError:
        seconds = request.app[FRONT].settings.read_timeout
        late = ApiError(408, f"the body did not arrive within {seconds:g} s plus one for each 16 KiB; send it faster")
        late.headers["Connection"] = "close"
        raise late from None
    if len(raw) < _LARGE:
        return check(parse_json(raw))
    return await asyncio.get_running_loop().run_in_executor(None, lambda: check(parse_json(raw)))


async def _read(request: web.Request, seconds: float) -> bytes:
    """The body. Raises TimeoutError where it comes more slowly than ``SLOWEST`` for longer than ``seconds``."""
    raw, most, begun = bytearray(), request.client_max_size, asyncio.get_running_loop().time()
    await begin_body(request, most)
    async with asyncio.timeout_at(begun + seconds) as limit:
        while chunk := await request.content.readany():
            raw += chunk
            if len(raw) > most:
                raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=len(raw))
            limit.reschedule(begun + seconds + len(raw) / SLOWEST)
    return bytes(raw)

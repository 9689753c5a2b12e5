"""Reading and checking of JSON bodies, off the event loop if a body is large enough to block it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web

from ..checks import Body
from ..errors import ApiError, bad_request
from ..http.body_memory import SMALL
from ..http.content_encoding import decoded
from ..http.context import CALLER, FRONT
from ..http.expect import begin_body
from .bodies import parse_json
from .json_size import MOST

SLOWEST = 16 << 10  # bytes per second: the slowest rate of a body after the setting read_timeout has passed
T = TypeVar("T")


async def read_body(request: web.Request, check: Callable[[Body], T]) -> T:
    """Return the result of ``check`` on the body, an object. Raise a 400, a 408, a 503, or aiohttp's 413."""
    front = request.app[FRONT]
    await begin_body(request, request.client_max_size)
    length = request.content_length
    size = request.client_max_size if length is None or request.headers.get("Content-Encoding") else length
    async with front.bodies.share(request[CALLER].key, size, front.settings.network.read_timeout):
        raw = await _read(request, front.settings.network.read_timeout)
        limit = max(MOST, 2 * front.settings.requests.max_model_len)
        if len(raw) <= SMALL:
            return check(parse_json(raw, limit))
        return await front.run_in_thread(lambda: check(parse_json(raw, limit)))


async def _read(request: web.Request, seconds: float) -> bytes:
    """Return the body; raise a 408 if it arrives more slowly than ``SLOWEST`` for longer than ``seconds``."""
    raw = bytearray()
    max_size = request.client_max_size
    begun = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(begun + seconds) as limit:
            async for chunk in decoded(request):
                raw += chunk
                if len(raw) > max_size:
                    raise web.HTTPRequestEntityTooLarge(max_size=max_size, actual_size=len(raw))
                limit.reschedule(begun + seconds + len(raw) / SLOWEST)
    except web.RequestPayloadError as error:
        why = " ".join(str(error).removeprefix("400, message:").split())
        refusal = bad_request(f"the body cannot be read ({why}); send it as its headers say", code="invalid_json")
        refusal.headers["Connection"] = "close"  # the framing of further bytes is unknown
        raise refusal from None
    except TimeoutError:
        late = ApiError(408, f"the body did not arrive within {seconds:g} s plus one for each 16 KiB; send it faster")
        late.headers["Connection"] = "close"
        raise late from None
    return bytes(raw)

"""Checks before a body is read: ``Expect: 100-continue``, declared length.

aiohttp sends ``100 Continue`` as soon as it has looked up the path, even if the path does not exist, and before the key is
checked. So the ``Expect`` header is taken out before aiohttp sees it, and the code that reads the body honors it.
"""

from __future__ import annotations

from aiohttp import HttpVersion11, web
from aiohttp.http_parser import RawRequestMessage

from ..errors import ApiError

EXPECTED = web.RequestKey("expected", str)  # the pending expectation of a client; empty once ``100 Continue`` is sent


def take_out(message: RawRequestMessage) -> tuple[RawRequestMessage, str]:
    """Return the message without its ``Expect`` header, and the value of that header or an empty text."""
    expected = message.headers.get("Expect", "")
    if not expected:
        return message, ""
    headers = message.headers.copy()
    headers.popall("Expect")
    known = message.version >= HttpVersion11  # HTTP/1.0 has no ``Expect``
    return message._replace(headers=type(message.headers)(headers)), expected if known else ""


def check(request: web.Request) -> None:
    """Raise a 417 for an unknown expectation."""
    expected = request.get(EXPECTED, "")
    if expected.lower() not in ("", "100-continue"):
        raise ApiError(417, f"Expect: {expected[:100]!r} is not known; leave it out, or say 100-continue")


async def begin_body(request: web.Request, limit: int) -> None:
    """Tell a waiting client to send its body; call this before reading it.

    Raise aiohttp's 413 for a declared length above ``limit`` bytes.
    """
    if (length := request.content_length or 0) > limit:
        raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=length)
    if request.get(EXPECTED):
        request[EXPECTED] = ""
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer, still to come, counts from zero


def close_where_it_waits(request: web.Request, answer: web.StreamResponse) -> None:
    """Close the connection after an answer to a client that still waits.

    Its next bytes may be the body or another request.
    """
    if request.get(EXPECTED) and request.can_read_body:
        answer.force_close()

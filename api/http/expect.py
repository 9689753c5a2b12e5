"""What is said of a body before any of it is read: that it is too large, or to a client that waits (``Expect``), to go on.

aiohttp tells such a client to go on as soon as it has found the path, also where there is none, before anybody has looked at
the key. So what a client expects is taken out of the headers before aiohttp sees it, and met by whoever reads the body.
"""

from __future__ import annotations

from aiohttp import HttpVersion11, web
from aiohttp.http_parser import RawRequestMessage

from ..errors import ApiError

ENCODINGS = ("", "identity", "gzip", "deflate", "br", "zstd")  # the last two where their packages are installed
EXPECTED = web.RequestKey("expected", str)  # what the client waits for, until it is told to go on


def take_out(message: RawRequestMessage) -> tuple[RawRequestMessage, str]:
    """The message without what it expects, and that; the same message where it expects nothing."""
    expected = message.headers.get("Expect", "")
    if not expected:
        return message, ""
    headers = message.headers.copy()
    headers.popall("Expect")
    known = message.version >= HttpVersion11  # an older client knows nothing of it
    return message._replace(headers=type(message.headers)(headers)), expected if known else ""


def check(request: web.Request) -> None:
    """A 417 for what is not known."""
    expected = request.get(EXPECTED, "")
    if expected.lower() not in ("", "100-continue"):
        raise ApiError(417, f"Expect: {expected[:100]!r} is not known; leave it out, or say 100-continue")


def unknown_encoding(request: web.BaseRequest) -> ApiError:
    """Return the 415 for a body in an encoding that is not known."""
    named = request.headers.get("Content-Encoding", "")[:100]
    refusal = ApiError(415, f"Content-Encoding: {named!r} is not known; send gzip, deflate, or the body as it is")
    refusal.headers["Accept-Encoding"] = "gzip, deflate"
    return refusal


def check_encoding(request: web.Request) -> None:
    """Raise a 415 for a body in an encoding that aiohttp would hand on as it is."""
    if request.can_read_body and request.headers.get("Content-Encoding", "").lower() not in ENCODINGS:
        raise unknown_encoding(request)


async def begin_body(request: web.Request, most: int) -> None:
    """To be called before the body is read, of which ``most`` bytes are taken. Raises aiohttp's 413 for a length above."""
    if (length := request.content_length or 0) > most:
        raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=length)
    if request.get(EXPECTED):
        request[EXPECTED] = ""
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # of the answer, which is still to come


def close_where_it_waits(request: web.Request, answer: web.StreamResponse) -> None:
    """Who was not told to go on may send the body, or the next request: what follows in this connection is unknown."""
    if request.get(EXPECTED) and request.can_read_body:
        answer.force_close()

"""Requests that a gateway on another machine cannot answer by itself, since they are about files of the server's machine.

These are batches with their files, and the addition of models from folders. The gateway passes such a request on as it came,
in messages; the head sends it to the server's own address, and the answer comes back in the same way. Neither end holds a
body in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from ...actors.gateway.fetched_files import FetchedFiles
from ...actors.settings.network import NetworkSettings
from ...runtime.actor.ref import Ref
from ...runtime.base.errors import RemoteError, RuntimeFault
from ..errors import ApiError
from .expect import begin_body

PIECE = 1 << 18  # bytes of a body in one message
AHEAD = 4  # pieces that wait for the server
MOST = 256  # requests at a time
SECONDS = 60.0  # until the other end takes a piece, or gives one
_STORED = ("/v1/files", "/v1/batches")
_ADDING = ("/admin/apps", "/v1/load_lora_adapter")
# headers of one connection, and headers that each end writes itself
_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "content-length"}
_HOP |= {"date", "server"}


def is_elsewhere(method: str, path: str, far: FarServer | None) -> bool:
    """Return whether a request is about files of the server's machine, which is not this one."""
    below = [one for one in (*_STORED, *_ADDING) if path == one or path.startswith(f"{one}/")]
    return far is not None and bool(below) and (far.batches if below[0] in _STORED else method in ("POST", "PUT"))


@dataclass(frozen=True, slots=True)
class FarServer:
    """The server, as a gateway on another machine sees it.

    files: fetches those of models. head: the peer actor of the head. batches: the server keeps some.
    """

    files: FetchedFiles
    head: Ref
    batches: bool


FAR: web.AppKey[FarServer | None] = web.AppKey("far")


@dataclass(slots=True)
class _Relayed:
    pieces: asyncio.Queue[bytes]
    answer: asyncio.Task[aiohttp.ClientResponse]


class HttpRelay:
    """The head's end: sends requests to the server's own address. ``port``: of that."""

    def __init__(self, network: NetworkSettings, port: int) -> None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(network.host, network.host)
        scheme = "https" if network.tls_cert else "http"
        self._url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        self._keeps_host = bool(network.allowed_hosts)
        self._session: aiohttp.ClientSession | None = None
        self._open: dict[str, _Relayed] = {}

    async def begin(self, method: str, target: str, headers: dict[str, str]) -> str:
        """Begin to send a request; return its number here. Raises ValueError if too many are open."""
        if len(self._open) >= MOST:
            raise ValueError(f"{MOST} requests from gateways on other machines are open; try again")
        if self._session is None:
            # its own certificate, on its own machine
            more: dict[str, Any] = {"connector": aiohttp.TCPConnector(ssl=False, limit=0), "auto_decompress": False}
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(), **more)
        number, pieces = secrets.token_hex(8), asyncio.Queue[bytes](AHEAD)
        sent = {name: value for name, value in headers.items() if name.lower() not in _HOP}
        if not self._keeps_host:
            sent.pop("Host", None)
        body = _given(pieces) if method != "GET" else None
        asked = self._session.request(method, self._url + target, headers=sent, data=body, allow_redirects=False)
        self._open[number] = _Relayed(pieces, asyncio.ensure_future(_answered(asked)))
        return number

    async def give(self, number: str, piece: bytes) -> None:
        """Give the next piece of a body, or its end, which is empty. Return when it is taken, or the answer is there."""
        if (relayed := self._open.get(number)) is None:
            return
        putting = asyncio.ensure_future(relayed.pieces.put(piece))
        await asyncio.wait((putting, relayed.answer), timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
        putting.cancel()

    async def answer(self, number: str) -> AsyncIterator[bytes]:
        """Yield the answer: status and headers as JSON, then the body in pieces."""
        relayed = self._open[number]
        try:
            response = await relayed.answer
            async with response:
                headers = [(name, value) for name, value in response.headers.items() if name.lower() not in _HOP]
                yield json.dumps([response.status, headers]).encode()
                async for piece in response.content.iter_chunked(PIECE):
                    yield piece
        finally:
            self.drop(number)

    def drop(self, number: str) -> None:
        """Forget a request, whatever has become of it."""
        if (relayed := self._open.pop(number, None)) is not None:
            relayed.answer.cancel()

    async def close(self) -> None:
        for number in list(self._open):
            self.drop(number)
        if self._session is not None:
            await self._session.close()


async def _answered(asked: Any) -> aiohttp.ClientResponse:
    found: aiohttp.ClientResponse = await asked
    return found


async def _given(pieces: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
    while piece := await pieces.get():
        yield piece


async def relayed(request: web.Request, longest: int) -> web.StreamResponse:
    """Answer a request by the server that has the files. ``longest``: most bytes of its body. Raise ApiError."""
    far = request.app[FAR]
    assert far is not None, "the server is on this machine"
    number, peer = "", far.head
    sending: asyncio.Future[None] | None = None
    try:
        head = _sent_headers(request.headers)
        number = await peer.relay_begin(request.method, request.path_qs, head, timeout=SECONDS, returns=str)
        if request.method != "GET":
            await begin_body(request, longest)
            sending = asyncio.ensure_future(_send(request, peer, number))
        return await _receive(request, peer, number)
    except RemoteError as error:
        raise ApiError(503, error.text, retry_after=1.0) from None
    except RuntimeFault as error:
        message = f"this is kept on the server's machine, which does not answer ({error}); try again"
        raise ApiError(503, message, retry_after=1.0) from None
    finally:
        if sending is not None:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await sending
        if number:
            peer.relay_drop.cast(number)


def _sent_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {str(name): value for name, value in headers.items() if name.lower() not in _HOP}


async def _send(request: web.Request, peer: Ref, number: str) -> None:
    async for piece in request.content.iter_chunked(PIECE):
        await peer.relay_give(number, piece, timeout=SECONDS)
    await peer.relay_give(number, b"", timeout=SECONDS)


async def _receive(request: web.Request, peer: Ref, number: str) -> web.StreamResponse:
    response: web.StreamResponse | None = None
    stream: Any = peer.relay_answer(number, timeout=SECONDS, returns=bytes)
    async for piece in stream:
        if response is None:
            status, headers = json.loads(piece)
            response = web.StreamResponse(status=status)
            for name, value in headers:
                response.headers[name] = value
            await response.prepare(request)
        else:
            await response.write(piece)
    if response is None:
        raise ApiError(503, "the server's machine gave no answer; try again", retry_after=1.0)
    await response.write_eof()
    return response

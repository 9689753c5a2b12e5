"""The listening side of the HTTP front: connections, runner, TLS. The head and further gateway processes share it.

It answers only requests that no handler ever sees: bytes that are not HTTP, and connections beyond the limit.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import resource
import ssl
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import PayloadEncodingError
from aiohttp.http_parser import RawRequestMessage

from ...actors.settings.errors import SettingsError
from ...actors.settings.network import NetworkSettings
from ...gpu.regular_file import open_plain
from ..errors import ApiError, bad_request, error_form, error_response, from_http
from .context import FRONT
from .expect import EXPECTED, take_out
from .health import PUBLIC

log = logging.getLogger(__name__)
IDLE = 10
LINGER = 10.0  # seconds to discard the rest of an unread body, so that the client reads the refusal
CLOSE_SECONDS = 2.0  # seconds for answers that are still being written at shutdown
SPARE_FILES = 256  # open files of a process that are reserved for other uses than connections
SLICE = 8 << 10  # bytes that are parsed in one turn of the loop: each chunk of a body takes a call, and has a byte or more
EXCESS_SECONDS = 1.0  # seconds in which an excess connection may send its request, so that its client reads the refusal


class _Connection(web.RequestHandler):
    """A connection with a time limit for the head of a request, and with our error format for bytes that are not HTTP.

    slow: seconds from the beginning of the connection, or from the first byte of a further request, to the end of its head.
    An idle connection is closed after ``IDLE`` times that: clients and proxies keep some for later.

    limit: connections of this process. Up to that number again get a 503 (``excess``); further ones are closed at once.
    """

    def __init__(self, server: web.Server, slow: float, limit: float) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # None turns it off
            keepalive_timeout=IDLE * slow,
            lingering_time=min(LINGER, slow),
            auto_decompress=False,  # see content_encoding.py
        )
        self._server = server
        self._slow = slow
        self._most = limit
        self.excess = False
        self._answering = False
        self._limit: asyncio.TimerHandle | None = None
        self._unparsed = b""  # the rest of a long read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        held = len(self._server.connections)
        self.excess = held > self._most
        if self.excess:
            self._slow = min(self._slow, EXCESS_SECONDS)
        if held > 2 * self._most:
            self.force_close()
        else:
            self._start_limit()

    def log_exception(self, *args: Any, **more: Any) -> None:
        """Log an error of aiohttp's, except one about an unread body that contradicts its headers."""
        if isinstance(more.get("exc_info"), web.RequestPayloadError | PayloadEncodingError):
            log.debug("a body that was not read is broken: %s", more["exc_info"])
        else:
            super().log_exception(*args, **more)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_limit()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come. A long read is parsed in slices, one in each turn of the loop; until then no more is read."""
        if self._unparsed and data:
            self._unparsed += data
            if self.transport is not None:
                self.transport.pause_reading()  # which aiohttp may have ended
            return
        super().data_received(data[:SLICE])
        if not self._answering:
            self._start_limit()
        if len(data) > SLICE and self.transport is not None:
            self._unparsed = data[SLICE:]
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._parse_slice)

    def _parse_slice(self) -> None:
        data, self._unparsed = self._unparsed, b""
        if self.transport is None:  # lost meanwhile
            return
        self.data_received(data)
        if not self._unparsed and not self._reading_paused and not self._buffer_paused:
            self.transport.resume_reading()

    def begin_request(self) -> None:
        """Record that the head of a request is complete."""
        self._answering = True
        self._stop_limit()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write the rest of an answer; after that the next request may begin."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._answering = False

    def _start_limit(self) -> None:
        if self._limit is None:
            self._limit = asyncio.get_running_loop().call_later(self._slow, self._end)

    def _stop_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _end(self) -> None:
        self._limit = None
        if not self._answering:
            log.debug("the head of a request did not come within %s s", self._slow)
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status != 400:
            return super().handle_error(request, status, exc, message)
        why = " ".join((message or str(exc)).split())[:200]
        log.debug("no HTTP from %s: %s", request.remote, why)
        answer = error_response(bad_request(f"this is no HTTP ({why}); check the request line and the headers"))
        answer.force_close()  # the framing of further bytes is unknown
        return answer


class _Server(web.Server):
    """A server that uses our connection and request classes."""

    def __init__(self, made: web.Server, slow: float, max_body: int, limit: float) -> None:
        super().__init__(self._handle, request_factory=self._make, handler_cancellation=True)
        self._inner = made.request_handler
        self._slow = slow
        self._max_body = max_body
        self._most = limit
        self._factory = made.request_factory

    def __call__(self) -> _Connection:
        return _Connection(self, self._slow, self._most)

    def _make(
        self, message: RawRequestMessage, payload: StreamReader, protocol: web.RequestHandler, *rest: Any
    ) -> web.BaseRequest:
        if isinstance(protocol, _Connection):
            protocol.begin_request()
        message, expected = take_out(message)
        request = self._factory(message, payload, protocol, *rest)
        if expected:
            request[EXPECTED] = expected
        return request

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request. Errors that aiohttp raises before it has found a handler get our format.

        Probes are answered on any connection.
        """
        if isinstance(request.protocol, _Connection) and request.protocol.excess and request.path not in PUBLIC:
            return error_response(_too_many(self._most), error_form(request.path))
        try:
            return await self._inner(request)
        except web.HTTPException as error:
            refusal = from_http(error, request.method, request.path, self._max_body)
            return error_response(refusal, error_form(request.path))


def _too_many(limit: float) -> ApiError:
    error = ApiError(
        503,
        f"this process has {limit:g} connections, as many as it takes; try again, close idle ones, or raise max_connections",
        kind="server_error",
        retry_after=1.0,
    )
    error.headers["Connection"] = "close"
    return error


def most_connections(wanted: int) -> float:
    """Return the connection limit of this process: ``wanted`` (0: no limit), capped by its limit on open files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    able = math.inf if files == resource.RLIM_INFINITY else max(files - SPARE_FILES, files // 2)
    return min(wanted or math.inf, able)


class _Runner(web.AppRunner):
    """A runner that uses our connections. ``_make_server`` is private in aiohttp, which has no public hook for this."""

    async def _make_server(self) -> web.Server:
        settings = self.app[FRONT].settings
        limit = most_connections(settings.network.max_connections)
        return _Server(await super()._make_server(), settings.network.read_timeout, settings.requests.largest_body, limit)


def make_runner(app: web.Application) -> web.AppRunner:
    """Return a runner that cancels a handler when its client disconnects, even before anything was written."""
    return _Runner(app, shutdown_timeout=CLOSE_SECONDS)


async def open_site(site: web.BaseSite) -> None:
    """Start a site. One that is cancelled has opened first, so the runner's cleanup closes its socket.

    aiohttp learns of its server only after asyncio's last await: a cancel there would leave the socket open.
    """
    opening = asyncio.ensure_future(site.start())
    try:
        await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait([opening])
        raise


def tls(network: NetworkSettings) -> ssl.SSLContext | None:
    """Return the TLS context that the settings name, or None.

    Raise SettingsError for files that are not a certificate and its key.
    """
    if not network.tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        for file in (network.tls_cert, network.tls_key or network.tls_cert):
            os.close(open_plain(file))
        context.load_cert_chain(network.tls_cert, network.tls_key)
    except OSError as error:  # includes SSLError
        pair = f"{network.tls_cert} and {network.tls_key}"
        raise SettingsError(
            f"tls_cert and tls_key: {pair} cannot be used ({error.strerror or error}); give PEM files"
        ) from None
    return context

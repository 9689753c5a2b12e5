"""How the HTTP front listens: connections, runner, TLS and its certificate, the same in the head and in further gateway
processes.

Answers by itself only what is no HTTP at all, which no handler ever sees.
"""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import ssl
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError, PayloadEncodingError
from aiohttp.http_parser import RawRequestMessage

from ...actors.config import Settings, SettingsError
from ..errors import ApiError, bad_request, error_response, from_http
from .context import FRONT
from .expect import EXPECTED, take_out, unknown_encoding
from .health import PUBLIC

log = logging.getLogger(__name__)
IDLE = 10
LINGER = 10.0  # seconds for the rest of a body that nobody reads, so that the client reads the refusal
CLOSE_SECONDS = 2.0  # for answers that are being written when everything has ended
SPARE_FILES = 256  # open files of a process that connections leave to the rest of it
EXCESS_SECONDS = 1.0  # that a connection too many has to ask, so that its client reads the refusal


class _Connection(web.RequestHandler):
    """Bytes that are no HTTP are answered as everything else is. Who sends the head of a request too slowly is let go.

    slow: seconds from the beginning of the connection, or from the first byte of a further request, to the end of its head.
    A connection on which nothing is asked is closed after ``IDLE`` times as long: clients and proxies keep some for later.
    most: connections of this process; of those beyond, as many again are told so, and the others closed at once.
    """

    def __init__(self, manager: web.Server, slow: float, most: float) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # None means none
            keepalive_timeout=IDLE * slow,
            lingering_time=min(LINGER, slow),
        )
        self._slow, self._most = slow, most
        self.excess = False
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._manager is not None
        held = len(self._manager.connections)
        self.excess = held > self._most
        if self.excess:
            self._slow = min(self._slow, EXCESS_SECONDS)
        if held > 2 * self._most:
            self.force_close()
        else:
            self._watch()

    def log_exception(self, *args: Any, **more: Any) -> None:
        """Log an error of aiohttp's, but not that of a body which nobody reads and which is not what its headers say."""
        if isinstance(more.get("exc_info"), web.RequestPayloadError | PayloadEncodingError):
            log.debug("a body that was not read is broken: %s", more["exc_info"])
        else:
            super().log_exception(*args, **more)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._request_count
        super().data_received(data)
        if self._request_count > before:
            self._unwatch()
        elif self._idle():
            self._watch()

    def _idle(self) -> bool:
        """No request is being answered, nor its body read."""
        return self._waiter is not None

    def _watch(self) -> None:
        if self._late is None:
            self._late = self._loop.call_later(self._slow, self._end)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        self._late = None
        if self._idle():
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
        if isinstance(exc, ContentEncodingError):
            answer = error_response(unknown_encoding(request))
            answer.force_close()  # its body cannot be read
            return answer
        why = " ".join((message or str(exc)).split())[:200]
        log.debug("no HTTP from %s: %s", request.remote, why)
        answer = error_response(bad_request(f"this is no HTTP ({why}); check the request line and the headers"))
        answer.force_close()  # what follows in this connection is unknown
        return answer


class _Server(web.Server):
    def __init__(self, made: web.Server, slow: float, max_body: int, most: float) -> None:
        super().__init__(self._handle, request_factory=self._make, handler_cancellation=True)
        self._inner, self._slow, self._max_body, self._most = made.request_handler, slow, max_body, most
        self._factory = made.request_factory

    def __call__(self) -> _Connection:
        return _Connection(self, self._slow, self._most)

    def _make(self, message: RawRequestMessage, *rest: Any) -> web.BaseRequest:
        message, expected = take_out(message)
        request = self._factory(message, *rest)
        if expected:
            request[EXPECTED] = expected
        return request

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """What aiohttp raises before there is a handler to ask, as our own error. Probes are answered on any connection."""
        if isinstance(request.protocol, _Connection) and request.protocol.excess and request.path not in PUBLIC:
            return error_response(_too_many(self._most))
        try:
            return await self._inner(request)
        except web.HTTPException as error:
            return error_response(from_http(error, request.method, request.path, self._max_body))


def _too_many(most: float) -> ApiError:
    error = ApiError(
        503,
        f"this process has {most:g} connections, as many as it takes; try again, close idle ones, or raise max_connections",
        kind="server_error",
        retry_after=1.0,
    )
    error.headers["Connection"] = "close"
    return error


def most_connections(wanted: int) -> float:
    """Of this process: ``wanted`` (0: no limit), and what its open files allow."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    able = math.inf if files == resource.RLIM_INFINITY else max(files - SPARE_FILES, files // 2)
    return min(wanted or math.inf, able)


class _Runner(web.AppRunner):
    async def _make_server(self) -> web.Server:
        settings = self.app[FRONT].settings
        most = most_connections(settings.max_connections)
        return _Server(await super()._make_server(), settings.read_timeout, settings.largest_body, most)


def make_runner(app: web.Application) -> web.AppRunner:
    """Handlers are cancelled when their client goes, whether anything was written or not."""
    return _Runner(app, shutdown_timeout=CLOSE_SECONDS)


def tls(settings: Settings) -> ssl.SSLContext | None:
    """Raises SettingsError for files that are no certificate and its key."""
    if not settings.tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:  # SSLError is one
        pair = f"{settings.tls_cert} and {settings.tls_key}"
        raise SettingsError(
            f"tls_cert and tls_key: {pair} cannot be used ({error.strerror or error}); give PEM files"
        ) from None
    return context

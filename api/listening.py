"""How the HTTP front listens: connections, runner and certificate, the same in the head and in further gateway processes.

Answers by itself only what is no HTTP at all, which no handler ever sees.
"""

from __future__ import annotations

import asyncio
import logging
import ssl

from aiohttp import web

from blockwright.actors.config import Settings, SettingsError
from blockwright.api.errors import bad_request, error_response

log = logging.getLogger(__name__)
CLOSE_SECONDS = 2.0  # for answers that are being written when everything has ended


class _Connection(web.RequestHandler):
    """Bytes that are no HTTP are answered as everything else is."""

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
        answer.force_close()  # what follows in this connection is unknown
        return answer


class _Server(web.Server):
    def __call__(self) -> _Connection:
        return _Connection(self, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]  # None means none


class _Runner(web.AppRunner):
    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(made.request_handler, request_factory=made.request_factory, handler_cancellation=True)


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

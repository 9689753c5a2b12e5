"""How the HTTP front listens: runner and certificate, the same in the head and in further gateway processes."""

from __future__ import annotations

import ssl

from aiohttp import web

from blockwright.actors.config import Settings, SettingsError

CLOSE_SECONDS = 2.0  # for answers that are being written when everything has ended


def make_runner(app: web.Application) -> web.AppRunner:
    """Handlers are cancelled when their client goes, whether anything was written or not."""
    return web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=CLOSE_SECONDS)


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

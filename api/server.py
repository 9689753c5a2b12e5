"""The gateway process: listens, starts the cluster, prints what happens, and ends it in order.

HTTP comes first, so that liveness answers while blocks load. SIGTERM or SIGINT: not ready, finish what runs within
``drain_timeout``, close; a second SIGINT does not wait. Exit code 2 with one sentence where the cluster cannot be served.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop
from aiohttp import web

from blockwright.actors.config import Settings, SettingsError
from blockwright.actors.gateway.port import GatewayPort
from blockwright.actors.logs import set_up
from blockwright.api.app import make_app
from blockwright.api.front import FRONT
from blockwright.api.starting import Stages, StartingPort
from blockwright.api.startup import Herald, Running, Speaker
from blockwright.gpu.errors import CheckpointError

CLOSE_SECONDS = 2.0  # for answers that are being written when everything has ended


Start = Callable[[Settings], Awaitable[Running]]


def run(settings: Settings) -> int:
    """Serve until a signal; the exit code."""
    from blockwright.actors.topology import start

    set_up(settings.log_format, settings.log_level, "head")
    return uvloop.run(Server(settings, start).run())


def make_runner(app: web.Application) -> web.AppRunner:
    """Handlers are cancelled when their client goes, whether anything was written or not."""
    return web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=CLOSE_SECONDS)


class Server:
    """See the module. ``start`` brings up the cluster; ``say`` gets the lines for people."""

    def __init__(self, settings: Settings, start: Start, say: Callable[[str], None] | None = None) -> None:
        self._settings, self._start = settings, start
        self._speaker = Speaker(settings.log_format, Stages(), say)
        self._asked = asyncio.Event()  # to end
        self._hurry = asyncio.Event()  # to end now
        self.address = ""

    def stop(self) -> None:
        """End in order; what SIGTERM does."""
        self._asked.set()

    def interrupt(self) -> None:
        """What SIGINT does: as ``stop``, and the second time without waiting."""
        if self._asked.is_set():
            self._hurry.set()
        self._asked.set()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        loop.add_signal_handler(signal.SIGINT, self.interrupt)
        port = StartingPort()
        app = make_app(port, self._settings, stages=self._speaker.stages)
        runner = make_runner(app)
        await runner.setup()
        try:
            await self._listen(runner)
            return await self._serve(app, port)
        except (SettingsError, CheckpointError) as error:
            return self._speaker.fatal(error)
        finally:
            await runner.cleanup()
            loop.remove_signal_handler(signal.SIGTERM)
            loop.remove_signal_handler(signal.SIGINT)

    async def _listen(self, runner: web.AppRunner) -> None:
        host, port = self._settings.host, self._settings.port
        site = web.TCPSite(runner, host, port, ssl_context=_tls(self._settings))
        try:
            await site.start()
        except OSError as error:
            reason = error.strerror or error
            raise SettingsError(f"cannot listen on {host}:{port} ({reason}); choose another --host or --port") from None
        bound = runner.addresses[0]
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        self.address = f"{'https' if self._settings.tls_cert else 'http'}://{shown}:{bound[1]}"
        self._speaker.reach("listening", f"listening on {self.address}")
        if host not in ("127.0.0.1", "localhost", "::1") and not (self._settings.api_keys or self._settings.admin_keys):
            self._speaker.warn(f"{host} may be reached from other machines and no key is needed; see --api-key-file")

    async def _serve(self, app: web.Application, port: StartingPort) -> int:
        """The cluster's life; it is stopped whatever happens after it was started."""
        offset = self._speaker.stages.now()
        starting = asyncio.ensure_future(self._start(self._settings))
        if not await self._first(starting):
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return 0
        running = await starting
        try:
            port.become(running.port)
            self._speaker.reach("control plane up")
            herald = Herald(running, self._speaker, offset=offset, rows=self._settings.max_rows)
            following = asyncio.ensure_future(herald.follow())
            failed = asyncio.ensure_future(running.failed())
            ready: asyncio.Future[None] = asyncio.ensure_future(herald.announce(app[FRONT].catalog, self.address))
            try:
                while await self._first(failed, ready):
                    if failed.done():
                        return self._speaker.fatal(failed.result())
                    await ready
                    ready = asyncio.get_running_loop().create_future()  # announced: only failure or a signal is next
            finally:
                following.cancel()
                failed.cancel()
                ready.cancel()
            await self._drain(running.port)
            return 0
        finally:
            await running.stop()
            self._speaker.reach("stopped")

    async def _first(self, *tasks: asyncio.Future[Any]) -> bool:
        """Wait for one of the tasks or for the signal to end; False for the signal."""
        asked = asyncio.ensure_future(self._asked.wait())
        every: list[asyncio.Future[Any]] = [asked, *tasks]
        try:
            await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        return not self._asked.is_set()

    async def _drain(self, port: GatewayPort) -> None:
        self._speaker.reach("draining")
        drain: asyncio.Future[Any] = asyncio.ensure_future(port.drain(self._settings.drain_timeout))
        hurry: asyncio.Future[Any] = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait([drain, hurry], return_when=asyncio.FIRST_COMPLETED)
        finally:
            drain.cancel()
            hurry.cancel()


def _tls(settings: Settings) -> ssl.SSLContext | None:
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

"""The gateway process: listens, starts the cluster, prints what happens, and ends it in order.

HTTP comes first, so that liveness answers while blocks load. SIGTERM or SIGINT: not ready, finish what runs within
``drain_timeout``, close; a second SIGINT does not wait. Exit code 2 with one sentence where the cluster cannot be served.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import uvloop
from aiohttp import web

from blockwright.actors.config import Settings, SettingsError
from blockwright.actors.gateway.port import GatewayPort
from blockwright.actors.logs import set_up
from blockwright.api.app.application import make_app
from blockwright.api.http.context import DESK, FRONT, Front
from blockwright.api.http.listening import make_runner, tls
from blockwright.api.http.starting import Stages, StartingPort
from blockwright.api.serve.console import Herald, Running, Speaker
from blockwright.gpu.errors import CheckpointError

if TYPE_CHECKING:
    from blockwright.api.serve.gateways import Gateways

Start = Callable[[Settings], Awaitable[Running]]
MakeGateways = Callable[[Any, Front, Settings, int], "Gateways"]  # of what ``Start`` gave, and the port


def run(settings: Settings) -> int:
    """Serve until a signal; the exit code."""
    from blockwright.actors.topology import start
    from blockwright.api.serve.gateways import Gateways

    set_up(settings.log_format, settings.log_level, "head")
    return uvloop.run(Server(settings, start, gateways=Gateways).run())


class Server:
    """See the module. ``start`` brings up the cluster; ``say`` gets the lines for people.

    gateways: keeps further processes that answer HTTP; None: this one alone.
    """

    def __init__(
        self,
        settings: Settings,
        start: Start,
        say: Callable[[str], None] | None = None,
        gateways: MakeGateways | None = None,
    ) -> None:
        self._settings, self._start, self._make_gateways = settings, start, gateways
        self._speaker = Speaker(settings.log_format, Stages(), say)
        self._asked = asyncio.Event()  # to end
        self._hurry = asyncio.Event()  # to end now
        self.address, self.port = "", 0

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
        site = web.TCPSite(
            runner, host, port, ssl_context=tls(self._settings), reuse_port=self._settings.gateways > 1 or None
        )
        try:
            await site.start()
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
            raise SettingsError(f"cannot listen on {host}:{port} ({reason}); choose another --host or --port") from None
        bound = runner.addresses[0]
        self.port = int(bound[1])
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
        running, gateways = await starting, None
        try:
            port.become(running.port)
            app[FRONT].metrics.runtime = running.measures
            if self._make_gateways is not None:
                gateways = self._make_gateways(running, app[FRONT], self._settings, self.port)
                await gateways.start()
                app[DESK].append(gateways.desk)
            herald = Herald(running, self._speaker, offset=offset, rows=self._settings.max_rows)
            herald.show_stages()
            self._speaker.reach("control plane up")
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
            await self._drain(gateways or running.port)
            return 0
        finally:
            if gateways is not None:
                await gateways.stop()
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

    async def _drain(self, what: Gateways | GatewayPort) -> None:
        self._speaker.reach("draining")
        drain: asyncio.Future[Any] = asyncio.ensure_future(what.drain(self._settings.drain_timeout))
        hurry: asyncio.Future[Any] = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait([drain, hurry], return_when=asyncio.FIRST_COMPLETED)
        finally:
            drain.cancel()
            hurry.cancel()

"""The embedded cluster: ``async with Cluster(model) as c: await c.generate(...)``, or plain ``with``.

It starts the same controller, gateway and HTTP front as ``blockwright serve``, with workers as processes. But it listens
only on a socket in the cluster's private directory (and on a port if one is given). So an embedded cluster answers exactly
like the server. Nothing of it survives the end of the program, whatever ends it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...actors.settings.errors import SettingsError
from ..settings.options import make_settings
from .client import Session, open_http

if TYPE_CHECKING:
    from aiohttp import web

    from ...actors.topology import Running
    from ..http.auth import ApiCaller
    from ..http.context import Front
    from .blocking import BlockingSession

ALONE: dict[str, Any] = {"offline_sweep": 3600}  # settings of a cluster without other clients: no sweep is too long
SOCKET = "api.sock"  # name of the socket in the cluster's directory


class Cluster(Session):
    """A cluster inside a program (see the module).

    model: checkpoint folder or hub id. apps: further ones by model id. port: a port for other programs (0: any free one);
    None: no port. settings: settings of ``blockwright serve --show-settings``, by name. sets: the same as texts of
    ``--set``.

    Entering raises SettingsError, CheckpointError or StartError with one sentence.
    """

    closed = "the cluster is not running; use it inside 'async with', or await its start()"

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        apps: Mapping[str, str | os.PathLike[str]] | None = None,
        port: int | None = None,
        sets: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        super().__init__()
        named = [f"{name}={os.fspath(path)}" for name, path in (apps or {}).items()]
        self.settings = make_settings(
            os.fspath(model) if model is not None else None, apps=named, flags={**settings, "port": port or 0}, sets=sets
        )
        if (gateways := self.settings.network.gateways) > 1:
            raise SettingsError(f"gateways is {gateways}; a cluster inside a program has 1, use blockwright serve for more")
        if self.settings.offline.batch_dir:
            raise SettingsError(
                "batch_dir is set, but a cluster inside a program runs no batches; use blockwright serve, or batch run"
            )
        self._listens = port is not None
        self._starting = asyncio.Lock()
        self._running: Running | None = None
        self._runner: web.AppRunner | None = None
        self._blocking: BlockingSession | None = None
        self.url = ""  # address, if it listens

    async def start(self) -> None:
        """Return when every worker has loaded. A failed start is undone.

        A started cluster returns at once, for example if a notebook cell runs again.
        """
        async with self._starting:
            if self._http is not None:
                return
            try:
                await self._start()
            except BaseException:
                await self.stop()
                raise

    @property
    def front(self) -> Front:
        """The front that answers requests of this process, once the cluster has started."""
        from ..http.context import FRONT

        if self._runner is None:
            raise RuntimeError(self.closed)
        return self._runner.app[FRONT]

    @property
    def caller(self) -> ApiCaller:
        """The program's identity in its own cluster."""
        found = self.front.keys.caller(f"Bearer {self._key}")
        assert found is not None, "the key is of the cluster's own settings"
        return found

    @property
    def _key(self) -> str:
        return next(iter([*self.settings.network.admin_keys, *self.settings.network.api_keys]), "")

    async def _start(self) -> None:
        import aiohttp
        from aiohttp import web

        from ...actors.source_checks import with_models_of_origin
        from ...actors.topology import start
        from ..app.application import make_app
        from ..http.listening import make_runner, open_site, tls

        context = tls(self.settings.network)
        self.settings = await asyncio.to_thread(with_models_of_origin, self.settings)
        running = self._running = await start(self.settings)
        assert running.port is not None, "of a cluster without HTTP the gateway is here"
        self._runner = make_runner(make_app(running.port, self.settings))
        await self._runner.setup()
        path = os.path.join(running.launcher.directory, SOCKET)
        await open_site(web.UnixSite(self._runner, path))
        if self._listens:
            await self._listen(
                web.TCPSite(self._runner, self.settings.network.host, self.settings.network.port, ssl_context=context)
            )
        await running.ready(whole=True)
        await self.connect(open_http("http://localhost", self._key, aiohttp.UnixConnector(path, limit=0)))

    async def _listen(self, site: web.TCPSite) -> None:
        from ..http.listening import open_site

        settings = self.settings
        try:
            await open_site(site)
        except OSError as error:
            where = f"{settings.network.host}:{settings.network.port}"
            raise SettingsError(f"cannot listen on {where} ({error.strerror or error}); choose another port") from None
        assert self._runner is not None
        host, port = self._runner.addresses[-1][:2]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if settings.network.tls_cert else 'http'}://{shown}:{port}"

    async def stop(self) -> None:
        """Stop requests, workers, sockets. Idempotent."""
        await super().close()
        running, self._running = self._running, None
        runner, self._runner = self._runner, None
        try:
            if running is not None:
                await running.stop()
        finally:
            if runner is not None:
                await runner.cleanup()

    async def close(self) -> None:
        """Stop the cluster: no worker outlives its owner."""
        await self.stop()

    async def __aenter__(self) -> Cluster:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __enter__(self) -> BlockingSession:
        from .blocking import BlockingSession

        self._blocking = BlockingSession(self)
        return self._blocking.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._blocking is not None
        self._blocking.__exit__(kind, error, trace)

"""The head process: listens, starts the cluster, reports progress, and ends it in order (graceful shutdown).

HTTP comes first, so that liveness answers while blocks load. If every gateway is a process of its own, this process answers
only while none of them is up, to say so. SIGTERM or SIGINT: become not ready, finish running requests within
``drain_timeout``, close; a second SIGINT does not wait. If the cluster cannot be served, the exit code is 2, with one
sentence.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from aiohttp import web

from ...actors.app_roots import missing_roots
from ...actors.checkpoints import open_checkpoints
from ...actors.found_members import Succession
from ...actors.further_applications import check_places
from ...actors.logs import set_up
from ...actors.resources import cores
from ...actors.settings.errors import SettingsError
from ...actors.settings.settings import Settings
from ...actors.sizing import max_lengths
from ...actors.source_checks import with_models_of_origin
from ...actors.supervision_tree import in_head
from ...gpu.errors import CheckpointError
from ...gpu.weights.checkpoint import check_here
from ...gpu.weights.hub import HUB_ID, PROGRESS
from ...policies.cluster.head_succession import next_epoch
from ...runtime.base.ending import GRACE, end_within
from ...runtime.cluster.launcher import Launcher
from ...transport.address import tcp_parts
from ..app.application import make_app
from ..batches.folder import SERVER, FolderLock
from ..http.context import FRONT, PEER, Front
from ..http.listening import make_runner, open_site, tls
from ..http.relay import HttpRelay
from ..http.starting import Stages, StartingPort
from .console import Console, RunningCluster, StartupReporter
from .keeper import HandedOn

GATEWAY_PROCESS = "blockwright.api.serve.gateway_process:start"
FETCHING = "fetching weights"  # name of a stage
PATIENCE = 1.0  # seconds for another server to tell its models
# arguments: settings, the front of this process, the port
Start = Callable[[Settings, Front, int], Awaitable[RunningCluster]]


def run(settings: Settings, launcher: Launcher, warnings: Sequence[str] = (), given: HandedOn | None = None) -> int:
    """Serve until a signal, with workers from ``launcher``; return the exit code.

    ``warnings``: reported once it listens. ``given``: what the keeper hands on, if there is one.
    """
    from ...actors.topology import Http, start

    set_up(settings.logs.log_format, settings.logs.log_level, "head")
    again = given is not None and not given.first
    try:
        settings = _with_models(settings, given)
        preflight(settings, again=again)
    except (SettingsError, CheckpointError) as error:  # before the port is taken, or reported as taken
        return Console(settings.logs.log_format, Stages()).fatal(error)

    succession = _succession(given) if given is not None else None

    async def begin(chosen: Settings, front: Front, port: int) -> RunningCluster:
        relay = HttpRelay(chosen.network, port) if chosen.joining.listen else None
        http = Http(front, port, GATEWAY_PROCESS, front.batch_service, relay)
        if given is None or not chosen.joining.listen:
            return await start(chosen, http=http, launcher=launcher, succession=succession)
        running = await start(where_members_look(chosen, given), http=http, launcher=launcher, succession=succession)
        given.leave(joined_at=tcp_parts(running.cluster.node.endpoint)[1])
        return running

    async def serve() -> int:
        code = await Server(settings, begin, warnings=warnings, given=given).run()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it has ended: another SIGTERM changes no exit code
        end_within(GRACE, code)
        return code

    return uvloop.run(serve())


def _succession(given: HandedOn) -> Succession:
    """Return this head's place among those of the keeper, and leave the next one what it needs for its own."""
    epoch = next_epoch(time.time(), given.memo.get("epoch", 0))
    secret = given.memo.get("secret") or secrets.token_hex()
    given.leave(epoch=epoch, secret=secret)
    return Succession(epoch, bytes.fromhex(secret), given.first, f"{__name__}:run", given.keeper)


def where_members_look(settings: Settings, given: HandedOn) -> Settings:
    """Return the settings with the port at which the head before listened for members, who know no other."""
    port = given.memo.get("joined_at")
    if port is None:
        return settings
    listen = f"{settings.joining.listen.rpartition(':')[0]}:{port}"
    return replace(settings, joining=replace(settings.joining, listen=listen))


class Server:
    """The server (see the module).

    ``start``: starts the cluster. ``say``: receives the console lines. ``warnings``: reported first. ``given``: what the
    keeper hands on, if there is one.
    """

    def __init__(
        self,
        settings: Settings,
        start: Start,
        say: Callable[[str], None] | None = None,
        *,
        warnings: Sequence[str] = (),
        given: HandedOn | None = None,
    ) -> None:
        self._settings = settings
        self._given = given
        self._start = start
        self._warnings = warnings
        self._stands_in = not in_head(settings.network, cores())
        self._shared = self._stands_in or settings.network.gateways > 1  # the port is shared with other processes
        self._site: web.TCPSite | None = None  # set while this process listens
        self._console = Console(settings.logs.log_format, Stages(), say)
        self._asked = asyncio.Event()  # a request to end
        self._hurry = asyncio.Event()  # a request to end without waiting
        self.address, self.port = "", 0

    def stop(self) -> None:
        """End in order, as SIGTERM does."""
        self._asked.set()

    def interrupt(self) -> None:
        """End as SIGINT does: like ``stop``, and the second time without waiting."""
        if self._asked.is_set():
            self._hurry.set()
        self._asked.set()

    async def run(self) -> int:
        """Serve until a signal; return the exit code. Signals are taken until the loop closes."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        loop.add_signal_handler(signal.SIGINT, self.interrupt)
        port = StartingPort()
        try:
            app = make_app(port, self._settings, stages=self._console.stages)
        except SettingsError as error:
            return self._console.fatal(error)
        if self._stands_in:
            app.on_response_prepare.append(_last)
        runner = make_runner(app)
        await runner.setup()
        lock: FolderLock | None = None
        try:
            lock = _claimed(self._settings.offline.batch_dir)
            await self._listen(runner)
            return await self._serve(app, runner, port)
        except (SettingsError, CheckpointError) as error:
            return self._console.fatal(error)
        finally:
            await runner.cleanup()
            if lock is not None:
                lock.release()

    async def _open(self, runner: web.AppRunner, port: int, *, shared: bool) -> None:
        site = web.TCPSite(
            runner, self._settings.network.host, port, ssl_context=tls(self._settings.network), reuse_port=shared or None
        )
        await open_site(site)
        self._site = site

    async def _close(self) -> None:
        if self._site is not None:
            await self._site.stop()
            self._site = None

    async def _listen(self, runner: web.AppRunner) -> None:
        host, port = self._settings.network.host, self._settings.network.port
        if self._given is not None and (known := self._given.memo.get("port")):
            await self._listen_again(runner, known, self._given.memo["address"])
            return
        try:
            # not shared at first, so that another server's port is not shared by mistake
            await self._open(runner, port, shared=False)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
            if error.errno == errno.EADDRINUSE and (models := await served_there(host, port)):
                reason += f": a blockwright serves {', '.join(models[:3])}{' and others' * (len(models) > 3)} there"
            raise SettingsError(f"cannot listen on {host}:{port} ({reason}); choose another --host or --port") from None
        bound = runner.addresses[0]
        self.port = int(bound[1])
        if self._shared:
            await self._close()
            await self._open(runner, self.port, shared=True)
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        self.address = f"{'https' if self._settings.network.tls_cert else 'http'}://{shown}:{bound[1]}"
        self._console.reach("listening", f"listening on {self.address}")
        if self._given is not None:
            self._given.leave(port=self.port, address=self.address)
        self._warn_first(host)

    async def _listen_again(self, runner: web.AppRunner, port: int, address: str) -> None:
        """Take the place of an earlier head, whose gateways may listen."""
        self.port, self.address = port, address
        if not self._stands_in:
            await self._open(runner, port, shared=self._shared)
        self._console.reach("listening", f"listening on {address}, in place of a head that has ended")

    def _warn_first(self, host: str) -> None:
        if host not in ("127.0.0.1", "localhost", "::1") and not (
            self._settings.network.api_keys or self._settings.network.admin_keys
        ):
            self._console.warn(f"{host} may be reached from other machines and no key is needed; see --api-key-file")
        for warning in self._warnings:
            self._console.warn(warning)
        for root in missing_roots(self._settings.models.app_roots):
            self._console.warn(f"app_roots: there is no folder {root}; until there is, nothing can be added from it")
        if self._settings.models.app_roots and self._settings.network.api_keys and not self._settings.network.admin_keys:
            self._console.warn("every API key may add, replace and remove all models; name operators' keys in admin_keys")

    async def _stand_in(self, running: RunningCluster, runner: web.AppRunner) -> None:
        """Listen while no gateway does, and answer that there is none, closing each connection after that. Never returns."""
        if self._site is None and not running.answering.value:  # no gateway has outlived the head before
            await self._open(runner, self.port, shared=True)
        while True:
            await running.answering.until(bool)
            await self._close()
            await running.answering.until(lambda names: not names)
            await self._open(runner, self.port, shared=True)

    async def _serve(self, app: web.Application, runner: web.AppRunner, port: StartingPort) -> int:
        """Run the cluster. Once started, it is stopped in any case."""
        offset = self._console.stages.now()
        loop = asyncio.get_running_loop()

        def show(sentence: str) -> None:
            loop.call_soon_threadsafe(self._fetching, sentence)

        PROGRESS.set(show)
        for source in self._settings.models.applications.values():
            if of_the_hub(source):
                self._fetching(f"asking the hub for {source}")  # the hub may answer late or never
        starting = asyncio.ensure_future(self._start(self._settings, app[FRONT], self.port))
        if not await self._first(starting):
            fetching = any(name == FETCHING for name, _ in self._console.stages.reached)
            kept = "; what the hub has sent stays in its cache" if fetching else ""
            self._console.note(f"stopped while starting: no request was taken{kept}")
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return 0
        running = await starting
        following: list[asyncio.Future[Any]] = []
        try:
            app[FRONT].metrics.runtime = running.measures
            app[PEER].append(running.peer)
            if running.port is not None:
                port.become(running.port)
            else:
                port.reason = "no gateway is up, one is being started"
                following.append(asyncio.ensure_future(self._stand_in(running, runner)))
            rows, named = self._settings.batching.max_rows, self._settings.models.applications.keys()
            logged = self._settings.logs.log_level in ("debug", "info")
            herald = StartupReporter(running, self._console, offset=offset, rows=rows, named=named, logged=logged)
            herald.show_stages()
            self._console.reach("control plane up")
            if self._given is not None:
                following.append(asyncio.ensure_future(_beat(self._given, self._settings.faults.heartbeat)))
            following.append(asyncio.ensure_future(herald.follow()))
            failed = asyncio.ensure_future(running.failed())
            ready: asyncio.Future[None] = asyncio.ensure_future(herald.announce(app[FRONT].catalog, self.address))
            try:
                while await self._first(failed, ready):
                    if failed.done():
                        return self._console.fatal(failed.result())
                    await ready
                    ready = asyncio.get_running_loop().create_future()  # announced: only a failure or a signal can follow
            finally:
                failed.cancel()
                ready.cancel()
            alone = running.port is not None and self._settings.network.gateways == 1
            await self._drain(running, app[FRONT].metrics.active if alone else None)
            return 0
        finally:
            for task in following:
                task.cancel()
            await running.stop()
            self._console.reach("stopped")

    def _fetching(self, sentence: str) -> None:
        """Report the progress of a fetch from the hub."""
        if all(name != FETCHING for name, _ in self._console.stages.reached):
            self._console.reach(FETCHING, sentence)
        else:
            self._console.note(sentence)

    async def _first(self, *tasks: asyncio.Future[Any]) -> bool:
        """Wait for one of the tasks or for the signal to end; return False for the signal."""
        asked = asyncio.ensure_future(self._asked.wait())
        every: list[asyncio.Future[Any]] = [asked, *tasks]
        try:
            await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        return not self._asked.is_set()

    async def _drain(self, what: RunningCluster, active: int | None) -> None:
        """Drain the cluster. ``active``: number of requests in progress, if this process knows it."""
        runs = "running requests" if active is None else f"{active} request{'s' * (active != 1)}"
        said = f"waiting up to {self._settings.faults.drain_timeout:g} s for {runs} to finish; Ctrl-C again stops at once"
        if active == 0:
            ready = any(name == "ready" for name, _ in self._console.stages.reached)
            said = "no request is running" if ready else "models were still loading, and no request is running"
        self._console.reach("draining", f"draining: {said}")
        drain: asyncio.Future[Any] = asyncio.ensure_future(what.drain(self._settings.faults.drain_timeout))
        hurry: asyncio.Future[Any] = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait([drain, hurry], return_when=asyncio.FIRST_COMPLETED)
        finally:
            drain.cancel()
            hurry.cancel()


async def _beat(given: HandedOn, interval: float) -> None:
    """Tell the keeper that this loop turns. Never returns."""
    while True:
        given.beat()
        await asyncio.sleep(interval)


async def _last(request: web.Request, response: web.StreamResponse) -> None:
    """Close the connection after an answer: the next request belongs to a gateway, which another connection reaches."""
    response.headers["Connection"] = "close"
    response.force_close()


def _claimed(batch_dir: str) -> FolderLock | None:
    """Claim the folder of batches for this server; raise SettingsError if another server has it.

    A second server might run batches that name models it does not have.
    """
    if not batch_dir:
        return None
    lock = FolderLock(Path(batch_dir).expanduser(), SERVER)
    try:
        claimed = lock.claim()
    except OSError as error:
        raise SettingsError(f"batch_dir: {batch_dir} cannot be locked ({error}); name another folder") from None
    if not claimed:
        message = f"batch_dir: {batch_dir} is in use by another server (process {lock.holder or 'unknown'})"
        raise SettingsError(f"{message}; stop that one, or name another folder")
    return lock


def _with_models(settings: Settings, given: HandedOn | None) -> Settings:
    """Return the settings with folders for models of the origin; later heads use the ones that the first has found."""
    before = given.memo.get("mirrors", {}) if given is not None else {}
    found = with_models_of_origin(settings, before)
    if given is not None and found is not settings:
        given.leave(mirrors=found.models.applications)
    return found


def preflight(settings: Settings, *, again: bool = False) -> None:
    """Check the models, and the places that settings name; raise SettingsError, CheckpointError.

    Checkpoints on the hub are unknown at this point. ``again``: an earlier head has served this.
    """
    check_places(settings.models)
    for source in settings.models.applications.values():
        check_here(source)
    if not any(map(of_the_hub, settings.models.applications.values())):
        opened = open_checkpoints(settings, again=again).checkpoints
        max_lengths(settings.requests, {name: one.config for name, one in opened.items()})


def of_the_hub(source: str) -> bool:
    return HUB_ID.fullmatch(source) is not None and not Path(source).exists()


async def served_there(host: str, port: int) -> list[str]:
    """Return the model ids of the blockwright server that has taken a port.

    The list is empty if it is another server, needs a key, or is silent.
    """
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1/models"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as http,
            http.get(url, allow_redirects=False) as answer,
        ):
            body = await answer.json()
        return [str(model["id"]) for model in body["data"] if model["owned_by"] == "blockwright"]
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError):  # the answer of any other server
        return []

"""The life of a gateway that joins a server on another machine: it listens, joins, answers, and drains when asked to end.

It runs what the server's own gateway processes run (``gateway_process.py``). Its starter starts it again, not the head.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from ...actors.gateway.admission import JoinedGatewayConfig
from ...actors.gateway.fetched_files import FetchedFiles, FetchError, private_folder
from ...actors.gateway.front_files import OF_SETTINGS, TURNS
from ...actors.gateway.peers import GatewayConfig
from ...actors.gateway.port import GatewayPlace
from ...actors.logs import set_up
from ...actors.member_calls import HeadLost, JoinRefused, enlist_gateway
from ...actors.settings.errors import SettingsError
from ...actors.settings.settings import Settings
from ...actors.supervision_tree import HEAD
from ...runtime.base.errors import RuntimeFault
from ...runtime.cluster.join_text import GATEWAY
from ...runtime.cluster.joining import enter
from ...runtime.node.node import Node
from ...runtime.node.stall_watch import StallWatch
from ..http.context import Front
from ..http.listening import tls
from ..http.relay import FarServer
from .gateway_process import address_of, answer

log = logging.getLogger(__name__)
STALL = 1.0  # seconds without a turn of the loop after which the cause is logged
LOOPBACK = ("127.0.0.1", "::1")
BACKLOG = 1024  # connections that wait to be accepted


@dataclass(frozen=True, slots=True)
class GatewayStarting:
    """The values that its starter gives a gateway.

    text: the join text. name: of the gateway, or empty. listen: where members reach it, or empty. host, port: where it
    answers HTTP. labels: shown to people.
    """

    text: str
    name: str = ""
    listen: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    labels: dict[str, str] = field(default_factory=dict)


async def serve(given: GatewayStarting, say: Callable[[str], None]) -> bool:
    """Be a gateway until the cluster or a signal ends it; return whether a signal asked for the end.

    The first SIGTERM or SIGINT closes the listener and lets running requests end, the second ends it at once. Raises
    JoinRefused, SettingsError, TransportError.
    """
    with private_folder() as folder, bound(given.host, given.port) as listener:
        node = await enter(given.text, GATEWAY, name=given.name, listen=given.listen)
        loop = asyncio.get_running_loop()
        watch = StallWatch(node.actors.instances.values, STALL, lambda sentence: log.warning("%s", sentence), lambda: None)
        ending = _GatewayEnding(node, say)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ending.asked, number.name)
        try:
            await _while_open(node, _begin(node, given, listener, folder, ending, say))
            await node.closed.wait()
            say(f"gateway {node.id} leaves: {node.farewell}")
            return ending.requested
        finally:
            watch.close()
            ending.stop()
            await node.stop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


async def _while_open(node: Node, work: Any) -> None:
    """Do the work of the start until it is done, or the node is closed. Raises what it raises."""
    starting, closed = asyncio.ensure_future(work), asyncio.ensure_future(node.closed.wait())
    try:
        await asyncio.wait((starting, closed), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
    except RuntimeFault as error:
        raise HeadLost(f"the head was lost while the gateway started: {error}") from None
    finally:
        closed.cancel()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


async def _begin(
    node: Node,
    given: GatewayStarting,
    listener: socket.socket,
    folder: Path,
    ending: _GatewayEnding,
    say: Callable[[str], None],
) -> None:
    joined = await enlist_gateway(node, given.labels)
    files = FetchedFiles(node, folder)
    config = await own_config(joined, files, given)
    set_up(config.settings.logs.log_format, config.settings.logs.log_level, node.name)
    context = tls(config.settings.network)
    host, port = listener.getsockname()[:2]
    address = address_of(host, port, https=context is not None)
    place = GatewayPlace(socket.gethostname(), os.getpid(), address, given.labels, joined=True)
    front, site = await answer(
        node,
        config,
        lambda runner: web.SockSite(runner, listener, ssl_context=context, backlog=BACKLOG),
        far=FarServer(files, node.ref(f"{HEAD}/peer"), bool(joined.gateway.settings.offline.batch_dir)),
        place=place,
    )
    ending.front, ending.site = front, site
    node.peering.announce_ready()
    if joined.gateway.settings.tagging.request_log:
        say("note: request_log is not written by gateways that joined; those of the server write theirs")
    network = config.settings.network
    if host not in LOOPBACK and not (network.api_keys or network.admin_keys):
        say(f"note: {host} may be reached from other machines and no key is needed; see serve --api-key-file")
    say(f"gateway {node.id} of {node.head} is ready at {address}")


async def own_config(joined: JoinedGatewayConfig, files: FetchedFiles, given: GatewayStarting) -> GatewayConfig:
    """Return the configuration with what is another on this machine: address, files, folders. Raises JoinRefused."""
    settings = joined.gateway.settings
    turns: dict[str, str] = {}
    changes: dict[str, Any] = {}
    for name, hash in joined.files.items():
        try:
            path = str(await files.setting(name, hash))
        except FetchError as error:
            raise JoinRefused(f"{name}: {error}") from None
        if name in OF_SETTINGS:
            changes[name] = path
        else:
            turns[name.removeprefix(TURNS)] = path
    own: Settings = settings.changed(
        **changes, turns=turns, host=given.host, port=given.port, batch_dir="", request_log="", directory=""
    )
    return replace(joined.gateway, settings=own)


def bound(host: str, port: int) -> socket.socket:
    """Return a socket of that address, which nothing shares. Raises SettingsError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(*found[:3])
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if made.family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(found[4])
            made.listen(BACKLOG)
        except BaseException:
            made.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingsError(f"cannot listen on {host}:{port} ({reason}); choose another --host or --port") from None
    return made


class _GatewayEnding:
    """The answer to signals. front, site: set once there is something to drain."""

    def __init__(self, node: Node, say: Callable[[str], None]) -> None:
        self._node = node
        self._say = say
        self._draining: asyncio.Task[None] | None = None
        self.front: Front | None = None
        self.site: web.BaseSite | None = None
        self.requested = False

    def asked(self, name: str) -> None:
        if self.requested or self.front is None or self.site is None:
            self.requested = True
            self._node.close(f"{name} was received")
            return
        self.requested = True
        self._draining = asyncio.ensure_future(self._drain(self.front, self.site, name))

    async def _drain(self, front: Front, site: web.BaseSite, name: str) -> None:
        seconds = front.settings.faults.drain_timeout
        try:
            await site.stop()
            self._say(f"gateway {self._node.id} takes no more requests; running ones have {seconds:g} s to end")
            await front.drain(seconds)
        finally:
            self._node.close(f"{name} was received")

    def stop(self) -> None:
        if self._draining is not None:
            self._draining.cancel()

"""A further process that answers HTTP on the cluster's port: the entry of a gateway's node.

It has a gateway actor and a desk of its own; the kernel spreads connections over all that listen (SO_REUSEPORT). Loads no
torch. Knows of workers and routes what the controller tells it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiohttp import web

from blockwright.actors.config import Settings
from blockwright.actors.controller.actor import Controller
from blockwright.actors.gateway.actor import MAILBOX, Gateway
from blockwright.actors.gateway.port import ModelInfo
from blockwright.actors.logs import set_up
from blockwright.actors.topology import HEAD, gateway_state
from blockwright.api.app.application import make_app
from blockwright.api.http.context import DESK, FRONT
from blockwright.api.http.listening import make_runner, tls
from blockwright.api.serve.gateway_peer import Desk
from blockwright.runtime.node.node import Node


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """``port``: the one that the head listens on; ``others``: nodes of the other fronts."""

    settings: Settings
    models: list[ModelInfo]
    port: int
    others: list[str]
    limiter: str


async def start(node: Node, config: GatewayConfig) -> None:
    """Listen and serve until the node ends; the desk, spawned last, stops first and closes the listener."""
    settings = config.settings
    set_up(settings.log_format, settings.log_level, node.name)

    async def cluster() -> dict[str, Any]:
        view: dict[str, Any] = await node.ref(f"{HEAD}/controller", Controller).cluster()
        return view

    gateway = Gateway(
        gateway_state(settings, config.models),
        name=node.name,
        cluster=cluster,
        limiter=config.limiter,
        others=config.others,
    )
    await node.spawn(gateway, name="gateway", mailbox=MAILBOX)
    app = make_app(gateway, settings)
    runner = make_runner(app)
    await runner.setup()
    desk = Desk(app[FRONT], config.others, runner.cleanup)
    await node.spawn(desk, name="desk")
    app[DESK].append(desk)
    site = web.TCPSite(runner, settings.host, config.port, ssl_context=tls(settings), reuse_port=True)
    await site.start()

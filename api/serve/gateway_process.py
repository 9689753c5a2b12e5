"""The entry of a gateway's node: a process that answers HTTP on the cluster's port.

It has its own gateway actor and peer; the kernel distributes connections over all listening processes (SO_REUSEPORT). It
does not load torch. The controller tells it about workers and routes.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from ...actors.gateway.peers import GatewayConfig, GatewayPeer
from ...actors.gateway.port import GatewayPlace
from ...actors.logs import set_up
from ...actors.supervision_tree import inside_gateway
from ...actors.topology import make_gateway
from ...runtime.node.node import Node
from ...runtime.tree import start_inside
from ..app.application import make_app
from ..http.context import FRONT, PEER, Front
from ..http.listening import make_runner, open_site, tls
from ..http.relay import FarServer
from ..http.starting import Stages

MakeSite = Callable[[web.AppRunner], web.BaseSite]


async def start(node: Node, config: GatewayConfig) -> None:
    """Listen and serve until the node ends. The peer, started last, stops first and closes the listener."""
    network = config.settings.network
    set_up(config.settings.logs.log_format, config.settings.logs.log_level, node.name)
    context = tls(network)
    await answer(
        node, config, lambda runner: web.TCPSite(runner, network.host, config.port, ssl_context=context, reuse_port=True)
    )


async def answer(
    node: Node,
    config: GatewayConfig,
    make_site: MakeSite,
    *,
    far: FarServer | None = None,
    place: GatewayPlace | None = None,
) -> tuple[Front, web.BaseSite]:
    """Start the actors of a gateway, and listen; return the front and where it listens.

    far: the server, if it is on another machine. place: where it is, for people; None: as this process says.
    """
    settings, stages = config.settings, Stages()
    gateway = make_gateway(settings, config.models, node.name, config.limiter, config.others, place)
    app = make_app(gateway, settings, stages=stages, far=far)
    front = app[FRONT]
    front.metrics.runtime = node.metrics
    runner = make_runner(app)
    await runner.setup()
    peer = GatewayPeer(front, config.fronts, runner.cleanup)
    inside = inside_gateway(batches=front.batch_service is not None)
    await start_inside(node, inside, {"gateway": gateway, "peer": peer, "batches": (front.batch_service,)})
    app[PEER].append(peer.ref)
    site = make_site(runner)
    await open_site(site)
    stages.reach("listening")
    front.catalog.begin()
    return front, site


def address_of(host: str, port: int, *, https: bool) -> str:
    """Return the address of a listener, as clients write it."""
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if https else 'http'}://{shown}:{port}"

"""The entry of a gateway's node: a process that answers HTTP on the cluster's port.

It has its own gateway actor and peer; the kernel distributes connections over all listening processes (SO_REUSEPORT). It
does not load torch. The controller tells it about workers and routes.
"""

from __future__ import annotations

from aiohttp import web

from ...actors.gateway.peers import GatewayConfig, GatewayPeer
from ...actors.logs import set_up
from ...actors.supervision_tree import inside_gateway
from ...actors.topology import make_gateway
from ...runtime.node.node import Node
from ...runtime.tree import start_inside
from ..app.application import make_app
from ..http.context import FRONT, PEER
from ..http.listening import make_runner, open_site, tls
from ..http.starting import Stages


async def start(node: Node, config: GatewayConfig) -> None:
    """Listen and serve until the node ends. The peer, started last, stops first and closes the listener."""
    settings, stages = config.settings, Stages()
    set_up(settings.logs.log_format, settings.logs.log_level, node.name)
    gateway = make_gateway(settings, config.models, node.name, config.limiter, config.others)
    app = make_app(gateway, settings, stages=stages)
    front = app[FRONT]
    front.metrics.runtime = node.metrics
    runner = make_runner(app)
    await runner.setup()
    peer = GatewayPeer(front, config.fronts, runner.cleanup)
    inside = inside_gateway(batches=front.batch_service is not None)
    await start_inside(node, inside, {"gateway": gateway, "peer": peer, "batches": (front.batch_service,)})
    app[PEER].append(peer.ref)
    context = tls(settings.network)
    await open_site(web.TCPSite(runner, settings.network.host, config.port, ssl_context=context, reuse_port=True))
    stages.reach("listening")
    front.catalog.begin()
